//! gpt-oss ([arXiv 2508.10925](https://arxiv.org/abs/2508.10925)): experts of 4 bits, attention with a sink in each head, and a window in
//! every second layer. Not in upstream's interface.

use candle_core::{bail, Result};
use candle_nn::ops::GatedActivation;
use serde::Deserialize;

use crate::blocks::{
    layers, AttentionSpec, DecoderConfig, DecoderSpec, ExpertsSpec, FeedForwardSpec, GgufMetadata,
    Head, JoinedExperts, LayerSpec, Lm, Names, NormSpec, RopeScaling, RotaryPairs, Routing,
    Scoring,
};

const NAMES: Names = Names {
    router: "mlp.router",
    expert: ["", "", ""],
    ..Names::HUGGING_FACE
};

const GGUF_NAMES: Names = Names {
    mlp_norm: "post_attention_norm",
    ..Names::GGUF
};

/// The bound to which its kernels clamp gate and up.
const LIMIT: f64 = 7.;

/// A checkpoint's `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Config {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of the residual stream.
    pub hidden_size: usize,
    /// Inner size of an expert.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Head dimension.
    pub head_dim: usize,
    /// Experts.
    pub num_local_experts: usize,
    /// Experts for each token.
    pub num_experts_per_tok: usize,
    /// Window size, in positions, of the layers with a window.
    pub sliding_window: usize,
    /// Maximum sequence length, in tokens.
    pub max_position_embeddings: usize,
    /// RMS norm epsilon, added to the mean square.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of the rotary frequencies.
    #[serde(alias = "rope_parameters")]
    pub rope_scaling: Option<RopeScaling>,
    /// `sliding_attention` or `full_attention` for each layer; default: alternating.
    #[serde(default)]
    pub layer_types: Option<Vec<String>>,
    /// Whether the projections of attention have biases.
    pub attention_bias: bool,
    /// The bound to which gate and up of an expert are clamped.
    pub swiglu_limit: f64,
    /// Whether the output layer shares the token table's weight.
    pub tie_word_embeddings: bool,
}

impl Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        if self.swiglu_limit != LIMIT {
            bail!(
                "gpt_oss config: swiglu_limit is {}; only {LIMIT} is supported",
                self.swiglu_limit
            )
        }
        let windowed = |i: usize| {
            match self.layer_types.as_ref().map(|types| types.get(i)) {
            None => Ok(i.is_multiple_of(2)),
            Some(Some(kind)) if kind == "sliding_attention" => Ok(true),
            Some(Some(kind)) if kind == "full_attention" => Ok(false),
            Some(other) => bail!(
                "gpt_oss config: layer_types: layer {i} is {other:?}; supported: \"sliding_attention\" and \"full_attention\""
            ),
        }
        };
        let norm = NormSpec::rms(self.rms_norm_eps);
        let heads = [self.num_attention_heads, self.num_key_value_heads];
        let attention = AttentionSpec::new(self.hidden_size, heads[0], heads[1]);
        let attention = AttentionSpec {
            head_dim: self.head_dim,
            sinks: true,
            ..attention.bias(self.attention_bias)
        };
        let none = RopeScaling::none();
        let scaling = self.rope_scaling.as_ref().unwrap_or(&none);
        let positions = self.max_position_embeddings;
        let pairs = RotaryPairs::Halves;
        let rotary = scaling.rotary(pairs, self.rope_theta, self.head_dim, positions)?;
        let experts = ExpertsSpec {
            bias: true,
            joined: JoinedExperts::Alternating,
            ..ExpertsSpec::new(
                self.num_local_experts,
                self.intermediate_size,
                GatedActivation::ClampedSwiglu,
                routing(self.num_experts_per_tok),
            )
        };
        let layers = layers(self.num_hidden_layers, |i| {
            let attention = AttentionSpec {
                window: windowed(i)?.then_some(self.sliding_window),
                ..attention.clone()
            };
            let experts = FeedForwardSpec::Experts(experts.clone());
            Ok(LayerSpec::pre_norm(attention, experts, norm))
        })?;
        let sizes = [self.vocab_size, self.hidden_size, positions];
        let spec = DecoderSpec {
            head: Head::tied(self.tie_word_embeddings),
            names: NAMES,
            ..DecoderSpec::new("gpt_oss", sizes, vec![rotary], layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }
}

/// The best scores, and the softmax of those alone.
fn routing(used: usize) -> Routing {
    Routing {
        scoring: Scoring::SoftmaxOfChosen,
        ..Routing::softmax(used, false)
    }
}

/// The decoder that a GGUF file of the architecture `gpt-oss` describes.
///
/// # Errors
/// Which key is missing, or has a value that does not fit.
pub fn spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    file.expect(&["gpt-oss"])?;
    let (mut attention, norm) = (file.attention()?, file.rms_norm()?);
    attention.sinks = true;
    let window = file.required_size("attention.sliding_window")?;
    let scaling = RopeScaling {
        truncate: Some(false),
        ..file.rope_scaling()?
    };
    let rotary = file.scaled_rotary(RotaryPairs::Halves, attention.head_dim, &scaling)?;
    let experts = file.experts(GatedActivation::ClampedSwiglu, routing(0))?;
    let experts = file.required("expert_count", experts)?;
    let layers = layers(file.layers()?, |i| {
        let attention = AttentionSpec {
            window: i.is_multiple_of(2).then_some(window),
            ..attention.clone()
        };
        Ok(LayerSpec::pre_norm(attention, experts.clone(), norm))
    })?;
    Ok(DecoderSpec {
        names: GGUF_NAMES,
        ..file.decoder("gpt_oss", vec![rotary], layers, norm)?
    })
}

impl DecoderConfig for Config {
    fn decoder_spec(&self) -> Result<DecoderSpec> {
        self.spec()
    }
}

/// The language model. Loads `model.*`, and `lm_head` unless it is tied. Experts are read dense, or as MXFP4 blocks and scales, which become dense in the dtype of `vb`.
pub type Model = Lm<Config>;
