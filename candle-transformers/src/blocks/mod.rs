//! Parts that model families share, each with a small configuration.
//!
//! They are laid out for few kernel launches per layer: projections over one input are one matmul ([`MergedLinear`]),
//! heads are split by views, and the fused ops of `candle_nn` take those views as they are. Weights are dense or quantised
//! ([`Projection`], [`TokenEmbedding`]); everything else is the same for both.

mod attention;
mod decoder;
mod kv;
mod merged_linear;
mod mlp;
mod moe;
mod projection;
mod residual;
mod rotary;

pub use attention::{AttentionConfig, CausalSelfAttention};
pub use decoder::{DecoderConfig, DecoderLayer, FeedForward};
pub use kv::GrowingKvCache;
pub use merged_linear::MergedLinear;
pub use mlp::GatedMlp;
pub use moe::SparseMoe;
pub use projection::{place, place_dense, Projection, StoredLinear, TokenEmbedding};
pub use residual::Residual;
pub use rotary::{inverse_frequencies, RotaryPairs, RotaryTables};
