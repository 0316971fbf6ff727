//! The model families.

pub mod bert;
pub mod llama;
pub mod quantized_llama;

// Upstream's path.
pub use crate::compat::with_tracing;
