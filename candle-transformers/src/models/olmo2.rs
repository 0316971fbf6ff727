//! OLMo 2: [arXiv 2501.00656](https://arxiv.org/abs/2501.00656). Llama with the norms after the blocks, and a norm of all queries and one of
//! all keys.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{DecoderConfig, DecoderSpec, Head, Lm, NormSpec, QkNorm, Wiring};

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
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// OLMo's; not used here.
    pub clip_qkv: Option<f64>,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let mut spec = LlamaLike {
            family: "olmo2",
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
        .spec(|_, attention, _| {
            *attention = attention.clone().bias(self.attention_bias);
            attention.qk_norm = Some(QkNorm::Whole(NormSpec::rms(self.rms_norm_eps)));
        })?;
        for layer in &mut spec.layers {
            layer.wiring = Wiring::PostInside;
        }
        Ok(spec)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type Model = Lm<Config>;
