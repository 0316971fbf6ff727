//! Qwen3.5 against Transformers' numbers, which `tests/reference/qwen3_5.py` makes: crates.io's Candle lacks it.

use candle_core::{test_device, DType, Device, Result, Shape, Tensor};
use candle_transformers::auto;
use candle_transformers::blocks::{Decoder, Head, Reading, Stored, Wanted, WeightSource};
use serde_json::{json, Value};

use super::support::{assert_close, token_ids, Numbers};

/// Weights that depend on their names alone, as the script makes them.
struct Made;

impl WeightSource for Made {
    fn contains(&self, _: &str) -> bool {
        true
    }

    fn shape(&self, _: &str) -> Option<Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let Wanted { name, shape, .. } = wanted;
        let seed = name.bytes().fold(7u64, |hash, byte| {
            hash.wrapping_mul(0x0100_0000_01b3)
                .wrapping_add(u64::from(byte))
        });
        let scale = match shape {
            [_] if name.ends_with("A_log") => 2.,
            [_] => 0.5,
            shape => (3. / shape[1..].iter().product::<usize>() as f32).sqrt(),
        };
        let made = Numbers::new(seed).tensor(shape, scale, &Device::Cpu);
        Box::pin(std::future::ready(made.map(Stored::from)))
    }
}

fn decoder(config: &str, device: &Device) -> Result<Decoder> {
    let spec = auto::config_spec(config)?;
    Decoder::load(spec, &mut Made, DType::F32, device)
}

/// Sums come in another order than the reference's; WebGPU's exponential functions are less exact.
fn tolerance(device: &Device) -> f32 {
    if device.is_cpu() {
        1e-4
    } else {
        1e-3
    }
}

/// A prompt of two whole chunks and a part, at once and in pieces that end within, at and beside the end of a chunk.
fn numbers_of_transformers(device: &Device) -> Result<()> {
    let file: Value = serde_json::from_str(include_str!("../reference/qwen3_5.json")).unwrap();
    let tokens = file["tokens"].as_u64().unwrap() as usize;
    let positions: Vec<u32> = serde_json::from_value(file["positions"].clone()).unwrap();
    let positions = Tensor::new(positions, device)?;
    let cases = file["cases"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        println!("{}", case["name"]);
        let config = case["config"].to_string();
        let expected: Vec<Vec<f32>> = serde_json::from_value(case["logits"].clone()).unwrap();
        let expected = Tensor::new(expected, device)?;
        let model = decoder(&config, device)?;
        let ids = token_ids(1, tokens, model.spec().vocab, device)?;
        for pieces in [vec![tokens], vec![1, 1, 61, 1, 65, 21]] {
            let (mut state, mut offset) = (model.new_state(), 0);
            let mut logits = Vec::new();
            for piece in pieces {
                let ids = ids.narrow(1, offset, piece)?;
                logits.push(model.forward(&ids, offset, &mut state)?.logits()?);
                offset += piece;
            }
            assert_eq!(offset, tokens);
            let logits = Tensor::cat(&logits, 1)?.squeeze(0)?;
            let logits = logits.index_select(&positions, 0)?;
            assert_close(&logits, &expected, tolerance(device));
        }
    }
    Ok(())
}
test_device!(numbers_of_transformers);

fn tiny() -> Value {
    json!({
        "model_type": "qwen3_5_text", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16
    })
}

fn with(field: &str, value: Value) -> Value {
    let mut config = tiny();
    config[field] = value;
    config
}

#[test]
fn language_model_beside_an_image_encoder() -> Result<()> {
    let text = auto::config_spec(&tiny().to_string())?;
    let mut inner = tiny();
    inner["tie_word_embeddings"] = json!(false);
    let whole = json!({
        "model_type": "qwen3_5", "text_config": inner, "vision_config": { "hidden_size": 7 }, "tie_word_embeddings": true
    });
    let whole = auto::config_spec(&whole.to_string())?;
    assert_eq!(whole.layers, text.layers);
    assert_eq!(whole.rotaries, text.rotaries);
    assert_eq!(whole.head, Head::Tied);
    let names = Decoder::check_weights(whole, &mut Made)?;
    for name in [
        "embed_tokens",
        "layers.0.linear_attn.A_log",
        "layers.3.self_attn.q_norm.weight",
        "norm.weight",
    ] {
        let start = format!("model.language_model.{name}");
        assert!(
            names.iter().any(|name| name.starts_with(&start)),
            "{start}: {names:?}"
        );
    }
    Ok(())
}

#[test]
fn what_does_not_fit_is_named() {
    let cases = [
        (with("attn_output_gate", json!(false)), "attn_output_gate"),
        (
            with("layer_types", json!(["full_attention"])),
            "layer_types has 1",
        ),
        (
            with("layer_types", json!(["sliding_attention"])),
            "sliding_attention",
        ),
        (
            with("full_attention_interval", json!(0)),
            "full_attention_interval",
        ),
        (with("intermediate_size", json!(null)), "intermediate_size"),
        (with("linear_num_key_heads", json!(5)), "5 key heads"),
        (with("linear_num_key_heads", json!(0)), "0 key heads"),
        (with("linear_value_head_dim", json!(0)), "of size 0"),
        (with("linear_conv_kernel_dim", json!(0)), "convolution of 0"),
        (
            with("partial_rotary_factor", json!(1.5)),
            "partial_rotary_factor 1.5",
        ),
        (
            with("rope_parameters", json!({ "rope_type": "dynamic" })),
            "dynamic",
        ),
        (
            with("hidden_act", json!("gelu_pytorch_tan")),
            "gelu_pytorch_tan",
        ),
    ];
    for (config, expected) in cases {
        let error = auto::config_spec(&config.to_string())
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}
