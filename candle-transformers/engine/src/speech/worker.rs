//! A model of speech for several people: a thread that transcribes one recording after the other.

use super::files::{tokens, SpeechFiles};
use super::model::SpeechModel;
use crate::audio::read_short_audio;
use crate::batch::Owner;
use crate::error::Doing;
use crate::queue::{Job, Queue};
use crate::{Error, Result};
use candle_core::{DType, Device};
use candle_transformers::models::whisper::transcribe::{Options, Segment, Transcript};
use candle_transformers::models::whisper::TEMPERATURES;
use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use tokenizers::Tokenizer;

/// Recordings that wait or are transcribed. Each holds the bytes of its file.
const RECORDINGS: usize = 8;
/// The longest recording, in seconds: its samples take 460 MB.
pub const MAX_SECONDS: u64 = 2 * 60 * 60;

/// The parameters of a transcription.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The code of the language that is spoken, such as `de`; without one it is detected.
    pub language: Option<String>,
    /// Translates to English. As the fields below, only with a Whisper.
    pub translate: bool,
    /// Gives each word its times.
    pub words: bool,
    /// A text that comes before: names and spellings.
    pub prompt: String,
    /// The temperature of the draws, 0 to 1; at 0 it rises automatically if a text is improbable or repeats itself.
    pub temperature: f64,
}

/// A segment or the end of a transcript.
pub enum Heard<'a> {
    /// A segment of the text, as soon as it is complete.
    Segment(&'a Segment),
    /// The end.
    Done(Result<Transcript>),
}

/// Somebody who waits for a transcript.
pub trait Listener: Send + 'static {
    /// Takes what there is. [`ControlFlow::Break`] ends the transcription.
    fn heard(&mut self, heard: Heard<'_>) -> ControlFlow<()>;

    /// Whether a caller still waits.
    fn is_there(&self) -> bool;
}

/// A thread with a model of speech.
pub struct SpeechWorker {
    queue: Queue<Recording>,
}

struct Recording {
    name: String,
    bytes: Vec<u8>,
    asked: Asked,
    listener: Box<dyn Listener>,
}

impl Job for Recording {
    fn is_wanted(&self) -> bool {
        self.listener.is_there()
    }
}

impl SpeechWorker {
    /// Loads a model to `device`, with activations of `dtype` as in [`SpeechFiles::load`], and starts the thread.
    ///
    /// # Errors
    /// Those of [`SpeechFiles::load`]; the system has no thread.
    pub fn start(files: SpeechFiles, device: &Device, dtype: Option<DType>) -> Result<Self> {
        let tokenizer = files.tokenizer().clone();
        let model = files.load(device, dtype, Options::default())?;
        let mut ear = Ear { model, tokenizer };
        let work = move |mut recording: Recording| {
            let made = catch_unwind(AssertUnwindSafe(|| ear.hear(&mut recording)));
            let made = made.unwrap_or_else(|_| {
                tracing::error!("the speech model panicked");
                Err(Error::Batch("the speech model panicked".to_string()))
            });
            let _ = recording.listener.heard(Heard::Done(made));
            None
        };
        let queue = Queue::start("candle-speech", RECORDINGS, work);
        let queue = queue.map_err(|err| Error::Batch(format!("a thread for speech: {err}")))?;
        Ok(Self { queue })
    }

    /// Recordings that wait or are transcribed.
    pub fn open(&self) -> usize {
        self.queue.open()
    }

    /// Queues the transcription of the file `bytes`. `name` names it in messages, and its extension is a hint at the format.
    ///
    /// # Errors
    /// The queue is full for this owner, or the thread has stopped. All other errors go to the listener.
    pub fn begin(
        &self,
        owner: Owner,
        name: &str,
        bytes: Vec<u8>,
        asked: Asked,
        listener: Box<dyn Listener>,
    ) -> Result<()> {
        let name = name.to_string();
        let recording = Recording {
            name,
            bytes,
            asked,
            listener,
        };
        self.queue.put(owner, recording)
    }
}

struct Ear {
    model: SpeechModel,
    tokenizer: Tokenizer,
}

impl Ear {
    fn hear(&mut self, recording: &mut Recording) -> Result<Transcript> {
        self.ask(&recording.asked)?;
        let bytes = std::mem::take(&mut recording.bytes);
        let audio = read_short_audio(&recording.name, &bytes, MAX_SECONDS)?;
        drop(bytes);
        let listener = std::cell::RefCell::new(&mut recording.listener);
        let gone = || candle_core::Error::msg("nobody listens any more");
        let is_there = || {
            if listener.borrow().is_there() {
                Ok(())
            } else {
                Err(gone())
            }
        };
        let heard = |segment: &Segment| {
            let answer = listener.borrow_mut().heard(Heard::Segment(segment));
            match answer {
                ControlFlow::Continue(()) => Ok(()),
                ControlFlow::Break(()) => Err(gone()),
            }
        };
        let transcript = self.model.transcribe_while(&audio.samples, is_there, heard);
        let mut transcript = transcript.doing("transcribe")?;
        transcript.duration = audio.seconds;
        Ok(transcript)
    }

    fn ask(&mut self, asked: &Asked) -> Result<()> {
        let options = Options {
            language: asked.language.clone(),
            translate: asked.translate,
            words: asked.words,
            initial_prompt: match asked.prompt.trim() {
                "" => Vec::new(),
                prompt => tokens(&self.tokenizer, prompt)?,
            },
            temperatures: match asked.temperature {
                0. => TEMPERATURES.to_vec(),
                one => vec![one],
            },
            alignment_heads: self.model.options().alignment_heads.clone(),
            ..Options::default()
        };
        self.model
            .set_options(options)
            .map_err(|err| Error::Speech(crate::error::brief(&err)))
    }
}
