//! The model families.

pub mod bert;
pub mod bigcode;
pub mod chatglm;
pub mod codegeex4_9b;
pub mod falcon;
pub mod gemma;
pub mod gemma2;
pub mod gemma3;
pub mod glm4;
pub mod granite;
pub mod granitemoehybrid;
pub mod helium;
pub mod llama;
pub mod llama2_c;
pub mod llama2_c_weights;
pub mod mistral;
pub mod mixformer;
pub mod mixtral;
pub mod mpt;
pub mod olmo;
pub mod olmo2;
pub mod persimmon;
pub mod phi;
pub mod phi3;
pub mod quantized_llama;
pub mod quantized_llama2_c;
pub mod quantized_mistral;
pub mod quantized_mixformer;
pub mod quantized_mpt;
pub mod quantized_qwen2;
pub mod quantized_qwen3;
pub mod quantized_qwen3_moe;
pub mod quantized_stable_lm;
pub mod qwen2;
pub mod qwen2_moe;
pub mod qwen3;
pub mod qwen3_moe;
mod shared;
pub mod smol;
pub mod stable_lm;
pub mod starcoder2;
pub mod yi;

// Upstream's path.
pub use crate::compat::with_tracing;
