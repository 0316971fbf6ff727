//! The configuration of Persimmon; as in Candle, there is no model to it.

use candle_core::DType;
use candle_nn::Activation;
use serde::Deserialize;

/// The dtype of the published weights' use.
pub const DTYPE: DType = DType::F32;

/// The kind of position embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionEmbeddingType {
    /// A table of positions.
    Absolute,
    /// Scores that fall with the distance.
    Alibi,
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Activation of the MLP.
    pub hidden_act: Activation,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Used in training only.
    pub initializer_range: f64,
    /// Layer norm epsilon, added to the variance.
    pub layer_norm_eps: f64,
    /// In files, but the model has no such norms.
    pub rms_norm_eps: f64,
    /// Whether calls continue a sequence.
    pub use_cache: bool,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether queries and keys are normed.
    pub qk_layernorm: bool,
    /// Fraction of each head that is rotated.
    pub partial_rotary_factor: f64,
}

impl Config {
    /// [Persimmon 8B](https://huggingface.co/adept/persimmon-8b-base).
    pub fn base_8b() -> Self {
        Self {
            vocab_size: 262_144,
            hidden_size: 4096,
            intermediate_size: 16_384,
            num_hidden_layers: 36,
            num_attention_heads: 64,
            num_key_value_heads: 64,
            hidden_act: Activation::Relu,
            max_position_embeddings: 16_384,
            initializer_range: 0.02,
            layer_norm_eps: 1e-5,
            rms_norm_eps: 1e-6,
            use_cache: true,
            tie_word_embeddings: false,
            rope_theta: 25_000.,
            qk_layernorm: true,
            partial_rotary_factor: 0.5,
        }
    }
}
