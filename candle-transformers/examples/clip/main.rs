//! Matches texts to images with CLIP.
//!
//! ```sh
//! cargo run -p candle-transformers --features webgpu --example clip -- \
//!     [cpu|webgpu] openai/clip-vit-base-patch32 photo.jpg drawing.png -- "a dog" "a cat" "a diagram"
//! ```
//!
//! The model is a folder with `config.json`, `tokenizer.json` and `model.safetensors` or `pytorch_model.bin`, or one on the Hugging Face
//! Hub. Prints a table: for each image how likely each text is, of those given.

#[path = "../common/mod.rs"]
mod common;

use std::process::ExitCode;

use candle_core::{bail, DType, Device, Error, Result, Tensor};
use candle_nn::ops::softmax_last_dim;
use candle_transformers::models::clip::{ClipConfig, ClipModel};
use common::Checkpoint;
use image::imageops::FilterType;
use tokenizers::Tokenizer;

const USAGE: &str = "usage: clip [cpu|webgpu] MODEL PICTURE.. -- TEXT..";
/// Subtracted from each channel, which is then divided by [`DEVIATION`].
const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("clip: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let device = match args.peek().map(String::as_str) {
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        _ => Device::best_available()?,
    };
    args.next_if(|arg| ["cpu", "webgpu"].contains(&arg.as_str()));
    let Some(folder) = args.next() else {
        bail!("{USAGE}")
    };
    let images: Vec<String> = args.by_ref().take_while(|arg| arg != "--").collect();
    let texts: Vec<String> = args.collect();
    if images.is_empty() || texts.is_empty() {
        bail!(
            "{} pictures and {} texts are given; there must be one of each; {USAGE}",
            images.len(),
            texts.len()
        )
    }

    let files = Checkpoint::open(&folder)?;
    let config = config(&files.read("config.json")?)?;
    let tokenizer = Tokenizer::from_bytes(files.read("tokenizer.json")?).map_err(Error::wrap)?;
    let model = ClipModel::new(files.weights(&device)?, &config)?;

    let side = config.vision_config.image_size;
    let pictures = images.iter().map(|file| picture(file, side, &device));
    let pictures = Tensor::stack(&pictures.collect::<Result<Vec<_>>>()?, 0)?;
    let ids = ids(&tokenizer, &texts, &device)?;
    let (_, per_picture) = model.forward(&pictures, &ids)?;
    let table = softmax_last_dim(&per_picture)?.to_vec2::<f32>()?;
    for (file, row) in images.iter().zip(table) {
        println!("{file}");
        for (text, probability) in texts.iter().zip(row) {
            println!("  {:5.1} %  {text}", 100. * probability);
        }
    }
    Ok(())
}

/// The sizes in a `config.json`, which has those only that are not those of the base model.
fn config(json: &[u8]) -> Result<ClipConfig> {
    let json: serde_json::Value = serde_json::from_slice(json).map_err(Error::wrap)?;
    let number = |part: &str, name: &str, base: usize| {
        let found = json[part].get(name).and_then(|value| value.as_u64());
        found.map_or(base, |value| value as usize)
    };
    let mut config = ClipConfig::vit_base_patch32();
    let text = &mut config.text_config;
    let of = |name, base| number("text_config", name, base);
    text.embed_dim = of("hidden_size", text.embed_dim);
    text.intermediate_size = of("intermediate_size", text.intermediate_size);
    text.num_hidden_layers = of("num_hidden_layers", text.num_hidden_layers);
    text.num_attention_heads = of("num_attention_heads", text.num_attention_heads);
    text.projection_dim = json["projection_dim"].as_u64().unwrap_or(512) as usize;
    let vision = &mut config.vision_config;
    let of = |name, base| number("vision_config", name, base);
    vision.embed_dim = of("hidden_size", vision.embed_dim);
    vision.intermediate_size = of("intermediate_size", vision.intermediate_size);
    vision.num_hidden_layers = of("num_hidden_layers", vision.num_hidden_layers);
    vision.num_attention_heads = of("num_attention_heads", vision.num_attention_heads);
    vision.image_size = of("image_size", vision.image_size);
    vision.patch_size = of("patch_size", vision.patch_size);
    vision.projection_dim = text.projection_dim;
    Ok(config)
}

/// (3, side, side): the middle of the image, its shorter side being `side`.
fn picture(file: &str, side: usize, device: &Device) -> Result<Tensor> {
    let picture = image::open(file).map_err(|err| Error::msg(format!("{file}: {err}")))?;
    let side = side as u32;
    let picture = picture.resize_to_fill(side, side, FilterType::CatmullRom);
    let side = side as usize;
    let pixels = picture.to_rgb8().into_raw();
    let pixels = Tensor::from_vec(pixels, (side, side, 3), device)?.to_dtype(DType::F32)?;
    let pixels = (pixels / 255.)?.broadcast_sub(&Tensor::new(&MEAN, device)?)?;
    let pixels = pixels.broadcast_div(&Tensor::new(&DEVIATION, device)?)?;
    pixels.permute((2, 0, 1))?.contiguous()
}

/// (texts, tokens); shorter texts are filled up with 0, which no text sees before its end.
fn ids(tokenizer: &Tokenizer, texts: &[String], device: &Device) -> Result<Tensor> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let encoded = tokenizer.encode_batch(texts, true).map_err(Error::wrap)?;
    let longest = encoded.iter().map(|text| text.len()).max().unwrap_or(0);
    let mut ids = Vec::with_capacity(encoded.len() * longest);
    for text in &encoded {
        ids.extend(text.get_ids());
        ids.extend(std::iter::repeat_n(0u32, longest - text.len()));
    }
    Tensor::from_vec(ids, (encoded.len(), longest), device)
}
