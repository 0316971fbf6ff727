//! The model families.

pub mod bert;
pub mod llama;
pub mod quantized_llama;
pub mod quantized_qwen2;
pub mod qwen2;
pub mod qwen3;
mod shared;

// Upstream's path.
pub use crate::compat::with_tracing;
