//! BLIP.

use candle_core::quantized::GgmlDType;
use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_transformers::models::{blip, blip_text, quantized_blip_text};
use serde_json::{json, Value};

use super::{
    assert_close, assert_error, config, ids, last, picture, Made, Model, Numbers, OfPicture,
    Writer, F32_TOLERANCE, HIDDEN, LIMIT, PICTURE, VOCAB,
};

fn blip_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "encoder_hidden_size": PICTURE, "intermediate_size": 64, "projection_dim": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": LIMIT, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "is_decoder": true})
}

impl Writer for OfPicture<blip_text::TextLMHeadModel> {
    fn encode(&mut self, ids: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        picture(ids, self.1)
    }
    fn decode(&mut self, ids: &Tensor, x: &Tensor, _: Option<&Tensor>, _: usize) -> Result<Tensor> {
        last(self.0.forward(ids, x)?)
    }
    fn reset(&mut self) {
        self.0.reset_kv_cache();
    }
}

impl Writer for OfPicture<quantized_blip_text::TextLMHeadModel> {
    fn encode(&mut self, ids: &Tensor, _: Option<&Tensor>) -> Result<Tensor> {
        picture(ids, self.1)
    }
    fn decode(&mut self, ids: &Tensor, x: &Tensor, _: Option<&Tensor>, _: usize) -> Result<Tensor> {
        last(self.0.forward(ids, x)?)
    }
    fn reset(&mut self) {
        self.0.reset_kv_cache();
    }
}

pub(super) const MODELS: &[Model] = &[Model {
    name: "blip_text",
    json: blip_json,
    load: |json, made, dtype, device| {
        let model = blip_text::TextLMHeadModel::new(&config(json)?, made.vb(dtype, device))?;
        Ok(Box::new(OfPicture(model, dtype)))
    },
    quantized: Some(|json, vb| {
        let model = quantized_blip_text::TextLMHeadModel::new(&config(json)?, vb)?;
        Ok(Box::new(OfPicture(model, DType::F32)))
    }),
    texts: false,
    size: "num_hidden_layers",
}];

/// Images to text, through the encoder of images.
fn pictures(device: &Device) -> Result<()> {
    let (made, text) = (Made::default(), ids(2, 3, 2, device)?);
    let seen = Numbers::new(5).tensor(&[2, 3, 32, 32], 1., device)?;
    let mut json = json!({"projection_dim": 16, "image_text_hidden_size": 8, "text_config": blip_json(),
        "vision_config": {"hidden_size": PICTURE, "intermediate_size": 32, "projection_dim": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "image_size": 32, "patch_size": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-5}});
    let load = |json: &Value| {
        let vb = made.vb(DType::F32, device);
        blip::BlipForConditionalGeneration::new(&config(json)?, vb)
    };
    let mut blip = load(&json)?;
    let encoded = blip.vision_model().forward(&seen)?;
    assert_eq!(encoded.dims(), &[2, 5, PICTURE]);
    let logits = blip.text_decoder().forward(&text, &encoded)?;
    assert_eq!(logits.dims(), &[2, 3, VOCAB]);
    blip.reset_kv_cache();
    let again = blip.text_decoder().forward(&text, &encoded)?;
    assert_close(&again, &logits, 0.);
    let small = seen.narrow(3, 0, 16)?;
    assert_error(blip.vision_model().forward(&small), &["blip", "32, 32"]);
    json["vision_config"]["patch_size"] = json!(0);
    assert_error(load(&json), &["patch_size 0"]);
    json["vision_config"]["patch_size"] = json!(16);
    json["vision_config"]["num_attention_heads"] = json!(5);
    assert_error(load(&json), &["blip", "5 heads"]);
    Ok(())
}
test_device!(pictures);

#[test]
fn the_vector_of_a_text_is_that_of_its_first_token() -> Result<()> {
    let (made, cpu) = (Made::default(), Device::Cpu);
    let config = config(&blip_json())?;
    let pooler = blip_text::TextPooler::new(&config, made.vb(DType::F32, &cpu))?;
    let xs = Numbers::new(3).tensor(&[2, 7, HIDDEN], 1., &cpu)?;
    let found = pooler.forward(&xs)?;
    assert_eq!(found.dims(), &[2, HIDDEN]);
    assert_close(
        &pooler.forward(&xs.narrow(1, 0, 1)?)?,
        &found,
        F32_TOLERANCE,
    );
    let vb = made.gguf(GgmlDType::F32, &cpu)?;
    let quantized = quantized_blip_text::TextPooler::new(&config, vb)?;
    assert_close(&quantized.forward(&xs)?, &found, F32_TOLERANCE);
    Ok(())
}
