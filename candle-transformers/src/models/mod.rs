//! The model families.

pub mod bert;
pub mod bigcode;
pub mod chatglm;
pub mod codegeex4_9b;
pub mod falcon;
pub mod glm4;
pub mod granitemoehybrid;
pub mod llama;
pub mod mixformer;
pub mod mixtral;
pub mod mpt;
pub mod persimmon;
pub mod phi;
pub mod quantized_llama;
pub mod quantized_mixformer;
pub mod quantized_mpt;
pub mod quantized_qwen2;
pub mod quantized_qwen3;
pub mod quantized_qwen3_moe;
pub mod qwen2;
pub mod qwen2_moe;
pub mod qwen3;
pub mod qwen3_moe;
mod shared;
pub mod starcoder2;

// Upstream's path.
pub use crate::compat::with_tracing;
