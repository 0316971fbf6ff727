//! Language models by what their files say of themselves: `model_type` of a `config.json`, `general.architecture` of a GGUF file. Not in
//! upstream's interface.
//!
//! ```
//! let config = r#"{"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "vocab_size": 40,
//!     "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 32}"#;
//! let spec = candle_transformers::auto::config_spec(config)?;
//! assert_eq!(spec.layers.len(), 2);
//! # Ok::<(), candle_core::Error>(())
//! ```

pub(crate) mod config;
mod dense;
mod gguf;
mod other;
mod own;
mod unread;

use candle_core::{bail, Context, Result};
use serde::Deserialize;

use config::{Config, Family};
pub use unread::unread_fields;

use crate::blocks::{
    Axes, DecoderSpec, GgufMetadata, StateSpaceHeads, StateSpaceNorm, StateSpaceSpec,
};
use crate::models;

/// From the metadata of a GGUF file to the decoder that it describes.
type GgufReader = fn(&GgufMetadata) -> Result<DecoderSpec>;

/// DeepSeek's files with weights of 16 or 32 bits.
fn deepseek(json: &Config) -> Result<DecoderSpec> {
    if json.has("quantization_config") {
        bail!("quantization_config: DeepSeek's 8-bit weights are not supported; convert them to bf16 first")
    }
    let config: models::deepseek2::DeepSeekV2Config = json.parse()?;
    config.spec()
}

fn qwen3_5(json: &Config) -> Result<DecoderSpec> {
    let config: models::qwen3_5::Config = json.parse()?;
    config.spec()
}

const QWEN3_5_MOE: &str = r#"{"num_key_value_heads": 2, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256}"#;

fn qwen3_5_moe(json: &Config) -> Result<DecoderSpec> {
    let config: models::qwen3_5_moe::Config = json.parse()?;
    config.spec()
}

/// The Mamba layers of a Granite 4.
fn mamba(json: &Config) -> StateSpaceSpec {
    let size = |name| json.size(name).unwrap_or(0);
    let count = size("mamba_n_heads");
    // `auto` in files, or missing: what is left of the inner size.
    let inner = size("hidden_size").saturating_mul(size("mamba_expand"));
    let head_dim = json.size("mamba_d_head");
    StateSpaceSpec {
        heads: StateSpaceHeads {
            count,
            head_dim: head_dim.unwrap_or(inner / count.max(1)),
            groups: size("mamba_n_groups"),
            state: size("mamba_d_state"),
        },
        kernel: size("mamba_d_conv"),
        conv_bias: json.flag("mamba_conv_bias"),
        bias: json.flag("mamba_proj_bias"),
        norm: StateSpaceNorm::Gated,
        norm_eps: json.value("rms_norm_eps").ok().flatten().unwrap_or(1e-6),
    }
}

const QWEN2: &str = r#"{"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": false, "tie_word_embeddings": false,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 32768}"#;

fn qwen2(json: &Config) -> Result<DecoderSpec> {
    let config: models::qwen2::Config = json.parse()?;
    let spec = match json.windowed(config.num_hidden_layers)? {
        Some(windowed) => config.spec_with(|i| windowed[i])?,
        None => config.spec()?,
    };
    json.scaled(json.with_head_dim(spec))
}

/// Positions of texts are the same on each of three axes, those of images are not.
fn qwen2_beside_vision(json: &Config) -> Result<DecoderSpec> {
    let sections = json.of_rope("mrope_section")?;
    on_axes(qwen2(json)?, Axes::sections, sections).map(DecoderSpec::beside_encoders)
}

/// The decoder whose first rotation has three axes, of `sections` pairs each.
fn on_axes(
    mut spec: DecoderSpec,
    axes: fn(&str, &[usize], usize) -> Result<Axes>,
    sections: Option<Vec<usize>>,
) -> Result<DecoderSpec> {
    if let (Some(rotary), Some(sections)) = (spec.rotaries.first_mut(), sections) {
        rotary.axes = Some(axes(spec.family, &sections, rotary.frequencies.len())?);
    }
    Ok(spec)
}

const QWEN3: &str = r#"{"head_dim": 128, "attention_bias": false, "max_window_layers": 28, "use_sliding_window": false,
    "tie_word_embeddings": false, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "max_position_embeddings": 32768}"#;

