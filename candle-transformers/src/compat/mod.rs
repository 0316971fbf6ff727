//! Quantised layers and weights by upstream's names, for models written for upstream; the models of this crate use [`blocks`](crate::blocks).
//! Re-exported at upstream's paths.

pub mod quantized_nn;
pub mod quantized_var_builder;
pub mod with_tracing;
