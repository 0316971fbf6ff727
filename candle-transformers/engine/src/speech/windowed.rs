//! Models that hear a window at once and say nothing but its text: no times within it, no language.

use super::windows::{windows, RATE};
use candle_core::{bail, Error, Result};
use candle_transformers::blocks::at_once;
use candle_transformers::models::moonshine::Moonshine;
use candle_transformers::models::parakeet::Parakeet;
use candle_transformers::models::whisper::transcribe::{
    compression_ratio, Heard, Options, Segment, Transcript,
};
use candle_transformers::models::whisper::HOP_LENGTH;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// The language of a transcript whose model does not tell it: "undetermined" of ISO 639-2.
pub const UNDETERMINED: &str = "und";

/// The kinds of these models.
pub(super) enum Network {
    Moonshine(Box<Moonshine>),
    Parakeet(Box<Parakeet>),
}

/// The text of a window.
struct Said {
    tokens: Vec<u32>,
    avg_logprob: f64,
}

impl Network {
    /// The text of a window; `drafts` gets all tokens after each of them, of a Parakeet once. With `blocking` the thread waits for the
    /// device, and `drafts` must not wait.
    async fn hear(
        &mut self,
        samples: &[f32],
        blocking: bool,
        drafts: &mut impl AsyncFnMut(&[u32]) -> Result<()>,
    ) -> Result<Said> {
        match self {
            Self::Moonshine(model) => {
                let text = if blocking {
                    model.transcribe_while(samples, |tokens| at_once(drafts(tokens)))?
                } else {
                    model.transcribe_async(samples, drafts).await?
                };
                Ok(Said {
                    tokens: text.tokens,
                    avg_logprob: text.avg_logprob,
                })
            }
            Self::Parakeet(model) => {
                let text = if blocking {
                    model.transcribe(samples)?
                } else {
                    model.transcribe_async(samples).await?
                };
                drafts(&text.tokens).await?;
                Ok(Said {
                    tokens: text.tokens,
                    avg_logprob: text.avg_logprob,
                })
            }
        }
    }
}

/// Refuses options that only Whisper supports. `model` names the model in messages.
///
/// # Errors
/// The first such option.
pub(super) fn check(model: &str, options: &Options) -> Result<()> {
    let has = [
        ("language", options.language.is_some()),
        ("translate", options.translate),
        ("words", options.words),
        ("prompt", !options.initial_prompt.is_empty()),
        ("temperature", options.temperatures.first() != Some(&0.)),
    ];
    match has.iter().find(|(_, asked)| *asked) {
        Some((option, _)) => bail!(
            "{model}: the option {option:?} is not supported; leave it out, or use a Whisper model"
        ),
        None => Ok(()),
    }
}

/// A report during a transcription.
enum Event<'a> {
    /// All tokens of the window so far.
    Tokens(&'a [u32]),
    Segment(&'a Segment),
}

/// A network and its vocabulary.
pub struct Windowed {
    /// Stands for the model in messages.
    pub(super) model: String,
    pub(super) network: Network,
    pub(super) tokenizer: Arc<Tokenizer>,
    pub(super) options: Options,
}

impl Windowed {
    pub(super) fn transcribe_while(
        &mut self,
        samples: &[f32],
        mut go_on: impl FnMut() -> Result<()>,
        mut heard: impl FnMut(&Segment) -> Result<()>,
    ) -> Result<Transcript> {
        let mut told = async |event: Event<'_>| match event {
            Event::Tokens(_) => go_on(),
            Event::Segment(segment) => heard(segment),
        };
        at_once(self.run(samples, true, &mut told))
    }

    pub(super) async fn transcribe_async(
        &mut self,
        samples: &[f32],
        mut heard: impl AsyncFnMut(Heard<'_>) -> Result<()>,
    ) -> Result<Transcript> {
        let tokenizer = self.tokenizer.clone();
        let mut told = async |event: Event<'_>| match event {
            Event::Tokens(tokens) => heard(Heard::Draft(&text_of(&tokenizer, tokens)?)).await,
            Event::Segment(segment) => heard(Heard::Segment(segment)).await,
        };
        self.run(samples, false, &mut told).await
    }

    async fn run<T: AsyncFnMut(Event<'_>) -> Result<()>>(
        &mut self,
        samples: &[f32],
        blocking: bool,
        told: &mut T,
    ) -> Result<Transcript> {
        let mut segments = Vec::new();
        let seconds = |samples: usize| samples as f64 / RATE as f64;
        for window in windows(samples) {
            let mut drafts = async |tokens: &[u32]| told(Event::Tokens(tokens)).await;
            let samples = &samples[window.clone()];
            let said = self.network.hear(samples, blocking, &mut drafts).await?;
            let text = text_of(&self.tokenizer, &said.tokens)?;
            if text.is_empty() {
                continue;
            }
            let segment = Segment {
                seek: window.start / HOP_LENGTH,
                start: seconds(window.start),
                end: seconds(window.end),
                compression_ratio: compression_ratio(&text),
                text,
                tokens: said.tokens,
                temperature: 0.,
                avg_logprob: said.avg_logprob,
                no_speech_prob: 0.,
                words: Vec::new(),
            };
            told(Event::Segment(&segment)).await?;
            segments.push(segment);
        }
        Ok(Transcript {
            language: UNDETERMINED.to_string(),
            duration: seconds(samples.len()),
            segments,
        })
    }
}

/// The text of tokens after a space, which separates it from the window before; empty if there is none.
fn text_of(tokenizer: &Tokenizer, tokens: &[u32]) -> Result<String> {
    let text = tokenizer.decode(tokens, true).map_err(Error::msg)?;
    Ok(match text.trim() {
        "" => String::new(),
        text => format!(" {text}"),
    })
}