fn qwen3(json: &Config) -> Result<DecoderSpec> {
    let config: models::qwen3::Config = json.parse()?;
    json.scaled(match json.windowed(config.num_hidden_layers)? {
        Some(windowed) => config.spec_with(|i| windowed[i])?,
        None => config.spec()?,
    })
}

/// The values of `model_type`. Transformers leaves out fields that have their default, which is why some are given here.
const CONFIGS: &[Family] = &[
    Family::new("llama", r#"{"rope_theta": 10000.0}"#, dense::llama),
    // The language model of both is a Llama.
    Family::new("idefics3", r#"{"rope_theta": 10000.0}"#, |json| {
        dense::llama(json).map(DecoderSpec::into_text_model)
    }),
    Family::new("smolvlm", r#"{"rope_theta": 10000.0}"#, |json| {
        dense::llama(json).map(DecoderSpec::into_text_model)
    }),
    Family::new("qwen2", QWEN2, qwen2),
    Family::new("qwen2_vl", QWEN2, qwen2_beside_vision),
    Family::new("qwen2_5_vl", QWEN2, qwen2_beside_vision),
    Family::new("qwen3", QWEN3, qwen3),
    Family::new("qwen3_vl", QWEN3, |json| {
        let spec = qwen3(json)?;
        let pairs = spec.rotaries.first().map(|it| it.frequencies.len());
        // What Transformers takes where a file has none, of heads of 128 elements.
        let default = (pairs == Some(64)).then(|| vec![24, 20, 20]);
        let sections = json.of_rope("mrope_section")?.or(default);
        on_axes(spec, Axes::interleaved, sections).map(DecoderSpec::beside_encoders)
    }),
    Family::new(
        "deepseek_v2",
        r#"{"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false,
            "attention_bias": false, "max_position_embeddings": 2048, "n_group": 1, "topk_group": 1}"#,
        deepseek,
    ),
    // Transformers writes neither of these, DeepSeek's own files do.
    Family::new(
        "deepseek_v3",
        r#"{"topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": true, "rope_interleave": true,
            "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false,
            "attention_bias": false, "max_position_embeddings": 4096, "n_group": 8, "topk_group": 4,
            "routed_scaling_factor": 2.5}"#,
        deepseek,
    ),
    Family::new(
        "gpt_oss",
        r#"{"rope_theta": 150000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": false, "attention_bias": true,
            "swiglu_limit": 7.0, "head_dim": 64, "sliding_window": 128, "num_experts_per_tok": 4,
            "max_position_embeddings": 131072}"#,
        |json| {
            let config: models::gpt_oss::Config = json.parse()?;
            config.spec()
        },
    ),
    Family::new(
        "granitemoehybrid",
        r#"{"rope_theta": 10000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "num_local_experts": 8,
            "num_experts_per_tok": 2, "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true}"#,
        |json| {
            let config: models::granitemoehybrid::GraniteMoeHybridConfig = json.parse()?;
            let count = json.size("num_local_experts").unwrap_or(0);
            let used = json.size("num_experts_per_tok").unwrap_or(0);
            let experts = (count > 0).then_some((count, used));
            let config = config.into_config(false);
            let rotates = json.text("position_embedding_type") == Some("rope");
            let mut spec = config.spec_with(rotates, experts, Some(mamba(json)))?;
            dense::attentions(&mut spec, |attention| {
                *attention = attention.clone().bias(json.flag("attention_bias"));
            });
            Ok(json.with_head_dim(spec))
        },
    ),
    Family::new(
        "lfm2",
        r#"{"tie_embedding": true, "block_auto_adjust_ff_dim": true, "rope_theta": 1e6}"#,
        |json| {
            let config: models::lfm2::Lfm2Config = json.parse()?;
            let inner = json
                .size("block_ff_dim")
                .or_else(|| json.size("intermediate_size"));
            let (by, multiple) = (config.block_ffn_dim_multiplier, config.block_multiple_of);
            let mut config = config.into_config(false);
            if let Some(inner) = inner {
                config.intermediate_size = if json.flag("block_auto_adjust_ff_dim") {
                    // As in Llama: two thirds, the factor, and the next multiple.

                    ((by * (2 * inner / 3) as f32) as usize).next_multiple_of(multiple.max(1))
                } else {
                    inner
                };
            }
            json.scaled(config.spec()?)
        },
    ),
    // Without a window, which is written as `null`, all positions are seen.
    Family::new(
        "mixtral",
        r#"{"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": 4294967295, "num_experts_per_tok": 2,
            "num_local_experts": 8, "max_position_embeddings": 131072, "use_flash_attn": false}"#,
        |json| {
            let config: models::mixtral::Config = json.parse()?;
            json.scaled(json.with_head_dim(config.spec()?))
        },
    ),
    Family::new(
        "phi",
        r#"{"hidden_act": "gelu_new", "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "tie_word_embeddings": false,
            "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "qk_layernorm": false}"#,
        |json| {
            let config: models::phi::Config = json.parse()?;
            json.scaled(config.spec()?)
        },
    ),
    Family::new(
        "qwen2_moe",
        r#"{"sliding_window": 4096, "max_window_layers": 28, "use_sliding_window": false, "tie_word_embeddings": false,
            "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 32768,
            "decoder_sparse_step": 1, "norm_topk_prob": false}"#,
        |json| {
            let config: models::qwen2_moe::Config = json.parse()?;
            let mut spec = config.spec_with_dense(&json.sizes("mlp_only_layers")?)?;
            if let Some(windowed) = json.windowed(config.num_hidden_layers)? {
                let window = config.use_sliding_window.then_some(config.sliding_window);
                dense::windows(&mut spec, |i| window.filter(|_| windowed[i]));
            }
            dense::attentions(&mut spec, |attention| {
                attention.qkv_bias = json.flag("qkv_bias") || !json.has("qkv_bias");
            });
            json.scaled(json.with_head_dim(spec))
        },
    ),
    Family::new(
        "qwen3_moe",
        r#"{"head_dim": 128, "attention_bias": false, "max_window_layers": 28, "use_sliding_window": false,
            "tie_word_embeddings": false, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
            "max_position_embeddings": 32768, "decoder_sparse_step": 1, "norm_topk_prob": false}"#,
        |json| {
            let config: models::qwen3_moe::Config = json.parse()?;
            json.scaled(config.spec_with_dense(&json.sizes("mlp_only_layers")?)?)
        },
    ),
    Family::new("qwen3_5_text", r#"{"num_key_value_heads": 4}"#, qwen3_5),
    Family::new("qwen3_5", r#"{"num_key_value_heads": 4}"#, |json| {
        qwen3_5(json).map(DecoderSpec::beside_encoders)
    }),
    Family::new("qwen3_5_moe_text", QWEN3_5_MOE, qwen3_5_moe),
    Family::new("qwen3_5_moe", QWEN3_5_MOE, |json| {
        qwen3_5_moe(json).map(DecoderSpec::beside_encoders)
    }),
    Family::new(
        "starcoder2",
        r#"{"num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096, "norm_epsilon": 1e-5,
            "rope_theta": 10000.0, "use_bias": true}"#,
        |json| {
            let config: models::starcoder2::Config = json.parse()?;
            json.scaled(config.spec()?)
        },
    ),
    Family::new("falcon", other::FALCON, other::falcon),
    // Before Transformers knew the family: 7B, and 40B.
    Family::new("RefinedWebModel", other::FALCON, other::falcon),
    Family::new("RefinedWeb", other::FALCON_40B, other::falcon),
    Family::new("mpt", other::MPT, other::mpt),
    Family::new("gpt_bigcode", other::BIGCODE, other::bigcode),
    Family::new("gpt2", other::GPT2, other::gpt2),
    Family::new("chatglm", "{}", |json| {
        let config: models::glm4::Config = json.parse()?;
        config.spec()
    }),
    Family::new(
        "recurrent_gemma",
        r#"{"attention_window_size": 2048, "conv1d_width": 4, "logits_soft_cap": 30.0, "hidden_activation": "gelu_pytorch_tanh",
            "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false}"#,
        |json| {
            let config: models::recurrent_gemma::Config = json.parse()?;
            let spec = config.spec()?;
            Ok(DecoderSpec {
                names: models::recurrent_gemma::NAMES_IN_CHECKPOINT,
                ..spec
            })
        },
    ),
];

