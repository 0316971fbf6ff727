//! Helium, Kyutai's models. Llama with a separate head size, neighbours rotated together, and biases where the configuration asks
//! for them.

use candle_core::{Result, Tensor};
use candle_nn::{Activation, Embedding, VarBuilder};
use serde::Deserialize;

use crate::blocks::family::{token_embedding, LlamaLike};
use crate::blocks::{CausalLm, DecoderSpec, Head, NormSpec, RotaryPairs};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Whether the projections of queries, keys and values have biases.
    pub attention_bias: bool,
    /// The token that starts a text.
    pub bos_token_id: u32,
    /// The token that ends a text.
    pub eos_token_id: u32,
    /// Head dimension.
    pub head_dim: usize,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the layers of the MLP have biases.
    pub mlp_bias: bool,
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
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Part of Candle's interface, without effect: attention is one fused op on every device.
    #[serde(default)]
    pub use_flash_attn: bool,
}

impl Config {
    /// Helium 1 preview, 2B.
    pub fn config_2b(use_flash_attn: bool) -> Self {
        Self {
            attention_bias: false,
            bos_token_id: 1,
            eos_token_id: 2,
            head_dim: 128,
            hidden_act: Activation::Silu,
            hidden_size: 2560,
            intermediate_size: 7040,
            max_position_embeddings: 4096,
            mlp_bias: false,
            num_attention_heads: 20,
            num_hidden_layers: 24,
            num_key_value_heads: 20,
            rms_norm_eps: 1e-8,
            rope_theta: 100_000.,
            tie_word_embeddings: false,
            vocab_size: 48000,
            use_flash_attn,
        }
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let sizes = LlamaLike {
            family: "helium",
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
        };
        let rotary = sizes.rotary(RotaryPairs::Neighbours, self.rope_theta, 1.);
        let norm = NormSpec::rms(self.rms_norm_eps);
        sizes.spec_with(vec![rotary], norm, |_, attention, mlp| {
            // The layer that joins the heads never has one.
            attention.qkv_bias = self.attention_bias;
            mlp.bias = self.mlp_bias;
        })
    }
}

/// The language model.
#[derive(Debug, Clone)]
pub struct Model {
    lm: CausalLm,
    embed_tokens: Embedding,
}

impl Model {
    /// Loads `model.*`, and `lm_head` unless it is tied.
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

    /// Forgets the sequence.
    pub fn clear_kv_cache(&mut self) {
        self.lm.clear_kv_cache();
    }
}
