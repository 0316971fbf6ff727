//! Families with one MLP for all tokens.

use candle_core::Result;
use candle_nn::Activation;

use super::decoder::{decoder, gated, local_rotary, plain, windows};
use crate::auto::config::{Config, Family};
use crate::blocks::{
    AttentionSpec, DecoderSpec, FeedForwardSpec, Head, Names, NormSpec, Order, PlainSpec, QkNorm,
    Rotary, RotaryPairs, Wiring,
};

pub(super) const FAMILIES: &[Family] = &[
    Family::new(
        "olmo3",
        r#"{"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "max_position_embeddings": 2048,
            "sliding_window_pattern": 4}"#,
        olmo3,
    ),
    Family::new(
        "glm",
        r#"{"num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
            "rms_norm_eps": 1.5625e-7, "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "attention_bias": true}"#,
        |json| {
            let norm = NormSpec::rms(json.required("rms_norm_eps")?);
            let mlp = FeedForwardSpec::Gated(gated(json)?.joined(Order::Layers));
            let spec = decoder(json, "glm", norm, mlp, |_, _, attention| {
                attention.o_bias = false;
            })?;
            json.scaled(neighbours(spec))
        },
    ),
    Family::new(
        "exaone4",
        r#"{"num_key_value_heads": 32, "hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "sliding_window_pattern": 4}"#,
        exaone4,
    ),
    Family::new("cohere", COHERE, |json| {
        let norm = NormSpec::layer_no_bias(json.required("layer_norm_eps")?);
        let qk_norm = json.flag("use_qk_norm").then_some(QkNorm::EachHead(norm));
        cohere(json, "cohere", |_, attention| attention.qk_norm = qk_norm)
    }),
    Family::new("cohere2", COHERE2, |json| {
        for (name, value) in [
            ("position_embedding_type", "rope_gptj"),
            ("order_of_interleaved_layers", "local_attn_first"),
        ] {
            json.only(name, value)?;
        }
        for name in [
            "use_parallel_block",
            "use_gated_activation",
            "use_embedding_sharing",
        ] {
            json.only(name, true)?;
        }
        json.only("rotary_pct", 1.)?;
        if let Some(every) = json.size("sliding_window_pattern") {
            json.only("layer_switch", every)?;
        }
        let windows = windows(json)?;
        cohere(json, "cohere2", |i, attention| {
            attention.window = windows[i];
            attention.rotary = windows[i].map(|_| 0);
        })
    }),
    Family::new("gpt_neox", NEOX, neox),
    Family::new(
        "arcee",
        r#"{"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
        |json| {
            let norm = NormSpec::rms(json.required("rms_norm_eps")?);
            let mlp = FeedForwardSpec::Plain(plain(json)?);
            json.scaled(decoder(json, "arcee", norm, mlp, |_, _, _| {})?)
        },
    ),
    Family::new(
        "seed_oss",
        r#"{"num_key_value_heads": 8, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 524288,
            "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": true}"#,
        |json| {
            let norm = NormSpec::rms(json.required("rms_norm_eps")?);
            let mlp = FeedForwardSpec::Gated(gated(json)?);
            json.scaled(decoder(json, "seed_oss", norm, mlp, |_, _, attention| {
                attention.o_bias = json.flag("attention_out_bias");
            })?)
        },
    ),
    Family::new(
        "ernie4_5",
        r#"{"num_key_value_heads": 2, "head_dim": 128, "hidden_act": "silu", "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5, "rope_theta": 500000.0}"#,
        |json| {
            let json = json.renamed(&[("use_bias", "attention_bias"), ("use_bias", "mlp_bias")]);
            let norm = NormSpec::rms(json.required("rms_norm_eps")?);
            let mlp = FeedForwardSpec::Gated(gated(&json)?);
            let spec = decoder(&json, "ernie4_5", norm, mlp, |_, _, _| {})?;
            json.scaled(neighbours(tied(spec)))
        },
    ),
    Family::new(
        "nemotron",
        r#"{"hidden_act": "relu2", "max_position_embeddings": 4096, "norm_eps": 1e-5, "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5}"#,
        |json| {
            let norm = NormSpec::layer_plus_one(json.required("norm_eps")?);
            let mlp = FeedForwardSpec::Plain(plain(json)?);
            json.scaled(decoder(json, "nemotron", norm, mlp, |_, _, _| {})?)
        },
    ),
    Family::new(
        "apertus",
        r#"{"hidden_act": "xielu", "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 12000000.0}"#,
        apertus,
    ),
    Family::new(
        "hunyuan_v1_dense",
        r#"{"hidden_act": "silu", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#,
        hunyuan,
    ),
];

