//! Families whose files have other fields than their configurations.

use candle_core::{bail, Result};
use candle_nn::Activation;
use serde::Deserialize;
use serde_json::Value;

use super::config::Config;
use crate::blocks::{DecoderSpec, FeedForwardSpec, Names, Order, PlainSpec, Rotary, Wiring};
use crate::models;

/// Defaults of fields that Falcon's files may omit.
pub(super) const FALCON: &str = r#"{"layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "use_cache": true, "bos_token_id": 11,
    "eos_token_id": 11, "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": false, "new_decoder_architecture": false,
    "multi_query": true, "parallel_attn": true, "bias": false, "max_position_embeddings": 2048, "rope_theta": 10000.0}"#;

/// Defaults of fields that files of Falcon 40B from before the field `new_decoder_architecture` may omit.
pub(super) const FALCON_40B: &str = r#"{"layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "use_cache": true,
    "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "attention_dropout": 0.0, "alibi": false,
    "new_decoder_architecture": true, "multi_query": true, "parallel_attn": true, "bias": false, "max_position_embeddings": 2048,
    "rope_theta": 10000.0}"#;

pub(super) fn falcon(json: &Config) -> Result<DecoderSpec> {
    let json = json.renamed(&[
        ("num_kv_heads", "n_head_kv"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
    ]);
    let config: models::falcon::Config = json.parse()?;
    let mut spec = config.spec()?;
    if let Some(positions) = json.size("max_position_embeddings") {
        spec.positions = positions;
    }
    if json.size("num_ln_in_parallel_attn") == Some(1) && config.new_decoder_architecture {
        spec.names.attn_norm = "input_layernorm";
        for layer in &mut spec.layers {
            layer.wiring = Wiring::Parallel;
        }
    }
    let activation = activation(&json, "activation", Activation::Gelu)?;
    let inner = json.size("ffn_hidden_size");
    each_mlp(&mut spec, |mlp| {
        mlp.activation = activation;
        mlp.inner = inner.unwrap_or(mlp.inner);
    });
    let theta = json.get("rope_theta").and_then(Value::as_f64);
    if let (Some(theta), Some(rotary)) = (theta, spec.rotaries.first_mut()) {
        let dim = 2 * rotary.frequencies.len();
        *rotary = Rotary::new(rotary.pairs, theta, dim);
    }
    if config.alibi {
        Ok(spec)
    } else {
        json.scaled(spec)
    }
}

/// Defaults of fields that MPT's files may omit.
pub(super) const MPT: &str =
    r#"{"attn_config": {}, "no_bias": true, "expansion_ratio": 4, "max_seq_len": 2048}"#;

pub(super) fn mpt(json: &Config) -> Result<DecoderSpec> {
    #[derive(Deserialize)]
    struct File {
        d_model: usize,
        n_heads: usize,
        n_layers: usize,
        expansion_ratio: usize,
        max_seq_len: usize,
        vocab_size: usize,
        no_bias: bool,
        attn_config: Attention,
    }
    #[derive(Deserialize)]
    struct Attention {
        kv_n_heads: Option<usize>,
        alibi: Option<bool>,
        alibi_bias_max: Option<usize>,
        clip_qkv: Option<f64>,
        softmax_scale: Option<f64>,
        prefix_lm: Option<bool>,
        qk_ln: Option<bool>,
    }
    let file: File = json.parse()?;
    let attn = file.attn_config;
    if !file.no_bias {
        bail!("mpt: no_bias is false; models with biases are not supported")
    }
    if attn.qk_ln == Some(true) {
        bail!("mpt: attn_config.qk_ln is true; query and key norms are not supported")
    }
    let config = models::mpt::Config {
        d_model: file.d_model,
        n_heads: file.n_heads,
        n_layers: file.n_layers,
        expansion_ratio: file.expansion_ratio,
        max_seq_len: file.max_seq_len,
        vocab_size: file.vocab_size,
        kv_n_heads: attn.kv_n_heads.unwrap_or(file.n_heads),
        attn_prefix_lm: attn.prefix_lm.unwrap_or(false),
        attn_alibi: attn.alibi.unwrap_or(true),
        attn_alibi_bias_max: attn.alibi_bias_max.unwrap_or(8),
    };
    let mut spec = config.spec()?;
    spec.names = models::mpt::NAMES_IN_CHECKPOINT;
    for layer in &mut spec.layers {
        if let Some(attention) = layer.attention_mut() {
            attention.clip = attn.clip_qkv;
            attention.scale = attn.softmax_scale;
        }
    }
    Ok(spec)
}

/// Defaults of fields that BigCode's files may omit.
pub(super) const BIGCODE: &str =
    r#"{"layer_norm_epsilon": 1e-5, "multi_query": true, "use_cache": true, "n_positions": 1024}"#;

pub(super) fn bigcode(json: &Config) -> Result<DecoderSpec> {
    #[derive(Deserialize)]
    struct File {
        vocab_size: usize,
        n_positions: usize,
        n_layer: usize,
        n_embd: usize,
        layer_norm_epsilon: f64,
        n_inner: Option<usize>,
        n_head: usize,
        multi_query: bool,
        use_cache: bool,
    }
    let file: File = json.parse()?;
    let config = models::bigcode::Config {
        vocab_size: file.vocab_size,
        max_position_embeddings: file.n_positions,
        num_hidden_layers: file.n_layer,
        hidden_size: file.n_embd,
        layer_norm_epsilon: file.layer_norm_epsilon,
        n_inner: file.n_inner,
        num_attention_heads: file.n_head,
        multi_query: file.multi_query,
        use_cache: file.use_cache,
    };
    let mut spec = config.spec()?;
    let activation = activation(json, "activation_function", Activation::NewGelu)?;
    each_mlp(&mut spec, |mlp| mlp.activation = activation);
    Ok(spec)
}

/// GPT-2: BigCode with a key head per query head, transposed projections, and in some files no `transformer.` before names.
pub(super) fn gpt2(json: &Config) -> Result<DecoderSpec> {
    let scaled = json.flag("scale_attn_weights") || !json.has("scale_attn_weights");
    let by_layer = json.flag("scale_attn_by_inverse_layer_idx");
    let mut spec = bigcode(json)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        if let Some(attention) = layer.attention_mut() {
            attention.joined = Some(Order::Layers);
            let scale = if scaled {
                (attention.head_dim as f64).powf(-0.5)
            } else {
                1.
            };
            attention.scale = if by_layer {
                Some(scale / (i + 1) as f64)
            } else {
                Some(scale)
            };
        }
    }
    let names = spec.names;
    let without_prefix = Names {
        embedding: "wte",
        positions: "wpe",
        layers: "h",
        final_norm: "ln_f",
        ..names
    };
    Ok(DecoderSpec {
        family: "gpt2",
        other_names: vec![without_prefix],
        transposed: true,
        ..spec
    })
}

/// Defaults of the fields that GPT-2's files may leave out.
pub(super) const GPT2: &str =
    r#"{"layer_norm_epsilon": 1e-5, "multi_query": false, "use_cache": true, "n_positions": 1024}"#;

fn activation(json: &Config, name: &str, default: Activation) -> Result<Activation> {
    match json.get(name) {
        None => Ok(default),
        Some(value) => super::config::value(name, value),
    }
}

fn each_mlp(spec: &mut DecoderSpec, mut set: impl FnMut(&mut PlainSpec)) {
    for layer in &mut spec.layers {
        if let FeedForwardSpec::Plain(mlp) = &mut layer.feed_forward {
            set(mlp);
        }
    }
}
