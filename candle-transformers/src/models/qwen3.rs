//! Qwen3: [arXiv 2505.09388](https://arxiv.org/abs/2505.09388). Llama with a norm of each head of queries and keys, and a separate
//! head size.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{DecoderConfig, DecoderSpec, Head, HiddenLm, Lm, NormSpec, QkNorm};

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
    /// Head dimension.
    pub head_dim: usize,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: Option<usize>,
    /// Number of the first layers, which have no window.
    pub max_window_layers: usize,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// RMS norm epsilon, added to the mean square.
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

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The decoder without an output layer. Loads `model.*`.
pub type Model = HiddenLm<Config>;

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type ModelForCausalLM = Lm<Config>;
