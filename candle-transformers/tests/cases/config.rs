use candle_transformers::models::llama::{
    Config, Llama3RopeConfig, Llama3RopeType, LlamaConfig, LlamaEosToks,
};
use serde_json::{json, Value};

use super::support::tiny_config;

/// The fields that every layout has.
fn base() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "vocab_size": 128256, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 131072, "tie_word_embeddings": true,
        "bos_token_id": 128000, "eos_token_id": [128001, 128009], "head_dim": 64,
        "attention_bias": false, "mlp_bias": false
    })
}

fn with(fields: Value) -> Value {
    let mut config = base();
    for (field, value) in fields.as_object().expect("an object") {
        config[field] = value.clone();
    }
    config
}

fn parse(config: Value) -> Result<LlamaConfig, String> {
    serde_json::from_str(&config.to_string()).map_err(|e| e.to_string())
}

fn llama3_fields() -> Value {
    json!({
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"
    })
}

#[track_caller]
fn assert_is_llama3(config: &LlamaConfig) {
    assert_eq!(config.rope_theta, 500_000.);
    let scaling = config.rope_scaling.as_ref().expect("rope scaling");
    assert!(matches!(scaling.rope_type, Llama3RopeType::Llama3));
    assert_eq!(scaling.factor, 32.);
    assert_eq!(scaling.low_freq_factor, 1.);
    assert_eq!(scaling.high_freq_factor, 4.);
    assert_eq!(scaling.original_max_position_embeddings, 8192);
}

#[test]
fn layout_of_transformers_4() {
    let config = parse(with(
        json!({ "rope_theta": 500000.0, "rope_scaling": llama3_fields() }),
    ))
    .unwrap();
    assert_is_llama3(&config);
    let config = config.into_config(true);
    assert!(config.use_flash_attn && config.tie_word_embeddings);
    assert_eq!(config.hidden_size, 2048);
    assert_eq!(config.intermediate_size, 8192);
    assert_eq!(config.vocab_size, 128256);
    assert_eq!(config.num_hidden_layers, 16);
    assert_eq!(config.num_attention_heads, 32);
    assert_eq!(config.num_key_value_heads, 8);
    assert_eq!(config.max_position_embeddings, 131072);
    assert_eq!(config.bos_token_id, Some(128000));
    assert!(
        matches!(config.eos_token_id, Some(LlamaEosToks::Multiple(ids)) if ids == [128001, 128009])
    );
}

#[test]
fn layout_of_transformers_5() {
    let mut rope = llama3_fields();
    rope["rope_theta"] = json!(500000.0);
    assert_is_llama3(&parse(with(json!({ "rope_parameters": rope }))).unwrap());

    let plain = json!({ "rope_theta": 12345.0, "rope_type": "default" });
    let config = parse(with(json!({ "rope_parameters": plain, "eos_token_id": 1 }))).unwrap();
    assert_eq!(config.rope_theta, 12345.);
    assert!(config.rope_scaling.is_none());
    assert!(matches!(config.eos_token_id, Some(LlamaEosToks::Single(1))));
}

#[test]
fn defaults_of_what_is_missing() {
    let mut config = base();
    for field in [
        "num_key_value_heads",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "head_dim",
    ] {
        config.as_object_mut().unwrap().remove(field);
    }
    config["rope_scaling"] = Value::Null;
    let config = parse(config).unwrap();
    assert_eq!(config.num_key_value_heads(), 32);
    let config = config.into_config(false);
    assert_eq!(config.num_key_value_heads, 32);
    assert_eq!(config.rope_theta, 10_000.);
    assert!(config.rope_scaling.is_none() && config.eos_token_id.is_none());
    assert!(!config.tie_word_embeddings);
}

#[test]
fn what_is_missing_or_unsupported_is_named() {
    for field in [
        "hidden_size",
        "intermediate_size",
        "vocab_size",
        "num_hidden_layers",
        "num_attention_heads",
        "rms_norm_eps",
        "max_position_embeddings",
    ] {
        let mut config = base();
        config.as_object_mut().unwrap().remove(field);
        let error = parse(config).unwrap_err();
        assert!(
            error.contains(&format!("missing field `{field}`")),
            "{error}"
        );
    }
    let mut rope = llama3_fields();
    rope.as_object_mut().unwrap().remove("low_freq_factor");
    for (fields, words) in [
        (
            json!({ "head_dim": 128 }),
            ["head_dim is 128", "2048 / 32 = 64"],
        ),
        (json!({ "hidden_act": "gelu" }), ["hidden_act", "gelu"]),
        (
            json!({ "attention_bias": true }),
            ["attention_bias", "not supported"],
        ),
        (json!({ "mlp_bias": true }), ["mlp_bias", "not supported"]),
        (
            json!({ "rope_scaling": rope }),
            ["low_freq_factor", "missing"],
        ),
        (
            json!({ "rope_scaling": { "type": "yarn", "factor": 4.0 } }),
            ["yarn", "llama3"],
        ),
        (
            json!({ "num_attention_heads": 0 }),
            ["2048 / 0", "head_dim"],
        ),
    ] {
        let error = parse(with(fields)).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{error}: no {word}");
        }
    }
}

