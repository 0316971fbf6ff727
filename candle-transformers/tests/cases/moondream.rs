//! Moondream, with dense and with quantised weights.

use candle_core::quantized::GgmlDType;
use candle_core::{test_device, DType, Device, Module, Result, Tensor};
use candle_nn::{layer_norm, linear, Activation};
use candle_transformers::models::moondream::{Config, Model, VisionConfig, VisionEncoder};
use candle_transformers::models::quantized_moondream;
use serde_json::{json, Value};

use super::encoders::assert_error;
use super::made::Made;
use super::support::{assert_close, token_ids};
use super::vision::{check, module, pictures};

const VOCAB: usize = 61;
/// The sizes of a patch and of a token.
const SIZES: [usize; 2] = [32, 64];
/// f32 sums in another order.
const TOLERANCE: f32 = 2e-5;

fn vision_json() -> Value {
    json!({"image_embedding_dim": SIZES[0], "model_dim": SIZES[1], "hidden_dim": 96, "hidden_features": 64, "embed_len": 4,
        "embed_dim": SIZES[0], "num_blocks": 2, "num_heads": 2, "act": "gelu_pytorch_tanh"})
}

fn json() -> Value {
    json!({"vision_config": vision_json(), "phi_config": {"vocab_size": VOCAB, "n_positions": 64, "n_embd": SIZES[1], "n_layer": 1,
        "n_inner": 96, "n_head": 2, "rotary_dim": 16, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": false, "pad_vocab_size_multiple": 64}})
}

fn config<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T> {
    serde_json::from_value(json.clone()).map_err(candle_core::Error::wrap)
}

fn load(json: &Value, dtype: DType, device: &Device) -> Result<Model> {
    Model::new(&config(json)?, Made::default().vb(dtype, device))
}

fn encoder(device: &Device) -> Result<()> {
    let load = |vb| {
        let cfg: VisionConfig = config(&vision_json())?;
        Ok(module(VisionEncoder::new(&cfg, vb)?))
    };
    // Not square; of other patches; and not of whole ones.
    let wrong: &[&[usize]] = &[&[1, 3, 14, 56], &[1, 3, 42, 42], &[1, 3, 28, 29]];
    check(device, load, [3, 28, 28], wrong)
}
test_device!(encoder);

/// A patch's numbers go channel by channel: from an image cut by hand, through the first layer without a block behind it.
fn patches_are_cut_row_by_row(device: &Device) -> Result<()> {
    let mut json = vision_json();
    json["num_blocks"] = json!(0);
    let vb = Made::default().vb(DType::F32, device);
    let model = VisionEncoder::new(&config(&json)?, vb.clone())?;
    let picture = pictures([1, 3, 28, 28], device)?;
    let found = model.forward(&picture)?;
    let strided = picture.transpose(2, 3)?.contiguous()?.transpose(2, 3)?;
    assert_close(&model.forward(&strided)?, &found, TOLERANCE);
    let (visual, mlp) = (vb.pp("encoder.model.visual"), vb.pp("projection.mlp"));
    let first = linear(588, SIZES[0], visual.pp("patch_embed.linear"))?;
    let positions = visual.get((1, 4, SIZES[0]), "pos_embed")?;
    for (i, (row, column)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        let patch = picture
            .narrow(2, 14 * row, 14)?
            .narrow(3, 14 * column, 14)?;
        let patch = first.forward(&patch.contiguous()?.reshape((1, 588))?)?;
        let xs = (patch + positions.narrow(1, i, 1)?.squeeze(1)?)?;
        let xs = layer_norm(SIZES[0], 1e-5, visual.pp("norm"))?.forward(&xs)?;
        let xs = linear(SIZES[0], 96, mlp.pp("fc1"))?.forward(&xs)?;
        let xs = Activation::GeluPytorchTanh.forward(&xs)?;
        let xs = linear(96, SIZES[1], mlp.pp("fc2"))?.forward(&xs)?;
        assert_close(&found.narrow(1, i, 1)?.squeeze(1)?, &xs, TOLERANCE);
    }
    Ok(())
}
test_device!(patches_are_cut_row_by_row);

/// A question at once gives what its last token gives behind the others; two images and questions give what each gives alone.
fn questions_go_on_behind_the_picture(device: &Device) -> Result<()> {
    let mut model = load(&json(), DType::F32, device)?;
    let picture = model
        .vision_encoder()
        .forward(&pictures([2, 3, 28, 28], device)?)?;
    assert_eq!(picture.dims(), &[2, 4, SIZES[1]]);
    let first = token_ids(2, 1, VOCAB, device)?;
    let ids = token_ids(2, 4, VOCAB, device)?;
    let (most, last) = (ids.narrow(1, 0, 3)?, ids.narrow(1, 3, 1)?);
    let text = model.text_model();
    let whole = text.forward_with_img(&first, &ids, &picture)?;
    assert_eq!(whole.dims(), &[2, VOCAB]);
    text.forward_with_img(&first, &most, &picture)?;
    assert_close(&text.forward(&last)?, &whole, TOLERANCE);
    for row in 0..2 {
        let part = |t: &Tensor| t.narrow(0, row, 1);
        let alone = text.forward_with_img(&part(&first)?, &part(&ids)?, &part(&picture)?)?;
        assert_close(&alone, &part(&whole)?, TOLERANCE);
    }
    Ok(())
}
test_device!(questions_go_on_behind_the_picture);

/// The same weights from a GGUF file give the same, and in blocks of 8 bits about the same.
fn quantized_weights(device: &Device) -> Result<()> {
    let made = Made::default();
    let config: Config = config(&json())?;
    let mut dense = Model::new(&config, made.vb(DType::F32, device))?;
    let picture = pictures([2, 3, 28, 28], device)?;
    let (first, ids) = (
        token_ids(2, 1, VOCAB, device)?,
        token_ids(2, 4, VOCAB, device)?,
    );
    let seen = dense.vision_encoder().forward(&picture)?;
    let logits = dense.text_model().forward_with_img(&first, &ids, &seen)?;
    for (format, tolerance) in [(GgmlDType::F32, TOLERANCE), (GgmlDType::Q8_0, 0.05)] {
        let vb = made.gguf(format, device)?;
        let mut model = quantized_moondream::Model::new(&config, vb)?;
        let found = model.vision_encoder().forward(&picture)?;
        assert_close(&found, &seen, tolerance);
        let found = model.text_model().forward_with_img(&first, &ids, &found)?;
        assert_close(&found, &logits, tolerance);
    }
    Ok(())
}
test_device!(quantized_weights);

#[test]
fn what_contradicts_itself_is_an_error() -> Result<()> {
    let device = Device::Cpu;
    let made = Made::default();
    Model::new(&config(&json())?, made.vb(DType::F32, &device))?;
    for (field, value, parts) in [
        ("num_heads", 5, ["5 heads", "32"]),
        ("num_heads", 0, ["0 heads", "32"]),
        ("embed_len", 6, ["embed_len 6", "square"]),
        ("embed_len", 0, ["embed_len", "at least 1"]),
        ("hidden_dim", 0, ["hidden_dim", "at least 1"]),
        ("model_dim", 48, ["model_dim 48", "n_embd 64"]),
        (
            "image_embedding_dim",
            48,
            ["image_embedding_dim 48", "embed_dim 32"],
        ),
    ] {
        let mut json = json();
        json["vision_config"][field] = json!(value);
        let config: Config = config(&json)?;
        assert_error(Model::new(&config, made.vb(DType::F32, &device)), &parts);
        let vb = made.gguf(GgmlDType::F32, &device)?;
        assert_error(
            quantized_moondream::Model::new(&config, vb).map(|_| ()),
            &parts,
        );
    }
    assert_eq!(Config::v2().vision_config, VisionConfig::v2());
    Ok(())
}
