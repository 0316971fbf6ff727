//! Parts that model families share, each with a small configuration of its own.
//!
//! They are laid out for few kernel launches per layer: projections over one input are one matmul ([`MergedLinear`]),
//! heads are split by views, and the fused ops of `candle_nn` take those views as they are.

mod attention;
mod decoder;
mod kv;
mod merged_linear;
mod mlp;
mod rotary;

pub use attention::{AttentionConfig, CausalSelfAttention};
pub use decoder::{DecoderConfig, DecoderLayer, Residual};
pub use kv::GrowingKvCache;
pub use merged_linear::MergedLinear;
pub use mlp::GatedMlp;
pub use rotary::{inverse_frequencies, RotaryTables};
