//! TrOCR.

use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_transformers::models::{trocr, vit};
use serde_json::{json, Value};

use super::{
    assert_close, causal, config, ids, last, picture, with, Loaded, Made, Model, Numbers,
    OfPicture, Writer, F32_TOLERANCE, HIDDEN, LIMIT, PICTURE, VOCAB,
};

fn trocr_json() -> Value {
    json!({"vocab_size": VOCAB, "d_model": HIDDEN, "cross_attention_hidden_size": PICTURE, "decoder_layers": 2,
        "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "activation_function": "gelu", "max_position_embeddings": LIMIT,
        "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "decoder_start_token_id": 2, "init_std": 0.02,
        "decoder_layerdrop": 0.0, "use_cache": true, "scale_embedding": false, "pad_token_id": 1, "bos_token_id": 0,
        "eos_token_id": 2})
}

fn vit_config() -> vit::Config {
    vit::Config {
        hidden_size: PICTURE,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        intermediate_size: 16,
        image_size: 32,
        ..vit::Config::microsoft_trocr_base_handwritten()
    }
}

impl Writer for OfPicture<trocr::TrOCRModel> {
    fn encode(&mut self, ids: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        picture(ids, self.1)
    }
    fn decode(
        &mut self,
        ids: &Tensor,
        x: &Tensor,
        _: Option<&Tensor>,
        start: usize,
    ) -> Result<Tensor> {
        last(self.0.decode(ids, x, start)?)
    }
    fn reset(&mut self) {
        self.0.reset_kv_cache();
    }
}

fn load_trocr(json: &Value, made: &Made, dtype: DType, device: &Device) -> Loaded {
    let vb = made.vb(dtype, device);
    let model = trocr::TrOCRModel::new(&vit_config(), &config(json)?, vb)?;
    Ok(Box::new(OfPicture(model, dtype)))
}

pub(super) const MODELS: &[Model] = &[
    Model {
        name: "trocr",
        json: trocr_json,
        load: load_trocr,
        quantized: None,
        texts: false,
        size: "cross_attention_hidden_size",
    },
    Model {
        name: "trocr",
        json: || {
            with(
                trocr_json(),
                json!({"use_learned_position_embeddings": false, "tie_word_embeddings": false, "scale_embedding": true}),
            )
        },
        load: load_trocr,
        quantized: None,
        texts: false,
        size: "decoder_layers",
    },
];

/// Biases and the norm of embeddings are those of checkpoints that have them.
#[test]
fn optional_weights_of_trocr() -> Result<()> {
    let cpu = Device::Cpu;
    let logits = |lacking| {
        let made = Made {
            lacking,
            ..Made::default()
        };
        let mut writer = load_trocr(&trocr_json(), &made, DType::F32, &cpu)?;
        let encoded = writer.encode(&ids(1, 4, 1, &cpu)?, None)?;
        let logits = writer.decode(&ids(1, 3, 2, &cpu)?, &encoded, None, 0)?;
        logits.flatten_all()?.to_vec1::<f32>()
    };
    let [all, no_norm, no_biases] = [
        logits(&[])?,
        logits(&["layernorm_embedding"])?,
        logits(&["_proj.bias", "fc1.bias", "fc2.bias"])?,
    ];
    assert_ne!(all, no_norm);
    assert_ne!(all, no_biases);
    Ok(())
}

/// A given mask replaces causal visibility.
fn masks_that_are_added(device: &Device) -> Result<()> {
    let (made, text) = (Made::default(), ids(1, 4, 2, device)?);
    let vb = made.vb(DType::F32, device);
    let mut model = trocr::TrOCRForCausalLM::new(&config(&trocr_json())?, vb)?;
    let read = picture(&ids(1, 5, 1, device)?, DType::F32)?;
    let logits = model.forward(&text, Some(&read), 0, &causal(4, device)?)?;
    assert_eq!(logits.dims(), &[1, 4, VOCAB]);
    let mut whole = load_trocr(&trocr_json(), &made, DType::F32, device)?;
    let expected = whole.decode(&text, &read, None, 0)?;
    assert_close(&last(logits)?, &expected, F32_TOLERANCE);
    Ok(())
}
test_device!(masks_that_are_added);

/// Images to text, through the encoder of images.
fn pictures(device: &Device) -> Result<()> {
    let (made, text) = (Made::default(), ids(2, 3, 2, device)?);
    let seen = Numbers::new(5).tensor(&[2, 3, 32, 32], 1., device)?;
    let vb = made.vb(DType::F32, device);
    let mut trocr = trocr::TrOCRModel::new(&vit_config(), &config(&trocr_json())?, vb)?;
    let encoded = trocr.encoder().forward(&seen)?;
    assert_eq!(encoded.dims(), &[2, 5, PICTURE]);
    assert_eq!(trocr.decode(&text, &encoded, 0)?.dims(), &[2, 3, VOCAB]);
    Ok(())
}
test_device!(pictures);
