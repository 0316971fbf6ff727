//! Families with experts; each token uses some of them.

use candle_core::{bail, Result};
use candle_nn::ops::GatedActivation;
use candle_nn::Activation;

use super::decoder::{decoder, gated};
use crate::auto::config::{Config, Family};
use crate::auto::dense::attentions;
use crate::blocks::{
    DecoderSpec, ExpertsSpec, FeedForwardSpec, Groups, Head, Names, NormSpec, QkNorm, Routing,
    Scoring, SharedSpec,
};
use crate::models::granitemoehybrid::GraniteMoeHybridConfig;

pub(super) const FAMILIES: &[Family] = &[
    Family::new(
        "olmoe",
        r#"{"hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "num_experts_per_tok": 8, "num_experts": 64}"#,
        olmoe,
    ),
    Family::new("granitemoe", GRANITE, |json| granite(json, "granitemoe")),
    Family::new("granitemoeshared", GRANITE, |json| {
        granite(json, "granitemoeshared")
    }),
    Family::new(
        "phimoe",
        r#"{"num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0, "num_experts_per_tok": 2, "num_local_experts": 16, "router_jitter_noise": 0.01}"#,
        phimoe,
    ),
    Family::new(
        "glm4_moe",
        r#"{"num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
            "n_shared_experts": 1, "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
            "first_k_dense_replace": 1, "norm_topk_prob": true}"#,
        glm4_moe,
    ),
    Family::new(
        "lfm2_moe",
        r#"{"rope_theta": 1e6, "norm_eps": 1e-5, "max_position_embeddings": 128000, "num_key_value_heads": 8,
            "moe_intermediate_size": 1792, "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts": 32,
            "use_expert_bias": true, "routed_scaling_factor": 1.0, "norm_topk_prob": true}"#,
        lfm2_moe,
    ),
];

fn activation(json: &Config) -> Result<GatedActivation> {
    json.required::<Activation>("hidden_act")?.try_into()
}

/// Experts in the layers from `first` on.
fn from_layer(spec: &mut DecoderSpec, first: usize, experts: &ExpertsSpec) {
    for layer in spec.layers.iter_mut().skip(first) {
        layer.feed_forward = FeedForwardSpec::Experts(experts.clone());
    }
}

/// OLMoE: [arXiv 2409.02060](https://arxiv.org/abs/2409.02060).
fn olmoe(json: &Config) -> Result<DecoderSpec> {
    if json.has("clip_qkv") {
        bail!("clip_qkv: clamped queries and keys behind norms are not supported; published models have none")
    }
    let norm = NormSpec::rms(json.required("rms_norm_eps")?);
    let routing = Routing::softmax(
        json.required("num_experts_per_tok")?,
        json.flag("norm_topk_prob"),
    );
    let experts = ExpertsSpec::new(
        json.required("num_experts")?,
        json.required("intermediate_size")?,
        activation(json)?,
        routing,
    );
    let experts = FeedForwardSpec::Experts(experts);
    json.scaled(decoder(json, "olmoe", norm, experts, |_, _, attention| {
        attention.qk_norm = Some(QkNorm::Whole(norm));
    })?)
}

const GRANITE: &str = r#"{"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 0}"#;

/// Granite 3 with experts: Granite 4 without its other layers, with or without the MLP that every token takes.
fn granite(json: &Config, family: &'static str) -> Result<DecoderSpec> {
    json.only("hidden_act", "silu")?;
    let config: GraniteMoeHybridConfig = json.parse_without(&["rope_scaling", "layer_types"])?;
    let experts = (
        json.required("num_local_experts")?,
        json.required("num_experts_per_tok")?,
    );
    let config = config.into_config(false);
    let mut spec = config.spec_with(true, Some(experts), None)?;
    let shared = json.size("shared_intermediate_size") != Some(0);
    for layer in &mut spec.layers {
        if let FeedForwardSpec::Experts(experts) = &mut layer.feed_forward {
            experts.shared = experts.shared.take().filter(|_| shared);
        }
    }
    attentions(&mut spec, |attention| {
        *attention = attention.clone().bias(json.flag("attention_bias"));
    });
    spec.family = family;
    json.scaled(json.with_head_dim(spec))
}

