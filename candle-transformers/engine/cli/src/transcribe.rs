//! `candle-dvm transcribe`.

use crate::{print, print_json};
use crate::{Error, Result};
use candle_engine::audio::read_audio;
use candle_engine::device::{describe, DeviceChoice, DeviceParser, FloatType};
use candle_engine::error::Doing;
use candle_engine::model::ModelSource;
use candle_engine::progress::{note, SpeechBar};
use candle_engine::registry::BackendRegistry;
use candle_engine::speech::{Speech, SpeechFiles, Vad, UNDETERMINED};
use candle_engine::transcript::{subtitle, timed};
use candle_transformers::models::silero_vad;
use candle_transformers::models::whisper::transcribe::{Options, Segment, Transcript};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Recording to transcribe: WAV, FLAC, MP3, Ogg Vorbis or M4A
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Whisper, Moonshine or Parakeet CTC model: a Hugging Face folder (config.json, tokenizer.json, and safetensors or, of a Whisper, one GGUF file)
    /// or a Hub model, owner/name[@revision]
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
    /// Element type of weights and activations [default: f32 on the CPU and with quantised weights, otherwise f16]
    #[arg(long, value_enum)]
    dtype: Option<FloatType>,
    /// Code of the spoken language, such as `de` [default: detected from the first 30 seconds]; Whisper only
    #[arg(long, value_name = "CODE")]
    language: Option<String>,
    /// Translate to English; Whisper only
    #[arg(long)]
    translate: bool,
    /// Print the start and end time of each segment; of models other than Whisper these are windows of up to 30 seconds, cut at silence
    #[arg(long)]
    timestamps: bool,
    /// Compute word timestamps, for `--timestamps` and `--json`; Whisper only
    #[arg(long)]
    words: bool,
    /// Initial prompt, such as names and their spellings; Whisper only
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Do not condition each window on the previous text; this can prevent repetitions
    #[arg(long)]
    no_context: bool,
    /// Transcribe only the speech that Silero VAD detects, which avoids text from silence and noise. FILE is silero_vad_16k.safetensors
    /// from the Python package silero-vad
    #[arg(long, value_name = "FILE")]
    vad: Option<PathBuf>,
    /// Sampling temperature, without fallback [default: 0, of a Whisper falling back to 0.2 to 1 if the text is improbable or repetitive]
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,
    /// Random seed for temperatures above 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long, conflicts_with = "srt")]
    json: bool,
    /// Print subtitles (SubRip)
    #[arg(long)]
    srt: bool,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: String,
    text: String,
    #[serde(flatten)]
    transcript: &'a Transcript,
    /// The stretches of speech, in seconds, if they were detected.
    #[serde(skip_serializing_if = "Option::is_none")]
    speech: Option<Vec<[f64; 2]>>,
    load_seconds: f64,
    seconds: f64,
    /// Seconds of the recording transcribed per second.
    speed: f64,
}

pub(super) fn run(args: Args) -> Result<()> {
    if let Some(temperature) = args.temperature.filter(|t| !(0. ..=2.).contains(t)) {
        return Err(Error::parameter("temperature", temperature, "0 to 2"));
    }
    let audio = read_audio(&args.file)?;
    let start = Instant::now();
    let files = SpeechFiles::at(ModelSource::at(args.model))?;
    let defaults = Options::default();
    let options = Options {
        language: args.language,
        translate: args.translate,
        words: args.words,
        initial_prompt: match &args.prompt {
            Some(prompt) => files.tokens(prompt)?,
            None => Vec::new(),
        },
        condition_on_previous_text: !args.no_context,
        temperatures: match args.temperature {
            Some(temperature) => vec![temperature],
            None => defaults.temperatures.clone(),
        },
        seed: args.seed,
        ..defaults
    };
    let registry = BackendRegistry::detect();
    let device = registry.select(args.device)?.open()?.clone();
    let (name, bytes) = (files.name.clone(), files.total_bytes());
    let dtype = args.dtype.map(FloatType::dtype);
    let mut model = files.load(&device, dtype, options)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let place = describe(&device);
    note(&format!(
        "{name}: loaded {:.1} MB in {load_seconds:.2} s, on {place}",
        bytes as f64 / 1e6
    ));

    let start = Instant::now();
    let samples = &audio.samples;
    let speech = match &args.vad {
        Some(file) => Some(Vad::open(file)?.speech(samples).doing("detect speech")?),
        None => None,
    };
    let bar = SpeechBar::new(audio.seconds);
    let mut count = 0;
    let mut written = Ok(());
    let heard = |segment: &Segment| {
        bar.reach(segment.end);
        count += 1;
        if args.json {
            return Ok(());
        }
        let text = match (args.srt, args.timestamps) {
            (true, _) => subtitle(count, segment),
            (false, true) => timed(segment),
            (false, false) => format!("{}\n", segment.text.trim()),
        };
        written = bar.aside(|| print(&text));
        match written {
            Ok(()) => Ok(()),
            Err(_) => Err(candle_core::Error::msg("standard output is closed")),
        }
    };
    let transcript = model.transcribe_speech(samples, speech.as_ref(), heard);
    bar.finish();
    written?;
    let mut transcript = transcript.doing("transcribe")?;
    transcript.duration = audio.seconds;
    let seconds = start.elapsed().as_secs_f64();
    let speed = audio.seconds / seconds;
    if args.json {
        print_json(&Report {
            model: &name,
            device: place,
            text: transcript.text(),
            transcript: &transcript,
            speech: speech.as_ref().map(in_seconds),
            load_seconds,
            seconds,
            speed,
        })?;
    }
    let language = match transcript.language.as_str() {
        UNDETERMINED => String::new(),
        code => format!(" of {code}"),
    };
    note(&format!(
        "{:.1} s{language} in {seconds:.2} s, {speed:.1} times real time",
        audio.seconds
    ));
    Ok(())
}

fn in_seconds(speech: &Speech) -> Vec<[f64; 2]> {
    let seconds = |samples: usize| samples as f64 / silero_vad::SAMPLE_RATE as f64;
    let ranges = speech.ranges.iter();
    ranges
        .map(|range| [range.start, range.end].map(seconds))
        .collect()
}
