//! Which text has which slot, and what a step does.

use super::client::Client;
use super::{BatchSettings, Heard, Job, Likely};
use crate::backend::{Completion, StopReason};
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::generation::Writer;
use crate::{Error, Result};
use candle_core::{DType, Device, IndexOp, Tensor, D};
use candle_transformers::blocks::DecoderState;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Tokens in common from which a copy of another slot's cache costs less than to read them again.
const WORTH_A_COPY: usize = 16;
/// How often those that wait are asked whether they still do, which all of them at every step is too often. A place that nobody wants any more
/// is free after this time and a step.
const ASK_WAITING: Duration = Duration::from_millis(100);
/// What a row that writes nothing is fed.
const NOTHING: u32 = 0;

/// A place in the cache.
#[derive(Default)]
struct Slot<'a> {
    /// The tokens whose keys and values it has, of the text that is there, or of the last one that was.
    held: Vec<u32>,
    /// How many of them were read in whole pieces. The others' keys and values are rounded otherwise, as of tokens that came one by one.
    whole: usize,
    text: Option<Text<'a>>,
}

/// A completion that runs.
struct Text<'a> {
    writer: Writer<'a>,
    client: Client,
    logprobs: Option<usize>,
    /// The order in which texts came.
    number: u64,
}

impl Slot<'_> {
    /// How many of the text's tokens the model has not seen: more than one while it reads the prompt.
    fn unseen(&self) -> usize {
        self.text
            .as_ref()
            .map_or(0, |text| text.writer.tokens().len() - self.held.len())
    }

    /// How many of `tokens` need not be read again: pieces that would be read just so. One token has to be, for logits to come out.
    fn shared(&self, tokens: &[u32], piece: usize) -> usize {
        let most = self.whole.min(tokens.len().saturating_sub(1));
        let pairs = self.held[..most].iter().zip(tokens);
        let same = pairs.take_while(|(held, token)| held == token).count();
        same - same % piece
    }
}

pub(super) struct Scheduler<'a> {
    backend: &'a CandleBackend,
    state: DecoderState,
    slots: Vec<Slot<'a>>,
    waiting: VecDeque<Job>,
    /// When those that wait were asked last, and how often they are.
    asked: Instant,
    pub(super) ask_every: Duration,
    piece: usize,
    numbers: u64,
    finished: u64,
}

impl<'a> Scheduler<'a> {
    pub(super) fn new(
        backend: &'a CandleBackend,
        state: DecoderState,
        settings: BatchSettings,
    ) -> Self {
        Self {
            backend,
            state,
            slots: (0..settings.slots).map(|_| Slot::default()).collect(),
            waiting: VecDeque::new(),
            asked: Instant::now(),
            ask_every: ASK_WAITING,
            piece: settings.piece,
            numbers: 0,
            finished: 0,
        }
    }

