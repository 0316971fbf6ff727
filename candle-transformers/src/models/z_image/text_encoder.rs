//! The encoder of texts: the layers of [`crate::models::qwen3`] but for the last one.

use candle_core::{bail, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::{Decoder, DecoderSpec, Head, NormSpec};
use crate::models::qwen3;

/// The numbers of a `config.json`, which leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct TextEncoderConfig {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token.
    pub hidden_size: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Layers, with the last one, which is not run.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// Activation of the feed-forward blocks' gate.
    pub hidden_act: Activation,
    /// Maximum text length, in tokens.
    pub max_position_embeddings: usize,
}

/// [`TextEncoderConfig::z_image`].
impl Default for TextEncoderConfig {
    fn default() -> Self {
        Self::z_image()
    }
}

impl TextEncoderConfig {
    /// [Z-Image-Turbo](https://huggingface.co/Tongyi-MAI/Z-Image-Turbo)'s, which is [Qwen3-4B](https://huggingface.co/Qwen/Qwen3-4B).
    pub fn z_image() -> Self {
        Self {
            vocab_size: 151_936,
            hidden_size: 2560,
            intermediate_size: 9728,
            num_hidden_layers: 36,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            head_dim: 128,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            attention_bias: false,
            hidden_act: Activation::Silu,
            max_position_embeddings: 40_960,
        }
    }

    fn spec(&self) -> Result<DecoderSpec> {
        if self.num_hidden_layers < 2 {
            bail!(
                "{FAMILY}: num_hidden_layers is {}; it must be at least 2, since the last layer is not run",
                self.num_hidden_layers
            )
        }
        let qwen3 = qwen3::Config {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers - 1,
            num_attention_heads: self.num_attention_heads,
            head_dim: self.head_dim,
            attention_bias: self.attention_bias,
            num_key_value_heads: self.num_key_value_heads,
            max_position_embeddings: self.max_position_embeddings,
            sliding_window: None,
            max_window_layers: 0,
            tie_word_embeddings: true,
            rope_theta: self.rope_theta,
            rms_norm_eps: self.rms_norm_eps,
            use_sliding_window: false,
            hidden_act: self.hidden_act,
        };
        Ok(DecoderSpec {
            family: FAMILY,
            head: Head::None,
            // It is not applied, and without a weight not read.
            final_norm: NormSpec::layer_bare(self.rms_norm_eps),
            ..qwen3.spec()?
        })
    }
}

/// The encoder of texts.
#[derive(Debug, Clone)]
pub struct ZImageTextEncoder {
    decoder: Decoder,
}

impl ZImageTextEncoder {
    /// Loads `model.embed_tokens` and `model.layers` but for the last one.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &TextEncoderConfig, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            decoder: Decoder::from_vb(cfg.spec()?, vb)?,
        })
    }

    /// From token ids (batch, seq) to the stream before the last layer, (batch, seq, hidden_size), without a norm. A token sees those
    /// before it; texts of a batch that are filled up behind their ends are the same as alone.
    ///
    /// # Errors
    /// If there are no ids, or more than `max_position_embeddings`.
    pub fn forward(&self, input_ids: &Tensor) -> Result<Tensor> {
        let mut state = self.decoder.new_state();
        state.use_cache = false;
        self.decoder.forward(input_ids, 0, &mut state)?.stream()
    }

    /// The size of a token.
    pub fn hidden_size(&self) -> usize {
        self.decoder.spec().hidden
    }
}
