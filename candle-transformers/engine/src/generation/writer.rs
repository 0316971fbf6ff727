//! What becomes of a completion's tokens: how the next one is chosen, the text so far, and when it ends.

use super::Mask;
use crate::backend::{Completion, CompletionRequest, StopReason, Timings};
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::stream::{StopSequences, TokenStream};
use crate::Result;
use candle_core::{Device, Tensor};
use candle_transformers::generation::LogitsProcessor;
use candle_transformers::utils::apply_repeat_penalty;
use std::collections::HashMap;
use std::time::Duration;
use web_time::Instant;

/// One completion's tokens and text. The model is somebody else's to run.
pub(crate) struct Writer<'a> {
    backend: &'a CandleBackend,
    request: CompletionRequest,
    sampler: LogitsProcessor,
    stream: TokenStream<'a>,
    stops: StopSequences,
    mask: Option<Box<dyn Mask>>,
    /// The prompt's tokens and those made so far.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// How often the text has each token, where that matters.
    counts: HashMap<u32, u32>,
    /// How many steps there may be.
    budget: usize,
    steps: usize,
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

impl<'a> Writer<'a> {
    /// Nothing is written yet. The prompt and the text together have at most `positions` positions.
    ///
    /// # Errors
    /// A parameter out of range.
    pub(crate) fn new(
        backend: &'a CandleBackend,
        tokens: Vec<u32>,
        request: &CompletionRequest,
        positions: usize,
    ) -> Result<Self> {
        request.validate()?;
        let prompt_tokens = tokens.len();
        Ok(Self {
            sampler: LogitsProcessor::from_sampling(request.seed, request.sampling()),
            stream: TokenStream::new(backend.tokenizer()),
            stops: StopSequences::new(&request.stop),
            mask: None,
            // The last token made is never fed back, so it needs no position.
            budget: request
                .max_tokens
                .min(positions.saturating_sub(prompt_tokens) + 1),
            backend,
            request: request.clone(),
            tokens,
            prompt_tokens,
            counts: HashMap::new(),
            steps: 0,
            text: String::new(),
            stop_reason: None,
            stop_token: None,
            flushed: false,
            start: Instant::now(),
            first_token_after: Duration::ZERO,
            ended_after: Duration::ZERO,
        })
    }