fn families() -> impl Iterator<Item = &'static Family> {
    let typed = CONFIGS.iter().chain(dense::CONFIGS);
    typed.chain(own::families())
}

fn readers() -> impl Iterator<Item = &'static (&'static str, GgufReader)> {
    GGUF.iter().chain(own::architectures())
}

/// The values of `general.architecture`.
const GGUF: &[(&str, GgufReader)] = &[
    ("chatglm", gguf::chatglm),
    ("deepseek2", gguf::deepseek2),
    ("falcon", gguf::falcon),
    ("gemma", models::quantized_gemma3::spec),
    ("gemma2", models::quantized_gemma3::spec),
    ("gemma3", models::quantized_gemma3::spec),
    ("glm4", models::quantized_glm4::spec),
    ("gpt-oss", models::gpt_oss::spec),
    ("granite", gguf::granite),
    ("granitemoe", gguf::granite),
    ("lfm2", models::quantized_lfm2::spec),
    ("llama", models::quantized_llama::spec),
    ("mpt", gguf::mpt),
    ("olmo", gguf::olmo),
    ("phi2", models::quantized_phi::spec),
    ("phi3", models::quantized_phi3::spec),
    ("qwen2", models::quantized_qwen2::spec),
    ("qwen2moe", models::quantized_qwen3_moe::spec),
    ("qwen3", models::quantized_qwen3::spec),
    ("qwen35", models::quantized_qwen3_5::spec),
    ("qwen35moe", models::quantized_qwen3_5::spec),
    ("qwen3moe", models::quantized_qwen3_moe::spec),
    ("smollm3", models::smol::quantized_smollm3::spec),
    ("stablelm", gguf::stablelm),
    ("starcoder", gguf::starcoder),
    ("starcoder2", gguf::starcoder2),
];

