//! Qwen2 (Qwen1.5, 2 and 2.5): [arXiv 2407.10671](https://arxiv.org/abs/2407.10671). Llama with biases on queries, keys and values.

use candle_core::{Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{keys_that_count, CausalLm, DecoderConfig, DecoderSpec, Head, Lm};

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
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: usize,
    /// Number of the first layers, which have no window.
    pub max_window_layers: usize,
    /// Whether the output layer shares the token table's weight, in a checkpoint without an output layer.
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
        LlamaLike {
            family: "qwen2",
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
        .spec(|i, attention, _| {
            attention.qkv_bias = true;
            let windowed = self.use_sliding_window && windowed(i);
            attention.window = windowed.then_some(self.sliding_window);
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

    /// The stream after the last norm, `(b, t, hidden_size)`, for token ids `(b, t)` at the positions from `seqlen_offset` on; at 0 a new
    /// sequence begins. With `attn_mask`, `(b, t)`, every position sees all those whose number is not 0, earlier and later, instead of the
    /// earlier ones.
    ///
    /// # Errors
    /// If there are no ids, more than fit, or shapes do not match.
    pub fn forward(
        &mut self,
        input_ids: &Tensor,
        seqlen_offset: usize,
        attn_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Some(mask) = attn_mask else {
            return self.lm.forward(input_ids, seqlen_offset)?.normed();
        };
        let decoder = self.lm.decoder();
        let (embeds, mask) = (
            decoder.embed(input_ids)?,
            keys_that_count(mask, decoder.dtype())?,
        );
        let hidden = self
            .lm
            .forward_embeds(&embeds, seqlen_offset, Some(&mask))?;
        hidden.normed()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        Ok(DecoderSpec {
            head: Head::Found { bias: false },
            ..self.spec()?
        })
    }
}

/// The language model. Loads `model.*`, and `lm_head` where the checkpoint has it.
pub type ModelForCausalLM = Lm<Config>;