    /// With a constraint on what may follow.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn with_mask(self, mask: Option<Box<dyn Mask>>) -> Self {
        Self { mask, ..self }
    }

    /// The prompt's tokens and those made so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token that ended the text, if one did.
    pub(crate) fn stop_token(&self) -> Option<u32> {
        self.stop_token
    }

    /// How many tokens may be guessed beside the next one: no more than are asked for.
    pub(crate) fn most_guesses(&self) -> usize {
        let left = self.budget.saturating_sub(self.steps + 1);
        self.request.prompt_lookup.min(left)
    }

    /// Whether the next token is the one with the highest logit, whatever came before.
    pub(crate) fn is_plain_argmax(&self) -> bool {
        self.request.is_plain_argmax() && self.mask.is_none()
    }

    /// Whether a step may follow; after as many as were asked for, none does.
    pub(crate) fn goes_on(&mut self) -> bool {
        if self.stop_reason.is_none() && self.steps == self.budget {
            self.end(StopReason::Length);
        }
        self.stop_reason.is_none()
    }

    /// Whether a step may follow the next one.
    pub(crate) fn has_two_steps(&self) -> bool {
        self.steps + 1 < self.budget
    }

    /// The next token by its logits, one for each of the vocabulary.
    ///
    /// # Errors
    /// Logits or parameters of which no token can be drawn.
    pub(crate) fn choose(&mut self, mut logits: Vec<f32>) -> Result<u32> {
        let doing = "choosing the next token";
        for (id, bias) in &self.request.logit_bias {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit += bias;
            }
        }
        for (id, count) in &self.counts {
            if let Some(logit) = logits.get_mut(*id as usize) {
                *logit -= self.request.presence_penalty;
                *logit -= self.request.frequency_penalty * *count as f32;
            }
        }
        let penalty = self.request.repeat_penalty;
        if penalty != 1.0 {
            let recent = self.tokens.len().saturating_sub(self.request.repeat_last_n);
            let vocab = logits.len();
            let penalised = Tensor::from_vec(logits, vocab, &Device::Cpu)
                .and_then(|logits| apply_repeat_penalty(&logits, penalty, &self.tokens[recent..]))
                .and_then(|logits| logits.to_vec1());
            logits = penalised.doing(doing)?;
        }
        if let Some(mask) = &mut self.mask {
            mask.apply(&mut logits)?;
        }
        let min_p = self.request.min_p.unwrap_or(0.0) as f32;
        let next = self.sampler.sample_vec(logits, |probabilities| {
            if min_p > 0.0 {
                let most = probabilities.iter().copied().fold(0.0, f32::max);
                for probability in probabilities {
                    if *probability < min_p * most {
                        *probability = 0.0;
                    }
                }
            }
        });
        next.doing(doing)
    }

    /// Takes the next token, and gives the text that is certain now, which may be none; `None` if the token ended the text and nothing was
    /// held back.
    ///
    /// # Errors
    /// The tokenizer's.
    pub(crate) fn push(&mut self, token: u32) -> Result<Option<String>> {
        self.steps += 1;
        if self.steps == 1 {
            self.first_token_after = self.start.elapsed();
        }
        if self.backend.is_stop_token(token) {
            self.stop_token = Some(token);
            self.end(StopReason::EndOfText);
            return self.rest();
        }
        if let Some(mask) = &mut self.mask {
            mask.push(token)?;
        }
        self.tokens.push(token);
        if self.request.counts_tokens() {
            *self.counts.entry(token).or_default() += 1;
        }
        let piece = self.stream.push(token)?.unwrap_or_default();
        let piece = self.stops.push(&piece);
        self.text.push_str(&piece);
        if self.stops.is_reached() {
            self.end(StopReason::StopSequence);
            self.flushed = true;
        }
        Ok(Some(piece))
    }

    /// What was held back: bytes of which no character came, and text that might have become a stop sequence.
    ///
    /// # Errors
    /// The tokenizer's.
    pub(crate) fn rest(&mut self) -> Result<Option<String>> {
        if self.flushed {
            return Ok(None);
        }
        self.flushed = true;
        let rest = self.stream.finish()?.unwrap_or_default();
        let rest = self.stops.push(&rest) + &self.stops.finish();
        self.text.push_str(&rest);
        Ok((!rest.is_empty()).then_some(rest))
    }

    /// Ends the completion, whatever ended it before.
    pub(crate) fn cancel(&mut self) {
        self.flushed = true;
        self.end(StopReason::Cancelled);
        self.stop_reason = Some(StopReason::Cancelled);
    }

    /// Notes the first reason to end.
    fn end(&mut self, reason: StopReason) {
        if self.stop_reason.is_none() {
            self.ended_after = self.start.elapsed();
            self.stop_reason = Some(reason);
        }
    }

    /// The completion as far as it got.
    pub(crate) fn finish(mut self) -> Completion {
        self.end(StopReason::Cancelled);
        let prompt = (self.prompt_tokens, self.first_token_after);
        let token_ids = self.tokens.split_off(self.prompt_tokens);
        let after_first = self.ended_after.saturating_sub(self.first_token_after);
        let steps = token_ids.len().saturating_sub(1);
        Completion {
            text: self.text,
            prompt_tokens: self.prompt_tokens,
            stop_reason: self.stop_reason.unwrap_or(StopReason::Cancelled),
            timings: Timings::new(prompt, (steps, after_first)),
            token_ids,
            guesses: None,
        }
    }
}
