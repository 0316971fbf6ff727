//! Families whose layers are not all attention.

use candle_core::Result;

use super::decoder::{decoder, gated};
use crate::auto::config::{Config, Family};
use crate::blocks::{
    DecoderSpec, DeltaForm, FeedForwardSpec, MixerSpec, Names, NormSpec, StateSpaceHeads,
    StateSpaceNorm, StateSpaceSpec, WeightFactors,
};
use crate::models::qwen3_5_moe;

pub(super) const FAMILIES: &[Family] = &[
    Family::new(
        "falcon_h1",
        r#"{"num_key_value_heads": 8, "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
            "mamba_conv_bias": true, "lm_head_multiplier": 1.0, "embedding_multiplier": 1.0, "mlp_multipliers": [1.0, 1.0],
            "key_multiplier": 1.0, "attention_out_multiplier": 1.0, "attention_in_multiplier": 1.0,
            "ssm_multipliers": [1.0, 1.0, 1.0, 1.0, 1.0], "ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0}"#,
        falcon_h1,
    ),
    Family::new(
        "qwen3_next",
        r#"{"num_key_value_heads": 2, "hidden_act": "silu", "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10, "num_experts": 512, "norm_topk_prob": true, "decoder_sparse_step": 1}"#,
        qwen3_next,
    ),
];

/// Qwen3-Next ([its collection](https://huggingface.co/collections/Qwen/qwen3-next)): Qwen3.5 with other tensors for its linear attention, and
/// layers without experts.
fn qwen3_next(json: &Config) -> Result<DecoderSpec> {
    let config: qwen3_5_moe::Config = json.parse()?;
    let mut spec = config.spec()?;
    let (step, dense): (usize, Vec<usize>) = (
        json.required("decoder_sparse_step")?,
        json.sizes("mlp_only_layers")?,
    );
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if let MixerSpec::Delta(delta) = &mut layer.mixer {
            delta.form = DeltaForm::Joined;
        }
        if dense.contains(&i) || step == 0 || !(i + 1).is_multiple_of(step) {
            layer.feed_forward = FeedForwardSpec::Gated(gated(json)?);
        } else if let FeedForwardSpec::Experts(experts) = &mut layer.feed_forward {
            experts.routing.normalised = json.flag("norm_topk_prob");
        }
    }
    spec.family = "qwen3_next";
    Ok(spec)
}

/// Falcon-H1: [arXiv 2507.22448](https://arxiv.org/abs/2507.22448). Attention and Mamba in parallel, with factors that files leave to the
/// computation.
fn falcon_h1(json: &Config) -> Result<DecoderSpec> {
    for name in [
        "attention_bias",
        "mlp_bias",
        "mamba_proj_bias",
        "projectors_bias",
        "mamba_rms_norm",
    ] {
        json.only(name, false)?;
    }
    json.only("hidden_act", "silu")?;
    json.only("mamba_use_mlp", true)?;
    let factor = |name| json.required::<f64>(name);
    let mlp = gated(json)?;
    let inner = mlp.inner;
    let heads = StateSpaceHeads {
        count: json.required("mamba_n_heads")?,
        head_dim: 0,
        groups: json.required("mamba_n_groups")?,
        state: json.required("mamba_d_state")?,
    };
    let hidden: usize = json.required("hidden_size")?;
    let space_inner = match json.size("mamba_d_ssm") {
        Some(inner) => inner,
        None => hidden.saturating_mul(json.required("mamba_expand")?),
    };
    // `auto` in files, or missing: what is left of the inner size.
    let head_dim = json.size("mamba_d_head");
    let heads = StateSpaceHeads {
        head_dim: head_dim.unwrap_or(space_inner / heads.count.max(1)),
        ..heads
    };
    if json.has("mamba_d_ssm") {
        json.only("mamba_d_ssm", heads.inner())?;
    }
    let space = StateSpaceSpec {
        heads,
        kernel: json.required("mamba_d_conv")?,
        conv_bias: json.flag("mamba_conv_bias"),
        bias: false,
        norm: StateSpaceNorm::None,
        norm_eps: json.required("rms_norm_eps")?,
    };
    let norm = NormSpec::rms(json.required("rms_norm_eps")?);
    let mut spec = decoder(
        json,
        "falcon_h1",
        norm,
        FeedForwardSpec::Gated(mlp),
        |_, _, _| {},
    )?;
    let mut sizes = [0; 2];
    for layer in &mut spec.layers {
        if let MixerSpec::Attention(attention) = &layer.mixer {
            // Nothing has checked them yet.
            let of = |heads: usize| heads.saturating_mul(attention.head_dim);
            sizes = [of(attention.heads), of(attention.kv_heads)];
            layer.mixer = MixerSpec::Both(attention.clone(), space.clone());
        }
    }
    let [gate, down]: [f64; 2] = json.required("mlp_multipliers")?;
    let parts: [f64; 5] = json.required("ssm_multipliers")?;
    let (attention, input) = (
        factor("attention_in_multiplier")?,
        factor("ssm_in_multiplier")?,
    );
    let vectors = heads.groups.saturating_mul(heads.state);
    let counts = [heads.inner(), heads.inner(), vectors, vectors, heads.count];
    let one = |name, count, by| WeightFactors {
        name,
        outputs: vec![(count, by)],
    };
    spec.factors = vec![
        one("self_attn.q_proj", sizes[0], attention),
        one(
            "self_attn.k_proj",
            sizes[1],
            attention * factor("key_multiplier")?,
        ),
        one("self_attn.v_proj", sizes[1], attention),
        one(
            "self_attn.o_proj",
            hidden,
            factor("attention_out_multiplier")?,
        ),
        WeightFactors {
            name: "mamba.in_proj",
            outputs: counts
                .into_iter()
                .zip(parts.map(|part| part * input))
                .collect(),
        },
        one("mamba.out_proj", hidden, factor("ssm_out_multiplier")?),
        one("feed_forward.gate_proj", inner, gate),
        one("feed_forward.down_proj", hidden, down),
    ];
    json.scaled(DecoderSpec {
        embedding_scale: Some(factor("embedding_multiplier")?),
        logit_scale: Some(factor("lm_head_multiplier")?),
        names: Names {
            final_norm: "model.final_layernorm",
            mlp_norm: "pre_ff_layernorm",
            gate: "feed_forward.gate_proj",
            up: "feed_forward.up_proj",
            down: "feed_forward.down_proj",
            ..Names::HUGGING_FACE
        },
        ..spec
    })
}
