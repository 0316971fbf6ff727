//! Dense families whose configuration says more in a file than in Candle's type.

use candle_core::{bail, Result};
use candle_nn::Activation;

use super::config::{Config, Family};
use crate::blocks::{
    AttentionSpec, DecoderSpec, FeedForwardSpec, LayerSpec, QkNorm, QueryGrowth, Wiring,
};
use crate::models::{
    gemma, gemma2, gemma3, glm4_new, granite, helium, llama, mistral, olmo, olmo2, phi3, smol,
    stable_lm,
};

/// The values of `model_type`, with what files may leave out. A window is never among that: files say `null` for none.
pub(super) const CONFIGS: &[Family] = &[
    Family::new("mistral", MISTRAL, mistral),
    Family::new("mistral3", MISTRAL, |json| {
        mistral(json).map(DecoderSpec::beside_encoders)
    }),
    Family::new("ministral", MISTRAL, mistral),
    Family::new("ministral3", MINISTRAL3, mistral),
    Family::new(
        "gemma",
        r#"{"attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "head_dim": 256,
            "max_position_embeddings": 8192}"#,
        |json| {
            let mut config: gemma::Config = json.parse()?;
            // The first files say "gelu" and were trained with its tanh form.
            config.hidden_act = match json.text("hidden_act") {
                None | Some("gelu") => Some(candle_nn::Activation::GeluPytorchTanh),
                Some(_) => config.hidden_act,
            };
            json.scaled(config.spec()?)
        },
    ),
    Family::new(
        "gemma2",
        r#"{"attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "max_position_embeddings": 8192}"#,
        |json| {
            let config: gemma2::Config = json.parse()?;
            json.scaled(match json.windowed(config.num_hidden_layers)? {
                Some(windowed) => config.spec_with(|i| windowed[i])?,
                None => config.spec()?,
            })
        },
    ),
    Family::new("gemma3_text", GEMMA3, gemma3),
    Family::new("gemma3", GEMMA3_BESIDE_VISION, |json| {
        gemma3(json).map(DecoderSpec::beside_encoders)
    }),
    Family::new(
        "phi3",
        r#"{"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096}"#,
        |json| {
            let config: phi3::Config = json.parse_without(&["rope_scaling"])?;
            let mut spec = config.spec()?;
            windows(&mut spec, |_| json.size("sliding_window"));
            json.scaled(json.with_head_dim(spec))
        },
    ),
    Family::new(
        "helium",
        r#"{"attention_bias": false, "mlp_bias": false, "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-8,
            "rope_theta": 100000.0, "tie_word_embeddings": false, "max_position_embeddings": 4096, "bos_token_id": 1,
            "eos_token_id": 2}"#,
        |json| {
            let config: helium::Config = json.parse()?;
            json.scaled(config.spec()?)
        },
    ),
    Family::new(
        "granite",
        r#"{"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 2048, "embedding_multiplier": 1.0,
            "attention_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0, "hidden_act": "silu"}"#,
        granite,
    ),
    Family::new(
        "smollm3",
        r#"{"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 2000000.0, "tie_word_embeddings": true,
            "no_rope_layer_interval": 4, "num_key_value_heads": 4, "max_position_embeddings": 32768}"#,
        |json| {
            let config: smol::smollm3::Config = json.parse_without(&["rope_scaling"])?;
            json.scaled(match json.windowed(config.num_hidden_layers)? {
                Some(windowed) => config.spec_with(|i| windowed[i])?,
                None => config.spec()?,
            })
        },
    ),
    Family::new(
        "olmo",
        r#"{"attention_bias": false, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false,
            "max_position_embeddings": 2048}"#,
        |json| {
            let config: olmo::Config = json.parse()?;
            json.scaled(json.with_head_dim(config.spec()?))
        },
    ),
    Family::new(
        "olmo2",
        r#"{"attention_bias": false, "hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false,
            "rms_norm_eps": 1e-5, "max_position_embeddings": 2048}"#,
        |json| {
            let config: olmo2::Config = json.parse()?;
            json.scaled(json.with_head_dim(config.spec()?))
        },
    ),
    Family::new(
        "glm4",
        r#"{"attention_bias": true, "hidden_act": "silu", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "head_dim": 128,
            "num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7, "tie_word_embeddings": false,
            "max_position_embeddings": 131072}"#,
        |json| {
            let config: glm4_new::Config = json.parse()?;
            json.scaled(config.spec()?)
        },
    ),
    Family::new(
        "stablelm",
        r#"{"hidden_act": "silu", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5,
            "use_cache": true, "max_position_embeddings": 4096}"#,
        |json| {
            let config: stable_lm::Config = json.parse()?;
            let mut spec = config.spec()?;
            if json.flag("qk_layernorm") {
                let norm = spec.final_norm.without_bias();
                attentions(&mut spec, |attention| {
                    attention.qk_norm = Some(QkNorm::EachHead(norm));
                });
                spec.names.q_norm = "self_attn.q_layernorm";
                spec.names.k_norm = "self_attn.k_layernorm";
            }
            if json.flag("use_parallel_residual") {
                for layer in &mut spec.layers {
                    layer.wiring = Wiring::Parallel;
                }
            }
            json.scaled(spec)
        },
    ),
];

