//! `candle-dvm chat`.

use super::print;
use super::sampling::Sampling;
use crate::{Error, Result};
use candle_engine::backend::CompletionRequest;
use candle_engine::chat::Chat;
use candle_engine::device::{describe, DeviceChoice, DeviceParser, FloatType};
use candle_engine::format::KvType;
use candle_engine::model::{ChatTemplate, ModelFiles, ModelSource};
use candle_engine::progress::{note, LoadBar};
use candle_engine::registry::BackendRegistry;
use candle_engine::{Error as EngineError, StopReason};
use std::io::{BufRead, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
pub(super) struct Args {
    /// A GGUF file, a Hugging Face folder (config.json, tokenizer.json, safetensors) or a Hub model, owner/name[@revision][:file.gguf]
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// System prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// File with a chat template to use instead of the model's
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Device to run on
    #[arg(long, default_value_t, value_parser = DeviceParser)]
    device: DeviceChoice,
    /// Element type of activations and unquantised weights [default: f32 on the CPU and with quantised weights; otherwise the type
    /// of the stored weights]
    #[arg(long, value_enum)]
    dtype: Option<FloatType>,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value = "auto")]
    kv_dtype: KvType,
    /// Maximum number of tokens in an answer
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// Prompt lookup: guess up to N tokens (say 7) from repetitions in the text and verify them in one step. The output is the same; text
    /// that quotes itself is faster. Steps with guesses wait for the host, so a GPU gains only on long quotations
    #[arg(long, value_name = "N", default_value_t = 0)]
    prompt_lookup: usize,
    #[command(flatten)]
    sampling: Sampling,
}

/// What can be typed beside messages.
const HELP: &str =
    "/clear starts a new conversation, /exit or Ctrl-D quits, Ctrl-C stops an answer";

pub(super) fn run(args: Args) -> Result<()> {
    let request = CompletionRequest {
        prompt_lookup: args.prompt_lookup,
        ..args.sampling.request(String::new(), args.max_tokens)
    };
    request.validate()?;
    let mut files = ModelFiles::open(&ModelSource::at(args.model))?;
    files.kv_type = args.kv_dtype;
    let template = match args.template {
        Some(file) => {
            let text = std::fs::read_to_string(&file).map_err(|err| Error::file(&file, err))?;
            let template = ChatTemplate::new(&file.display().to_string(), text);
            match &files.chat_template {
                Some(own) => template.with_tokens_of(own),
                None => template,
            }
        }
        None => {
            files
                .chat_template
                .clone()
                .ok_or_else(|| candle_engine::Error::NoChatTemplate {
                    model: files.name.clone(),
                })?
        }
    };
    // One that cannot work is reported before a GPU is woken and gigabytes are read.
    template.check()?;
    let name = files.name.clone();
    let entry = BackendRegistry::detect();
    let entry = entry.select(args.device)?;
    let bytes = files.total_bytes();
    let bar = LoadBar::new(bytes);
    let backend = entry.load(files, args.dtype.map(FloatType::dtype), &|bytes| {
        bar.advance(bytes)
    })?;
    let device = describe(backend.device());
    bar.finish(&format!("{name} on {device}. {HELP}"));

    let stopped = stop_on_ctrl_c()?;
    let mut chat = Chat::new(&backend, &template, args.system);
    let mut lines = std::io::stdin().lock().lines();
    loop {
        ask()?;
        let Some(line) = lines.next().transpose().map_err(Error::Stdin)? else {
            return Ok(());
        };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/clear" => chat.clear(),
            "/help" => note(HELP),
            command if command.starts_with('/') && !command.contains(' ') => {
                note(&format!("{command} is not a command. {HELP}"));
            }
            text => {
                stopped.store(false, Ordering::Relaxed);
                let mut written = Ok(());
                let answer = chat.say(text, &request, &mut |piece| {
                    written = print(piece);
                    match written.is_err() || stopped.load(Ordering::Relaxed) {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
                written?;
                match answer {
                    Ok(answer) => {
                        print("\n")?;
                        if answer.stop_reason == StopReason::Length {
                            note(&format!(
                                "the answer was cut off at {} tokens; raise --max-tokens for more",
                                answer.token_ids.len()
                            ));
                        }
                    }
                    // The conversation can go on: with another message, or after /clear.
                    Err(
                        err @ (EngineError::PromptTooLong { .. }
                        | EngineError::PromptTooLarge { .. }),
                    ) => note(&format!("{err}; /clear starts a new conversation")),
                    Err(err) => return Err(err.into()),
                }
            }
        }
    }
}

/// The mark in front of what is typed, where somebody types.
fn ask() -> Result<()> {
    if !std::io::stdin().is_terminal() {
        return Ok(());
    }
    let mut stderr = std::io::stderr().lock();
    // Not part of the conversation's text, so that standard output can go to a file.
    let _ = stderr.write_all(b"> ").and_then(|()| stderr.flush());
    Ok(())
}

/// True after Ctrl-C. The second one without an answer in between ends the program.
fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stopped = Arc::new(AtomicBool::new(true));
    let flag = stopped.clone();
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })
    .map_err(|err| Error::Stdin(std::io::Error::other(err)))?;
    Ok(stopped)
}