/// The decoder that a checkpoint's `config.json` describes, by its `model_type`. One that names none is taken for a `llama`.
///
/// # Errors
/// If the text is not a JSON object, its `model_type` is not known, or a field is missing or does not fit. A field that could change the logits
/// and that nothing reads ([`unread_fields`]) is a warning, given once.
pub fn config_spec(json: &str) -> Result<DecoderSpec> {
    #[derive(Deserialize)]
    struct Seen {
        use_bidirectional_attention: Option<serde_json::Value>,
    }
    let seen: Seen = config::parse(json)?;
    if seen.use_bidirectional_attention == Some(true.into()) {
        bail!("use_bidirectional_attention: a model with bidirectional attention is an embedding model and cannot generate text")
    }
    layers_spec(json)
}

/// As [`config_spec`], whatever the tokens see of each other.
pub(crate) fn layers_spec(json: &str) -> Result<DecoderSpec> {
    let spec = read_spec(json)?;
    unread::warn(json);
    Ok(spec)
}

/// The layers of a model of another type that has the fields of a `llama`.
pub(crate) fn llama_spec(json: &Config) -> Result<DecoderSpec> {
    let spec = dense::llama(json)?;
    spec.check()?;
    Ok(spec)
}

fn read_spec(json: &str) -> Result<DecoderSpec> {
    #[derive(Deserialize)]
    struct Type {
        model_type: Option<String>,
    }
    let found: Type = config::parse(json)?;
    let found = found.model_type.as_deref().unwrap_or("llama");
    let Some(family) = families().find(|family| family.model_type == found) else {
        bail!(
            "model_type: {found:?} is not supported; supported: {}",
            model_types().join(", ")
        )
    };
    let spec = family.spec(json)?;
    spec.check()?;
    Ok(spec)
}

/// The decoder that a GGUF file describes, by its `general.architecture`.
///
/// # Errors
/// If the architecture is not known, or a key is missing or does not fit.
pub fn gguf_spec(file: &GgufMetadata) -> Result<DecoderSpec> {
    let found = file.architecture();
    let Some((_, read)) = readers().find(|(known, _)| *known == found) else {
        bail!(
            "GGUF metadata general.architecture: {found:?} is not supported; supported: {}",
            architectures().join(", ")
        )
    };
    let spec = read(file)?;
    spec.check().context("GGUF metadata")?;
    Ok(spec)
}

/// The values of `model_type` that [`config_spec`] takes.
pub fn model_types() -> Vec<&'static str> {
    families().map(|family| family.model_type).collect()
}

/// The values of `general.architecture` that [`gguf_spec`] takes.
pub fn architectures() -> Vec<&'static str> {
    let mut names: Vec<_> = readers().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names
}
