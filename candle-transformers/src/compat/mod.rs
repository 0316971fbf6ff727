//! Layers and weights by upstream's names, for models written for upstream; the models of this crate use [`blocks`](crate::blocks).
//! Re-exported at upstream's paths.

pub mod phi3;
pub mod quantized_nn;
pub mod quantized_qwen3;
pub mod quantized_smollm3;
pub mod quantized_var_builder;
pub mod with_tracing;
