//! Models that read one thing and write another, each with tiny weights that depend on their names alone.

use std::io::Cursor;
use std::sync::{Arc, Mutex};

use candle_core::quantized::{gguf_file, GgmlDType, QTensor};
use candle_core::{bail, test_device, DType, Device, Module, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};
use candle_transformers::models::{
    blip, blip_text, marian, quantized_blip_text, quantized_t5, t5, trocr, vit,
};
use candle_transformers::quantized_var_builder;
use serde_json::{json, Value};

use super::support::{assert_close, Numbers};

const VOCAB: usize = 64;
const HIDDEN: usize = 32;
/// The size of what is read, where it is a picture.
const PICTURE: usize = 24;
/// The longest text, where there is one.
const LIMIT: usize = 40;
/// f32 sums in another order.
const F32_TOLERANCE: f32 = 2e-5;

/// Makes any weight that a model asks for, and notes it; those whose names contain `large.0` are `large.1` times as large. Of those whose
/// names contain one of `lacking`, it says that they are not there.
#[derive(Clone, Default)]
struct Made {
    large: Option<(&'static str, f32)>,
    lacking: &'static [&'static str],
    asked: Arc<Mutex<Vec<(String, Tensor)>>>,
}

impl SimpleBackend for Made {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) {
            bail!("there is no {name}")
        }
        let hash = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        let mut numbers = Numbers::new(name.bytes().fold(0xcbf2_9ce4_8422_2325, hash));
        let mut scale = match s.dims() {
            [_] if name.ends_with("bias") => 0.2,
            [_] => 1.,
            _ => 0.4,
        };
        if let Some((_, times)) = self.large.filter(|(part, _)| name.contains(part)) {
            scale *= times;
        }
        let tensor = numbers.tensor(s.dims(), scale, &Device::Cpu)?;
        let mut asked = self.asked.lock().expect("no thread panicked");
        asked.push((name.to_string(), tensor.clone()));
        tensor.to_dtype(dtype)?.to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        bail!("{name} is asked for without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !self.lacking.iter().any(|lacking| name.contains(lacking))
    }
}

impl Made {
    fn vb(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), dtype, device.clone())
    }

    /// What was asked for, as a GGUF file: matrices with rows of blocks in `format`, the rest as it is.
    fn gguf(
        &self,
        format: GgmlDType,
        device: &Device,
    ) -> Result<quantized_var_builder::VarBuilder> {
        let asked = self.asked.lock().expect("no thread panicked");
        let quantized = asked.iter().map(|(name, tensor)| {
            let format = match tensor.dims() {
                [_, k] if k.is_multiple_of(32) => format,
                _ => GgmlDType::F32,
            };
            Ok((name.as_str(), QTensor::quantize(tensor, format)?))
        });
        let quantized: Vec<(&str, QTensor)> = quantized.collect::<Result<_>>()?;
        let tensors: Vec<(&str, &QTensor)> = quantized.iter().map(|(n, t)| (*n, t)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &[], &tensors)?;
        quantized_var_builder::VarBuilder::from_gguf_buffer(file.get_ref(), device)
    }
}

fn config<T: serde::de::DeserializeOwned>(json: &Value) -> Result<T> {
    serde_json::from_value(json.clone()).map_err(candle_core::Error::wrap)
}

/// `json` with these fields in place of those it has.
fn with(mut json: Value, fields: Value) -> Value {
    let (Value::Object(all), Value::Object(fields)) = (&mut json, fields) else {
        panic!("not objects")
    };
    all.extend(fields);
    json
}

fn t5_json() -> Value {
    json!({"vocab_size": VOCAB, "d_model": HIDDEN, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "dropout_rate": 0.1, "layer_norm_epsilon": 1e-6,
        "initializer_factor": 1.0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": false, "is_encoder_decoder": true,
        "pad_token_id": 0, "eos_token_id": 1})
}

fn marian_json() -> Value {
    json!({"vocab_size": VOCAB, "max_position_embeddings": LIMIT, "encoder_layers": 2, "encoder_ffn_dim": 48,
        "encoder_attention_heads": 4, "decoder_layers": 2, "decoder_ffn_dim": 64, "decoder_attention_heads": 2, "use_cache": true,
        "is_encoder_decoder": true, "activation_function": "swish", "d_model": HIDDEN, "decoder_start_token_id": 63,
        "scale_embedding": true, "pad_token_id": 63, "eos_token_id": 0, "forced_eos_token_id": 0,
        "share_encoder_decoder_embeddings": true})
}

