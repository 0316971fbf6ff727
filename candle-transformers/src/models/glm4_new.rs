//! GLM-4-0414 and GLM-Z1: [arXiv 2406.12793](https://arxiv.org/abs/2406.12793). Llama with norms on both sides of each block, neighbours
//! rotated in a part of each head, and gate and up in one tensor.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use super::glm4::EosTokenId;
use crate::blocks::family::LlamaLike;
use crate::blocks::{
    DecoderConfig, DecoderSpec, Head, HiddenLm, Lm, Names, NormSpec, Order, RotaryPairs, Wiring,
};

const NAMES: Names = Names {
    attn_post_norm: "post_self_attn_layernorm",
    mlp_post_norm: "post_mlp_layernorm",
    ..Names::HUGGING_FACE
};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
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
    /// Head dimension; default: `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// Fraction of each head that is rotated; default: 1.
    pub partial_rotary_factor: Option<f32>,
    /// Whether the projections to queries, keys and values have biases; default: `false`.
    pub attention_bias: Option<bool>,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Not used by these models.
    pub sliding_window: Option<usize>,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
    /// The token that ends a text.
    pub eos_token_id: Option<EosTokenId>,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let sizes = LlamaLike {
            family: "glm4",
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta,
            norm_eps: self.rms_norm_eps,
            activation: self.hidden_act,
            head: Head::tied(self.tie_word_embeddings),
        };
        let share = f64::from(self.partial_rotary_factor.unwrap_or(1.));
        let rotary = sizes.rotary(RotaryPairs::Neighbours, self.rope_theta, share);
        let norm = NormSpec::rms(self.rms_norm_eps);
        let mut spec = sizes.spec_with(vec![rotary], norm, |_, attention, mlp| {
            attention.qkv_bias = self.attention_bias.unwrap_or(false);
            mlp.joined = Some(Order::Layers);
        })?;
        for layer in &mut spec.layers {
            layer.wiring = Wiring::Sandwich;
        }
        spec.names = NAMES;
        Ok(spec)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The decoder without an output layer. Loads `model.*`.
pub type Model = HiddenLm<Config>;

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type ModelForCausalLM = Lm<Config>;
