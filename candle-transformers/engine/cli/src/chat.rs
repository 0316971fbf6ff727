//! `candle-dvm chat`: the model's part of it. The commands that can be typed, the line editor and the files are in the folder.

mod command;
mod input;
mod saved;
mod settings;
mod think;

use crate::draft::{of_proposals, Draft, DraftFiles, LoadedDraft};
use crate::print;
use crate::sampling::Sampling;
use crate::split::SplitArgs;
use crate::{Error, Result};
use candle_engine::backend::CompletionRequest;
use candle_engine::chat::{check_context, Chat};
use candle_engine::device::{DeviceChoice, DeviceParser, FloatType};
use candle_engine::format::KvType;
use candle_engine::model::{ChatTemplate, LoraSource, ModelFiles, ModelSource, Role, Split};
use candle_engine::pictures::open_picture;
use candle_engine::progress::{note, LoadBar};
use candle_engine::registry::BackendRegistry;
use candle_engine::thinking::Part;
use candle_engine::{CandleBackend, Completion, Error as EngineError, StopReason};
use command::{Line, HELP};
use input::Input;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use think::{Printer, Think};

#[derive(Debug, clap::Args)]
#[command(allow_negative_numbers = true)]
#[command(arg = clap::Arg::new("text").hide(true).value_name("TEXT").value_parser(no_text))]
pub(super) struct Args {
    /// A GGUF file, a Hugging Face folder (config.json, tokenizer.json, safetensors) or a Hub model, owner/name[@revision][:file.gguf]
    #[arg(short, long, value_name = "MODEL")]
    model: PathBuf,
    /// LoRA adapter of peft over the model, a folder or a Hub name, and how much of it; may be given several times
    #[arg(long, value_name = "PATH[:SCALE]")]
    lora: Vec<LoraSource>,
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
    #[command(flatten)]
    split: SplitArgs,
    /// Maximum number of tokens in an answer
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_tokens: usize,
    /// Maximum number of tokens of the conversation that the model reads and writes; when it is full, the oldest turns are dropped
    /// [default: the model's limit]
    #[arg(long, alias = "ctx-size", value_name = "N")]
    context: Option<usize>,
    /// Prompt lookup: guess up to N tokens (say 7) from repetitions in the text and verify them in one step. The output is the same; text
    /// that quotes itself is faster. Steps with guesses wait for the host, so a GPU gains only on long quotations
    #[arg(long, value_name = "N", default_value_t = 0)]
    prompt_lookup: usize,
    #[command(flatten)]
    draft: Draft,
    /// Thoughts of a model that thinks. They are never part of what it reads later
    #[arg(long, value_enum, default_value = "show")]
    think: Think,
    #[command(flatten)]
    sampling: Sampling,
}

/// The answer to a text as an argument, which has no other use.
fn no_text(_: &str) -> std::result::Result<String, &'static str> {
    Err("`chat` takes no text: --model names the model, and messages are typed or come from standard input")
}

pub(super) fn run(args: Args) -> Result<()> {
    // A setting that cannot work is reported before a file is read.
    let sampling = args.sampling.clone();
    sampling
        .request(String::new(), args.max_tokens)
        .validate()?;
    let mut files = ModelFiles::open_with(&ModelSource::at(args.model), &args.lora)?;
    files.kv_type = args.kv_dtype;
    let request = CompletionRequest {
        prompt_lookup: args.prompt_lookup,
        ..args.sampling.chat_request(&files.sampling, args.max_tokens)
    };
    request.validate()?;
    args.split.check()?;
    let template = match args.template {
        Some(file) => {
            let text = std::fs::read_to_string(&file).map_err(|err| Error::file(&file, err))?;
            let template = ChatTemplate::new(&file.display().to_string(), text);
            match &files.chat_template {
                Some(own) => template.with_tokens_of(own),
                None => template,
            }
        }
        None => files
            .chat_template
            .clone()
            .ok_or_else(|| EngineError::NoChatTemplate {
                model: files.name.clone(),
            })?,
    };
    // One that cannot work is reported before a GPU is woken and gigabytes are read.
    template.check()?;
    template.try_conversation(args.system.as_deref())?;
    if let Some(context) = args.context {
        check_context(context, files.max_positions())?;
    }
    let context = args.context.unwrap_or(Split::default().context);
    let context = context.min(files.max_positions());
    files.split = args.split.with_room(1, context, context);
    let draft = args.draft.open(&files, args.kv_dtype)?;
    let name = DraftFiles::with(draft.as_ref(), &files.with_loras(&files.name));
    let entry = BackendRegistry::detect();
    let entry = entry.select(args.device)?;
    let bytes = files.total_bytes() + draft.as_ref().map_or(0, DraftFiles::bytes);
    let bar = LoadBar::new(bytes);
    let (dtype, progress) = (args.dtype.map(FloatType::dtype), |bytes| bar.advance(bytes));
    // First, so that the model is fitted into the remaining memory.
    let draft = DraftFiles::load(draft, entry, dtype, &progress)?;
    let backend = entry.load_shared(files, args.split.gpus, dtype, &progress)?;
    let backend = LoadedDraft::beside(draft, backend)?;
    let device = backend.devices();
    let mut chat = args
        .think
        .apply(Chat::new(&backend, &template, args.system));
    if let Some(context) = args.context {
        chat = chat.with_context(context)?;
    }
    let sampling = settings::list(&request);
    bar.finish(&format!("{name} on {device}. {sampling}. {HELP}"));
    let mut talk = Talk {
        backend: &backend,
        template: &template,
        chat,
        request,
        think: args.think,
        stopped: stop_on_ctrl_c()?,
        said_dropped: false,
    };
    let mut input = Input::open()?;
    while let Some(text) = input.next()? {
        let text = text.trim();
        if text.is_empty() {
            continue;
        }
        match Line::parse(text) {
            Line::Exit => break,
            line => talk.does(line)?,
        }
    }
    Ok(())
}

