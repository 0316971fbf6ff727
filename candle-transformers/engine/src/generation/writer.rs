//! Writes a completion: chooses the next token, collects the text so far, and decides when it ends.

use super::Mask;
use crate::backend::{Completion, CompletionRequest, StopReason, Timings};
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::stream::{StopSequences, TokenStream};
use crate::thinking::{Pace, Phase};
use crate::Result;
use candle_nn::sampling::{draw_row, Change, Changes};
use candle_transformers::generation::Draw;
use std::collections::HashMap;
use std::time::Duration;
use web_time::Instant;

/// One completion's tokens and text. The caller runs the model.
pub(crate) struct Writer<'a> {
    backend: &'a CandleBackend,
    request: CompletionRequest,
    stream: TokenStream<'a>,
    stops: StopSequences,
    mask: Option<Box<dyn Mask>>,
    /// The state of the thoughts, of a model that thinks.
    pace: Option<Pace>,
    /// The prompt's tokens and those made so far.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Number of occurrences of each token, if a setting needs it.
    counts: HashMap<u32, u32>,
    /// Maximum number of steps.
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
        let thinking = request.thinking.as_ref();
        let marks = thinking.map_or(&[][..], |thinking| thinking.marks());
        let pace = thinking.map(|thinking| Pace::new(backend.tokenizer(), thinking));
        Ok(Self {
            stream: TokenStream::new(backend.tokenizer()).showing(marks),
            pace: pace.transpose()?,
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
    pub(crate) fn with_mask(self, mask: Option<Box<dyn Mask>>) -> Self {
        Self { mask, ..self }
    }

    /// How many of them are the prompt's.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The prompt's tokens and those made so far.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The token that ended the text, if one did.
    pub(crate) fn stop_token(&self) -> Option<u32> {
        self.stop_token
    }

    /// Maximum number of steps after the next one.
    pub(crate) fn steps_after_next(&self) -> usize {
        self.budget.saturating_sub(self.steps + 1)
    }

    /// The draft model's settings for drawing the token after the next `drafted` ones: with the same random numbers as for the token
    /// itself.
    pub(crate) fn draw_of_draft(&self, drafted: usize) -> Draw {
        self.request.draw_at(self.tokens.len() + drafted)
    }

    /// The settings for drawing the token after the next `queued` ones, if that needs its logits alone: a device then draws it without the
    /// host.
    pub(crate) fn draw_after(&self, queued: usize) -> Option<Draw> {
        let is_plain = self.request.is_plain() && self.mask.is_none();
        is_plain.then(|| self.request.draw_at(self.tokens.len() + queued))
    }

    /// Whether another step may follow; none does after the requested number of tokens.
    pub(crate) fn goes_on(&mut self) -> bool {
        if self.stop_reason.is_none() && self.steps == self.budget {
            self.end(StopReason::Length);
        }
        self.stop_reason.is_none()
    }

    /// Whether a step may follow the next one and `queued` after it.
    pub(crate) fn has_steps_after(&self, queued: usize) -> bool {
        self.steps + queued + 1 < self.budget
    }

    /// The next token by its logits, one for each of the vocabulary.
    ///
    /// # Errors
    /// Logits or parameters that do not define a distribution.
    pub(crate) fn choose(&mut self, mut logits: Vec<f32>) -> Result<u32> {
        if let Some(token) = self.pace.as_ref().and_then(Pace::forced) {
            return Ok(token);
        }
        let (with, changes) = self.draw_next(logits.len())?;
        changes.apply(&mut logits);
        draw_row(&logits, &with).doing("choosing the next token")
    }

    /// The settings for drawing the next token, now that the earlier ones are known, preceded by the changes of its logits.
    ///
    /// # Errors
    /// A constraint that nothing satisfies.
    pub(crate) fn draw_next(&mut self, vocab: usize) -> Result<(Draw, Changes)> {
        let with = self.request.draw_at(self.tokens.len());
        if let Some(token) = self.pace.as_ref().and_then(Pace::forced) {
            let mut allowed = vec![0; vocab];
            if let Some(allowed) = allowed.get_mut(token as usize) {
                *allowed = 1;
            }
            let only = Changes {
                tokens: Vec::new(),
                allowed: Some(allowed),
            };
            return Ok((with, only));
        }
        let changes = Changes {
            tokens: self.penalties(),
            allowed: self.allowed(vocab)?,
        };
        Ok((with, changes))
    }

    /// Changes of logits by biases and penalties, by token.
    fn penalties(&self) -> Vec<Change> {
        let request = &self.request;
        let mut changes: HashMap<u32, (f32, f32)> = HashMap::new();
        for (token, bias) in &request.logit_bias {
            changes.entry(*token).or_insert((0., 1.)).0 += bias;
        }
        for (token, count) in &self.counts {
            let by = request.presence_penalty + request.frequency_penalty * *count as f32;
            changes.entry(*token).or_insert((0., 1.)).0 -= by;
        }
        if request.repeat_penalty != 1.0 {
            let recent = self.tokens.len().saturating_sub(request.repeat_last_n);
            for token in &self.tokens[recent..] {
                changes.entry(*token).or_insert((0., 1.)).1 = request.repeat_penalty;
            }
        }
        let change = |(token, (offset, penalty))| Change {
            token,
            offset,
            penalty,
        };
        changes.into_iter().map(change).collect()
    }

    /// The tokens that the answer's constraint allows, 1 each, of others 0; `None` without a constraint. Thoughts have none, but that they do
    /// not end the text.
    fn allowed(&mut self, vocab: usize) -> Result<Option<Vec<u8>>> {
        let Some(mask) = &mut self.mask else {
            return Ok(None);
        };
        let phase = self.pace.as_ref().map(Pace::phase);
        let mut allowed = match phase {
            Some(Phase::Thoughts) => vec![1; vocab],
            None | Some(Phase::Answer | Phase::Undecided) => {
                let words = mask.allowed()?;
                let bit = |id: usize| words.get(id / 32).map_or(0, |word| word >> (id % 32) & 1);
                (0..vocab).map(|id| bit(id) as u8).collect()
            }
        };
        let mut set = |id: u32, to: u8| {
            if let Some(allowed) = allowed.get_mut(id as usize) {
                *allowed = to;
            }
        };
        match phase {
            Some(Phase::Thoughts) => self.backend.stop_tokens().iter().for_each(|id| set(*id, 0)),
            Some(Phase::Undecided) => {
                let first = self.pace.iter().flat_map(Pace::beginnings);
                first.for_each(|id| set(id, 1));
            }
            None | Some(Phase::Answer) => {}
        }
        Ok(Some(allowed))
    }

    /// Tells the constraint of a token, if it is of the answer and was chosen.
    fn tell_mask(&mut self, token: u32) -> Result<()> {
        let Some(mask) = &mut self.mask else {
            return Ok(());
        };
        if let Some(pace) = &mut self.pace {
            if pace.forced() == Some(token) {
                return Ok(());
            }
            let is_of_answer = match pace.phase() {
                Phase::Undecided => pace.decide(token),
                Phase::Thoughts => false,
                Phase::Answer => true,
            };
            if !is_of_answer {
                return Ok(());
            }
        }
        mask.push(token)
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
        self.tell_mask(token)?;
        self.tokens.push(token);
        if self.request.counts_tokens() {
            *self.counts.entry(token).or_default() += 1;
        }
        let piece = self.stream.push(token)?.unwrap_or_default();
        if let Some(pace) = &mut self.pace {
            pace.push(token, &piece);
        }
        let piece = self.stops.push(&piece);
        self.text.push_str(&piece);
        if self.stops.is_reached() {
            self.end(StopReason::StopSequence);
            self.flushed = true;
        }
        Ok(Some(piece))
    }

    /// The text that was held back: bytes that do not form a character, and a possible beginning of a stop sequence.
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

    /// The completion so far.
    pub(crate) fn finish(mut self) -> Completion {
        self.end(StopReason::Cancelled);
        let prompt = (self.prompt_tokens, self.first_token_after);
        let token_ids = self.tokens.split_off(self.prompt_tokens);
        let after_first = self.ended_after.saturating_sub(self.first_token_after);
        let steps = token_ids.len().saturating_sub(1);
        Completion {
            text: self.text,
            thought_tokens: self.pace.as_ref().map_or(0, Pace::tokens),
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            stop_reason: self.stop_reason.unwrap_or(StopReason::Cancelled),
            timings: Timings::new(prompt, (steps, after_first)),
            token_ids,
            guesses: None,
        }
    }
}
