//! Granite: [arXiv 2405.04324](https://arxiv.org/abs/2405.04324). Llama; since Granite 3 with four [`Multipliers`], which Candle's
//! configuration has no fields for.

use candle_core::Result;
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{
    CachedLm, DecoderConfig, DecoderSpec, Head, NormSpec, RopeScaling, RotaryPairs, SequenceCache,
};

/// The context length where a configuration does not say.
pub const DEFAULT_MAX_SEQ_LEN: usize = 4096;

/// The scaling of the rotary frequencies.
#[derive(Debug, Clone, Default, Deserialize)]
pub enum GraniteRopeType {
    /// As Llama 3's.
    #[serde(rename = "granite")]
    Granite,
    /// Not at all.
    #[default]
    #[serde(rename = "default")]
    Default,
}

/// `rope_scaling` of a `config.json`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct GraniteRopeConfig {
    /// Divisor of low frequencies.
    pub factor: f32,
    /// Frequencies that rotate fewer times than this within the original context are low.
    pub low_freq_factor: f32,
    /// Frequencies that rotate more often than this within the original context stay as they are.
    pub high_freq_factor: f32,
    /// Positions seen in training.
    pub original_max_position_embeddings: usize,
    /// Whether to scale.
    pub rope_type: GraniteRopeType,
}

/// The token or tokens that end a text.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum GraniteEosToks {
    /// One.
    Single(u32),
    /// Any of several.
    Multiple(Vec<u32>),
}

fn default_theta() -> f32 {
    10_000.
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct GraniteConfig {
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; default: the number of query heads.
    pub num_key_value_heads: Option<usize>,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies; default: 10 000.
    #[serde(default = "default_theta")]
    pub rope_theta: f32,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<GraniteEosToks>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<GraniteRopeConfig>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
}

impl GraniteConfig {
    /// The number of key and value heads.
    pub fn num_key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The model's configuration, with defaults filled in.
    pub fn into_config(self, use_flash_attn: bool) -> Config {
        Config {
            num_key_value_heads: self.num_key_value_heads(),
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            use_flash_attn,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope_theta,
            bos_token_id: self.bos_token_id,
            eos_token_id: self.eos_token_id,
            rope_scaling: self.rope_scaling,
            max_position_embeddings: self.max_position_embeddings,
        }
    }
}

/// The sizes of a Granite. From a checkpoint's `config.json`: [`GraniteConfig::into_config`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Part of Candle's interface, without effect: attention is one fused op on every device.
    pub use_flash_attn: bool,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<GraniteEosToks>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<GraniteRopeConfig>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
}

/// The multipliers of Granite 3 and later, as their `config.json` names them. Not in upstream's interface.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Multipliers {
    /// Factor of the embeddings.
    pub embedding_multiplier: f64,
    /// Factor of the scores, instead of `1 / sqrt(head_dim)`.
    pub attention_multiplier: f64,
    /// Factor of each block's output before it is added to the stream.
    pub residual_multiplier: f64,
    /// Divisor of the logits.
    pub logits_scaling: f64,
}

impl Multipliers {
    /// The decoder with these multipliers.
    pub fn apply(&self, mut spec: DecoderSpec) -> DecoderSpec {
        spec.embedding_scale = Some(self.embedding_multiplier);
        spec.logit_scale = Some(1. / self.logits_scaling);
        for layer in &mut spec.layers {
            layer.residual_scale = Some(self.residual_multiplier);
            if let Some(attention) = layer.attention_mut() {
                attention.scale = Some(self.attention_multiplier);
            }
        }
        spec
    }
}

impl Config {
    /// The decoder that it describes, without [`Multipliers`].
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let theta = f64::from(self.rope_theta);
        let sizes = LlamaLike {
            family: "granite",
            vocab: self.vocab_size,
            hidden: self.hidden_size,
            inner: self.intermediate_size,
            layers: self.num_hidden_layers,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: None,
            positions: self.max_position_embeddings,
            rope_theta: theta,
            norm_eps: self.rms_norm_eps,
            activation: Activation::Silu,
            head: Head::Found { bias: false },
        };
        let scaling = match &self.rope_scaling {
            Some(scaling) if matches!(scaling.rope_type, GraniteRopeType::Granite) => RopeScaling {
                rope_type: "llama3".into(),
                factor: Some(scaling.factor.into()),
                low_freq_factor: Some(scaling.low_freq_factor.into()),
                high_freq_factor: Some(scaling.high_freq_factor.into()),
                original_max_position_embeddings: Some(scaling.original_max_position_embeddings),
                ..RopeScaling::none()
            },
            _ => RopeScaling::none(),
        };
        let (dim, positions) = (sizes.head_dim(), self.max_position_embeddings);
        let rotary = scaling.rotary(RotaryPairs::Halves, theta, dim, positions)?;
        sizes.spec_with(vec![rotary], NormSpec::rms(self.rms_norm_eps), |_, _, _| ())
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// State of a sequence between its steps.
pub type Cache = SequenceCache<Config>;

/// The language model. Loads `model.*` and `lm_head`.
pub type Granite = CachedLm<Config>;
