//! SmolLM3 with dense weights.

use candle_core::{bail, Error, Result};
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::family::LlamaLike;
use crate::blocks::{
    DecoderConfig, DecoderSpec, Head, HiddenLm, Lm, NormSpec, RopeScaling, RotaryPairs,
};

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
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Activation of the MLP's gate.
    pub hidden_act: Activation,
    /// Whether the projections of attention have biases.
    pub attention_bias: Option<bool>,
    /// Used in training only.
    pub attention_dropout: Option<f64>,
    /// Whether the layers of the MLP have biases.
    pub mlp_bias: Option<bool>,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: Option<usize>,
    /// Whether the layers that rotate nothing have a window.
    pub use_sliding_window: Option<bool>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<serde_json::Value>,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<u32>,
    /// The padding token.
    pub pad_token_id: Option<u32>,
    /// Not used here.
    pub max_window_layers: Option<usize>,
    /// For each layer, 1 if it has a rotation, 0 if not.
    pub no_rope_layers: Option<Vec<usize>>,
    /// Every layer whose number is a multiple of this has no rotation; used if `no_rope_layers` is missing.
    pub no_rope_layer_interval: Option<usize>,
}

impl Config {
    /// Whether a layer rotates nothing.
    pub fn should_skip_rope(&self, layer_idx: usize) -> bool {
        let listed = self.no_rope_layers.as_ref();
        match (
            listed.and_then(|layers| layers.get(layer_idx)),
            self.no_rope_layer_interval,
        ) {
            (Some(rotates), _) => *rotates == 0,
            (None, Some(interval)) => (layer_idx + 1).is_multiple_of(interval),
            (None, None) => false,
        }
    }

    /// Size of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        self.spec_with(|i| self.should_skip_rope(i))
    }

    /// As [`spec`](Self::spec), with the window, if there is one, in the layers for which `windowed` returns true.
    pub(crate) fn spec_with(&self, windowed: impl Fn(usize) -> bool) -> Result<DecoderSpec> {
        let window = match (self.use_sliding_window, self.sliding_window) {
            (Some(true), None) => {
                bail!("smollm3 config: use_sliding_window is true, but sliding_window is missing")
            }
            (Some(true), window) => window,
            _ => None,
        };
        let sizes = LlamaLike {
            family: "smollm3",
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
        };
        let scaling = match &self.rope_scaling {
            None => RopeScaling::none(),
            Some(json) => serde_json::from_value(json.clone())
                .map_err(|err| Error::Msg(format!("smollm3 config: rope_scaling: {err}")).bt())?,
        };
        let (dim, positions) = (self.head_dim(), self.max_position_embeddings);
        let rotary = scaling.rotary(RotaryPairs::Halves, self.rope_theta, dim, positions)?;
        let norm = NormSpec::rms(self.rms_norm_eps);
        sizes.spec_with(vec![rotary], norm, |i, attention, mlp| {
            *attention = attention.clone().bias(self.attention_bias.unwrap_or(false));
            attention.rotary = (!self.should_skip_rope(i)).then_some(0);
            attention.window = window.filter(|_| windowed(i));
            mlp.bias = self.mlp_bias.unwrap_or(false);
        })
    }
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The decoder without an output layer. Loads `model.*`.
pub type Model = HiddenLm<Config>;

/// The language model. Loads `model.*`, and `lm_head` unless it is tied.
pub type ModelForCausalLM = Lm<Config>;
