//! MPT: <https://github.com/mosaicml/llm-foundry>. ALiBi, layer norms without biases, a plain MLP.

use candle_core::{bail, Result};
use candle_nn::Activation;

use crate::blocks::family::alibi_slopes;
use crate::blocks::{
    layers, AttentionSpec, DecoderConfig, DecoderSpec, FeedForwardSpec, Head, LayerSpec, Names,
    NextLm, NormSpec, Order, PlainSpec,
};

const NAMES: Names = Names {
    embedding: "wte",
    layers: "blocks",
    final_norm: "norm_f",
    attn_norm: "norm_1",
    qkv: "attn.Wqkv",
    o: "attn.out_proj",
    mlp_norm: "norm_2",
    up: "ffn.up_proj",
    down: "ffn.down_proj",
    ..Names::HUGGING_FACE
};

/// As a whole checkpoint has them.
pub(crate) const NAMES_IN_CHECKPOINT: Names = Names {
    embedding: "transformer.wte",
    layers: "transformer.blocks",
    final_norm: "transformer.norm_f",
    ..NAMES
};

/// The fields of a checkpoint's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub(crate) d_model: usize,
    pub(crate) n_heads: usize,
    pub(crate) n_layers: usize,
    pub(crate) expansion_ratio: usize,
    pub(crate) max_seq_len: usize,
    pub(crate) vocab_size: usize,
    pub(crate) kv_n_heads: usize,
    pub(crate) attn_prefix_lm: bool,
    pub(crate) attn_alibi: bool,
    pub(crate) attn_alibi_bias_max: usize,
}

impl Config {
    /// [Replit code 1.5](https://huggingface.co/replit/replit-code-v1_5-3b).
    pub fn replit_code_v1_5_3b() -> Self {
        Self {
            d_model: 3072,
            n_heads: 24,
            n_layers: 32,
            expansion_ratio: 4,
            max_seq_len: 4096,
            vocab_size: 32_768,
            kv_n_heads: 8,
            attn_prefix_lm: false,
            attn_alibi: true,
            attn_alibi_bias_max: 8,
        }
    }

    /// Whether positions see none after them, from the first on.
    pub fn is_causal(&self) -> bool {
        !self.attn_prefix_lm
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself, or is one that positions of a prefix see all of, or one without ALiBi.
    pub fn spec(&self) -> Result<DecoderSpec> {
        if self.attn_prefix_lm {
            bail!("mpt: prefix_lm is true; only causal models are supported")
        }
        if !self.attn_alibi {
            bail!("mpt: alibi is false; models with learned positions are not supported")
        }
        let norm = NormSpec::layer_no_bias(1e-5);
        let attention = AttentionSpec {
            rotary: None,
            joined: Some(Order::Layers),
            slopes: Some(alibi_slopes(self.n_heads, self.attn_alibi_bias_max as f32)),
            ..AttentionSpec::new(self.d_model, self.n_heads, self.kv_n_heads)
        };
        let mlp = FeedForwardSpec::Plain(PlainSpec {
            inner: self.d_model.saturating_mul(self.expansion_ratio),
            activation: Activation::Gelu,
            bias: false,
        });
        let layer = LayerSpec::pre_norm(attention, mlp, norm);
        let layers = layers(self.n_layers, |_| Ok(layer.clone()))?;
        let sizes = [self.vocab_size, self.d_model, self.max_seq_len];
        let spec = DecoderSpec {
            head: Head::Tied,
            names: NAMES,
            ..DecoderSpec::new("mpt", sizes, Vec::new(), layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model and the sequence that it has seen. Loads `wte`, `blocks.*` and `norm_f`: in checkpoints they are below `transformer`.
pub type Model = NextLm<Config>;
