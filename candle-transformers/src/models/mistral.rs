//! Mistral: [arXiv 2310.06825](https://arxiv.org/abs/2310.06825). Llama whose layers may have a window.

use candle_core::{Result, Tensor};
use candle_nn::{Activation, Embedding, VarBuilder};
use serde::Deserialize;

use crate::blocks::family::{all_visible, token_embedding, LlamaLike};
use crate::blocks::{CausalLm, DecoderConfig, DecoderSpec, Head};

fn default_heads() -> usize {
    32
}

fn default_activation() -> Activation {
    Activation::Silu
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(remote = "Self")]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads; default: 32.
    #[serde(default = "default_heads")]
    pub num_attention_heads: usize,
    /// Head dimension; default: `hidden_size / num_attention_heads`.
    pub head_dim: Option<usize>,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Activation of the MLP's gate; default: SiLU.
    #[serde(default = "default_activation")]
    pub hidden_act: Activation,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Number of positions that a position sees, itself included; default: all earlier ones.
    pub sliding_window: Option<usize>,
    /// Part of Candle's interface, without effect: attention is one fused op on every device.
    #[serde(default)]
    pub use_flash_attn: bool,
}

crate::models::spelling::spelled!(Config, |fields| crate::models::spelling::flat_rope(
    fields,
    "rope_theta"
));

impl Config {
    /// Mistral 7B v0.1.
    pub fn config_7b_v0_1(use_flash_attn: bool) -> Self {
        Self {
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 14336,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            head_dim: None,
            num_key_value_heads: 8,
            hidden_act: Activation::Silu,
            max_position_embeddings: 32768,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.,
            sliding_window: Some(4096),
            use_flash_attn,
        }
    }

    /// Mistral 7B v0.1 with the two tokens of ChatML, as OpenOrca and OpenHermes 2.5 have it.
    pub fn config_chat_ml(use_flash_attn: bool) -> Self {
        Self {
            vocab_size: 32002,
            ..Self::config_7b_v0_1(use_flash_attn)
        }
    }

    /// Amazon's MistralLite.
    pub fn config_amazon_mistral_lite(use_flash_attn: bool) -> Self {
        Self {
            vocab_size: 32003,
            ..Self::config_7b_v0_1(use_flash_attn)
        }
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        LlamaLike {
            family: "mistral",
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
            head: Head::Found { bias: false },
        }
        .spec(|_, attention, _| attention.window = self.sliding_window)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
    embed_tokens: Embedding,
}

impl Model {
    /// Loads `model.*` and `lm_head`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let lm = CausalLm::from_vb(cfg.spec()?, vb)?;
        let embed_tokens = token_embedding(&lm)?;
        Ok(Self { lm, embed_tokens })
    }

    /// The table of tokens.
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

    /// As [`forward`](Self::forward), from embeddings `(b, t, hidden_size)`. `attn_mask` is added to the scores, to which it broadcasts:
    /// `(b, heads, t, positions)`. Without one every position sees all others, those after it too, and there is no window.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), or if the mask does not fit.
    pub fn forward_embeds(
        &mut self,
        xs: &Tensor,
        attn_mask: Option<&Tensor>,
        seqlen_offset: usize,
    ) -> Result<Tensor> {
        let all = all_visible(xs)?;
        let mask = attn_mask.or(all.as_ref());
        let hidden = self.lm.forward_embeds(xs, seqlen_offset, mask)?;
        hidden.last_logits()
    }

    /// As [`forward_embeds`](Self::forward_embeds), where every position sees the earlier ones of its window.
    pub(crate) fn forward_embeds_causal(
        &mut self,
        xs: &Tensor,
        seqlen_offset: usize,
    ) -> Result<Tensor> {
        let hidden = self.lm.forward_embeds(xs, seqlen_offset, None)?;
        hidden.last_logits()
    }

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
