//! T5.

use candle_core::quantized::GgmlDType;
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::{quantized_t5, t5};
use candle_transformers::quantized_var_builder;
use serde_json::{json, Value};

use super::{
    assert_close, assert_error, config, ids, in_pieces, with, Loaded, Made, Model, Writer,
    F32_TOLERANCE, HIDDEN, VOCAB,
};

fn t5_json() -> Value {
    json!({"vocab_size": VOCAB, "d_model": HIDDEN, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
        "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false, "is_encoder_decoder": true,
        "pad_token_id": 0, "eos_token_id": 1})
}

impl Writer for t5::T5ForConditionalGeneration {
    fn encode(&mut self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        self.encode_masked(ids, mask)
    }
    fn decode(
        &mut self,
        ids: &Tensor,
        x: &Tensor,
        mask: Option<&Tensor>,
        _: usize,
    ) -> Result<Tensor> {
        self.decode_masked(ids, x, mask)
    }
    fn reset(&mut self) {
        self.clear_kv_cache();
    }
}

impl Writer for quantized_t5::T5ForConditionalGeneration {
    fn encode(&mut self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        self.encode_masked(ids, mask)
    }
    fn decode(
        &mut self,
        ids: &Tensor,
        x: &Tensor,
        mask: Option<&Tensor>,
        _: usize,
    ) -> Result<Tensor> {
        self.decode_masked(ids, x, mask)
    }
    fn reset(&mut self) {
        self.clear_kv_cache();
    }
}

fn load_t5(json: &Value, made: &Made, dtype: DType, device: &Device) -> Loaded {
    let model = t5::T5ForConditionalGeneration::load(made.vb(dtype, device), &config(json)?)?;
    Ok(Box::new(model))
}

fn load_quantized(json: &Value, vb: quantized_var_builder::VarBuilder) -> Loaded {
    let model = quantized_t5::T5ForConditionalGeneration::load(vb, &config(json)?)?;
    Ok(Box::new(model))
}

pub(super) const MODELS: &[Model] = &[
    Model {
        name: "t5",
        json: t5_json,
        load: load_t5,
        quantized: Some(load_quantized),
        texts: true,
        size: "num_heads",
    },
    Model {
        name: "t5",
        json: || {
            with(
                t5_json(),
                json!({"feed_forward_proj": "relu", "tie_word_embeddings": true, "num_decoder_layers": null}),
            )
        },
        load: load_t5,
        quantized: Some(load_quantized),
        texts: true,
        size: "d_kv",
    },
];

