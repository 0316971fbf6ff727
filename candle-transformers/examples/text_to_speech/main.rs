//! Speaks a text with Parler-TTS, in the voice that another text describes.
//!
//! ```sh
//! cargo run --release -p candle-transformers --features webgpu --example text_to_speech -- \
//!     [cpu|webgpu|cuda] --text "The ship leaves at dawn." --voice "A calm female voice, close to the microphone." --out speech.wav
//! ```
//!
//! `--model` is a folder or a model on the Hugging Face Hub with `config.json`, `tokenizer.json` and `model.safetensors`.

#[path = "../common/mod.rs"]
mod common;
mod tiny;

use std::path::PathBuf;
use std::process::ExitCode;

use candle_core::{bail, DType, Device, Error, Result, Tensor};
use candle_transformers::generation::LogitsProcessor;
use candle_transformers::models::parler_tts::{Config, Model};
use candle_transformers::wav;
use clap::Parser;
use common::Checkpoint;
use tokenizers::Tokenizer;

/// Speaks a text.
#[derive(Parser)]
struct Args {
    /// Device; by default the best one of the build
    #[arg(value_enum)]
    device: Option<common::On>,
    /// A folder, or a model on the Hugging Face Hub
    #[arg(
        long,
        default_value = "parler-tts/parler-tts-mini-v1",
        conflicts_with = "tiny"
    )]
    model: String,
    /// Uses a tiny model with random weights, which makes noise of any text
    #[arg(long)]
    tiny: bool,
    #[arg(long, default_value = "The ship leaves at dawn.")]
    text: String,
    /// The voice, its mood and pace, and the quality of the recording
    #[arg(
        long,
        default_value = "A female speaker with a calm voice speaks at a moderate pace. The recording is very clear and close up."
    )]
    voice: String,
    /// Maximum length of the sound
    #[arg(long, default_value = "10")]
    seconds: f64,
    /// Variety of the speech; 0 for none
    #[arg(long, default_value = "1")]
    temperature: f64,
    #[arg(long, default_value = "42")]
    seed: u64,
    /// Path of the WAV file
    #[arg(long, default_value = "speech.wav")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("text_to_speech: {err}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let device = common::device(args.device)?;
    let (config, tokenizer, weights) = if args.tiny {
        device.set_seed(args.seed)?;
        (tiny::config()?, tiny::tokenizer()?, tiny::weights(&device))
    } else {
        let files = Checkpoint::open(&args.model)?;
        let config: Config = serde_json::from_slice(&files.read("config.json")?)
            .map_err(|err| Error::Msg(format!("config.json: {err}")))?;
        let tokenizer = Tokenizer::from_bytes(files.read("tokenizer.json")?)
            .map_err(|err| Error::Msg(format!("tokenizer.json: {err}")))?;
        let weights = files.file("model.safetensors")?;
        let weights = common::weights(&[weights], DType::F32, &device)?;
        (config, tokenizer, weights)
    };
    let sound = &config.audio_encoder;
    let books = sound.num_codebooks;
    // Each codebook begins a step after the one before it.
    let steps = (args.seconds * f64::from(sound.frame_rate)).ceil() as usize + books;
    let mut model = Model::new(&config, weights)?;

    let ids = |text: &str| -> Result<Tensor> {
        let encoded = tokenizer.encode(text, true).map_err(Error::wrap)?;
        Tensor::new(encoded.get_ids(), &device)?.unsqueeze(0)
    };
    let sampler = LogitsProcessor::new(args.seed, Some(args.temperature), None);
    let bar = common::bar(steps, "frames");
    let codes = model.generate_with(
        &ids(&args.text)?,
        &ids(&args.voice)?,
        sampler,
        steps,
        |step| {
            bar.set_position(step as u64);
            Ok(())
        },
    )?;
    bar.finish();
    if codes.dim(1)? == 0 {
        bail!("the model says nothing; try another --seed")
    }
    let codes = codes.unsqueeze(0)?.to_device(&device)?;
    let samples = model.audio_encoder.decode_codes(&codes)?.flatten_all()?;
    let samples = samples.to_device(&Device::Cpu)?.to_vec1::<f32>()?;
    let mut file = Vec::new();
    let written = wav::write(&mut file, &samples, sound.sampling_rate);
    let written = written.and_then(|()| std::fs::write(&args.out, file));
    written.map_err(|err| common::of_file(&args.out, err))?;
    println!(
        "{}: {:.1} s at {} Hz, made in {:.1} s",
        args.out.display(),
        samples.len() as f64 / f64::from(sound.sampling_rate),
        sound.sampling_rate,
        bar.elapsed().as_secs_f64()
    );
    Ok(())
}
