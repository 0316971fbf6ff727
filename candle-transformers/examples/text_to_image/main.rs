//! Makes an image of a text with Stable Diffusion 1.5, 2.1, Turbo, or a model that was fine-tuned from them.
//!
//! ```sh
//! cargo run --release -p candle-transformers --features webgpu --example text_to_image -- \
//!     [cpu|webgpu|cuda] --prompt "a lighthouse in a storm, oil painting" --out image.png
//! cargo run --release -p candle-transformers --features webgpu --example text_to_image -- \
//!     --model stabilityai/sd-turbo --steps 1 --guidance 1 --prompt "a fox in the snow" --out fox.png
//! ```
//!
//! `--model` is a folder or a model on the Hugging Face Hub in diffusers' layout. `--half` downloads and computes 16-bit floats, for a GPU.

mod checkpoint;
#[path = "../common/mod.rs"]
mod common;
#[path = "../pictures/mod.rs"]
mod pictures;
mod tokenizer;

use std::path::PathBuf;
use std::process::ExitCode;

use candle_core::{bail, DType, Device, Result, Tensor};
use candle_transformers::models::stable_diffusion::{StableDiffusionConfig, TextToImage};
use clap::Parser;
use image::RgbImage;
use tokenizer::ClipTokenizer;

/// Makes an image of a text.
#[derive(Parser)]
struct Args {
    /// Device; by default the best one of the build
    #[arg(value_enum)]
    device: Option<common::On>,
    /// A folder, or a model on the Hugging Face Hub
    #[arg(
        long,
        default_value = "stable-diffusion-v1-5/stable-diffusion-v1-5",
        conflicts_with = "tiny"
    )]
    model: String,
    /// Uses a tiny model with random weights, which makes a pattern of any text
    #[arg(long)]
    tiny: bool,
    #[arg(long, default_value = "a lighthouse in a storm, oil painting")]
    prompt: String,
    /// Things that must not be in the image
    #[arg(long, default_value = "")]
    without: String,
    #[arg(long, default_value = "25")]
    steps: usize,
    /// How closely the image follows the prompt; 1 for models that need none, such as Turbo
    #[arg(long, default_value = "7.5")]
    guidance: f64,
    #[arg(long, default_value = "42")]
    seed: u64,
    /// In pixels, a multiple of 8; by default that of the training
    #[arg(long)]
    width: Option<usize>,
    /// In pixels, a multiple of 8; by default that of the training
    #[arg(long)]
    height: Option<usize>,
    /// 16-bit floats
    #[arg(long)]
    half: bool,
    /// Path of the PNG
    #[arg(long, default_value = "image.png")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("text_to_image: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let device = common::device(args.device)?;
    device.set_seed(args.seed)?;
    let dtype = if args.half { DType::F16 } else { DType::F32 };
    let files = if args.tiny {
        checkpoint::tiny()
    } else {
        checkpoint::open(&args.model, args.half)?
    };
    let config = StableDiffusionConfig::from_diffusers(&files.configs(), args.height, args.width)?;
    let tokenizer = ClipTokenizer::new(&files.tokenizer, config.clip.max_position_embeddings)?;
    let [text, unet, vae] = files.weights(dtype, &device)?;
    let model = TextToImage::new(&config, text, unet, vae)?;

    let mut texts = vec![tokenizer.ids(&args.prompt)?];
    // A guidance of 1 is the same as none, which takes half of the time.
    if args.guidance != 1. {
        texts.insert(0, tokenizer.ids(&args.without)?);
    }
    let texts = model.encode(&Tensor::new(texts, &device)?)?;
    let size = (1, 4, config.height / 8, config.width / 8);
    let noise = Tensor::randn(0f32, 1., size, &device)?;
    let bar = common::bar(args.steps, "steps");
    let image = model.generate(&texts, args.guidance, &noise, args.steps, |step| {
        // The bar shows what the device has done, not what is queued.
        device.synchronize()?;
        bar.set_position(step as u64);
        Ok(())
    })?;
    bar.finish();
    pictures::write(&pixels(&image)?, &args.out)?;
    println!(
        "{}: {} x {} pixels, {} steps in {:.1} s",
        args.out.display(),
        config.width,
        config.height,
        args.steps,
        bar.elapsed().as_secs_f64()
    );
    Ok(())
}

/// The image of numbers from 0 to 1, (1, 3, height, width).
fn pixels(image: &Tensor) -> Result<RgbImage> {
    let (_, _, height, width) = image.dims4()?;
    let image = image.to_device(&Device::Cpu)?.permute((0, 2, 3, 1))?;
    let numbers = image.flatten_all()?.to_vec1::<f32>()?;
    if numbers.iter().any(|number| number.is_nan()) {
        bail!("the model gives NaN; try without --half, whose range is too small for some models")
    }
    let bytes = numbers.iter().map(|number| (number * 255.).round() as u8);
    match RgbImage::from_raw(width as u32, height as u32, bytes.collect()) {
        Some(image) => Ok(image),
        None => bail!(
            "{} numbers are not an image of {width} x {height} pixels",
            numbers.len()
        ),
    }
}
