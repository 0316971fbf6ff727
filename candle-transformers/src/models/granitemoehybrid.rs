//! Granite 4 ([its collection](https://huggingface.co/collections/ibm-granite/granite-40-language-models)): Llama with multipliers of
//! embeddings, scores, blocks and logits, and gate and up as one weight. Models with Mamba layers load through [`auto`](crate::auto).

use candle_core::{bail, Result};
use candle_nn::ops::GatedActivation;
use serde::Deserialize;

use super::llama::{Llama3RopeConfig, Llama3RopeType};
use crate::blocks::{
    layers, AttentionSpec, CachedLm, DecoderConfig, DecoderSpec, ExpertsSpec, FeedForwardSpec,
    Head, LayerSpec, MixerSpec, MlpSpec, Names, NormSpec, Order, Rotary, RotaryPairs, Routing,
    Scoring, SequenceCache, SharedSpec, StateSpaceSpec,
};

const NAMES: Names = Names {
    gate_up: "shared_mlp.input_linear",
    down: "shared_mlp.output_linear",
    router: "block_sparse_moe.router.layer",
    expert: ["", "", ""],
    experts_joined: [
        "block_sparse_moe.input_linear.weight",
        "block_sparse_moe.output_linear.weight",
    ],
    shared: ["", "", "shared_mlp.output_linear"],
    ..Names::HUGGING_FACE
};

/// The longest context of upstream's examples.
pub const DEFAULT_MAX_SEQ_LEN: usize = 4096;

/// Whether the rotary frequencies are scaled.
#[derive(Debug, Clone, Default, Deserialize)]
pub enum GraniteMoeHybridRopeType {
    /// As Llama 3's.
    #[serde(rename = "granite")]
    Granite,
    /// Not at all.
    #[default]
    #[serde(rename = "default")]
    Default,
}

/// `rope_scaling` of a configuration; see [`Llama3RopeConfig`].
#[derive(Debug, Clone, Default, Deserialize)]
pub struct GraniteMoeHybridRopeConfig {
    /// Divisor of low frequencies.
    pub factor: f32,
    /// Frequencies that rotate fewer times than this within the original context are low.
    pub low_freq_factor: f32,
    /// Frequencies that rotate more often than this within the original context stay as they are.
    pub high_freq_factor: f32,
    /// The original context: positions seen in pre-training.
    pub original_max_position_embeddings: usize,
    /// Whether to scale.
    pub rope_type: GraniteMoeHybridRopeType,
}

/// The token mixer of a layer.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraniteMoeHybridLayerType {
    /// Attention.
    #[default]
    #[serde(alias = "full_attention")]
    Attention,
    /// Mamba 2. Candle's configuration has no sizes for it: `auto` reads them.
    #[serde(alias = "linear_attention")]
    Mamba,
}

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct GraniteMoeHybridConfig {
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of an expert; of the MLP if `shared_intermediate_size` is missing.
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
    /// Base of the rotary frequencies.
    #[serde(default = "ten_thousand")]
    pub rope_theta: f32,
    /// The token that starts a text.
    pub bos_token_id: Option<u32>,
    /// The token that ends a text.
    pub eos_token_id: Option<u32>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<GraniteMoeHybridRopeConfig>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// The token mixer by layer; if empty, attention in all layers.
    #[serde(default)]
    pub layer_types: Vec<GraniteMoeHybridLayerType>,
    /// Factor of the scores.
    #[serde(default = "one")]
    pub attention_multiplier: f32,
    /// Factor of the embeddings.
    #[serde(default = "one")]
    pub embedding_multiplier: f32,
    /// Factor of the output of a block before it is added to the stream.
    #[serde(default = "one")]
    pub residual_multiplier: f32,
    /// Divisor of the logits.
    #[serde(default = "one")]
    pub logits_scaling: f32,
    /// Inner size of the shared MLP.
    #[serde(default)]
    pub shared_intermediate_size: Option<usize>,
}

fn ten_thousand() -> f32 {
    10_000.
}

fn one() -> f32 {
    1.
}

impl GraniteMoeHybridConfig {
    /// Key and value heads.
    pub fn num_key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The model's parameters. `use_flash_attn` is upstream's and has no effect here.
    pub fn into_config(self, use_flash_attn: bool) -> GraniteMoeHybridInternalConfig {
        let num_key_value_heads = self.num_key_value_heads();
        let layer_types = if self.layer_types.is_empty() {
            vec![GraniteMoeHybridLayerType::Attention; self.num_hidden_layers]
        } else {
            self.layer_types
        };
        GraniteMoeHybridInternalConfig {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            shared_intermediate_size: self
                .shared_intermediate_size
                .unwrap_or(self.intermediate_size),
            vocab_size: self.vocab_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads,
            use_flash_attn,
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope_theta,
            bos_token_id: self.bos_token_id,
            eos_token_id: self.eos_token_id,
            rope_scaling: self.rope_scaling,
            max_position_embeddings: self.max_position_embeddings,
            layer_types,
            attention_multiplier: self.attention_multiplier,
            embedding_multiplier: self.embedding_multiplier,
            residual_multiplier: self.residual_multiplier,
            logits_scaling: self.logits_scaling,
        }
    }
}

