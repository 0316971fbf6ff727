//! What a DeepSeek is made of.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;

use crate::blocks::{
    layers, DecoderSpec, ExpertsSpec, FeedForwardSpec, Groups, Head, LatentSpec, LayerSpec,
    MlpSpec, Names, NormSpec, RopeScaling, RotaryPairs, Routing, Scoring, SharedSpec,
};
use crate::serde_default_fn;

const NAMES: Names = Names {
    shared: [
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
        "mlp.shared_experts.down_proj",
    ],
    ..Names::HUGGING_FACE
};

serde_default_fn!(f64, one, 1.);
serde_default_fn!(usize, every, 1);
serde_default_fn!(Activation, silu, Activation::Silu);
serde_default_fn!(bool, yes, true);

/// The method by which experts are chosen.
#[derive(Deserialize, Clone, Copy, Debug, Default, PartialEq)]
enum TopkMethod {
    #[default]
    #[serde(rename = "greedy")]
    Greedy,
    /// V2's groups, for which their best expert speaks.
    #[serde(rename = "group_limited_greedy")]
    GroupLimitedGreedy,
    /// V3's groups, for which their best two speak, with a bias.
    #[serde(rename = "noaux_tc")]
    NoAuxTc,
}

#[derive(Deserialize, Clone, Copy, Debug, Default)]
enum ScoringFunc {
    #[default]
    #[serde(rename = "softmax")]
    Softmax,
    #[serde(rename = "sigmoid")]
    Sigmoid,
}

/// A checkpoint's `config.json`, of V2 or V3.
#[derive(Deserialize, Clone, Debug)]
pub struct DeepSeekV2Config {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    moe_intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    n_shared_experts: Option<usize>,
    n_routed_experts: Option<usize>,
    #[serde(default = "one")]
    routed_scaling_factor: f64,
    #[serde(default)]
    topk_method: TopkMethod,
    num_experts_per_tok: Option<usize>,
    #[serde(default = "every")]
    moe_layer_freq: usize,
    #[serde(default)]
    first_k_dense_replace: usize,
    #[serde(default)]
    norm_topk_prob: bool,
    #[serde(default)]
    scoring_func: ScoringFunc,
    #[serde(default = "silu")]
    hidden_act: Activation,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    #[serde(default)]
    tie_word_embeddings: bool,
    rope_theta: f32,
    #[serde(alias = "rope_parameters")]
    rope_scaling: Option<RopeScaling>,
    /// Whether neighbours are rotated together, as DeepSeek's own checkpoints have them.
    #[serde(default = "yes")]
    rope_interleave: bool,
    attention_bias: bool,
    q_lora_rank: Option<usize>,
    qk_rope_head_dim: usize,
    kv_lora_rank: usize,
    v_head_dim: usize,
    qk_nope_head_dim: usize,
    n_group: usize,
    topk_group: usize,
}

impl DeepSeekV2Config {
    /// The decoder that it describes.
    ///
    /// # Errors
    /// If it contradicts itself.
    pub fn spec(&self) -> Result<DecoderSpec> {
        let norm = NormSpec::rms(self.rms_norm_eps);
        let pairs = if self.rope_interleave {
            RotaryPairs::Neighbours
        } else {
            RotaryPairs::Halves
        };
        let none = RopeScaling::none();
        let scaling = self.rope_scaling.as_ref().unwrap_or(&none);
        let (theta, positions) = (f64::from(self.rope_theta), self.max_position_embeddings);
        let rotary = scaling.rotary(pairs, theta, self.qk_rope_head_dim, positions)?;
        let attention = LatentSpec {
            heads: self.num_attention_heads,
            q_rank: self.q_lora_rank,
            kv_rank: self.kv_lora_rank,
            plain_dim: self.qk_nope_head_dim,
            rotated_dim: self.qk_rope_head_dim,
            v_dim: self.v_head_dim,
            bias: self.attention_bias,
            norm,
            rotary: 0,
            scale: self.score_scale(scaling),
        };
        let activation = self.hidden_act.try_into()?;
        let mlp = FeedForwardSpec::Gated(MlpSpec::new(self.intermediate_size, activation));
        let experts = self.experts()?;
        if self.moe_layer_freq == 0 {
            bail!("deepseek config: moe_layer_freq is 0; it must be at least 1")
        }
        let layers = layers(self.num_hidden_layers, |i| {
            let sparse = i >= self.first_k_dense_replace && i.is_multiple_of(self.moe_layer_freq);
            let feed_forward = match &experts {
                Some(experts) if sparse => FeedForwardSpec::Experts(experts.clone()),
                _ => mlp.clone(),
            };
            Ok(LayerSpec::pre_norm(attention.clone(), feed_forward, norm))
        })?;
        let sizes = [self.vocab_size, self.hidden_size, positions];
        let spec = DecoderSpec {
            head: Head::tied(self.tie_word_embeddings),
            names: NAMES,
            ..DecoderSpec::new("deepseek", sizes, vec![rotary], layers, norm)
        };
        spec.check()?;
        Ok(spec)
    }

    /// Factor of the scores; with yarn, including the square of its factor, which cosines and sines therefore omit.
    fn score_scale(&self, scaling: &RopeScaling) -> f64 {
        let head_dim = self.qk_nope_head_dim + self.qk_rope_head_dim;
        let plain = 1. / (head_dim as f64).sqrt();
        match (
            scaling.rope_type.as_str(),
            scaling.factor,
            scaling.mscale_all_dim,
        ) {
            ("yarn", Some(factor), Some(by)) if factor > 1. => {
                plain * (0.1 * by * factor.ln() + 1.).powi(2)
            }
            _ => plain,
        }
    }

    fn experts(&self) -> Result<Option<ExpertsSpec>> {
        let Some(count) = self.n_routed_experts else {
            return Ok(None);
        };
        let Some(used) = self.num_experts_per_tok else {
            bail!(
                "deepseek config: n_routed_experts is {count}, but num_experts_per_tok is missing"
            )
        };
        let groups = |best| {
            Some(Groups {
                count: self.n_group,
                used: self.topk_group,
                best,
            })
        };
        let third = self.topk_method == TopkMethod::NoAuxTc;
        let normalised = self.norm_topk_prob && (third || used > 1);
        let routing = Routing {
            scoring: match self.scoring_func {
                ScoringFunc::Softmax => Scoring::Softmax,
                ScoringFunc::Sigmoid => Scoring::Sigmoid,
            },
            // V2 does one or the other, V3 both.
            scale: if normalised && !third {
                1.
            } else {
                self.routed_scaling_factor
            },
            groups: match self.topk_method {
                TopkMethod::Greedy => None,
                TopkMethod::GroupLimitedGreedy => groups(1),
                TopkMethod::NoAuxTc => groups(2),
            },
            choice_bias: third,
            ..Routing::softmax(used, normalised)
        };
        let activation = self.hidden_act.try_into()?;
        let experts = ExpertsSpec::new(count, self.moe_intermediate_size, activation, routing);
        Ok(Some(match self.n_shared_experts {
            Some(shared) if shared > 0 => {
                experts.shared(SharedSpec::new(shared * self.moe_intermediate_size))
            }
            _ => experts,
        }))
    }
}
