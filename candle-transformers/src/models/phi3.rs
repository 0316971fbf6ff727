//! Phi-3, 3.5 and 4 (mini, small contexts and long): [arXiv 2404.14219](https://arxiv.org/abs/2404.14219). Llama with queries, keys and
//! values in one tensor, as gate and up are, a rotation of part of each head, and LongRoPE.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{
    self, DecoderConfig, DecoderSpec, Head, Lm, NormSpec, Order, Rotary, RotaryPairs,
};
pub use crate::compat::phi3::RotaryEmbedding;

/// The method of extending the context beyond that of training.
#[derive(Debug, Clone, Deserialize)]
pub enum RopeScalingType {
    /// [arXiv 2402.13753](https://arxiv.org/abs/2402.13753).
    #[serde(rename = "longrope")]
    LongRope,
}

/// `rope_scaling` of a `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct RopeScaling {
    /// Divisors of the frequencies within the original context.
    pub short_factor: Vec<f32>,
    /// Divisors of the frequencies in longer sequences.
    pub long_factor: Vec<f32>,
    /// The formula.
    #[serde(rename = "type")]
    pub type_: RopeScalingType,
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
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
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<u32>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<RopeScaling>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Positions seen in training.
    pub original_max_position_embeddings: Option<usize>,
    /// Fraction of each head that is rotated; default: 1.
    pub partial_rotary_factor: Option<f64>,
    /// Whether the output layer shares the token table's weight.
    #[serde(default)]
    pub tie_word_embeddings: bool,
}

impl Config {
    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    pub(crate) fn rotary(&self) -> Result<Rotary> {
        let scaling = match &self.rope_scaling {
            None => blocks::RopeScaling::none(),
            Some(scaling) => blocks::RopeScaling {
                rope_type: "longrope".into(),
                original_max_position_embeddings: self.original_max_position_embeddings,
                short_factor: Some(scaling.short_factor.clone()),
                long_factor: Some(scaling.long_factor.clone()),
                ..blocks::RopeScaling::none()
            },
        };
        let share = self.partial_rotary_factor.unwrap_or(1.);
        let dim = (self.head_dim() as f64 * share) as usize;
        let positions = self.max_position_embeddings;
        scaling.rotary(RotaryPairs::Halves, self.rope_theta, dim, positions)
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        LlamaLike {
            family: "phi3",
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: None,
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta,
            norm_eps: self.rms_norm_eps,
            activation: self.hidden_act,
            head: Head::tied(self.tie_word_embeddings),
        }
        .spec_with(
            vec![self.rotary()?],
            NormSpec::rms(self.rms_norm_eps),
            |_, attention, mlp| {
                attention.joined = Some(Order::Layers);
                mlp.joined = Some(Order::Layers);
            },
        )
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type Model = Lm<Config>;
