//! The `config.json` of a Moonshine.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::encoder::NormPlace;
use crate::blocks::seq2seq::{check_sizes, LayerSpec, MlpActivation};
use crate::blocks::{NormSpec, Order, Rotary, RotaryPairs};

/// Default fraction of a head that is rotated.
const ROTATED: f64 = 0.9;

/// The fields of `config.json`, as Transformers names them. Those that are missing have its defaults, which are moonshine-tiny's.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// The size of a vector.
    pub hidden_size: usize,
    /// The inner size of feed-forward blocks.
    pub intermediate_size: usize,
    /// Layers of the encoder.
    pub encoder_num_hidden_layers: usize,
    /// Layers of the decoder.
    pub decoder_num_hidden_layers: usize,
    /// Heads of the encoder's attention, which divide `hidden_size`.
    pub encoder_num_attention_heads: usize,
    /// Heads of the decoder's attention, which divide `hidden_size`.
    pub decoder_num_attention_heads: usize,
    /// Its key and value heads; only the number of its heads.
    pub encoder_num_key_value_heads: Option<usize>,
    /// Its key and value heads; only the number of its heads.
    pub decoder_num_key_value_heads: Option<usize>,
    /// The activation of the encoder's feed-forward blocks.
    pub encoder_hidden_act: Activation,
    /// The activation of the gate of the decoder's feed-forward blocks.
    pub decoder_hidden_act: Activation,
    /// Maximum text length, in tokens.
    pub max_position_embeddings: usize,
    /// The token that a text begins with.
    pub decoder_start_token_id: u32,
    /// The token that ends a text.
    pub eos_token_id: u32,
    /// Whether queries, keys and values have biases; only `false`, as of all published files.
    pub attention_bias: bool,
    /// Whether the layer over the tokens is the table of their vectors.
    pub tie_word_embeddings: bool,
    /// The base of the angles, where `rope_parameters` has none.
    pub rope_theta: Option<f64>,
    /// Fraction of a head that is rotated; used if `rope_parameters` has none.
    pub partial_rotary_factor: Option<f64>,
    /// The angles' parameters, as written by Transformers 5.
    pub rope_parameters: Option<RopeParameters>,
}

/// The angles of positions.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RopeParameters {
    /// The kind of scaling; only `default`, which means none.
    #[serde(alias = "type")]
    pub rope_type: Option<String>,
    /// Their base.
    pub rope_theta: Option<f64>,
    /// Fraction of each head that is rotated.
    pub partial_rotary_factor: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            vocab_size: 32768,
            hidden_size: 288,
            intermediate_size: 1152,
            encoder_num_hidden_layers: 6,
            decoder_num_hidden_layers: 6,
            encoder_num_attention_heads: 8,
            decoder_num_attention_heads: 8,
            encoder_num_key_value_heads: None,
            decoder_num_key_value_heads: None,
            encoder_hidden_act: Activation::Gelu,
            decoder_hidden_act: Activation::Silu,
            max_position_embeddings: 512,
            decoder_start_token_id: 1,
            eos_token_id: 2,
            attention_bias: false,
            tie_word_embeddings: true,
            rope_theta: None,
            partial_rotary_factor: None,
            rope_parameters: None,
        }
    }
}

impl Config {
    /// A layer, of the decoder or of the encoder.
    pub(super) fn layer(&self, decoder: bool) -> Result<LayerSpec> {
        let (names, [layers, heads]) = if decoder {
            (
                [
                    "decoder_num_hidden_layers",
                    "decoder_num_attention_heads",
                    "decoder_num_key_value_heads",
                ],
                [
                    self.decoder_num_hidden_layers,
                    self.decoder_num_attention_heads,
                ],
            )
        } else {
            (
                [
                    "encoder_num_hidden_layers",
                    "encoder_num_attention_heads",
                    "encoder_num_key_value_heads",
                ],
                [
                    self.encoder_num_hidden_layers,
                    self.encoder_num_attention_heads,
                ],
            )
        };
        let sizes = [
            ("vocab_size", self.vocab_size),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            (names[0], layers),
        ];
        check_sizes(FAMILY, &sizes)?;
        if self.attention_bias {
            bail!("{FAMILY} config: attention_bias is true; only attention without biases is supported")
        }
        let kv_heads = if decoder {
            self.decoder_num_key_value_heads
        } else {
            self.encoder_num_key_value_heads
        };
        if kv_heads.is_some_and(|kv_heads| kv_heads != heads) {
            bail!(
                "{FAMILY} config: {} is {}; only {} of {heads} is supported",
                names[2],
                kv_heads.unwrap_or(0),
                names[1]
            )
        }
        let spec = LayerSpec::bart(
            FAMILY,
            ("hidden_size", self.hidden_size),
            (names[1], heads),
            self.intermediate_size,
            self.encoder_hidden_act,
            self.max_position_embeddings,
        )?;
        Ok(LayerSpec {
            source: decoder.then_some(self.hidden_size),
            activation: match decoder {
                // The gate is the second half of the tensor.
                true => MlpActivation::Joined(self.decoder_hidden_act.try_into()?, Order::Reversed),
                false => spec.activation,
            },
            bias: false,
            norm: NormSpec::layer_no_bias(1e-5),
            place: NormPlace::Before,
            ..spec
        })
    }

    /// The rotation of heads of this size.
    pub(super) fn rotary(&self, head_dim: usize) -> Result<Rotary> {
        let written = self.rope_parameters.clone().unwrap_or_default();
        if let Some(kind) = written.rope_type.filter(|kind| kind != "default") {
            bail!("{FAMILY} config: rope_type is {kind:?}; only \"default\" is supported")
        }
        let theta = written.rope_theta.or(self.rope_theta).unwrap_or(10_000.);
        let share = written.partial_rotary_factor.or(self.partial_rotary_factor);
        let share = share.unwrap_or(ROTATED);
        if !(share > 0. && share <= 1.) {
            bail!("{FAMILY} config: partial_rotary_factor is {share}; expected above 0 and up to 1")
        }
        if !theta.is_finite() || theta <= 0. {
            bail!("{FAMILY} config: rope_theta is {theta}; expected a number above 0")
        }
        if !head_dim.is_multiple_of(2) {
            bail!("{FAMILY} config: heads have {head_dim} elements; rotation needs an even number")
        }
        // With an odd number of elements the last one is rotated with the one after it.
        let elements = (share * head_dim as f64) as usize;
        let angle = |i: usize| theta.powf(-2. * i as f64 / elements as f64) as f32;
        Ok(Rotary {
            frequencies: (0..elements.div_ceil(2)).map(angle).collect(),
            ..Rotary::new(RotaryPairs::Neighbours, theta, head_dim)
        })
    }
}
