//! OLMo: [arXiv 2402.00838](https://arxiv.org/abs/2402.00838). Llama whose norms have a mean and no weights, and whose queries, keys and
//! values may be clamped.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{DecoderConfig, DecoderSpec, Head, Lm, NormSpec, RotaryPairs};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Queries, keys and values are clamped to `-clip_qkv ..= clip_qkv`.
    pub clip_qkv: Option<f64>,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let eps = 1e-5;
        let sizes = LlamaLike {
            family: "olmo",
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: None,
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta,
            norm_eps: eps,
            activation: self.hidden_act,
            head: Head::tied(self.tie_word_embeddings),
        };
        let rotary = sizes.rotary(RotaryPairs::Halves, self.rope_theta, 1.);
        let norm = NormSpec::layer_bare(eps);
        sizes.spec_with(vec![rotary], norm, |_, attention, _| {
            *attention = attention.clone().bias(self.attention_bias);
            attention.clip = self.clip_qkv;
        })
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type Model = Lm<Config>;