fn trocr_json() -> Value {
    json!({"vocab_size": VOCAB, "d_model": HIDDEN, "cross_attention_hidden_size": PICTURE, "decoder_layers": 2,
        "decoder_attention_heads": 4, "decoder_ffn_dim": 48, "activation_function": "gelu", "max_position_embeddings": LIMIT,
        "dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0, "decoder_start_token_id": 2, "init_std": 0.02,
        "decoder_layerdrop": 0.0, "use_cache": true, "scale_embedding": false, "pad_token_id": 1, "bos_token_id": 0,
        "eos_token_id": 2})
}

fn blip_json() -> Value {
    json!({"vocab_size": VOCAB, "hidden_size": HIDDEN, "encoder_hidden_size": PICTURE, "intermediate_size": 64, "projection_dim": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": LIMIT, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "is_decoder": true})
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

/// A model behind one interface.
trait Writer {
    /// What is read, from ids of a text or of a picture's vectors.
    fn encode(&mut self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor>;
    /// The logits after the last of `ids`, (batch, vocab); `start` tokens came before.
    fn decode(
        &mut self,
        ids: &Tensor,
        encoded: &Tensor,
        mask: Option<&Tensor>,
        start: usize,
    ) -> Result<Tensor>;
    fn reset(&mut self);
}

fn last(logits: Tensor) -> Result<Tensor> {
    logits.narrow(1, logits.dim(1)? - 1, 1)?.squeeze(1)
}

/// Vectors for a picture, which depend on the ids.
fn picture(ids: &Tensor, dtype: DType) -> Result<Tensor> {
    let (b, t) = ids.dims2()?;
    let sum: u32 = ids.flatten_all()?.to_vec1::<u32>()?.iter().sum();
    let vectors = Numbers::new(sum.into()).tensor(&[b, t, PICTURE], 1., &Device::Cpu)?;
    vectors.to_dtype(dtype)?.to_device(ids.device())
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

impl Writer for marian::MTModel {
    fn encode(&mut self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        self.encoder().forward_masked(ids, mask)
    }
    fn decode(
        &mut self,
        ids: &Tensor,
        x: &Tensor,
        mask: Option<&Tensor>,
        start: usize,
    ) -> Result<Tensor> {
        last(self.decode_masked(ids, x, start, mask)?)
    }
    fn reset(&mut self) {
        self.reset_kv_cache();
    }
}

struct OfPicture<M>(M, DType);

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

type Loaded = Result<Box<dyn Writer>>;

struct Model {
    /// The family, as errors have it.
    name: &'static str,
    json: fn() -> Value,
    load: fn(&Value, &Made, DType, &Device) -> Loaded,
    /// Whether it reads texts, which can be hidden in part.
    texts: bool,
    /// A field of the configuration that cannot be 0.
    size: &'static str,
}

fn load_t5(json: &Value, made: &Made, dtype: DType, device: &Device) -> Loaded {
    let model = t5::T5ForConditionalGeneration::load(made.vb(dtype, device), &config(json)?)?;
    Ok(Box::new(model))
}

fn load_trocr(json: &Value, made: &Made, dtype: DType, device: &Device) -> Loaded {
    let vb = made.vb(dtype, device);
    let model = trocr::TrOCRModel::new(&vit_config(), &config(json)?, vb)?;
    Ok(Box::new(OfPicture(model, dtype)))
}

const MODELS: &[Model] = &[
    Model {
        name: "t5",
        json: t5_json,
        load: load_t5,
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
        texts: true,
        size: "d_kv",
    },
    Model {
        name: "marian",
        json: marian_json,
        load: |json, made, dtype, device| {
            let model = marian::MTModel::new(&config(json)?, made.vb(dtype, device))?;
            Ok(Box::new(model))
        },
        texts: true,
        size: "decoder_ffn_dim",
    },
    Model {
        name: "trocr",
        json: trocr_json,
        load: load_trocr,
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
        texts: false,
        size: "decoder_layers",
    },
    Model {
        name: "blip_text",
        json: blip_json,
        load: |json, made, dtype, device| {
            let model = blip_text::TextLMHeadModel::new(&config(json)?, made.vb(dtype, device))?;
            Ok(Box::new(OfPicture(model, dtype)))
        },
        texts: false,
        size: "num_hidden_layers",
    },
];

impl Model {
    fn f32(&self, device: &Device) -> Loaded {
        (self.load)(&(self.json)(), &Made::default(), DType::F32, device)
    }
}

/// Ids of `b` texts of `t` tokens, different for each `seed`.
fn ids(b: usize, t: usize, seed: usize, device: &Device) -> Result<Tensor> {
    let id = |i: usize| ((i * 17 + seed * 29 + 3) % (VOCAB - 2) + 1) as u32;
    Tensor::from_vec((0..b * t).map(id).collect::<Vec<_>>(), (b, t), device)
}

/// The logits after each of `pieces` of a text of these lengths, one after another.
fn in_pieces(
    model: &mut dyn Writer,
    ids: &Tensor,
    encoded: &Tensor,
    mask: Option<&Tensor>,
    pieces: &[usize],
) -> Result<Vec<Tensor>> {
    let mut start = 0;
    let mut logits = Vec::new();
    for &piece in pieces {
        let input = ids.narrow(1, start, piece)?;
        logits.push(model.decode(&input, encoded, mask, start)?);
        start += piece;
    }
    Ok(logits)
}

/// Decoding step by step is decoding at once; after a reset the same comes again, whatever was in between.
fn steps_are_the_whole(device: &Device) -> Result<()> {
    for model in MODELS {
        let name = model.name;
        let mut writer = model.f32(device)?;
        let encoded = writer.encode(&ids(2, 7, 1, device)?, None)?;
        let text = ids(2, 12, 2, device)?;
        let steps = in_pieces(&mut *writer, &text, &encoded, None, &[1; 12])?;
        writer.reset();
        for (i, step) in steps.iter().enumerate() {
            assert_eq!(step.dims(), &[2, VOCAB], "{name}");
            let whole = in_pieces(&mut *writer, &text, &encoded, None, &[i + 1])?;
            writer.reset();
            println!("{name}: {} tokens", i + 1);
            assert_close(step, &whole[0], F32_TOLERANCE);
        }
        // A text of another batch, about something else.
        let other = writer.encode(&ids(1, 5, 3, device)?, None)?;
        let between = in_pieces(&mut *writer, &ids(1, 3, 4, device)?, &other, None, &[2, 1])?;
        let mut fresh = model.f32(device)?;
        let alone = in_pieces(&mut *fresh, &ids(1, 3, 4, device)?, &other, None, &[2, 1])?;
        assert_close(&between[1], &alone[1], F32_TOLERANCE);
        writer.reset();
        let again = in_pieces(&mut *writer, &text, &encoded, None, &[5, 3, 1, 1, 1, 1])?;
        for (piece, end) in again.iter().zip([5, 8, 9, 10, 11, 12]) {
            assert_close(piece, &steps[end - 1], F32_TOLERANCE);
        }
        // What is written depends on what is read, and on what was written before.
        let change = |a: &Tensor, b: &Tensor| (a - b)?.abs()?.max_all()?.to_scalar::<f32>();
        writer.reset();
        let last = text.narrow(1, 11, 1)?;
        let alone = writer.decode(&last, &encoded, None, 0)?;
        assert!(change(&alone, &steps[11])? > 1e-2, "{name}");
        writer.reset();
        let other = writer.encode(&ids(2, 7, 5, device)?, None)?;
        let about_other = writer.decode(&last, &other, None, 0)?;
        assert!(change(&alone, &about_other)? > 1e-2, "{name}");
    }
    Ok(())
}
test_device!(steps_are_the_whole);

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

/// A text in a batch with a longer one gives what it gives alone, read and written.
fn padding_changes_nothing(device: &Device) -> Result<()> {
    for model in MODELS.iter().filter(|model| model.texts) {
        let mut writer = model.f32(device)?;
        let (read, written) = (ids(2, 11, 1, device)?, ids(2, 4, 2, device)?);
        let lens = [11usize, 6];
        let seen = |i: usize| u32::from(i % 11 < lens[i / 11]);
        let mask: Vec<u32> = (0..22).map(seen).collect();
        let mask = Tensor::from_vec(mask, (2, 11), device)?;
        let encoded = writer.encode(&read, Some(&mask))?;
        let pieces = [2, 1, 1];
        let batch = in_pieces(&mut *writer, &written, &encoded, Some(&mask), &pieces)?;
        for (row, len) in lens.into_iter().enumerate() {
            writer.reset();
            let text = read.narrow(0, row, 1)?.narrow(1, 0, len)?;
            let alone = writer.encode(&text, None)?;
            println!("{}: text {row}", model.name);
            let part = encoded.narrow(0, row, 1)?.narrow(1, 0, len)?;
            assert_close(&part, &alone, F32_TOLERANCE);
            let text = written.narrow(0, row, 1)?;
            let logits = in_pieces(&mut *writer, &text, &alone, None, &pieces)?;
            for (batch, alone) in batch.iter().zip(&logits) {
                assert_close(&batch.narrow(0, row, 1)?, alone, F32_TOLERANCE);
            }
        }
        // What is hidden matters where it is seen.
        writer.reset();
        let open = in_pieces(&mut *writer, &written, &encoded, None, &pieces)?;
        let change = (open[2].get(1)? - batch[2].get(1)?)?.abs()?.max_all()?;
        assert!(change.to_scalar::<f32>()? > 1e-3, "{}", model.name);
    }
    Ok(())
}
test_device!(padding_changes_nothing);

/// What a device gives is what the CPU gives, where it is compared with crates.io's Candle.
fn agrees_with_the_cpu(device: &Device) -> Result<()> {
    for model in MODELS {
        let run = |device: &Device| {
            let mut writer = model.f32(device)?;
            let encoded = writer.encode(&ids(2, 29, 1, &Device::Cpu)?.to_device(device)?, None)?;
            let text = ids(2, 30, 2, device)?;
            let logits = in_pieces(&mut *writer, &text, &encoded, None, &[28, 1, 1])?;
            Tensor::cat(&logits, 0)?.to_device(&Device::Cpu)
        };
        println!("{}", model.name);
        assert_close(&run(device)?, &run(&Device::Cpu)?, 1e-4);
    }
    Ok(())
}
test_device!(agrees_with_the_cpu);

/// f16 has 11 bits; the tolerance leaves room for the roundings of all layers. A text of padding alone gives numbers.
fn agrees_with_f32_in_f16(device: &Device) -> Result<()> {
    let models = MODELS.iter().map(|model| (model, None));
    // Feed-forward blocks whose outputs f16 cannot hold.
    let large = MODELS.iter().filter(|model| model.name == "t5");
    let large = large.map(|model| (model, Some(("DenseReluDense.wo", 20_000.))));
    for (model, large) in models.chain(large) {
        let made = Made {
            large,
            ..Made::default()
        };
        let (read, written) = (ids(2, 9, 1, device)?, ids(2, 6, 2, device)?);
        let mask = read.zeros_like()?;
        let run = |dtype| {
            let mut writer = (model.load)(&(model.json)(), &made, dtype, device)?;
            let hidden = writer.encode(&read, Some(&mask))?;
            let logits = in_pieces(&mut *writer, &written, &hidden, Some(&mask), &[6])?;
            let sum = logits[0].to_dtype(DType::F32)?.abs()?.sum_all()?;
            assert!(sum.to_scalar::<f32>()?.is_finite(), "{}", model.name);
            writer.reset();
            let encoded = writer.encode(&read, None)?;
            assert_eq!(encoded.dtype(), dtype);
            let logits = in_pieces(&mut *writer, &written, &encoded, None, &[4, 1, 1])?;
            assert_eq!(logits[2].dtype(), dtype);
            Tensor::cat(&logits, 0)?.to_dtype(DType::F32)
        };
        println!("{} {large:?}", model.name);
        assert_close(&run(DType::F16)?, &run(DType::F32)?, 3e-2);
    }
    Ok(())
}
test_device!(agrees_with_f32_in_f16);

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

/// A file that holds numbers gives what these give; one of blocks gives nearly that.
fn quantized_files(device: &Device) -> Result<()> {
    let (read, written) = (ids(2, 9, 1, device)?, ids(2, 6, 2, device)?);
    let run = |writer: &mut dyn Writer| {
        let encoded = writer.encode(&read, None)?;
        let logits = in_pieces(writer, &written, &encoded, None, &[4, 1, 1])?;
        Tensor::cat(&logits, 0)
    };
    for model in MODELS {
        let (json, made) = ((model.json)(), Made::default());
        let mut plain = (model.load)(&json, &made, DType::F32, device)?;
        let load = |format| -> Loaded {
            let vb = made.gguf(format, device)?;
            Ok(match model.name {
                "t5" => Box::new(quantized_t5::T5ForConditionalGeneration::load(
                    vb,
                    &config(&json)?,
                )?),
                _ => Box::new(OfPicture(
                    quantized_blip_text::TextLMHeadModel::new(&config(&json)?, vb)?,
                    DType::F32,
                )),
            })
        };
        if !["t5", "blip_text"].contains(&model.name) {
            continue;
        }
        let expected = run(&mut *plain)?;
        println!("{}", model.name);
        assert_close(&run(&mut *load(GgmlDType::F32)?)?, &expected, F32_TOLERANCE);
        assert_close(&run(&mut *load(GgmlDType::Q8_0)?)?, &expected, 5e-2);
    }
    Ok(())
}
test_device!(quantized_files);

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

/// A mask that is given takes the place of the rule that tokens see what is before them.
fn masks_that_are_added(device: &Device) -> Result<()> {
    let causal: Vec<f32> = (0..16)
        .map(|i| if i % 4 > i / 4 { f32::NEG_INFINITY } else { 0. })
        .collect();
    let causal = Tensor::from_vec(causal, (4, 4), device)?;
    let made = Made::default();
    let text = ids(1, 4, 2, device)?;
    let mut marian = marian::MTModel::new(&config(&marian_json())?, made.vb(DType::F32, device))?;
    let encoded = marian.encoder().forward(&ids(1, 6, 1, device)?, 0)?;
    let run = |marian: &mut marian::MTModel, mask: &Tensor, source: Option<&Tensor>| {
        marian.decoder().forward(&text, source, 0, mask)
    };
    let masked = run(&mut marian, &causal, Some(&encoded))?;
    let by_head = causal.expand((4, 4, 4))?.narrow(0, 0, 2)?.contiguous()?;
    assert_close(
        &run(&mut marian, &by_head, Some(&encoded))?,
        &masked,
        F32_TOLERANCE,
    );
    let open = run(&mut marian, &causal.zeros_like()?, Some(&encoded))?;
    let change = |other: &Tensor| (other - &masked)?.abs()?.max_all()?.to_scalar::<f32>();
    assert!(change(&open)? > 1e-2);
    assert!(change(&run(&mut marian, &causal, None)?)? > 1e-2);
    assert!(run(&mut marian, &causal.narrow(1, 0, 3)?, None).is_err());

    let vb = made.vb(DType::F32, device);
    let mut model = trocr::TrOCRForCausalLM::new(&config(&trocr_json())?, vb)?;
    let read = picture(&ids(1, 5, 1, device)?, DType::F32)?;
    let logits = model.forward(&text, Some(&read), 0, &causal)?;
    assert_eq!(logits.dims(), &[1, 4, VOCAB]);
    let mut whole = load_trocr(&trocr_json(), &made, DType::F32, device)?;
    let expected = whole.decode(&text, &read, None, 0)?;
    assert_close(&last(logits)?, &expected, F32_TOLERANCE);
    Ok(())
}
test_device!(masks_that_are_added);

/// Pictures to text, through the encoders of pictures.
fn pictures(device: &Device) -> Result<()> {
    let (made, text) = (Made::default(), ids(2, 3, 2, device)?);
    let seen = Numbers::new(5).tensor(&[2, 3, 32, 32], 1., device)?;
    let vb = made.vb(DType::F32, device);
    let mut trocr = trocr::TrOCRModel::new(&vit_config(), &config(&trocr_json())?, vb)?;
    let encoded = trocr.encoder().forward(&seen)?;
    assert_eq!(encoded.dims(), &[2, 5, PICTURE]);
    assert_eq!(trocr.decode(&text, &encoded, 0)?.dims(), &[2, 3, VOCAB]);

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

#[track_caller]
fn assert_error<T>(result: Result<T>, parts: &[&str]) {
    let Err(error) = result else {
        panic!("no error, {parts:?} are expected in one")
    };
    let error = error.to_string();
    for part in parts {
        assert!(error.contains(part), "{error}: without {part:?}");
    }
}

fn bad_input_is_an_error(device: &Device) -> Result<()> {
    for model in MODELS {
        let (name, json) = (model.name, (model.json)());
        let mut writer = model.f32(device)?;
        let encoded = writer.encode(&ids(2, 5, 1, device)?, None)?;
        let text = ids(2, 3, 2, device)?;
        let nothing = Tensor::zeros((2, 0), DType::U32, device)?;
        assert_error(
            writer.decode(&nothing, &encoded, None, 0),
            &[name, "no tokens"],
        );
        let flat = text.flatten_all()?;
        assert_error(
            writer.decode(&flat, &encoded, None, 0),
            &[name, "(batch, seq)"],
        );
        let one = encoded.narrow(0, 0, 1)?;
        assert_error(writer.decode(&text, &one, None, 0), &[name, "2 texts"]);
        let narrow = encoded.narrow(2, 0, 8)?;
        assert_error(
            writer.decode(&text, &narrow, None, 0),
            &[name, "encoder's output"],
        );
        if name != "t5" {
            let long = ids(2, LIMIT + 1, 2, device)?;
            let limit = format!("limit of {LIMIT}");
            assert_error(writer.decode(&long, &encoded, None, 0), &[name, &limit]);
            writer.reset();
            writer.decode(&long.narrow(1, 0, LIMIT)?, &encoded, None, 0)?;
            let more = long.narrow(1, LIMIT, 1)?;
            assert_error(writer.decode(&more, &encoded, None, LIMIT), &[name, &limit]);
        }
        if model.texts {
            let mask = text.ones_like()?;
            assert_error(
                writer.decode(&text, &encoded, Some(&mask), 0),
                &[name, "mask"],
            );
            assert_error(
                writer.encode(&ids(2, 5, 1, device)?, Some(&mask)),
                &[name, "mask"],
            );
            assert_error(writer.encode(&nothing, None), &[name, "no tokens"]);
        }
        // None of this is remembered.
        writer.reset();
        let logits = writer.decode(&text, &encoded, None, 0)?;
        let expected = model.f32(device)?.decode(&text, &encoded, None, 0)?;
        assert_close(&logits, &expected, 0.);

        let (made, field) = (Made::default(), model.size);
        let bad = with(json, json!({field: 0}));
        let result = (model.load)(&bad, &made, DType::F32, device);
        assert_error(result, &[name, field]);
    }
    Ok(())
}
test_device!(bad_input_is_an_error);

#[test]
fn bad_configurations_are_errors() {
    let load = |name: &str, fields: Value| {
        let model = MODELS.iter().find(|model| model.name == name);
        let model = model.expect("a model of that name");
        let json = with((model.json)(), fields);
        (model.load)(&json, &Made::default(), DType::F32, &Device::Cpu)
    };
    let cases = [
        ("t5", json!({"is_encoder_decoder": false}), "T5EncoderModel"),
        ("t5", json!({"num_layers": 0}), "no layers"),
        (
            "t5",
            json!({"relative_attention_num_buckets": 3}),
            "relative_attention_num_buckets 3",
        ),
        (
            "t5",
            json!({"relative_attention_max_distance": 2}),
            "relative_attention_max_distance 2",
        ),
        ("t5", json!({"feed_forward_proj": "gated-mish"}), "Mish"),
        ("t5", json!({"feed_forward_proj": "sharp"}), "sharp"),
        ("marian", json!({"d_model": 31}), "d_model is 31"),
        (
            "marian",
            json!({"decoder_attention_heads": 5}),
            "decoder_attention_heads 5",
        ),
        (
            "marian",
            json!({"decoder_vocab_size": 7}),
            "decoder_vocab_size is 7",
        ),
        (
            "trocr",
            json!({"decoder_attention_heads": 0}),
            "decoder_attention_heads 0",
        ),
        (
            "trocr",
            json!({"d_model": 31, "decoder_attention_heads": 1, "use_learned_position_embeddings": false}),
            "d_model is 31",
        ),
        ("blip_text", json!({"is_decoder": false}), "is_decoder"),
        (
            "blip_text",
            json!({"num_attention_heads": 5}),
            "num_attention_heads 5",
        ),
    ];
    for (name, fields, said) in cases {
        assert_error(load(name, fields), &[said]);
    }
}

/// Two tables of tokens, where a checkpoint has two.
#[test]
fn marian_with_two_tables() -> Result<()> {
    let json = with(
        marian_json(),
        json!({"share_encoder_decoder_embeddings": false, "decoder_vocab_size": 50}),
    );
    let (made, cpu) = (Made::default(), Device::Cpu);
    let mut model = marian::MTModel::new(&config(&json)?, made.vb(DType::F32, &cpu))?;
    let encoded = model.encoder().forward(&ids(1, 5, 1, &cpu)?, 0)?;
    let logits = model.decode(&Tensor::new(&[[49u32]], &cpu)?, &encoded, 0)?;
    assert_eq!(logits.dims(), &[1, 1, 50]);
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
