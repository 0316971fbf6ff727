//! T5's `config.json`.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::de::value::StrDeserializer;
use serde::{Deserialize, Deserializer};

use crate::blocks::encoder::NormPlace;
use crate::blocks::seq2seq::{check_sizes, LayerSpec, MlpActivation};
use crate::blocks::NormSpec;

/// The form of the feed-forward blocks.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
pub struct ActivationWithOptionalGating {
    /// Whether a gate, through the activation, multiplies what passes it.
    pub gated: bool,
    /// The activation.
    pub activation: Activation,
}

/// The activation of T5's first checkpoints.
fn relu() -> ActivationWithOptionalGating {
    ActivationWithOptionalGating {
        gated: false,
        activation: Activation::Relu,
    }
}

/// Reads the field `feed_forward_proj`: an activation's name, with `gated-` before it for a gate. The GELU of a gate is the approximation by
/// tanh.
///
/// # Errors
/// If there is no activation of that name.
pub fn deserialize_feed_forward_proj_activation<'de, D>(
    deserializer: D,
) -> std::result::Result<ActivationWithOptionalGating, D::Error>
where
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    let (gated, name) = match text.strip_prefix("gated-") {
        Some(name) => (true, name),
        None => (false, text.as_str()),
    };
    let activation = match (gated, name) {
        (true, "gelu") => Activation::NewGelu,
        _ => Activation::deserialize(StrDeserializer::<D::Error>::new(name))?,
    };
    Ok(ActivationWithOptionalGating { gated, activation })
}

fn max_distance() -> usize {
    128
}

fn yes() -> bool {
    true
}

/// The fields of a checkpoint's `config.json` of `model_type` `t5`, `mt5` or `umt5`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(remote = "Self")]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The size of a token's vector.
    pub d_model: usize,
    /// The size of a head.
    pub d_kv: usize,
    /// The inner size of feed-forward blocks.
    pub d_ff: usize,
    /// Layers of the encoder.
    pub num_layers: usize,
    /// Layers of the decoder; `None` for the number of the encoder's layers.
    pub num_decoder_layers: Option<usize>,
    /// Heads.
    pub num_heads: usize,
    /// Classes of distances between tokens; each has a bias per head.
    pub relative_attention_num_buckets: usize,
    /// Minimum distance of the last class; default: 128.
    #[serde(default = "max_distance")]
    pub relative_attention_max_distance: usize,
    /// Used in training only.
    pub dropout_rate: f64,
    /// RMS norm epsilon, added to the mean square.
    pub layer_norm_epsilon: f64,
    /// Used in training only.
    pub initializer_factor: f64,
    /// The form of the feed-forward blocks; ReLU without a gate if not given.
    #[serde(
        default = "relu",
        deserialize_with = "deserialize_feed_forward_proj_activation"
    )]
    pub feed_forward_proj: ActivationWithOptionalGating,
    /// Whether the output layer shares the token table's weight; default: `true`.
    #[serde(default = "yes")]
    pub tie_word_embeddings: bool,
    /// Not used: the model determines whether a stack is a decoder.
    #[serde(default)]
    pub is_decoder: bool,
    /// Whether there are an encoder and a decoder, as [`T5ForConditionalGeneration`](super::T5ForConditionalGeneration) needs them.
    pub is_encoder_decoder: bool,
    /// Whether the decoder keeps the keys and values of tokens, so that each is given once; true if not given.
    #[serde(default = "yes")]
    pub use_cache: bool,
    /// The padding token.
    pub pad_token_id: usize,
    /// The token that ends a text.
    pub eos_token_id: usize,
    /// The token that the decoder starts with.
    pub decoder_start_token_id: Option<usize>,
}

crate::models::spelling::spelled!(Config, |fields| {
    // The logits are scaled unless a file says that the head is not tied, as the first files of v1.1 do. Transformers 5 ties always, and
    // says apart whether it scales; mT5 never does.
    let unscaled = fields.get("scale_decoder_outputs") == Some(&false.into())
        || fields.get("model_type").and_then(|kind| kind.as_str()) == Some("mt5");
    if unscaled {
        fields.insert("tie_word_embeddings".into(), false.into());
    }
    Ok(())
});

/// T5 small.
impl Default for Config {
    fn default() -> Self {
        Self {
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_decoder_layers: None,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: max_distance(),
            dropout_rate: 0.1,
            layer_norm_epsilon: 1e-6,
            initializer_factor: 1.,
            feed_forward_proj: relu(),
            tie_word_embeddings: true,
            is_decoder: false,
            is_encoder_decoder: true,
            use_cache: true,
            pad_token_id: 0,
            eos_token_id: 1,
            decoder_start_token_id: Some(0),
        }
    }
}

impl Config {
    /// The encoder of MusicGen small: T5 base.
    pub fn musicgen_small() -> Self {
        Self {
            d_model: 768,
            d_ff: 3072,
            num_layers: 12,
            num_decoder_layers: Some(12),
            num_heads: 12,
            ..Self::default()
        }
    }

    /// A layer, of the decoder or of the encoder.
    pub(super) fn layer(&self, decoder: bool) -> Result<LayerSpec> {
        check_sizes(
            "t5",
            &[
                ("vocab_size", self.vocab_size),
                ("d_model", self.d_model),
                ("d_kv", self.d_kv),
                ("d_ff", self.d_ff),
                ("num_heads", self.num_heads),
            ],
        )?;
        let ActivationWithOptionalGating { gated, activation } = self.feed_forward_proj;
        Ok(LayerSpec {
            hidden: self.d_model,
            heads: self.num_heads,
            kv_heads: [self.num_heads; 2],
            head_dim: self.d_kv,
            scale: 1.,
            source: decoder.then_some(self.d_model),
            inner: self.d_ff,
            activation: if gated {
                MlpActivation::Gated(activation.try_into()?)
            } else {
                MlpActivation::Plain(activation)
            },
            bias: false,
            mlp_bias: false,
            norm: NormSpec::rms(self.layer_norm_epsilon),
            place: NormPlace::Before,
            limit: usize::MAX,
        })
    }

    /// Layers of the decoder or of the encoder.
    pub(super) fn layers(&self, decoder: bool) -> Result<usize> {
        let layers = match self.num_decoder_layers {
            Some(layers) if decoder => layers,
            _ => self.num_layers,
        };
        if layers == 0 {
            bail!("t5 config: no layers; at least 1 is required")
        }
        Ok(layers)
    }
}
