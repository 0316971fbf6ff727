//! The model families.

pub mod bert;
pub mod llama;
pub mod quantized_llama;
pub mod with_tracing;