const MISTRAL: &str = r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 131072}"#;

fn mistral(json: &Config) -> Result<DecoderSpec> {
    let config: mistral::Config = json.parse()?;
    let mut spec = config.spec()?;
    if let Some(windowed) = json.windowed(spec.layers.len())? {
        windows(&mut spec, |i| config.sliding_window.filter(|_| windowed[i]));
    }
    spec.query_growth = match json.of_rope("llama_4_scaling_beta")? {
        Some(beta) if beta != 0. => {
            let original = "original_max_position_embeddings";
            match json.of_rope(original)? {
                Some(positions @ 1..) => Some(QueryGrowth { beta, positions }),
                _ => bail!("llama_4_scaling_beta needs {original} beside it, at least 1"),
            }
        }
        _ => None,
    };
    json.scaled(spec)
}

/// The rotation always exists: its default is scaled.
const MINISTRAL3: &str = r#"{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "head_dim": 128, "max_position_embeddings": 262144}"#;

const GEMMA3: &str = r#"{"attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 4096,
    "sliding_window_pattern": 6, "max_position_embeddings": 131072}"#;

/// The files of 4B leave out the vocabulary and the heads, too.
const GEMMA3_BESIDE_VISION: &str = r#"{"attention_bias": false, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "sliding_window_pattern": 6, "max_position_embeddings": 131072, "vocab_size": 262208,
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
    "num_key_value_heads": 4}"#;

fn gemma3(json: &Config) -> Result<DecoderSpec> {
    let config: gemma3::Config = json.parse()?;
    json.scaled(match json.windowed(config.num_hidden_layers)? {
        Some(windowed) => config.spec_with(|i| windowed[i])?,
        None => config.spec()?,
    })
}

/// Granite, with what Candle's configuration has no fields for.
fn granite(json: &Config) -> Result<DecoderSpec> {
    let config: granite::GraniteConfig = json.parse_without(&["rope_scaling"])?;
    let multipliers: granite::Multipliers = json.parse()?;
    let spec = config.into_config(false).spec()?;
    json.scaled(json.with_head_dim(switched(json, multipliers.apply(spec))?))
}

/// Llama, whose type in Candle has no fields for most of what a file may say.
pub(super) fn llama(json: &Config) -> Result<DecoderSpec> {
    let separate = [
        "rope_scaling",
        "rope_parameters",
        "head_dim",
        "hidden_act",
        "attention_bias",
        "mlp_bias",
    ];
    let config: llama::LlamaConfig = json.parse_without(&separate)?;
    let spec = config.into_config(false).spec()?;
    json.scaled(json.with_head_dim(switched(json, spec)?))
}

/// The decoder with the biases and the activation that a file names.
fn switched(json: &Config, mut spec: DecoderSpec) -> Result<DecoderSpec> {
    let (attention_bias, mlp_bias) = (json.flag("attention_bias"), json.flag("mlp_bias"));
    attentions(&mut spec, |attention| {
        *attention = attention.clone().bias(attention_bias);
    });
    let activation: Option<Activation> = match json.get("hidden_act") {
        Some(name) => Some(super::config::value("hidden_act", name)?),
        None => None,
    };
    for layer in &mut spec.layers {
        if let FeedForwardSpec::Gated(mlp) = &mut layer.feed_forward {
            mlp.bias = mlp_bias;
            if let Some(activation) = activation {
                mlp.activation = activation.try_into()?;
            }
        }
    }
    Ok(spec)
}

/// Sets something of each attention.
pub(super) fn attentions(spec: &mut DecoderSpec, set: impl FnMut(&mut AttentionSpec)) {
    let layers = spec.layers.iter_mut();
    layers.filter_map(LayerSpec::attention_mut).for_each(set);
}

/// Sets the window of each layer.
pub(super) fn windows(spec: &mut DecoderSpec, window: impl Fn(usize) -> Option<usize>) {
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if let Some(attention) = layer.attention_mut() {
            attention.window = window(i);
        }
    }
}
