//! Parts that model families share, each with a small configuration.
//!
//! They are laid out for few kernel launches per layer: projections over one input are one matmul ([`MergedLinear`]),
//! heads are split by views, and the fused ops of `candle_nn` take those views as they are. Weights are dense or quantised
//! ([`Projection`], [`TokenEmbedding`]); everything else is the same for both.

mod attention;
mod cache;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub(crate) mod codebooks;
#[cfg(any(feature = "sound", not(feature = "subset")))]
pub(crate) mod codec;
mod decoder;
mod delta;
#[cfg(any(feature = "diffusion", not(feature = "subset")))]
pub(crate) mod diffusion;
pub(crate) mod encoder;
mod experts;
pub(crate) mod family;
mod feed_forward;
mod latent;
mod norm;
mod paged;
pub(crate) mod recurrence;
mod recurrent;
mod residual;
mod rotary;
mod row_states;
#[cfg(any(feature = "language", feature = "whisper", not(feature = "subset")))]
pub(crate) mod seq2seq;
mod short_conv;
mod state_space;
pub(crate) mod vision;
mod weights;

pub use attention::{Attention, AttentionSpec, QkNorm};
pub use cache::{GrowingKvCache, Part, Row, Rows};
pub(crate) use decoder::check_layers;
pub(crate) use decoder::keys_that_count;
pub use decoder::{
    layers, CachedLm, CausalLm, Decoder, DecoderConfig, DecoderPart, DecoderSpec, DecoderState,
    GgufFamily, GgufLm, Head, Hidden, HiddenLm, Layer, LayerSpec, LayerState, Lm, Mixer, MixerSpec,
    NextLm, Offload, Placement, QueryGrowth, Reread, RotaryRows, Sees, SequenceCache, Step,
    Vectors, Wiring,
};
pub use delta::{Delta, DeltaForm, DeltaSpec};
pub use experts::{ExpertsSpec, Groups, JoinedExperts, Routing, Scoring, SharedSpec, SparseMoe};
pub(crate) use feed_forward::linear;
pub use feed_forward::{FeedForward, FeedForwardSpec, GatedMlp, MlpSpec, PlainMlp, PlainSpec};
pub use latent::{Latent, LatentSpec};
pub use norm::{Norm, NormKind, NormSpec};
pub use paged::PageRows;
pub use recurrent::{Recurrent, RecurrentKind, RecurrentSpec, RecurrentState};
pub use residual::Residual;
pub(crate) use rotary::cos_sin;
pub use rotary::{
    inverse_frequencies, Axes, Dynamic, Position, RopeScaling, Rotary, RotaryPairs, RotaryTables,
};
pub use row_states::{MixerState, RowStates};
pub use short_conv::{ShortConv, ShortConvSpec};
pub use state_space::{StateSpace, StateSpaceHeads, StateSpaceNorm, StateSpaceSpec};
pub use weights::{
    at_once, place, place_dense, Blocks, Cut, Dense, GgufMetadata, GgufReader, LinearSpec, LowRank,
    MergedLinear, Names, Order, Projection, Quantized, Reading, Stored, StoredLinear,
    TokenEmbedding, Wanted, WeightFactors, WeightKind, WeightSource, Weights,
};