#[test]
fn rope_scaling_alone() {
    let mut fields = llama3_fields();
    let scaling: Llama3RopeConfig = serde_json::from_str(&fields.to_string()).unwrap();
    assert!(matches!(scaling.rope_type, Llama3RopeType::Llama3));
    let kind = fields.as_object_mut().unwrap().remove("rope_type").unwrap();
    fields["type"] = kind;
    let scaling: Llama3RopeConfig = serde_json::from_str(&fields.to_string()).unwrap();
    assert!(matches!(scaling.rope_type, Llama3RopeType::Llama3));
    assert!(matches!(
        Llama3RopeConfig::default().rope_type,
        Llama3RopeType::Default
    ));
}

/// Expected values: the published formula of `rope_type: "llama3"` (Hugging Face Transformers,
/// `modeling_rope_utils.py`, `_compute_llama3_parameters`), evaluated in Python's float64. All pairs in the blended
/// band are here, and some on both sides of it.
#[test]
fn llama3_frequencies_as_published() {
    let llama_3_1_8b = [
        (0, 1.0),
        (1, 8.146172338565e-01),
        (10, 1.286873734327e-01),
        (20, 1.656044008099e-02),
        (29, 2.166570763503e-03),
        (30, 1.371893567761e-03),
        (31, 8.567514129196e-04),
        (32, 5.248461609930e-04),
        (33, 3.126937503841e-04),
        (34, 1.785078127680e-04),
        (47, 8.160728247436e-06),
        (63, 3.068925988915e-07),
    ];
    let llama_3_2_1b = [
        (0, 1.0),
        (1, 6.636012376961e-01),
        (10, 1.656044008099e-02),
        (15, 1.290547928209e-03),
        (16, 4.295567965594e-04),
        (17, 9.708287802628e-05),
        (20, 8.570255489881e-06),
        (31, 9.418306725435e-08),
    ];
    let cases = [(128, 8f32, &llama_3_1_8b[..]), (64, 32., &llama_3_2_1b[..])];
    for (head_dim, factor, expected) in cases {
        let config = Config {
            hidden_size: 32 * head_dim,
            num_attention_heads: 32,
            num_key_value_heads: 8,
            rope_theta: 500_000.,
            rope_scaling: Some(Llama3RopeConfig {
                factor,
                low_freq_factor: 1.,
                high_freq_factor: 4.,
                original_max_position_embeddings: 8192,
                rope_type: Llama3RopeType::Llama3,
            }),
            ..tiny_config()
        };
        let frequencies = config.inverse_frequencies();
        assert_eq!(frequencies.len(), head_dim / 2);
        for &(i, value) in expected {
            let relative: f64 = (f64::from(frequencies[i]) - value) / value;
            // The blend takes a difference of f32 numbers: a few units in the last place.
            assert!(
                relative.abs() < 2e-6,
                "pair {i} of {head_dim}: {relative:e}"
            );
        }
    }
}

#[test]
fn presets() {
    let v1 = Config::config_7b_v1(false);
    let v2 = Config::config_7b_v2(true);
    assert_eq!((v1.rms_norm_eps, v2.rms_norm_eps), (1e-6, 1e-5));
    assert!(!v1.use_flash_attn && v2.use_flash_attn);
    for config in [v1, v2] {
        assert_eq!(config.max_position_embeddings, 4096);
        assert_eq!(config.inverse_frequencies().len(), 64);
    }
}

/// A number of layers that no model has is refused before anything is made for each of them, whatever the family.
#[test]
fn no_family_takes_two_billion_layers() {
    for model_type in candle_transformers::auto::model_types() {
        let config = with(json!({
            "model_type": model_type, "num_hidden_layers": 2_000_000_000u32, "n_layer": 2_000_000_000u32
        }));
        let err = match candle_transformers::auto::config_spec(&config.to_string()) {
            Ok(_) => panic!("{model_type} takes it"),
            Err(err) => err.to_string(),
        };
        assert!(err.contains("2000000000 layers"), "{model_type}: {err}");
    }
}
