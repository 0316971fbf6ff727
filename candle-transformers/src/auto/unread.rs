//! Fields of a `config.json` that nothing here reads.

use std::collections::BTreeSet;
use std::sync::Mutex;

use candle_core::Result;
use serde_json::{json, Map, Value};

use super::config::parse;
use super::read_spec;
use crate::blocks::DecoderSpec;

/// Fields of training, files, sampling and tokens, which change no logit.
const WITHOUT_EFFECT: &[&str] = &[
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "auto_map",
    "bos_token_id",
    "cache_implementation",
    "boi_token_index",
    "dtype",
    "eod_token_id",
    "eoi_token_index",
    "eos_token_id",
    "id2label",
    "image_token_id",
    "image_token_index",
    "initializer_factor",
    "initializer_range",
    "input_jitter_noise",
    "is_decoder",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "language_model_only",
    "max_length",
    "mm_tokens_per_image",
    "mtp_num_hidden_layers",
    "mtp_use_dedicated_embeddings",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "projector_hidden_act",
    "rescale_prenorm_residual",
    "return_dict",
    "router_aux_loss_coef",
    "router_dtype",
    "router_jitter_noise",
    "router_z_loss_coef",
    "scale_factor",
    "sep_token_id",
    "spatial_merge_size",
    "task_specific_params",
    "torch_dtype",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    // `config_spec` and `embed` read it.
    "use_bidirectional_attention",
    "use_cache",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_feature_layer",
    "vision_start_token_id",
    // The length that a model is made for is its tables' alone.
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_positions",
    "n_ctx",
    // Sizes of optional parts; if a model has them, the shapes of its weights show the sizes.
    "cla_share_factor",
    "intermediate_size",
    "mamba_expand",
    // Settings of Transformers' implementation, which do not affect the result.
    "attn_bias_type",
    "chunk_size",
    "mamba_chunk_size",
    "mamba_ssm_dtype",
    "scale_attention_softmax_in_fp32",
    "attention_softmax_in_fp32",
    "use_mamba_kernels",
];

fn without_effect(name: &str) -> bool {
    WITHOUT_EFFECT.contains(&name)
        || ["dropout", "summary_", "_pdrop", "_loss_coef", "_loss_alpha"]
            .iter()
            .any(|part| name.contains(part))
}

/// Values that leave a thing out.
fn says_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Another value, which a reader either refuses or makes another model of.
fn another(value: &Value) -> Value {
    match value {
        Value::Bool(flag) => json!(!flag),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => json!(whole + 1),
            None => json!(number.as_f64().unwrap_or(0.) * 1.5 + 0.25),
        },
        _ => json!("another value"),
    }
}

/// The fields of a `config.json`, including those of an object `text_config`, that could change the model's logits and that are not read.
///
/// In alphabetical order. A field counts as read if another value of it changes the decoder or is refused, even if only with another value
/// of a related switch.
///
/// # Errors
/// As for [`config_spec`](super::config_spec).
pub fn unread_fields(config: &str) -> Result<Vec<String>> {
    let fields: Map<String, Value> = parse(config)?;
    let known = spec(&fields)?;
    let mut switched = vec![(fields.clone(), known)];
    for path in paths(&fields) {
        let Some(Value::Bool(flag)) = get(&fields, &path) else {
            continue;
        };
        let mut other = fields.clone();
        set(&mut other, &path, json!(!flag));
        if let Ok(spec) = spec(&other) {
            switched.push((other, spec));
        }
    }
    let unread = paths(&fields).into_iter().filter(|path| {
        let value = get(&fields, path).unwrap_or(&Value::Null);
        let name = path.rsplit('.').next().unwrap_or(path);
        let concerns = !without_effect(name) && !says_nothing(value) && name != "model_type";
        concerns
            && switched.iter().all(|(fields, before)| {
                let mut changed = fields.clone();
                set(&mut changed, path, another(value));
                spec(&changed).is_ok_and(|after| after == *before)
            })
    });
    let mut unread: Vec<String> = unread.collect();
    // The order of a JSON object depends on a feature of serde_json.
    unread.sort();
    Ok(unread)
}

fn spec(fields: &Map<String, Value>) -> Result<DecoderSpec> {
    read_spec(&Value::Object(fields.clone()).to_string())
}

const TEXT: &str = "text_config";

/// The names of the fields, those of the language model of a larger one with its name and a dot before them.
fn paths(fields: &Map<String, Value>) -> Vec<String> {
    let own = fields.keys().filter(|name| *name != TEXT).cloned();
    let text = fields.get(TEXT).and_then(Value::as_object);
    let text = text.into_iter().flat_map(Map::keys);
    own.chain(text.map(|name| format!("{TEXT}.{name}")))
        .collect()
}

fn get<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        Some((object, name)) => fields.get(object)?.get(name),
        None => fields.get(path),
    }
}

fn set(fields: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        Some((object, name)) => {
            if let Some(Value::Object(fields)) = fields.get_mut(object) {
                fields.insert(name.to_string(), value);
            }
        }
        None => {
            fields.insert(path.to_string(), value);
        }
    }
}

/// Warns of each unread field, once for each program and value.
pub(super) fn warn(config: &str) {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Ok(unread) = unread_fields(config) else {
        return;
    };
    let Ok(fields) = parse::<Map<String, Value>>(config) else {
        return;
    };
    let family = fields.get("model_type").and_then(Value::as_str);
    let family = family.unwrap_or("llama");
    let Ok(mut warned) = WARNED.lock() else {
        return;
    };
    for path in unread {
        let value = get(&fields, &path).unwrap_or(&Value::Null);
        let line = format!("config.json: {path} of {family} is not read: {value}");
        if warned.insert(line.clone()) {
            tracing::warn!("{line}; the results may differ from those of the model's authors");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA: &str = r#"{"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "vocab_size": 40,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 32,
        "torch_dtype": "bfloat16", "attention_dropout": 0.1, "bos_token_id": 1, "rope_theta": 1e4, "hidden_act": "silu""#;

    fn unread(more: &str) -> Vec<String> {
        unread_fields(&format!("{LLAMA}{more}}}")).unwrap()
    }

    #[test]
    fn what_no_code_reads_is_named() {
        assert_eq!(unread(""), [""; 0]);
        assert_eq!(
            unread(r#", "logit_scale": 0.5, "attention_gate": true"#),
            ["attention_gate", "logit_scale"]
        );
        assert_eq!(
            unread(r#", "logit_scale": null, "attention_gate": false, "shift": 0.0"#),
            [""; 0]
        );
    }

    #[test]
    fn fields_behind_a_switch_are_read() {
        let qwen2 = r#"{"model_type": "qwen2", "hidden_size": 16, "intermediate_size": 32, "vocab_size": 40,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 32, "rope_theta": 1e6, "hidden_act": "silu", "tie_word_embeddings": true,
            "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 1"#;
        assert_eq!(unread_fields(&format!("{qwen2}}}")).unwrap(), [""; 0]);
        assert_eq!(
            unread_fields(&format!(r#"{qwen2}, "scale_depth": 1.4}}"#)).unwrap(),
            ["scale_depth"]
        );
    }
}
