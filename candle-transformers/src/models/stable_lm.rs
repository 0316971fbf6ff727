//! StableLM: [arXiv 2402.17834](https://arxiv.org/abs/2402.17834). Llama whose norms have a mean, with a rotation of part of each head, and
//! biases on queries, keys and values where the configuration asks for them.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{DecoderConfig, DecoderSpec, Head, Lm, NormSpec, RotaryPairs};

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    vocab_size: usize,
    intermediate_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    hidden_act: Activation,
    partial_rotary_factor: f64,
    rope_theta: f64,
    max_position_embeddings: usize,
    layer_norm_eps: f64,
    use_cache: bool,
    #[serde(default)]
    use_qkv_bias: bool,
    #[serde(default)]
    use_flash_attn: bool,
}

impl Config {
    /// StableLM 3B 4E1T.
    pub fn stablelm_3b_4e1t(use_flash_attn: bool) -> Self {
        Self {
            vocab_size: 50304,
            intermediate_size: 6912,
            hidden_size: 2560,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            hidden_act: Activation::Silu,
            partial_rotary_factor: 0.25,
            rope_theta: 10_000.,
            max_position_embeddings: 4096,
            layer_norm_eps: 1e-5,
            use_cache: true,
            use_qkv_bias: false,
            use_flash_attn,
        }
    }

    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    /// Number of a head's rotated elements.
    pub fn rotary_ndims(&self) -> usize {
        (self.head_dim() as f64 * self.partial_rotary_factor) as usize
    }

    /// Number of query heads per key and value head.
    pub fn num_kv_groups(&self) -> usize {
        self.num_attention_heads / self.num_key_value_heads.max(1)
    }

    /// Part of Candle's interface. Attention is one fused op on every device, with it or without.
    pub fn set_use_flash_attn(&mut self, use_flash_attn: bool) {
        self.use_flash_attn = use_flash_attn;
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let sizes = LlamaLike {
            family: "stablelm",
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: None,
            positions: self.max_position_embeddings,
            rope_theta: self.rope_theta,
            norm_eps: self.layer_norm_eps,
            activation: self.hidden_act,
            head: Head::Found { bias: false },
        };
        let share = self.partial_rotary_factor;
        let rotary = sizes.rotary(RotaryPairs::Halves, self.rope_theta, share);
        let norm = NormSpec::layer(self.layer_norm_eps);
        sizes.spec_with(vec![rotary], norm, |_, attention, _| {
            attention.qkv_bias = self.use_qkv_bias;
        })
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }

    fn uses_cache(&self) -> bool {
        self.use_cache
    }
}

/// The language model. Loads `model.*` and `lm_head`.
pub type Model = Lm<Config>;
