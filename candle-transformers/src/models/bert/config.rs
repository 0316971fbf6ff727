//! The configuration, as `config.json` has it.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::encoder::EncoderSpec;

/// What stands between the two linear layers of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HiddenAct {
    /// `x * Φ(x)`, with the exact distribution function Φ of the normal distribution.
    Gelu,
    /// [`HiddenAct::Gelu`] in its tanh approximation.
    #[serde(alias = "gelu_new", alias = "gelu_pytorch_tanh")]
    GeluApproximate,
    /// `max(x, 0)`.
    Relu,
}

impl From<HiddenAct> for Activation {
    fn from(act: HiddenAct) -> Self {
        match act {
            HiddenAct::Gelu => Self::Gelu,
            HiddenAct::GeluApproximate => Self::NewGelu,
            HiddenAct::Relu => Self::Relu,
        }
    }
}

/// How the model knows where a token stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionEmbeddingType {
    /// A learned vector for each position is added to the token's.
    #[default]
    Absolute,
}

/// Sizes and constants of a BERT. Nothing is dropped out: `hidden_dropout_prob`, `initializer_range`, `pad_token_id`, `use_cache` and
/// `classifier_dropout` are there for what is read from a file, and have no effect.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token's vector between the layers.
    pub hidden_size: usize,
    /// Layers of the encoder.
    pub num_hidden_layers: usize,
    /// Heads of a layer's attention; they divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Size of the vector inside a feed-forward block.
    pub intermediate_size: usize,
    /// The activation of the feed-forward blocks and of the masked language model's head.
    pub hidden_act: HiddenAct,
    /// Share of elements that training drops.
    pub hidden_dropout_prob: f64,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// Kinds of segments; 2 in a model trained on pairs of sentences.
    pub type_vocab_size: usize,
    /// Deviation of new weights in training.
    pub initializer_range: f64,
    /// What layer norms add to the variance.
    pub layer_norm_eps: f64,
    /// The token that fills up a batch. It has to be hidden by the mask.
    pub pad_token_id: usize,
    /// How the model knows where a token stands.
    #[serde(default)]
    pub position_embedding_type: PositionEmbeddingType,
    /// For decoders.
    #[serde(default)]
    pub use_cache: bool,
    /// Share of elements that training of a classifier drops.
    pub classifier_dropout: Option<f64>,
    /// The prefix that weights' names may have.
    pub model_type: Option<String>,
}

/// `bert-base-uncased`.
impl Default for Config {
    fn default() -> Self {
        Self {
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: HiddenAct::Gelu,
            hidden_dropout_prob: 0.1,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            initializer_range: 0.02,
            layer_norm_eps: 1e-12,
            pad_token_id: 0,
            position_embedding_type: PositionEmbeddingType::Absolute,
            use_cache: true,
            classifier_dropout: None,
            model_type: Some("bert".to_string()),
        }
    }
}

impl Config {
    /// A layer.
    pub(super) fn layer(&self) -> Result<EncoderSpec> {
        EncoderSpec::bert(
            "bert",
            ("hidden_size", self.hidden_size),
            ("num_attention_heads", self.num_attention_heads),
            self.intermediate_size,
            self.hidden_act.into(),
            self.layer_norm_eps,
        )
    }
}