/// By default, the token table is the output layer.
fn tied(spec: DecoderSpec) -> DecoderSpec {
    let head = Head::Tied;
    DecoderSpec { head, ..spec }
}

/// Neighbouring elements are rotated together.
fn neighbours(mut spec: DecoderSpec) -> DecoderSpec {
    for rotary in &mut spec.rotaries {
        rotary.pairs = RotaryPairs::Neighbours;
    }
    spec
}

/// OLMo 2 with windows in three of four layers, whose rotation is not scaled: [arXiv 2512.13961](https://arxiv.org/abs/2512.13961).
fn olmo3(json: &Config) -> Result<DecoderSpec> {
    let norm = NormSpec::rms(json.required("rms_norm_eps")?);
    let (mlp, windows) = (FeedForwardSpec::Gated(gated(json)?), windows(json)?);
    let mut spec = decoder(json, "olmo3", norm, mlp, |i, layer, attention| {
        layer.wiring = Wiring::PostInside;
        attention.qk_norm = Some(QkNorm::Whole(norm));
        attention.window = windows[i];
        attention.rotary = Some(usize::from(windows[i].is_some()));
    })?;
    let local = local_rotary(json, &spec)?;
    spec = json.scaled(spec)?;
    spec.rotaries.push(local);
    Ok(spec)
}

/// EXAONE 4, [arXiv 2507.11407](https://arxiv.org/abs/2507.11407). If there are windows, layers without one have no rotation.
fn exaone4(json: &Config) -> Result<DecoderSpec> {
    let norm = NormSpec::rms(json.required("rms_norm_eps")?);
    let (mlp, windows) = (FeedForwardSpec::Gated(gated(json)?), windows(json)?);
    let rotates_all = json.size("sliding_window").is_none();
    json.scaled(decoder(
        json,
        "exaone4",
        norm,
        mlp,
        |i, layer, attention| {
            layer.wiring = Wiring::PostInside;
            attention.qk_norm = Some(QkNorm::Head(norm));
            attention.window = windows[i];
            attention.rotary = (rotates_all || windows[i].is_some()).then_some(0);
        },
    )?)
}

const COHERE: &str = r#"{"hidden_act": "silu", "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
    "rope_theta": 500000.0}"#;

const COHERE2: &str = r#"{"hidden_act": "silu", "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "logit_scale": 0.0625,
    "rope_theta": 10000.0, "sliding_window_pattern": 4}"#;

/// Command R, and with windows Command R7B and Command A: attention and MLP in parallel, after one norm.
fn cohere(
    json: &Config,
    family: &'static str,
    mut change: impl FnMut(usize, &mut AttentionSpec),
) -> Result<DecoderSpec> {
    let norm = NormSpec::layer_no_bias(json.required("layer_norm_eps")?);
    let mlp = FeedForwardSpec::Gated(gated(json)?);
    let spec = decoder(json, family, norm, mlp, |i, layer, attention| {
        layer.wiring = Wiring::Parallel;
        change(i, attention);
    })?;
    // Command R's files state the length of its first training for the positions.
    let positions = json.size("model_max_length").unwrap_or(0);
    json.scaled(DecoderSpec {
        logit_scale: Some(json.required("logit_scale")?),
        positions: positions.max(spec.positions),
        ..neighbours(tied(spec))
    })
}