/// Distances of all classes, past the 64 that are made at first.
fn long_texts_of_t5(device: &Device) -> Result<()> {
    let made = Made::default();
    let mut writer = load_t5(&t5_json(), &made, DType::F32, device)?;
    let encoded = writer.encode(&ids(1, 90, 1, device)?, None)?;
    let text = ids(1, 70, 2, device)?;
    let steps = in_pieces(
        &mut *writer,
        &text,
        &encoded,
        None,
        &[60, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    )?;
    writer.reset();
    let whole = in_pieces(&mut *writer, &text, &encoded, None, &[70])?;
    assert_close(&steps[10], &whole[0], F32_TOLERANCE);
    let uncached = with(t5_json(), json!({"use_cache": false}));
    let mut writer = load_t5(&uncached, &made, DType::F32, device)?;
    for len in [69, 70] {
        let logits = writer.decode(&text.narrow(1, 0, len)?, &encoded, None, 0)?;
        assert_close(&logits, &steps[len - 60], F32_TOLERANCE);
    }
    Ok(())
}
test_device!(long_texts_of_t5);

/// The dtype of the computation is not that of the weights.
fn dtype_of_t5_encoder(device: &Device) -> Result<()> {
    let made = Made::default();
    let config: t5::Config = config(&t5_json())?;
    let load = |dtype| t5::T5EncoderModel::load(made.vb(dtype, device), &config);
    let text = ids(2, 9, 1, device)?;
    let expected = load(DType::F32)?.forward(&text)?;
    for (weights, computed, tolerance) in [
        (DType::F16, DType::F32, 1e-2),
        (DType::F32, DType::F16, 3e-2),
        (DType::F16, DType::F16, 3e-2),
    ] {
        let found = load(weights)?.forward_dt(&text, Some(computed))?;
        assert_eq!(found.dtype(), computed);
        assert_close(&found, &expected, tolerance);
    }
    assert_close(&load(DType::F32)?.forward_dt(&text, None)?, &expected, 0.);
    Ok(())
}
test_device!(dtype_of_t5_encoder);

#[test]
fn quantized_files_that_lack_something() -> Result<()> {
    let (json, made, cpu) = (t5_json(), Made::default(), Device::Cpu);
    drop(load_t5(&json, &made, DType::F32, &cpu)?);
    let mut asked = made.asked.lock().expect("no thread panicked");
    asked.retain(|(name, _)| name != "decoder.block.1.layer.1.EncDecAttention.k.weight");
    drop(asked);
    let vb = made.gguf(GgmlDType::Q8_0, &cpu)?;
    let model = quantized_t5::T5ForConditionalGeneration::load(vb.clone(), &config(&json)?);
    assert_error(model, &["decoder.block.1.layer.1.EncDecAttention.k.weight"]);
    let encoder = quantized_t5::T5EncoderModel::load(vb.clone(), &config(&json)?)?;
    let found = encoder.clone().forward(&ids(1, 9, 1, &cpu)?)?;
    assert_eq!(found.dims(), &[1, 9, HIDDEN]);
    let wide = config(&with(json, json!({"d_ff": 96})))?;
    let model = quantized_t5::T5EncoderModel::load(vb, &wide);
    assert_error(model, &["encoder.block.0.layer.1.DenseReluDense", "96"]);
    Ok(())
}

/// The table of tokens under the names that checkpoints of encoders have.
#[test]
fn other_names_of_the_table_of_tokens() -> Result<()> {
    let config: t5::Config = config(&t5_json())?;
    let names = |lacking| {
        let made = Made {
            lacking,
            ..Made::default()
        };
        t5::T5EncoderModel::load(made.vb(DType::F32, &Device::Cpu), &config)?;
        let asked = made.asked.lock().expect("no thread panicked");
        Ok::<_, candle_core::Error>(asked[0].0.clone())
    };
    assert_eq!(names(&[])?, "shared.weight");
    assert_eq!(names(&["shared"])?, "decoder.embed_tokens.weight");
    let encoder = names(&["shared", "decoder.embed_tokens"])?;
    assert_eq!(encoder, "encoder.embed_tokens.weight");
    Ok(())
}

#[test]
fn forms_of_t5_feed_forward_blocks() -> Result<()> {
    use candle_nn::Activation;
    let form = |fields: Value| {
        let json = with(t5_json(), fields);
        let config: t5::Config = config(&json)?;
        Ok::<_, candle_core::Error>(config.feed_forward_proj)
    };
    for (text, gated, activation) in [
        ("relu", false, Activation::Relu),
        ("gelu", false, Activation::Gelu),
        ("gated-gelu", true, Activation::NewGelu),
        ("gated-silu", true, Activation::Silu),
        ("gated-relu", true, Activation::Relu),
    ] {
        let found = form(json!({"feed_forward_proj": text}))?;
        let expected = t5::ActivationWithOptionalGating { gated, activation };
        assert_eq!(found, expected, "{text}");
    }
    let Value::Object(mut all) = t5_json() else {
        panic!("no object")
    };
    all.remove("feed_forward_proj");
    let first: t5::Config = config(&Value::Object(all.clone()))?;
    assert_eq!(
        first.feed_forward_proj,
        t5::Config::default().feed_forward_proj
    );
    let quantized: quantized_t5::Config = config(&Value::Object(all))?;
    assert_eq!(quantized, quantized_t5::Config::from(first.clone()));
    assert_eq!(t5::Config::from(&quantized), first);
    Ok(())
}
