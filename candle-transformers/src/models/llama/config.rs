//! What a Llama is made of, and the frequencies of its rotary positions.

use candle_core::{bail, Result};
use candle_nn::ops::GatedActivation;
use serde::Deserialize;

use crate::blocks::{
    inverse_frequencies, layers, AttentionSpec, DecoderConfig, DecoderSpec, FeedForwardSpec, Head,
    LayerSpec, MlpSpec, NormSpec, Rotary, RotaryPairs,
};

/// The context length of [`Config::config_7b_v1`] and [`Config::config_7b_v2`].
pub const DEFAULT_MAX_SEQ_LEN: usize = 4096;

/// The scaling of the rotary frequencies.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Llama3RopeType {
    /// As Llama 3.1 and later do: see [`Llama3RopeConfig::scale`].
    Llama3,
    /// Not at all.
    #[default]
    Default,
}

/// Llama 3's scaling of rotary frequencies, to run past the context of its pre-training; `rope_scaling` in a
/// checkpoint's configuration.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Llama3RopeConfig {
    /// Divisor of low frequencies.
    pub factor: f32,
    /// Frequencies with fewer rotations than this within the original context are low.
    pub low_freq_factor: f32,
    /// Frequencies with more rotations than this within the original context are unchanged.
    pub high_freq_factor: f32,
    /// The original context: positions seen in pre-training.
    pub original_max_position_embeddings: usize,
    /// Whether to scale.
    #[serde(alias = "type")]
    pub rope_type: Llama3RopeType,
}

impl Llama3RopeConfig {
    /// One inverse frequency, scaled: divided by `factor` if its wavelength is long compared with the original context, unchanged if it is
    /// short, and otherwise blended by the number of rotations within that context.
    ///
    /// The formula is that of `rope_type: "llama3"` in Hugging Face Transformers.
    pub fn scale(&self, inverse_frequency: f32) -> f32 {
        if matches!(self.rope_type, Llama3RopeType::Default) {
            return inverse_frequency;
        }
        let context = self.original_max_position_embeddings as f32;
        let wavelength = 2. * std::f32::consts::PI / inverse_frequency;
        if wavelength > context / self.low_freq_factor {
            inverse_frequency / self.factor
        } else if wavelength < context / self.high_freq_factor {
            inverse_frequency
        } else {
            let smooth = (context / wavelength - self.low_freq_factor)
                / (self.high_freq_factor - self.low_freq_factor);
            (1. - smooth) * inverse_frequency / self.factor + smooth * inverse_frequency
        }
    }
}

/// The token or tokens that end a text.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum LlamaEosToks {
    /// One.
    Single(u32),
    /// Any of several.
    Multiple(Vec<u32>),
}

/// The parameters of a Llama. From a checkpoint's `config.json`: [`super::LlamaConfig`] and its `into_config`.
#[derive(Debug, Clone)]
pub struct Config {
    /// Size of the residual stream; a multiple of `num_attention_heads`.
    pub hidden_size: usize,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Number of tokens.
    pub vocab_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads; a multiple of `num_key_value_heads`.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Part of upstream's interface, without effect: attention is one fused op on every device.
    pub use_flash_attn: bool,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<LlamaEosToks>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<Llama3RopeConfig>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// Whether the output layer uses the embedding's weight.
    pub tie_word_embeddings: bool,
}

impl Config {
    /// Llama 7B.
    pub fn config_7b_v1(use_flash_attn: bool) -> Self {
        Self {
            hidden_size: 4096,
            intermediate_size: 11008,
            vocab_size: 32000,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            use_flash_attn,
            rms_norm_eps: 1e-6,
            rope_theta: 10_000.,
            bos_token_id: None,
            eos_token_id: None,
            rope_scaling: None,
            max_position_embeddings: DEFAULT_MAX_SEQ_LEN,
            tie_word_embeddings: false,
        }
    }

    /// Llama 2 7B.
    pub fn config_7b_v2(use_flash_attn: bool) -> Self {
        Self {
            rms_norm_eps: 1e-5,
            ..Self::config_7b_v1(use_flash_attn)
        }
    }

    /// The rotary angle per position of each pair of a head's elements, scaled as `rope_scaling` says:
    /// `hidden_size / num_attention_heads / 2` values.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let mut frequencies = inverse_frequencies(f64::from(self.rope_theta), self.head_dim());
        if let Some(scaling) = &self.rope_scaling {
            for frequency in &mut frequencies {
                *frequency = scaling.scale(*frequency);
            }
        }
        frequencies
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        self.validate()?;
        let norm = NormSpec::rms(self.rms_norm_eps);
        let attention = AttentionSpec::new(
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
        );
        let mlp = MlpSpec::new(self.intermediate_size, GatedActivation::Silu);
        let layer = LayerSpec::pre_norm(attention, FeedForwardSpec::Gated(mlp), norm);
        let rotary = Rotary {
            frequencies: self.inverse_frequencies(),
            ..Rotary::new(RotaryPairs::Halves, 1., 0)
        };
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.max_position_embeddings,
        ];
        Ok(DecoderSpec {
            head: Head::tied(self.tie_word_embeddings),
            ..DecoderSpec::new(
                "llama",
                sizes,
                vec![rotary],
                layers(self.num_hidden_layers, |_| Ok(layer.clone()))?,
                norm,
            )
        })
    }

    pub(super) fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    /// Checks the layers' assumptions, so that errors about a bad configuration name its fields.
    ///
    /// # Errors
    /// The first assumption that does not hold.
    pub fn validate(&self) -> Result<()> {
        let (hidden, heads, kv_heads) = (
            self.hidden_size,
            self.num_attention_heads,
            self.num_key_value_heads,
        );
        if heads == 0 || kv_heads == 0 {
            bail!(
                "llama config: num_attention_heads is {heads} and num_key_value_heads {kv_heads}; both must be at \
                 least 1"
            )
        }
        if heads % kv_heads != 0 {
            bail!(
                "llama config: num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({kv_heads})"
            )
        }
        if hidden == 0 || hidden % (2 * heads) != 0 {
            bail!(
                "llama config: hidden_size ({hidden}) must be a multiple of 2 * num_attention_heads ({heads}), so \
                 that heads have an even size to rotate"
            )
        }
        if self.max_position_embeddings == 0 {
            bail!("llama config: max_position_embeddings is 0; it must be at least 1")
        }
        Ok(())
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}