const NEOX: &str = r#"{"hidden_act": "gelu", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25, "attention_bias": true, "use_parallel_residual": true}"#;

const NEOX_NAMES: Names = Names {
    embedding: "gpt_neox.embed_in",
    layers: "gpt_neox.layers",
    final_norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    qkv: "attention.query_key_value",
    o: "attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..Names::HUGGING_FACE
};

/// GPT-NeoX, [arXiv 2204.06745](https://arxiv.org/abs/2204.06745), and Pythia.
fn neox(json: &Config) -> Result<DecoderSpec> {
    let json = json.renamed(&[
        ("rotary_pct", "partial_rotary_factor"),
        ("rotary_emb_base", "rope_theta"),
    ]);
    let norm = NormSpec::layer(json.required("layer_norm_eps")?);
    let mlp = FeedForwardSpec::Plain(PlainSpec {
        bias: true,
        ..plain(&json)?
    });
    let wiring = if json.flag("use_parallel_residual") {
        Wiring::ParallelTwoNorms
    } else {
        Wiring::Pre
    };
    let spec = decoder(&json, "gpt_neox", norm, mlp, |_, layer, attention| {
        layer.wiring = wiring;
        attention.kv_heads = attention.heads;
        attention.joined = Some(Order::Groups(attention.heads));
    })?;
    json.scaled(DecoderSpec {
        names: NEOX_NAMES,
        ..spec
    })
}

/// Apertus: [arXiv 2509.14233](https://arxiv.org/abs/2509.14233).
fn apertus(json: &Config) -> Result<DecoderSpec> {
    json.only("qk_norm", true)?;
    for name in ["post_norm", "mlp_bias"] {
        json.only(name, false)?;
    }
    let norm = NormSpec::rms(json.required("rms_norm_eps")?);
    let mlp = match json.text("hidden_act") {
        Some("xielu") => FeedForwardSpec::Xielu(PlainSpec {
            inner: json.required("intermediate_size")?,
            activation: Activation::Silu,
            bias: false,
        }),
        _ => FeedForwardSpec::Plain(plain(json)?),
    };
    let spec = decoder(json, "apertus", norm, mlp, |_, _, attention| {
        attention.qk_norm = Some(QkNorm::Head(norm));
    })?;
    json.scaled(DecoderSpec {
        names: Names {
            attn_norm: "attention_layernorm",
            mlp_norm: "feedforward_layernorm",
            ..Names::HUGGING_FACE
        },
        ..spec
    })
}

/// Hunyuan's dense models. Their rotation `dynamic` has a base that `alpha` raises once, whatever the length.
fn hunyuan(json: &Config) -> Result<DecoderSpec> {
    json.only("use_qk_norm", true)?;
    json.only("use_cla", false)?;
    json.only("norm_type", "rms")?;
    if let Some(head_dim) = json.size("head_dim") {
        json.only("attention_head_dim", head_dim)?;
    }
    let norm = NormSpec::rms(json.required("rms_norm_eps")?);
    let mlp = FeedForwardSpec::Gated(gated(json)?);
    let mut spec = decoder(json, "hunyuan_v1_dense", norm, mlp, |_, _, attention| {
        attention.qk_norm = Some(QkNorm::HeadRotated(norm));
    })?;
    spec.names.q_norm = "self_attn.query_layernorm";
    spec.names.k_norm = "self_attn.key_layernorm";
    let alpha: Option<f64> = json.of_rope("alpha")?;
    let Some(alpha) = alpha.filter(|alpha| *alpha != 0.) else {
        return json.scaled(spec);
    };
    let theta: f64 = json.required("rope_theta")?;
    for rotary in &mut spec.rotaries {
        let dim = 2 * rotary.frequencies.len();
        let base = theta * alpha.powf(dim as f64 / (dim as f64 - 2.));
        *rotary = Rotary::new(rotary.pairs, base, dim);
    }
    Ok(spec)
}
