//! The model families.

pub mod bert;
pub mod granitemoehybrid;
pub mod llama;
pub mod mixtral;
pub mod quantized_llama;
pub mod quantized_qwen2;
pub mod quantized_qwen3;
pub mod quantized_qwen3_moe;
pub mod qwen2;
pub mod qwen2_moe;
pub mod qwen3;
pub mod qwen3_moe;
mod shared;

// Upstream's path.
pub use crate::compat::with_tracing;
