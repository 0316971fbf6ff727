//! The interface of a model: a request in, text out, whole or as a stream.

use crate::generation::MOST;
use crate::pictures::Picture;
use crate::thinking::Thinking;
use crate::{Error, Result};
use candle_transformers::generation::Draw;
use serde::Serialize;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Something that completes prompts. Object safe, and usable from several threads.
pub trait InferenceBackend: Send + Sync {
    /// A short name: the device that the model runs on, such as `webgpu`.
    fn id(&self) -> &str;

    /// Completes a prompt and passes each piece of text to `on_piece` as soon as it exists. `on_piece` stops the generation by returning
    /// `ControlFlow::Break`. The concatenated pieces are the completion's text.
    ///
    /// # Errors
    /// A parameter out of range, a prompt without tokens or past the model's positions, and failures of the device.
    fn complete_stream(
        &self,
        request: &CompletionRequest,
        on_piece: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion>;

    /// Completes a prompt and returns when all of it is there.
    ///
    /// # Errors
    /// As [`InferenceBackend::complete_stream`].
    fn complete(&self, request: &CompletionRequest) -> Result<Completion> {
        self.complete_stream(request, &mut |_| ControlFlow::Continue(()))
    }
}

/// A prompt and the settings of its continuation.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// Text to complete.
    pub prompt: String,
    /// Images of the prompt, in their order: [`CandleBackend::prompt_with_pictures`](crate::CandleBackend::prompt_with_pictures) gives
    /// their positions in it. For models with image input, on one device.
    pub pictures: Vec<Arc<Picture>>,
    /// Whether a chat template made the prompt, which has put all special tokens in it: no begin token is added then.
    pub from_template: bool,
    /// The most tokens to make, at least 1.
    pub max_tokens: usize,
    /// 0 takes the likeliest token each time; above 0, tokens are drawn, the more evenly the higher it is.
    pub temperature: f64,
    /// Draw from this many of the likeliest tokens only.
    pub top_k: Option<usize>,
    /// Draw from the likeliest tokens that together have this probability, above 0 and at most 1.
    pub top_p: Option<f64>,
    /// Draw from tokens that have at least this share of the likeliest one's probability, from 0, which changes nothing, to 1.
    pub min_p: Option<f64>,
    /// Above 1, tokens of the recent context become less likely; 1 changes nothing.
    pub repeat_penalty: f32,
    /// Number of the last tokens to which the repeat penalty applies.
    pub repeat_last_n: usize,
    /// Subtracted from the logit of each token that the text has already, the prompt not counted; 0 changes nothing.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time that the text has it, the prompt not counted; 0 changes nothing.
    pub frequency_penalty: f32,
    /// Tokens, and what is added to the logit of each. Ids that the model does not have change nothing.
    pub logit_bias: Vec<(u32, f32)>,
    /// The seed of the draws: the same request on the same device gives the same text.
    pub seed: u64,
    /// The most tokens that are guessed from the text so far and given to the model with the next one, 0 for none, up to 64. What it would
    /// not have chosen is dropped, so the text stays what it is; where it repeats itself or the prompt, a device that is bound by reading weights
    /// is faster. For models whose layers are all attention to keys and values, on one device.
    pub prompt_lookup: usize,
    /// The most tokens that a draft model proposes at once, 0 for none, up to 64; `None` takes the number that the model was loaded with
    /// ([`CandleBackend::with_draft`](crate::CandleBackend::with_draft)), or none without a draft model. The text stays what it is: each
    /// token is drawn from the model's own logits, with the random numbers of its seed and position, and a proposal that is another token is dropped.
    /// How many are proposed follows from how often they are right, and from what they cost.
    pub draft_tokens: Option<usize>,
    /// The text ends before the first of these that it would contain; each has at least one character.
    pub stop: Vec<String>,
    /// How the model thinks after this prompt, if it does: then [`Completion::thought_tokens`] counts, a limit to thoughts holds, and a
    /// constraint is one of the answer alone. The text has the thoughts with their marks; [`Splitter`](crate::thinking::Splitter) takes it apart.
    pub thinking: Option<Thinking>,
}

impl Default for CompletionRequest {
    fn default() -> Self {
        Self {
            prompt: String::new(),
            pictures: Vec::new(),
            from_template: false,
            max_tokens: 128,
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 299_792_458,
            prompt_lookup: 0,
            draft_tokens: None,
            stop: Vec::new(),
            thinking: None,
        }
    }
}

