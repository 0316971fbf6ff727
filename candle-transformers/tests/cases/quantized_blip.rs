//! BLIP over dense and over quantised weights; to be moved into seq2seq/blip.rs.

use candle_core::quantized::GgmlDType;
use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_transformers::models::{blip, quantized_blip};
use serde_json::{json, Value};

use super::encoders::assert_error;
use super::made::Made;
use super::support::{assert_close, token_ids};
use super::vision::pictures;

const VOCAB: usize = 61;
/// f32 sums in another order.
const TOLERANCE: f32 = 2e-5;

fn json() -> Value {
    json!({"projection_dim": 16, "image_text_hidden_size": 8,
        "text_config": {"vocab_size": VOCAB, "hidden_size": 32, "encoder_hidden_size": 64, "intermediate_size": 64,
            "projection_dim": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 20,
            "hidden_act": "gelu", "layer_norm_eps": 1e-12, "is_decoder": true},
        "vision_config": {"hidden_size": 64, "intermediate_size": 96, "projection_dim": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 32, "patch_size": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-5}})
}

fn config(json: &Value) -> Result<blip::Config> {
    serde_json::from_value(json.clone()).map_err(candle_core::Error::wrap)
}

/// The same weights from a GGUF file give the same, and in blocks of 8 bits about the same, for images in a batch and alone.
fn quantized_weights(device: &Device) -> Result<()> {
    let (made, config) = (Made::default(), config(&json())?);
    let mut dense = blip::BlipForConditionalGeneration::new(&config, made.vb(DType::F32, device))?;
    let picture = pictures([2, 3, 32, 32], device)?;
    let ids = token_ids(2, 3, VOCAB, device)?;
    let seen = dense.vision_model().forward(&picture)?;
    assert_eq!(seen.dims(), &[2, 5, 64]);
    let logits = dense.text_decoder().forward(&ids, &seen)?;
    for (format, tolerance) in [(GgmlDType::F32, TOLERANCE), (GgmlDType::Q8_0, 0.05)] {
        let vb = made.gguf(format, device)?;
        let mut model = quantized_blip::BlipForConditionalGeneration::new(&config, vb)?;
        let found = model.vision_model().forward(&picture)?;
        assert_close(&found, &seen, tolerance);
        for row in 0..2 {
            let alone = model.vision_model().forward(&picture.narrow(0, row, 1)?)?;
            assert_close(&alone, &found.narrow(0, row, 1)?, tolerance);
        }
        let first = model.text_decoder().forward(&ids, &found)?;
        assert_close(&first, &logits, tolerance);
        model.reset_kv_cache();
        let again = model.text_decoder().forward(&ids, &found)?;
        assert_close(&again, &first, 0.);
    }
    let half = blip::BlipForConditionalGeneration::new(&config, made.vb(DType::F16, device))?;
    let found = half
        .vision_model()
        .forward(&picture.to_dtype(DType::F16)?)?;
    assert_close(&found, &seen, 0.05);
    Ok(())
}
test_device!(quantized_weights);

fn what_does_not_fit_is_an_error(device: &Device) -> Result<()> {
    let made = Made::default();
    blip::BlipForConditionalGeneration::new(&config(&json())?, made.vb(DType::F32, device))?;
    let load = |json: &Value| {
        let vb = made.gguf(GgmlDType::F32, device)?;
        quantized_blip::BlipForConditionalGeneration::new(&config(json)?, vb)
    };
    let model = load(&json())?;
    let small = Tensor::zeros((1, 3, 32, 16), DType::F32, device)?;
    assert_error(
        model.vision_model().forward(&small),
        &["[1, 3, 32, 16]", "32, 32"],
    );
    for (field, value, parts) in [
        ("patch_size", 0, ["patch_size 0", "image_size 32"]),
        ("num_attention_heads", 5, ["blip", "5 heads"]),
        ("intermediate_size", 32, ["[96, 64]", "[32, 64]"]),
    ] {
        let mut json = json();
        json["vision_config"][field] = json!(value);
        assert_error(load(&json), &parts);
    }
    Ok(())
}
test_device!(what_does_not_fit_is_an_error);
