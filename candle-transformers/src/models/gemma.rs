//! Gemma (1, 1.1 and CodeGemma): [arXiv 2403.08295](https://arxiv.org/abs/2403.08295). Llama with a separate head size, GELU in the gate,
//! scaled embeddings, norms whose files have the weight less 1, and the table of tokens as the output layer.

use candle_core::{bail, Result, Tensor};
use candle_nn::{Activation, Embedding, VarBuilder};
use serde::Deserialize;

use crate::blocks::family::{all_visible, token_embedding, LlamaLike};
use crate::blocks::{
    AttentionSpec, CausalLm, DecoderSpec, Head, Hidden, MlpSpec, NormSpec, Rotary, RotaryPairs,
    Wiring,
};

fn default_positions() -> usize {
    4096
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(remote = "Self")]
pub struct Config {
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Head dimension.
    pub head_dim: usize,
    /// Activation of the MLP's gate, unless `hidden_activation` is there.
    pub hidden_act: Option<Activation>,
    /// Activation of the MLP's gate.
    pub hidden_activation: Option<Activation>,
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
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Maximum sequence length, in tokens; default: 4096.
    #[serde(default = "default_positions")]
    pub max_position_embeddings: usize,
}

crate::models::spelling::spelled!(Config, |fields| crate::models::spelling::flat_rope(
    fields,
    "rope_theta"
));

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself, or names no activation.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let Some(activation) = self.hidden_activation.or(self.hidden_act) else {
            bail!(
                "gemma config: hidden_activation and hidden_act are both missing; one is required"
            )
        };
        let sizes = LlamaLike {
            family: "gemma",
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
            activation,
            head: Head::Tied,
        };
        let rotary = sizes.rotary(RotaryPairs::Halves, self.rope_theta, 1.);
        gemma(sizes, vec![rotary], Wiring::Pre, |_, attention, _| {
            *attention = attention.clone().bias(self.attention_bias);
        })
    }
}

/// The common parts of all Gemmas.
pub(super) fn gemma(
    sizes: LlamaLike,
    rotaries: Vec<Rotary>,
    wiring: Wiring,
    switch: impl FnMut(usize, &mut AttentionSpec, &mut MlpSpec),
) -> Result<DecoderSpec> {
    let (hidden, norm) = (sizes.hidden, NormSpec::rms_plus_one(sizes.norm_eps));
    let mut spec = sizes.spec_with(rotaries, norm, switch)?;
    spec.embedding_scale = Some((hidden as f64).sqrt());
    for layer in &mut spec.layers {
        layer.wiring = wiring;
    }
    Ok(spec)
}

/// The language model.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
    embed_tokens: Embedding,
}

impl Model {
    /// Loads `model.*`. Attention is one fused op on every device, with `use_flash_attn` or without.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(use_flash_attn: bool, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let _ = use_flash_attn;
        let lm = CausalLm::from_vb(cfg.spec()?, vb)?;
        let embed_tokens = token_embedding(&lm)?;
        Ok(Self { lm, embed_tokens })
    }

    /// The table of tokens, unscaled.
    pub fn embed_tokens(&self) -> &Embedding {
        &self.embed_tokens
    }

    /// The logits of what follows the last of the token ids, `(b, 1, vocab)` in the model's dtype, for ids `(b, t)` at the positions from
    /// `seqlen_offset` on; at 0 a new sequence begins.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor, seqlen_offset: usize) -> Result<Tensor> {
        self.lm.forward(input_ids, seqlen_offset)?.last_logits()
    }

    /// As [`forward`](Self::forward), from embeddings `(b, t, hidden_size)`, which are scaled here. `attn_mask` is added to the scores, to
    /// which it broadcasts: `(b, heads, t, positions)`. Without one every position sees all others, those after it too.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), or if the mask does not fit.
    pub fn forward_embeds(
        &mut self,
        xs: &Tensor,
        attn_mask: Option<&Tensor>,
        seqlen_offset: usize,
    ) -> Result<Tensor> {
        self.embeds(xs, attn_mask, seqlen_offset)?.last_logits()
    }

    /// As [`forward_embeds`](Self::forward_embeds), giving the stream after the last layer, `(b, t, hidden_size)`, before the last norm.
    ///
    /// # Errors
    /// As [`forward_embeds`](Self::forward_embeds).
    pub fn forward_embeds_without_projection(
        &mut self,
        xs: &Tensor,
        attn_mask: Option<&Tensor>,
        seqlen_offset: usize,
    ) -> Result<Tensor> {
        self.embeds(xs, attn_mask, seqlen_offset)?.stream()
    }

    fn embeds(&mut self, xs: &Tensor, mask: Option<&Tensor>, offset: usize) -> Result<Hidden<'_>> {
        let all = all_visible(xs)?;
        let scale = self.lm.decoder().spec().embedding_scale.unwrap_or(1.);
        let xs = (xs * scale)?;
        self.lm.forward_embeds(&xs, offset, mask.or(all.as_ref()))
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