/// Phi 3.5 MoE, [arXiv 2404.14219](https://arxiv.org/abs/2404.14219), whose router is SparseMixer's.
fn phimoe(json: &Config) -> Result<DecoderSpec> {
    let norm = NormSpec::layer(json.required("rms_norm_eps")?);
    let routing = Routing {
        scoring: Scoring::SparseMixer {
            jitter: json.required("router_jitter_noise")?,
        },
        ..Routing::softmax(json.required("num_experts_per_tok")?, false)
    };
    if routing.used != 2 {
        bail!(
            "num_experts_per_tok: {}; the router chooses 2",
            routing.used
        )
    }
    let experts = ExpertsSpec::new(
        json.required("num_local_experts")?,
        json.required("intermediate_size")?,
        activation(json)?,
        routing,
    );
    let experts = FeedForwardSpec::Experts(experts);
    let window = json.size("sliding_window");
    let spec = decoder(json, "phimoe", norm, experts, |_, _, attention| {
        attention.window = window;
    })?;
    let mut spec = json.scaled(DecoderSpec {
        head: Head::Linear {
            bias: json.flag("lm_head_bias"),
        },
        names: Names {
            router: "block_sparse_moe.gate",
            expert: [
                "block_sparse_moe.experts.{}.w1",
                "block_sparse_moe.experts.{}.w3",
                "block_sparse_moe.experts.{}.w2",
            ],
            experts_joined: ["", ""],
            ..Names::HUGGING_FACE
        },
        ..spec
    })?;
    if let Some(positions) = json.of_rope::<usize>("original_max_position_embeddings")? {
        json.only("original_max_position_embeddings", positions)?;
    }
    let factors: [Option<f32>; 2] = [json.of_rope("short_mscale")?, json.of_rope("long_mscale")?];
    match factors {
        [Some(short), Some(long)] if short == long => spec.rotaries[0].factor = short,
        [None, None] => {}
        _ => bail!("rope_scaling: short_mscale and long_mscale are {factors:?}; only equal ones are supported"),
    }
    Ok(spec)
}

/// GLM 4.5 to 4.7: [arXiv 2508.06471](https://arxiv.org/abs/2508.06471).
fn glm4_moe(json: &Config) -> Result<DecoderSpec> {
    let norm = NormSpec::rms(json.required("rms_norm_eps")?);
    let (count, inner): (usize, usize) = (
        json.required("n_routed_experts")?,
        json.required("moe_intermediate_size")?,
    );
    let groups = Groups {
        count: json.required("n_group")?,
        used: json.required("topk_group")?,
        best: 2,
    };
    if groups.count == 1 {
        json.only("topk_group", 1)?;
    }
    let routing = Routing {
        scoring: Scoring::Sigmoid,
        scale: json.required("routed_scaling_factor")?,
        groups: Some(groups).filter(|groups| groups.count != 1),
        choice_bias: true,
        ..Routing::softmax(
            json.required("num_experts_per_tok")?,
            json.flag("norm_topk_prob"),
        )
    };
    let shared = inner.saturating_mul(json.required("n_shared_experts")?);
    let experts = ExpertsSpec::new(count, inner, activation(json)?, routing);
    let experts = experts.shared(SharedSpec::new(shared));
    let mlp = FeedForwardSpec::Gated(gated(json)?);
    let normed = json.flag("use_qk_norm").then_some(QkNorm::Head(norm));
    let mut spec = decoder(json, "glm4_moe", norm, mlp, |_, _, attention| {
        attention.qk_norm = normed;
        attention.o_bias = false;
    })?;
    from_layer(&mut spec, json.required("first_k_dense_replace")?, &experts);
    json.scaled(DecoderSpec {
        names: Names {
            shared: [
                "mlp.shared_experts.gate_proj",
                "mlp.shared_experts.up_proj",
                "mlp.shared_experts.down_proj",
            ],
            ..Names::HUGGING_FACE
        },
        ..spec
    })
}

/// LFM2 with experts: [arXiv 2511.23404](https://arxiv.org/abs/2511.23404).
fn lfm2_moe(json: &Config) -> Result<DecoderSpec> {
    let config: crate::models::lfm2::Lfm2Config = json.parse()?;
    let mut config = config.into_config(false);
    config.intermediate_size = json.required("intermediate_size")?;
    config.tie_embedding = true;
    let mut spec = config.spec()?;
    let routing = Routing {
        scoring: Scoring::Sigmoid,
        scale: json.required("routed_scaling_factor")?,
        choice_bias: json.flag("use_expert_bias"),
        ..Routing::softmax(
            json.required("num_experts_per_tok")?,
            json.flag("norm_topk_prob"),
        )
    };
    let experts = ExpertsSpec::new(
        json.required("num_experts")?,
        json.required("moe_intermediate_size")?,
        GatedActivation::Silu,
        routing,
    );
    from_layer(&mut spec, json.required("num_dense_layers")?, &experts);
    spec.family = "lfm2_moe";
    spec.names = Names {
        router: "feed_forward.gate",
        router_bias: "feed_forward.expert_bias",
        expert: [
            "feed_forward.experts.{}.w1",
            "feed_forward.experts.{}.w3",
            "feed_forward.experts.{}.w2",
        ],
        experts_joined: [
            "feed_forward.experts.gate_up_proj",
            "feed_forward.experts.down_proj",
        ],
        ..spec.names
    };
    json.scaled(spec)
}
