//! `candle-dvm generate`.

use crate::draft::{of_proposals, Draft, DraftFiles, LoadedDraft};
use crate::sampling::Sampling;
use crate::split::SplitArgs;
use crate::{print, print_json};
use crate::{Error, Result};
use candle_engine::backend::{Completion, CompletionRequest};
use candle_engine::device::{DeviceChoice, DeviceParser, FloatType};
use candle_engine::format::KvType;
use candle_engine::generation::Mask;
use candle_engine::model::{LoraSource, ModelFiles, ModelSource};
use candle_engine::pictures::{open_picture, Picture};
use candle_engine::progress::{note, LoadBar};
use candle_engine::registry::BackendRegistry;
use candle_engine::Error as EngineError;
use serde::Serialize;
use serde_json::Value;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    #[command(flatten)]
    prompt: Prompt,
    /// PNG or JPEG image for a model that takes images; may be given several times. Images come before the text, or where the prompt has the
    /// model's own placeholder, such as <start_of_image>
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// A GGUF file, a Hugging Face folder (config.json, tokenizer.json, safetensors) or a Hub model, owner/name[@revision][:file.gguf]
    /// [default: the small embedded model]
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// LoRA adapter of peft over the model, a folder or a Hub name, and how much of it; may be given several times
    #[arg(long, value_name = "PATH[:SCALE]")]
    lora: Vec<LoraSource>,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
    /// Element type of activations and unquantised weights [default: f32 on the CPU, with quantised weights and for the embedded
    /// model; otherwise the type of the stored weights]
    #[arg(long, value_enum)]
    dtype: Option<FloatType>,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value = "auto")]
    kv_dtype: KvType,
    #[command(flatten)]
    split: SplitArgs,
    /// Keep the text to a JSON schema, token by token: a file, or the schema itself
    #[arg(long, value_name = "FILE|JSON")]
    schema: Option<String>,
    /// Maximum number of tokens to generate
    #[arg(long, value_name = "N", default_value_t = CompletionRequest::default().max_tokens)]
    max_tokens: usize,
    /// Prompt lookup: guess up to N tokens (say 7) from repetitions in the text and verify them in one step. The output is the same; text
    /// that quotes itself is faster. Steps with guesses wait for the host, so a GPU gains only on long quotations
    #[arg(long, value_name = "N", default_value_t = 0)]
    prompt_lookup: usize,
    #[command(flatten)]
    draft: Draft,
    #[command(flatten)]
    sampling: Sampling,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    json: bool,
}

/// The prompt, in one of two forms.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Prompt {
    /// Text to complete; `-` reads it from standard input and drops the last line break
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// The same as an option, for a text that begins with a hyphen
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: String,
    weights: &'a str,
    dtype: &'static str,
    load_seconds: f64,
    #[serde(flatten)]
    completion: &'a Completion,
}

pub(super) fn run(args: Args) -> Result<()> {
    let request = CompletionRequest {
        prompt_lookup: args.prompt_lookup,
        pictures: images(&args.image)?,
        ..args.sampling.request(args.prompt.read()?, args.max_tokens)
    };
    request.validate()?;
    let schema = args.schema.as_deref().map(schema).transpose()?;
    args.split.check()?;
    let start = Instant::now();
    let source = args.model.map_or(ModelSource::Embedded, ModelSource::at);
    let mut files = ModelFiles::open_with(&source, &args.lora)?;
    files.kv_type = args.kv_dtype;
    // A prompt that cannot work is reported before a GPU is woken and gigabytes are read.
    let prompt = files.prompt_tokens_with(&request.prompt, &request.pictures)?;
    let prompt = prompt.len();
    let mask = schema.map(|schema| {
        let vocabulary = files.tokenizer.grammar_vocabulary(&files.stop_tokens)?;
        let guide = vocabulary.grammar(schema)?.guide();
        Ok::<_, candle_grammar::Error>(Box::new(guide) as Box<dyn Mask>)
    });
    let mask = mask.transpose()?;
    if args.split.gpus > 1 && !request.pictures.is_empty() {
        let problem = "a model split across devices takes none; use --gpus 1";
        return Err(EngineError::Pictures(problem.to_string()).into());
    }
    let context = (prompt + args.max_tokens).min(files.max_positions());
    files.split = args.split.with_room(1, context, prompt);
    let draft = args.draft.open(&files, args.kv_dtype)?;
    let name = files.name.clone();
    let called = DraftFiles::with(draft.as_ref(), &files.with_loras(&name));
    let weights = files.format().name();

    let registry = BackendRegistry::detect();
    let entry = registry.select(args.device)?;
    let bytes = files.total_bytes() + draft.as_ref().map_or(0, DraftFiles::bytes);
    let bar = LoadBar::new(bytes);
    let dtype = args.dtype.map(FloatType::dtype);
    let progress = |bytes| bar.advance(bytes);
    // First, so that the model is fitted into the remaining memory.
    let draft = DraftFiles::load(draft, entry, dtype, &progress)?;
    let backend = entry.load_shared(files, args.split.gpus, dtype, &progress)?;
    let backend = LoadedDraft::beside(draft, backend)?;
    let load_seconds = start.elapsed().as_secs_f64();
    let device = backend.devices();
    let dtype = backend.dtype().as_str();
    bar.finish(&format!(
        "{called}: loaded {:.1} MB of {weights} in {load_seconds:.2} s, {dtype} on {device}",
        bytes as f64 / 1e6
    ));

    let generation = backend.generation(&request)?;
    let generation = generation.with_mask(mask);
    let mut written = Ok(());
    let completion = generation.complete(&mut |piece| {
        if args.json {
            return ControlFlow::Continue(());
        }
        written = print(piece);
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    written?;
    if args.json {
        print_json(&Report {
            model: &name,
            device,
            weights: &weights,
            dtype,
            load_seconds,
            completion: &completion,
        })?;
    } else {
        print("\n")?;
    }
    let timings = &completion.timings;
    note(&format!(
        "prompt: {} tokens, {:.1} tok/s; generation: {} tokens, {:.1} tok/s",
        completion.prompt_tokens,
        timings.prompt_tokens_per_second,
        completion.token_ids.len(),
        timings.generation_tokens_per_second
    ));
    if let Some(proposals) = of_proposals(&completion) {
        note(&proposals);
    }
    Ok(())
}

/// The images in files.
fn images(files: &[PathBuf]) -> Result<Vec<Arc<Picture>>> {
    let open = |file: &PathBuf| Ok(Arc::new(open_picture(file)?));
    files.iter().map(open).collect()
}

/// The schema in a file, or one that is given as it is.
fn schema(argument: &str) -> Result<Value> {
    if argument.trim_start().starts_with('{') {
        let read = serde_json::from_str(argument);
        return read.map_err(|error| Error::Schema(error.to_string()));
    }
    let file = Path::new(argument);
    let text = std::fs::read_to_string(file).map_err(|error| Error::file(file, error))?;
    serde_json::from_str(&text).map_err(|error| Error::file(file, error))
}

impl Prompt {
    /// The text itself, or standard input for `-`.
    fn read(self) -> Result<String> {
        let argument = self.text.or(self.prompt).unwrap_or_default();
        if argument != "-" {
            return Ok(argument);
        }
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(Error::Stdin)?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(text)
    }
}
