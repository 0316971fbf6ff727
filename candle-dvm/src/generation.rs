//! The generation loop, one token per step, so that a browser can do other work in between.

use crate::backend::{Completion, CompletionRequest, StopReason, Timings};
use crate::engine::{CandleBackend, Session};
use crate::error::Doing;
use crate::stream::{StopSequences, TokenStream};
use crate::Result;
use candle_core::{Device, Tensor};
use candle_transformers::generation::{GreedyToken, LogitsProcessor};
use candle_transformers::utils::apply_repeat_penalty;
use std::time::Duration;
use web_time::Instant;

/// How a step gets a token's id from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// By blocking the thread: the step is ready when it is polled first. It is an error in a browser with a GPU.
    Blocking,
    /// By yielding to the executor.
    Async,
}

impl Wait {
    /// What fits the platform: a browser's thread must not be blocked, and natively a model has a separate thread.
    pub const HERE: Self = match cfg!(target_arch = "wasm32") {
        true => Self::Async,
        false => Self::Blocking,
    };
}

/// A session and the tokens that it has seen.
pub(crate) struct Seen<'a> {
    session: Session<'a>,
    tokens: Vec<u32>,
}

/// A completion in progress; [`CandleBackend::generation`] begins one.
pub struct Generation<'a> {
    backend: &'a CandleBackend,
    request: &'a CompletionRequest,
    session: Session<'a>,
    sampler: LogitsProcessor,
    stream: TokenStream<'a>,
    stops: StopSequences<'a>,
    /// The prompt's tokens and those made so far.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// How many of `tokens` the model has seen.
    fed: usize,
    /// How many steps there may be.
    budget: usize,
    steps: usize,
    /// The next step, queued before the host knows the current token, if the choice needs nothing from the host.
    queued: Option<GreedyToken>,
    text: String,
    stop_reason: Option<StopReason>,
    /// The token that ended the text.
    stop_token: Option<u32>,
    /// Whether what was held back is out.
    flushed: bool,
    start: Instant,
    first_token_after: Duration,
    ended_after: Duration,
}

impl CandleBackend {
    /// Begins a completion; nothing runs before its first step.
    ///
    /// # Errors
    /// A parameter out of range, a prompt without tokens or past the model's positions.
    pub fn generation<'a>(&'a self, request: &'a CompletionRequest) -> Result<Generation<'a>> {
        let tokens = self.prompt_tokens(&request.prompt)?;
        self.go_on(None, tokens, request)
    }

    /// As [`generation`](Self::generation), from the prompt's tokens. What a session has seen of them is not fed to the model again.
    pub(crate) fn go_on<'a>(
        &'a self,
        seen: Option<Seen<'a>>,
        tokens: Vec<u32>,
        request: &'a CompletionRequest,
    ) -> Result<Generation<'a>> {
        request.validate()?;
        let start = Instant::now();
        let prompt_tokens = tokens.len();
        // At least one token has to be fed, for logits to come out.
        let seen = seen
            .filter(|seen| seen.tokens.len() < tokens.len() && tokens.starts_with(&seen.tokens));
        let fed = seen.as_ref().map_or(0, |seen| seen.tokens.len());
        Ok(Generation {
            backend: self,
            request,
            session: seen.map_or_else(|| self.session(), |seen| seen.session),
            sampler: LogitsProcessor::from_sampling(request.seed, request.sampling()),
            stream: TokenStream::new(self.tokenizer()),
            stops: StopSequences::new(&request.stop),
            // The last token made is never fed back, so it needs no position.
            budget: request
                .max_tokens
                .min(self.max_positions() - prompt_tokens + 1),
            tokens,
            prompt_tokens,
            fed,
            steps: 0,
            queued: None,
            text: String::new(),
            stop_reason: None,
            stop_token: None,
            flushed: false,
            start,
            first_token_after: Duration::ZERO,
            ended_after: Duration::ZERO,
        })
    }
}

impl<'a> Generation<'a> {
    /// Makes the next token, and gives the text that is certain now, which may be none; `None` after the end.
    ///
    /// # Errors
    /// Failures of the device.
    pub async fn step(&mut self, wait: Wait) -> Result<Option<String>> {
        if self.stop_reason.is_none() && self.steps == self.budget {
            self.end(StopReason::Length);
        }
        if self.stop_reason.is_some() {
            return self.rest();
        }
        let next = self.next_token(wait).await?;
        self.steps += 1;
        if self.steps == 1 {
            self.first_token_after = self.start.elapsed();
        }
        if self.backend.is_stop_token(next) {
            self.stop_token = Some(next);
            self.end(StopReason::EndOfText);
            return self.rest();
        }
        self.tokens.push(next);
        let piece = self.stream.push(next)?.unwrap_or_default();
        let piece = self.stops.push(&piece);
        self.text.push_str(&piece);
        if self.stops.is_reached() {
            self.end(StopReason::StopSequence);
            self.flushed = true;
        }
        Ok(Some(piece))
    }