impl CompletionRequest {
    /// Checks every parameter but the prompt, which only the tokenizer can judge.
    ///
    /// # Errors
    /// [`Error::Parameter`] for the first one out of range.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, name, value: String, expected| {
            ok.then_some(()).ok_or(Error::Parameter {
                name,
                value,
                expected,
            })
        };
        check(
            self.max_tokens >= 1,
            "max_tokens",
            self.max_tokens.to_string(),
            "at least 1",
        )?;
        check(
            self.temperature.is_finite() && self.temperature >= 0.0,
            "temperature",
            self.temperature.to_string(),
            "a finite number, 0 or above",
        )?;
        if let Some(top_k) = self.top_k {
            check(top_k >= 1, "top_k", top_k.to_string(), "at least 1")?;
        }
        if let Some(top_p) = self.top_p {
            check(
                top_p > 0.0 && top_p <= 1.0,
                "top_p",
                top_p.to_string(),
                "a number above 0 and at most 1",
            )?;
        }
        if let Some(min_p) = self.min_p {
            check(
                (0.0..=1.0).contains(&min_p),
                "min_p",
                min_p.to_string(),
                "a number from 0 to 1",
            )?;
        }
        for (name, value) in [
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(
                value.is_finite(),
                name,
                value.to_string(),
                "a finite number",
            )?;
        }
        if let Some((_, bias)) = self.logit_bias.iter().find(|it| !it.1.is_finite()) {
            check(false, "logit_bias", bias.to_string(), "finite numbers")?;
        }
        check(
            self.prompt_lookup <= MOST,
            "prompt_lookup",
            self.prompt_lookup.to_string(),
            "a number from 0 to 64",
        )?;
        let drafted = self.draft_tokens.unwrap_or_default();
        check(
            drafted <= MOST,
            "draft_tokens",
            drafted.to_string(),
            "a number from 0 to 64",
        )?;
        check(
            self.prompt_lookup == 0 || self.pictures.is_empty(),
            "prompt_lookup",
            self.prompt_lookup.to_string(),
            "0 with images",
        )?;
        check(
            self.stop.iter().all(|stop| !stop.is_empty()),
            "stop",
            "\"\"".to_string(),
            "at least one character",
        )?;
        check(
            self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0,
            "repeat_penalty",
            self.repeat_penalty.to_string(),
            "a finite number above 0",
        )
    }

    /// Whether the choice of a token needs its logits alone, whatever came before.
    pub(crate) fn is_plain(&self) -> bool {
        self.repeat_penalty == 1.0
            && !self.counts_tokens()
            && self.logit_bias.is_empty()
            && !self.thinking.as_ref().is_some_and(Thinking::puts_tokens)
    }

    /// Whether it matters how often the text has a token.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// The settings with which the token at a position is drawn from its logits.
    pub(crate) fn draw_at(&self, position: usize) -> Draw {
        let temperature = match self.temperature {
            // The distribution is a single spike, and dividing by it would only lose digits.
            ..1e-7 => 0.0,
            temperature => temperature as f32,
        };
        Draw {
            temperature,
            top_k: self.top_k,
            top_p: self.top_p.map(|p| p as f32),
            min_p: self.min_p.map(|p| p as f32),
            seed: self.seed,
            position: position as u32,
        }
    }
}

/// The reason why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The model made an end token.
    EndOfText,
    /// The text came to one of [`CompletionRequest::stop`].
    StopSequence,
    /// `max_tokens` was reached, or the model's last position.
    Length,
    /// The receiver of the stream asked for an end.
    Cancelled,
}

/// A finished completion.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Completion {
    /// The text, without the prompt.
    pub text: String,
    /// The tokens of the text; an end token is not among them, those of a stop sequence are.
    pub token_ids: Vec<u32>,
    /// Number of those tokens that the model thought with, their marks included; 0 without [`CompletionRequest::thinking`].
    #[serde(skip_serializing_if = "is_zero")]
    pub thought_tokens: usize,
    /// Number of the prompt's tokens, the begin token included.
    pub prompt_tokens: usize,
    /// How many of those the cache had already, of an earlier text or of one beside it: they were not read again.
    #[serde(skip_serializing_if = "is_zero")]
    pub cached_tokens: usize,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// The times.
    pub timings: Timings,
    /// Numbers of proposed and accepted tokens, with [`CompletionRequest::prompt_lookup`] or a draft model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guesses: Option<Guesses>,
}

/// Counts of what most texts do not have are left out.
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// Numbers of tokens that were proposed before the model chose them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Guesses {
    /// Tokens that were proposed.
    pub made: usize,
    /// Those of them that the model chose as well.
    pub right: usize,
}

/// The times of a completion's phases.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Timings {
    /// Seconds from the start until the first token was known.
    pub prompt_seconds: f64,
    /// Prompt tokens per second.
    pub prompt_tokens_per_second: f64,
    /// Seconds for the tokens after the first.
    pub generation_seconds: f64,
    /// Tokens after the first, per second; 0 if there were none.
    pub generation_tokens_per_second: f64,
}

impl Timings {
    /// From the durations of the two phases and the tokens that each of them worked through.
    pub(crate) fn new(prompt: (usize, Duration), generation: (usize, Duration)) -> Self {
        Self {
            prompt_seconds: prompt.1.as_secs_f64(),
            prompt_tokens_per_second: per_second(prompt.0, prompt.1),
            generation_seconds: generation.1.as_secs_f64(),
            generation_tokens_per_second: per_second(generation.0, generation.1),
        }
    }
}

/// `count` things in `time` as a rate; 0 where either is 0.
pub(crate) fn per_second(count: usize, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        count as f64 / time.as_secs_f64()
    }
}
