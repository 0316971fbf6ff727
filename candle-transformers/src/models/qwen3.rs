//! Qwen3: [arXiv 2505.09388](https://arxiv.org/abs/2505.09388). Llama with a norm of each head of queries and keys, and a separate
//! head size.

use candle_core::{bail, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

use super::shared::LlamaLike;
use crate::blocks::{CausalLm, DecoderSpec, Head, NormSpec, QkNorm};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Tokens.
    pub vocab_size: usize,
    /// Size of the stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// The longest sequence.
    pub max_position_embeddings: usize,
    /// How many positions are seen in layers with a window.
    pub sliding_window: Option<usize>,
    /// The first layers, which have no window.
    pub max_window_layers: usize,
    /// Whether the output layer is the table of tokens.
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Added to the mean square in the norms.
    pub rms_norm_eps: f64,
    /// Whether there are windows.
    pub use_sliding_window: bool,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        self.spec_with(|i| i >= self.max_window_layers)
    }

    /// As [`spec`](Self::spec), with the window of `sliding_window` in the layers that `windowed` says, if `use_sliding_window` does.
    pub(crate) fn spec_with(&self, windowed: impl Fn(usize) -> bool) -> Result<DecoderSpec> {
        if self.use_sliding_window && self.sliding_window.is_none() {
            bail!("qwen3 config: use_sliding_window is true, but sliding_window is missing")
        }
        LlamaLike {
            family: "qwen3",
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: Some(self.head_dim),
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta,
            norm_eps: self.rms_norm_eps,
            activation: self.hidden_act,
            head: Head::tied(self.tie_word_embeddings),
        }
        .spec(|i, attention, _| {
            attention.qkv_bias = self.attention_bias;
            attention.o_bias = self.attention_bias;
            attention.qk_norm = Some(QkNorm::Head(NormSpec::rms(self.rms_norm_eps)));
            let windowed = self.use_sliding_window && windowed(i);
            attention.window = self.sliding_window.filter(|_| windowed);
        })
    }
}

/// The decoder without an output layer.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
}

impl Model {
    /// Loads `model.*`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let spec = DecoderSpec {
            head: Head::None,
            ..cfg.spec()?
        };
        CausalLm::from_vb(spec, vb).map(|lm| Self { lm })
    }

    /// The stream after the last norm, `(b, t, hidden_size)`, for token ids `(b, t)` at the positions from `offset` on; at 0 a new
    /// sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        self.lm.forward(input, offset)?.normed()
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct ModelForCausalLM {
    lm: CausalLm,
}

impl ModelForCausalLM {
    /// Loads `model.*`, and `lm_head` unless it is tied.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        CausalLm::from_vb(cfg.spec()?, vb).map(|lm| Self { lm })
    }

    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in the model's dtype; see [`Model::forward`].
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input: &Tensor, offset: usize) -> Result<Tensor> {
        self.lm.forward(input, offset)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