/// The parameters of a model.
#[derive(Debug, Clone)]
pub struct GraniteMoeHybridInternalConfig {
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of an expert.
    pub intermediate_size: usize,
    /// Inner size of the shared MLP.
    pub shared_intermediate_size: usize,
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
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
    pub eos_token_id: Option<u32>,
    /// Scaling of the rotary frequencies.
    pub rope_scaling: Option<GraniteMoeHybridRopeConfig>,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// The token mixer by layer.
    pub layer_types: Vec<GraniteMoeHybridLayerType>,
    /// Factor of the scores.
    pub attention_multiplier: f32,
    /// Factor of the embeddings.
    pub embedding_multiplier: f32,
    /// Factor of the output of a block before it is added to the stream.
    pub residual_multiplier: f32,
    /// Divisor of the logits; 0 for none.
    pub logits_scaling: f32,
}

/// A factor, unless it is 1.
fn factor(by: f32) -> Option<f64> {
    Some(f64::from(by)).filter(|by| *by != 1.)
}

impl GraniteMoeHybridInternalConfig {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself, or has Mamba layers, whose sizes are not here.
    pub fn spec(&self) -> Result<DecoderSpec> {
        self.spec_with(true, None, None)
    }

    /// As [`spec`](Self::spec), with or without rotated positions, with `experts` (their number, and the number per token) in addition to
    /// the MLP, and with the Mamba layers that `layer_types` names.
    pub(crate) fn spec_with(
        &self,
        rotates: bool,
        experts: Option<(usize, usize)>,
        mamba: Option<StateSpaceSpec>,
    ) -> Result<DecoderSpec> {
        let family = "granitemoehybrid";
        if self.layer_types.len() != self.num_hidden_layers {
            bail!(
                "{family} config: layer_types has {} values, but num_hidden_layers is {}",
                self.layer_types.len(),
                self.num_hidden_layers
            )
        }
        let is_mamba = |kind: &_| matches!(kind, GraniteMoeHybridLayerType::Mamba);
        if let (Some(layer), None) = (self.layer_types.iter().position(is_mamba), &mamba) {
            bail!("{family} config: layer_types: layer {layer} is \"mamba\", of which this type has no sizes; load the model with `auto`")
        }
        let norm = NormSpec::rms(self.rms_norm_eps);
        let heads = self.num_attention_heads;
        let attention = AttentionSpec::new(self.hidden_size, heads, self.num_key_value_heads);
        let attention = AttentionSpec {
            scale: Some(f64::from(self.attention_multiplier)),
            rotary: rotates.then_some(0),
            ..attention
        };
        let theta = f64::from(self.rope_theta);
        let mut rotary = Rotary::new(RotaryPairs::Halves, theta, attention.head_dim);
        if let Some(scaling) = &self.rope_scaling {
            let scaling = Llama3RopeConfig {
                factor: scaling.factor,
                low_freq_factor: scaling.low_freq_factor,
                high_freq_factor: scaling.high_freq_factor,
                original_max_position_embeddings: scaling.original_max_position_embeddings,
                rope_type: match scaling.rope_type {
                    GraniteMoeHybridRopeType::Granite => Llama3RopeType::Llama3,
                    GraniteMoeHybridRopeType::Default => Llama3RopeType::Default,
                },
            };
            for frequency in &mut rotary.frequencies {
                *frequency = scaling.scale(*frequency);
            }
        }
        let (silu, inner) = (GatedActivation::Silu, self.shared_intermediate_size);
        let feed_forward = match experts {
            None => FeedForwardSpec::Gated(MlpSpec::new(inner, silu).joined(Order::Layers)),
            Some((count, used)) => {
                let routing = Routing {
                    scoring: Scoring::SoftmaxOfChosen,
                    ..Routing::softmax(used, false)
                };
                let shared = SharedSpec {
                    joined: Some(Order::Layers),
                    ..SharedSpec::new(inner)
                };
                let experts = ExpertsSpec::new(count, self.intermediate_size, silu, routing);
                FeedForwardSpec::Experts(experts.shared(shared))
            }
        };
        let layer = LayerSpec {
            residual_scale: factor(self.residual_multiplier),
            ..LayerSpec::pre_norm(attention, feed_forward, norm)
        };
        let layers = layers(self.num_hidden_layers, |i| {
            let space = mamba.clone().filter(|_| is_mamba(&self.layer_types[i]));
            Ok(LayerSpec {
                mixer: space.map_or(layer.mixer.clone(), MixerSpec::from),
                ..layer.clone()
            })
        })?;
        let sizes = [
            self.vocab_size,
            self.hidden_size,
            self.max_position_embeddings,
        ];
        let spec = DecoderSpec {
            head: Head::Found { bias: false },
            embedding_scale: factor(self.embedding_multiplier),
            logit_scale: match self.logits_scaling {
                0. | 1. => None,
                by => Some(1. / f64::from(by)),
            },
            names: NAMES,
            ..DecoderSpec::new(family, sizes, vec![rotary], layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

impl DecoderConfig for GraniteMoeHybridInternalConfig {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// State of a sequence between its steps.
pub type GraniteMoeHybridCache = SequenceCache<GraniteMoeHybridInternalConfig>;

/// The language model. Loads `model.*`. Configurations with Mamba layers are errors.
pub type GraniteMoeHybrid = CachedLm<GraniteMoeHybridInternalConfig>;