    /// Whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.slots.iter().all(|slot| slot.text.is_none())
    }

    /// Takes a job, which gets the next slot that is free.
    pub(super) fn wait(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// How many texts have come to their end.
    pub(super) fn finished(&self) -> u64 {
        self.finished
    }

    /// Pieces of prompts, and a token of each text that is being written.
    ///
    /// # Errors
    /// The device's: [`Scheduler::renew`] has to follow.
    pub(super) fn step(&mut self) -> Result<()> {
        self.leave();
        self.admit()?;
        self.read()?;
        self.write()
    }

    /// Ends what nobody wants any more: those that run are asked at every step, those that wait now and then.
    fn leave(&mut self) {
        for at in 0..self.slots.len() {
            let Some(text) = &mut self.slots[at].text else {
                continue;
            };
            if text.client.is_gone() {
                text.writer.cancel();
                self.end(at);
            }
        }
        if self.asked.elapsed() < self.ask_every {
            return;
        }
        self.asked = Instant::now();
        let mut at = 0;
        while let Some(job) = self.waiting.get_mut(at) {
            if !job.client.is_gone() {
                at += 1;
            } else if let Some(job) = self.waiting.remove(at) {
                self.cancel(job);
            }
        }
    }

    /// Ends what had not begun.
    fn cancel(&self, job: Job) {
        let writer = Writer::new(self.backend, job.tokens, &job.request);
        job.client.done(writer.map(|mut writer| {
            writer.cancel();
            writer.finish()
        }));
    }

    /// Gives free slots to those that wait, in order.
    fn admit(&mut self) -> Result<()> {
        while let Some(to) = self.place() {
            let Some(mut job) = self.waiting.pop_front() else {
                return Ok(());
            };
            if job.client.is_gone() {
                self.cancel(job);
                continue;
            }
            let kept = match self.share(to, &job.tokens) {
                Ok(kept) => kept,
                Err(error) => {
                    job.client.done(Err(Error::Batch(error.one_line())));
                    return Err(error);
                }
            };
            let held = job.tokens[..kept].to_vec();
            match Writer::new(self.backend, job.tokens, &job.request) {
                Ok(writer) => {
                    self.numbers += 1;
                    let text = Text {
                        writer,
                        client: job.client,
                        logprobs: job.logprobs,
                        number: self.numbers,
                    };
                    let text = Some(text);
                    self.slots[to] = Slot {
                        held,
                        whole: kept,
                        text,
                    };
                }
                Err(error) => {
                    self.slots[to].held = held;
                    self.slots[to].whole = kept;
                    job.client.done(Err(error));
                }
            }
        }
        Ok(())
    }

    /// Leaves in slot `to` what need not be read again for `tokens`, or copies it there; how many tokens that is.
    fn share(&mut self, to: usize, tokens: &[u32]) -> Result<usize> {
        let slots = self.slots.iter();
        let shared: Vec<usize> = slots.map(|slot| slot.shared(tokens, self.piece)).collect();
        let best = (0..shared.len()).max_by_key(|at| shared[*at]).unwrap_or(to);
        let doing = "sharing the cache";
        match shared[best] >= shared[to] + WORTH_A_COPY {
            true => {
                self.state.copy_slot(best, to, shared[best]).doing(doing)?;
                Ok(shared[best])
            }
            false => {
                self.state.cut_slot(to, shared[to]).doing(doing)?;
                Ok(shared[to])
            }
        }
    }

    /// The slot for the next that waits: of the free ones that which begins most alike, and of those the one that keeps least.
    fn place(&self) -> Option<usize> {
        let next = self.waiting.front()?;
        let free = (0..self.slots.len()).filter(|at| self.slots[*at].text.is_none());
        free.max_by_key(|at| {
            let slot = &self.slots[*at];
            (
                slot.shared(&next.tokens, self.piece),
                std::cmp::Reverse((slot.held.len(), *at)),
            )
        })
    }

    /// Reads as many tokens of prompts as a step may, those that have waited longest first. Where a prompt is cut depends on its length alone,
    /// so that it is rounded as it always is, whoever else is there.
    fn read(&mut self) -> Result<()> {
        let mut left = self.piece;
        while left > 0 {
            let reading = (0..self.slots.len()).filter(|at| self.slots[*at].unseen() > 1);
            let number = |at: &usize| self.slots[*at].text.as_ref().map(|text| text.number);
            let Some(at) = reading.min_by_key(number) else {
                break;
            };
            // The last token is left for the step of all texts, which gives its logits.
            let count = self.piece.min(self.slots[at].unseen() - 1);
            self.read_piece(at, count)?;
            left = left.saturating_sub(count);
        }
        Ok(())
    }

    /// Reads the next `count` tokens of a slot's text.
    fn read_piece(&mut self, at: usize, count: usize) -> Result<()> {
        let slot = &mut self.slots[at];
        let Some(text) = &slot.text else {
            return Ok(());
        };
        let seen = slot.held.len();
        let piece = text.writer.tokens()[seen..seen + count].to_vec();
        let ids = Tensor::new(&piece[..], self.backend.device())
            .and_then(|ids| ids.unsqueeze(0))
            .doing("reading a prompt")?;
        let decoder = self.backend.decoder();
        let read = decoder.forward_slots(&ids, &[count], at, &mut self.state);
        drop(read.doing("reading a prompt")?);
        slot.held.extend(piece);
        if count == self.piece {
            slot.whole = slot.held.len();
        }
        Ok(())
    }

    /// One token of each text whose prompt was read but for its last token.
    fn write(&mut self) -> Result<()> {
        let is_writing = |slot: &Slot| slot.unseen() == 1;
        let Some(last) = self.slots.iter().rposition(is_writing) else {
            return Ok(());
        };
        let doing = "running the model";
        let lens = self.state.lens().to_vec();
        let fed: Vec<u32> = self.slots[..=last]
            .iter()
            .map(|slot| match &slot.text {
                Some(text) if is_writing(slot) => text.writer.tokens().last().copied(),
                _ => None,
            })
            .map(|token| token.unwrap_or(NOTHING))
            .collect();
        let rows = fed.len();
        let ids = Tensor::from_vec(fed.clone(), (rows, 1), self.backend.device()).doing(doing)?;
        let decoder = self.backend.decoder();
        let counts = vec![1; rows];
        let logits = decoder.next_logits_of_slots(&ids, &counts, 0, &mut self.state);
        let logits = logits.doing(doing)?;
        let writing: Vec<usize> = (0..rows)
            .filter(|at| is_writing(&self.slots[*at]))
            .collect();
        for at in 0..rows {
            match writing.contains(&at) {
                true => self.slots[at].held.push(fed[at]),
                // What was written for it is beyond what it has.
                false => self.state.cut_slot(at, lens[at]).doing(doing)?,
            }
        }
        for (at, token) in self.choose(&logits, &writing)? {
            self.push(at, token);
        }
        Ok(())
    }

    /// The next token of each of these rows.
    fn choose(&mut self, logits: &Tensor, writing: &[usize]) -> Result<Vec<(usize, u32)>> {
        let doing = "choosing the next token";
        let greedy = logits
            .argmax(D::Minus1)
            .and_then(|ids| ids.to_vec1::<u32>());
        let greedy = greedy.doing(doing)?;
        let is_greedy = |at: &usize| {
            let text = self.slots[*at].text.as_ref();
            text.is_none_or(|text| text.writer.is_plain_argmax() && text.logprobs.is_none())
        };
        let host = match writing.iter().all(is_greedy) {
            true => None,
            false => Some(logits.to_device(&Device::Cpu).doing(doing)?),
        };
        let mut chosen = Vec::with_capacity(writing.len());
        for &at in writing {
            let Some(text) = &mut self.slots[at].text else {
                continue;
            };
            let row = host.as_ref().map(|logits| logits.i(at)).transpose();
            let row = row.doing(doing)?;
            let token = match &row {
                Some(logits) if !text.writer.is_plain_argmax() => text.writer.choose(logits)?,
                _ => greedy[at],
            };
            if let (Some(count), Some(logits)) = (text.logprobs, &row) {
                let likely = likely(&logits.to_vec1().doing(doing)?, token, count);
                let _ = text.client.hear(Heard::Token(likely));
            }
            chosen.push((at, token));
        }
        Ok(chosen)
    }

    /// Hands a token to its text.
    fn push(&mut self, at: usize, token: u32) {
        let Some(text) = &mut self.slots[at].text else {
            return;
        };
        let piece = match text.writer.push(token) {
            Ok(piece) => piece.unwrap_or_default(),
            Err(error) => return self.done(at, Err(error)),
        };
        if !piece.is_empty() && text.client.hear(Heard::Piece(&piece)).is_break() {
            text.writer.cancel();
        }
        if text.writer.goes_on() {
            return;
        }
        match text.writer.rest() {
            Ok(Some(rest)) => drop(text.client.hear(Heard::Piece(&rest))),
            Ok(None) => {}
            Err(error) => return self.done(at, Err(error)),
        }
        self.end(at);
    }

    /// Ends a text; what its slot holds stays for others that begin alike.
    fn end(&mut self, at: usize) {
        self.done(at, Ok(()));
    }

    fn done(&mut self, at: usize, result: Result<()>) {
        if let Some(text) = self.slots[at].text.take() {
            let result = result.map(|()| text.writer.finish());
            let finished = |it: &Completion| it.stop_reason != StopReason::Cancelled;
            self.finished += u64::from(result.as_ref().is_ok_and(finished));
            text.client.done(result);
        }
    }

    /// After a failure: tells all texts that run, and begins with an empty cache. Those that wait go on.
    ///
    /// # Errors
    /// The cache cannot be made, or the device fails by itself, such as one that is lost.
    pub(super) fn renew(&mut self, why: &str) -> Result<()> {
        for at in 0..self.slots.len() {
            self.done(at, Err(Error::Batch(why.to_string())));
            self.slots[at] = Slot::default();
        }
        self.state = self.backend.new_slots(self.slots.len())?;
        let device = self.backend.device();
        // What the failed step has left to report says nothing of what follows.
        let _ = device.synchronize();
        Tensor::zeros(1, DType::F32, device)
            .and_then(|zero| zero.to_vec1::<f32>())
            .doing("asking the device whether it is well")
            .map(drop)
    }

    /// Tells everybody, those that wait too.
    pub(super) fn end_all(&mut self, why: &str) {
        for at in 0..self.slots.len() {
            self.done(at, Err(Error::Batch(why.to_string())));
        }
        for job in self.waiting.drain(..) {
            job.client.done(Err(Error::Batch(why.to_string())));
        }
    }
}

/// A token's probability, and the likeliest tokens.
fn likely(logits: &[f32], id: u32, count: usize) -> Likely {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    let logprob = |id: u32| {
        let logit = logits
            .get(id as usize)
            .copied()
            .unwrap_or(f32::NEG_INFINITY);
        (f64::from(logit - most) - sum.ln()) as f32
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let by = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]);
    if count > 0 && count < ids.len() {
        ids.select_nth_unstable_by(count, by);
    }
    ids.truncate(count);
    ids.sort_by(by);
    Likely {
        id,
        logprob: logprob(id),
        top: ids.into_iter().map(|id| (id, logprob(id))).collect(),
    }
}