    /// How many tokens the model has read, of the prompt and of what it made.
    pub(crate) fn fed(&self) -> usize {
        self.fed
    }

    /// Ends the completion: no step follows.
    pub fn cancel(&mut self) {
        self.flushed = true;
        self.end(StopReason::Cancelled);
        self.stop_reason = Some(StopReason::Cancelled);
    }

    /// The completion as far as it got, and the session with the tokens that it has seen, unless it has seen one that is not known.
    pub(crate) fn finish_with_session(self) -> (Completion, Option<Seen<'a>>) {
        let mut tokens = self.tokens.clone();
        // A step that was queued may have fed the token that ended the text.
        tokens.extend(self.stop_token);
        let position = self.session.position();
        let known = position <= tokens.len();
        tokens.truncate(position);
        let (completion, session) = self.into_parts();
        (completion, known.then_some(Seen { session, tokens }))
    }

    /// The completion as far as it got.
    pub fn finish(self) -> Completion {
        self.into_parts().0
    }

    fn into_parts(mut self) -> (Completion, Session<'a>) {
        self.end(StopReason::Cancelled);
        let prompt = (self.prompt_tokens, self.first_token_after);
        let token_ids = self.tokens.split_off(self.prompt_tokens);
        let after_first = self.ended_after.saturating_sub(self.first_token_after);
        let steps = token_ids.len().saturating_sub(1);
        let completion = Completion {
            text: self.text,
            prompt_tokens: self.prompt_tokens,
            stop_reason: self.stop_reason.unwrap_or(StopReason::Cancelled),
            timings: Timings::new(prompt, (steps, after_first)),
            token_ids,
        };
        (completion, self.session)
    }

    /// Notes the first reason to end.
    fn end(&mut self, reason: StopReason) {
        if self.stop_reason.is_none() {
            self.ended_after = self.start.elapsed();
            self.stop_reason = Some(reason);
        }
        self.queued = None;
    }

    /// What was held back: bytes of which no character came, and text that might have become a stop sequence.
    fn rest(&mut self) -> Result<Option<String>> {
        if self.flushed {
            return Ok(None);
        }
        self.flushed = true;
        let rest = self.stream.finish()?.unwrap_or_default();
        let rest = self.stops.push(&rest) + &self.stops.finish();
        self.text.push_str(&rest);
        Ok((!rest.is_empty()).then_some(rest))
    }

    async fn next_token(&mut self, wait: Wait) -> Result<u32> {
        // Where the choice needs nothing from the host, the GPU need not wait for it: the next step is queued before the id of
        // this one is known.
        if !self.request.is_plain_argmax() || self.backend.device().is_cpu() {
            return self.sampled(wait).await;
        }
        let token = match self.queued.take() {
            Some(token) => token,
            None => {
                let logits = self.session.forward(&self.tokens[self.fed..])?;
                self.fed = self.tokens.len();
                GreedyToken::choose(&logits).doing("choosing the next token")?
            }
        };
        if self.steps + 1 < self.budget {
            self.queued = Some(self.session.greedy_step(token.ids())?);
        }
        let id = match wait {
            Wait::Blocking => token.wait(),
            Wait::Async => token.finish().await,
        };
        id.doing("choosing the next token")
    }

    async fn sampled(&mut self, wait: Wait) -> Result<u32> {
        let mut logits = self.session.forward(&self.tokens[self.fed..])?;
        self.fed = self.tokens.len();
        if wait == Wait::Async && !logits.device().is_cpu() {
            let read = logits.to_vec1_async::<f32>().await;
            logits = read
                .and_then(|read| Tensor::new(read, &Device::Cpu))
                .doing("choosing the next token")?;
        }
        let recent = self.tokens.len().saturating_sub(self.request.repeat_last_n);
        let recent = &self.tokens[recent..];
        let penalty = self.request.repeat_penalty;
        if penalty != 1.0 {
            logits =
                apply_repeat_penalty(&logits, penalty, recent).doing("choosing the next token")?;
        }
        let min_p = self.request.min_p.unwrap_or(0.0) as f32;
        let next = self.sampler.sample_f(&logits, |probabilities| {
            let most = probabilities.iter().copied().fold(0.0, f32::max);
            for probability in probabilities {
                if *probability < min_p * most {
                    *probability = 0.0;
                }
            }
        });
        next.doing("choosing the next token")
    }
}
