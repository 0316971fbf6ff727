//! Yi: [arXiv 2403.04652](https://arxiv.org/abs/2403.04652). Llama in two sizes.

use candle_core::Result;
use candle_nn::Activation;

use crate::blocks::family::LlamaLike;
use crate::blocks::{DecoderConfig, DecoderSpec, Head, Lm};

/// One of the sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    hidden_act: Activation,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    rope_theta: f64,
}

impl Config {
    /// Yi 6B.
    pub fn config_6b() -> Self {
        Self {
            vocab_size: 64000,
            hidden_size: 4096,
            intermediate_size: 11008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 4,
            hidden_act: Activation::Silu,
            max_position_embeddings: 4096,
            rms_norm_eps: 1e-5,
            rope_theta: 5_000_000.,
        }
    }

    /// Yi 34B.
    pub fn config_34b() -> Self {
        Self {
            hidden_size: 7168,
            intermediate_size: 20480,
            num_hidden_layers: 60,
            num_attention_heads: 56,
            num_key_value_heads: 8,
            ..Self::config_6b()
        }
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        LlamaLike {
            family: "yi",
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
            head: Head::Found { bias: false },
        }
        .spec(|_, _, _| ())
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model. Loads `model.*` and `lm_head`.
pub type Model = Lm<Config>;
