//! Gemma 3, its text part: [arXiv 2503.19786](https://arxiv.org/abs/2503.19786). Gemma 2 with a norm of each head of queries and keys
//! instead of the caps, and two kinds of layers: most have a window and a rotary base for it, every sixth sees all positions.

use candle_core::{Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

use super::gemma::gemma;
use super::gemma2::NAMES;
use crate::blocks::family::LlamaLike;
use crate::blocks::{CausalLm, DecoderSpec, Head, NormSpec, QkNorm, RotaryPairs, Wiring};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Head dimension.
    pub head_dim: usize,
    /// Activation of the MLP's gate.
    pub hidden_activation: Activation,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies in layers that see everything.
    pub rope_theta: f64,
    /// Base of the rotary frequencies in layers with a window.
    pub rope_local_base_freq: f64,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The cap of the logits.
    pub final_logit_softcapping: Option<f64>,
    /// The cap of the scores.
    pub attn_logit_softcapping: Option<f64>,
    /// Scores are divided by its root.
    pub query_pre_attn_scalar: usize,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: usize,
    /// Every layer whose number is a multiple of this has no window.
    pub sliding_window_pattern: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        self.spec_with(|i| !(i + 1).is_multiple_of(self.sliding_window_pattern))
    }

    /// As [`spec`](Self::spec), with a window in the layers for which `windowed` returns true.
    pub(crate) fn spec_with(&self, windowed: impl Fn(usize) -> bool) -> Result<DecoderSpec> {
        let sizes = LlamaLike {
            family: "gemma3",
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
            activation: self.hidden_activation,
            head: Head::Tied,
        };
        // The first is the one that `rope_scaling` scales.
        let bases = [self.rope_theta, self.rope_local_base_freq];
        let rotaries = bases.map(|theta| sizes.rotary(RotaryPairs::Halves, theta, 1.));
        let head_norm = QkNorm::Head(NormSpec::rms_plus_one(self.rms_norm_eps));
        let wiring = Wiring::Sandwich;
        let spec = gemma(sizes, rotaries.into(), wiring, |i, attention, _| {
            *attention = attention.clone().bias(self.attention_bias);
            attention.scale = Some(1. / (self.query_pre_attn_scalar as f64).sqrt());
            attention.softcap = self.attn_logit_softcapping;
            attention.qk_norm = Some(head_norm);
            attention.rotary = Some(usize::from(windowed(i)));
            attention.window = windowed(i).then_some(self.sliding_window);
        })?;
        Ok(DecoderSpec {
            logit_softcap: self.final_logit_softcapping,
            names: NAMES,
            ..spec
        })
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
}

impl Model {
    /// Loads `model.*`. Attention is one fused op on every device, with `use_flash_attn` or without.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(use_flash_attn: bool, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let _ = use_flash_attn;
        CausalLm::from_vb(cfg.spec()?, vb).map(|lm| Self { lm })
    }

    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in the model's dtype, for ids `(b, t)` at the positions from
    /// `seqlen_offset` on; at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        self.lm.forward(input_ids, seqlen_offset)?.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