/// A conversation at the terminal.
struct Talk<'a> {
    backend: &'a CandleBackend,
    template: &'a ChatTemplate,
    chat: Chat<'a>,
    request: CompletionRequest,
    think: Think,
    /// Set by Ctrl-C.
    stopped: Arc<AtomicBool>,
    /// Whether a note has said that messages were dropped.
    said_dropped: bool,
}

impl Talk<'_> {
    /// Does what a line says. What goes wrong with a command is a note, and the conversation continues.
    ///
    /// # Errors
    /// Failures of the device and of standard output.
    fn does(&mut self, line: Line) -> Result<()> {
        let done = match line {
            Line::Message(text) => return self.answer(Some(text)),
            Line::Regenerate => return self.answer(None),
            Line::Exit => return Ok(()),
            Line::Help => Ok(HELP.to_string()),
            Line::Mistake(problem) => Ok(problem),
            Line::Clear => {
                self.chat.clear();
                self.said_dropped = false;
                return Ok(());
            }
            Line::System(text) => {
                let set = self.chat.set_system(text.map(str::to_string));
                let said = match text {
                    Some(_) => "the system prompt is set",
                    None => "there is no system prompt now",
                };
                set.map(|()| said.to_string()).map_err(Error::from)
            }
            Line::Image(file) => self.image(Path::new(file)),
            Line::Save(file) => saved::save(Path::new(file), self.chat.messages())
                .map(|()| format!("{} messages saved", self.chat.messages().len())),
            Line::Load(file) => self.load(Path::new(file)),
            Line::Set(None) => Ok(settings::list(&self.request)),
            Line::Set(Some((name, value))) => match settings::set(&mut self.request, name, value) {
                Ok(()) => Ok(settings::list(&self.request)),
                Err(problem) => Ok(problem),
            },
        };
        note(&done.unwrap_or_else(|err| err.one_line()));
        Ok(())
    }

    fn image(&mut self, file: &Path) -> Result<String> {
        self.backend.check_images()?;
        let picture = open_picture(file)?;
        let (width, height) = (picture.width(), picture.height());
        let tokens = self.chat.attach(picture)?;
        Ok(format!(
            "an image of {width} x {height} pixels, {tokens} tokens, comes with the next message"
        ))
    }

    fn load(&mut self, file: &Path) -> Result<String> {
        let messages = saved::load(file)?;
        // A template may refuse a system message.
        let system = messages.first().filter(|first| first.role == Role::System);
        self.template
            .try_conversation(system.map(|system| system.content.as_str()))?;
        let context = self.chat.context();
        let count = messages.len();
        let chat = Chat::resume(self.backend, self.template, messages);
        self.chat = self.think.apply(chat).with_context(context)?;
        self.said_dropped = false;
        Ok(format!("{count} messages loaded"))
    }

    /// Prints the answer to a message, or another answer to the last one.
    fn answer(&mut self, text: Option<&str>) -> Result<()> {
        self.stopped.store(false, Ordering::Relaxed);
        let mut written = Ok(());
        let stopped = &self.stopped;
        let mut printer = Printer::new(self.think);
        let mut on_part = |part: &Part| {
            written = printer.part(part);
            if written.is_err() || stopped.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let answer = match text {
            Some(text) => {
                let answer = self.chat.say_parts(text, &self.request, &mut on_part);
                answer.map(Some)
            }
            None => {
                // The same draws would give the same answer.
                self.request.seed = self.request.seed.wrapping_add(1);
                self.chat.regenerate_parts(&self.request, &mut on_part)
            }
        };
        written?;
        match answer {
            Ok(Some(answer)) => {
                print("\n")?;
                self.notes_on(&answer);
                if let Some(proposals) = of_proposals(&answer) {
                    note(&proposals);
                }
                Ok(())
            }
            Ok(None) => {
                note("the model has not answered yet");
                Ok(())
            }
            // Another message may fit.
            Err(EngineError::PromptTooLong { tokens, limit }) => {
                note(&format!(
                    "the message is too long: with it the prompt has {tokens} tokens, the context {limit}; shorten it"
                ));
                Ok(())
            }
            Err(err) => Err(err.into()),
        }
    }

    /// Says why an answer ended early, and what the model no longer reads.
    fn notes_on(&mut self, answer: &Completion) {
        let made = answer.token_ids.len();
        if answer.thought_tokens > 0 && self.think == Think::Hide {
            note(&format!(
                "the model thought for {} tokens; --think show prints the thoughts",
                answer.thought_tokens
            ));
        }
        if answer.stop_reason == StopReason::Length {
            note(&if made >= self.request.max_tokens {
                format!(
                    "the answer was cut off at {made} tokens; raise --max-tokens or `/set max-tokens N` for more"
                )
            } else {
                format!(
                    "the answer was cut off at {made} tokens: the context of {} tokens is full",
                    self.chat.context()
                )
            });
        }
        let dropped = self.chat.dropped();
        if dropped > 0 && !self.said_dropped {
            self.said_dropped = true;
            note(&format!(
                "the context of {} tokens is full: the model no longer reads the oldest messages ({dropped} so far)",
                self.chat.context()
            ));
        }
    }
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
