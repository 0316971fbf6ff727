//! Which text has which slot, and what a step does.

use super::client::Client;
use super::memory::Memory;
use super::turns::{Owner, Turns};
use super::writing::Ahead;
use super::{BatchSettings, Heard, Job};
use crate::backend::{Completion, CompletionRequest, StopReason};
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::generation::{cannot_forget, Drafter, Speculation, Writer};
use crate::pictures::PictureRows;
use crate::{Error, Result};
use candle_core::{DType, Tensor};
use candle_transformers::parallel::ParallelState;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tokens in common from which a copy of another slot's cache costs less than to read them again.
const WORTH_A_COPY: usize = 16;
/// How often those that wait are asked whether they still do, which all of them at every step is too often. A place that nobody wants any more
/// is free after this time and a step.
const ASK_WAITING: Duration = Duration::from_millis(100);

/// A place in the cache.
#[derive(Default)]
pub(super) struct Slot<'a> {
    /// The tokens whose keys and values it has, of the text that is there, or of the last one that was. Between two steps they are as many as
    /// the state has positions of the slot.
    pub(super) held: Vec<u32>,
    /// How many of them were read in whole pieces. The others' keys and values are rounded otherwise, as of tokens that came one by one.
    pub(super) whole: usize,
    pub(super) text: Option<Text<'a>>,
}

/// A completion that runs.
pub(super) struct Text<'a> {
    pub(super) writer: Writer<'a>,
    pub(super) client: Client,
    pub(super) logprobs: Option<usize>,
    /// Proposals of tokens, while it runs alone.
    pub(super) speculation: Option<Speculation>,
    /// The order in which texts came.
    pub(super) number: u64,
    owner: Owner,
    /// The images of its prompt.
    pub(super) pictures: PictureRows,
    /// When a piece of its prompt was read last, or else when it came: a number of `Scheduler::turns`.
    read_at: u64,
    /// Tokens of its prompt that it did not read, because another text had.
    pub(super) cached: usize,
    /// Whether it waits for pages of the cache.
    pub(super) parked: bool,
}

impl Text<'_> {
    /// It has nothing in the cache, and waits.
    pub(super) fn park(&mut self, backend: &CandleBackend) -> Result<()> {
        self.parked = true;
        let prompt = &self.writer.tokens()[..self.writer.prompt_tokens()];
        self.pictures = PictureRows::new(backend, self.pictures.pictures(), prompt, 0)?;
        Ok(())
    }
}

impl Slot<'_> {
    /// How many of the text's tokens the model has not seen: more than one while it reads the prompt, or again what it had written, one where
    /// the next step feeds it, and none where the next one is on its way.
    pub(super) fn unseen(&self) -> usize {
        self.text
            .as_ref()
            .map_or(0, |text| text.writer.tokens().len() - self.held.len())
    }

    /// Whether there is a text that waits for pages.
    pub(super) fn is_parked(&self) -> bool {
        self.text.as_ref().is_some_and(|text| text.parked)
    }

    /// How many tokens of the prompt are read in pieces: all but the last, whose logits give the next token.
    fn unread(&self) -> usize {
        let text = self.text.as_ref().filter(|text| !text.parked);
        text.map_or(0, |text| {
            (text.writer.prompt_tokens() - 1).saturating_sub(self.held.len())
        })
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
    pub(super) backend: &'a CandleBackend,
    pub(super) state: ParallelState,
    /// The pages of the slots, if there are any.
    pub(super) memory: Option<Memory>,
    pub(super) slots: Vec<Slot<'a>>,
    /// Whether a slot can take back tokens and be copied: [`Decoder::slots_rewind`](candle_transformers::blocks::Decoder::slots_rewind).
    pub(super) rewinds: bool,
    /// A step whose tokens are on their way from the device.
    pub(super) ahead: Option<Ahead>,
    /// The draft model's cache of the text that was alone last.
    pub(super) drafter: Option<Drafter<'a>>,
    waiting: Turns,
    /// When those that wait were asked last, and how often they are.
    asked: Instant,
    pub(super) ask_every: Duration,
    pub(super) piece: usize,
    numbers: u64,
    turns: u64,
    finished: u64,
    /// How many texts have a slot.
    pub(super) running: Arc<AtomicUsize>,
}

impl<'a> Scheduler<'a> {
    pub(super) fn new(
        backend: &'a CandleBackend,
        state: ParallelState,
        settings: BatchSettings,
    ) -> Self {
        Self {
            backend,
            state,
            memory: None,
            slots: (0..settings.slots).map(|_| Slot::default()).collect(),
            rewinds: backend.decoder().slots_rewind(),
            ahead: None,
            drafter: None,
            waiting: Turns::default(),
            asked: Instant::now(),
            ask_every: ASK_WAITING,
            piece: settings.piece_len(),
            numbers: 0,
            turns: 0,
            finished: 0,
            running: Arc::default(),
        }
    }

    /// With a state whose slots have pages.
    pub(super) fn with_memory(self, memory: Option<Memory>) -> Self {
        Self { memory, ..self }
    }

    /// Whether there is nothing to do.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.slots.iter().all(|slot| slot.text.is_none())
    }

    /// Takes a job, which gets the next slot that is free.
    pub(super) fn wait(&mut self, job: Job) {
        self.waiting.push(job);
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
        self.resume()?;
        self.admit()?;
        self.read()?;
        self.write()?;
        self.publish();
        Ok(())
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
        for job in self.waiting.take_those(|job| job.client.is_gone()) {
            self.cancel(job);
        }
    }

    fn writer(&self, tokens: Vec<u32>, request: &CompletionRequest) -> Result<Writer<'a>> {
        Writer::new(self.backend, tokens, request, self.positions())
    }

    /// Ends what had not begun.
    fn cancel(&self, job: Job) {
        let writer = self.writer(job.tokens, &job.request);
        job.client.done(writer.map(|mut writer| {
            writer.cancel();
            writer.finish()
        }));
    }

    /// Gives free slots to those that wait, by turns of their owners.
    fn admit(&mut self) -> Result<()> {
        while let Some((line, to)) = self.place() {
            let tokens = self.waiting.tokens(line).to_vec();
            if !self.can_begin(to, &tokens)? {
                return Ok(());
            }
            let Some(mut job) = self.waiting.take(line) else {
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
            // What is kept of another text has no images.
            let pictures = PictureRows::new(self.backend, &job.request.pictures, &job.tokens, 0);
            let speculation = match Speculation::of(self.backend, &job.request) {
                Ok(Some(_)) if !self.rewinds => Err(cannot_forget(&job.request)),
                speculation => speculation,
            };
            let writer = self.writer(job.tokens, &job.request);
            let writer = writer.map(|writer| writer.with_mask(job.mask));
            let begun = writer.and_then(|writer| Ok((speculation?, writer, pictures?)));
            match begun {
                Ok((speculation, writer, pictures)) => {
                    self.numbers += 1;
                    self.turns += 1;
                    let text = Text {
                        writer,
                        client: job.client,
                        logprobs: job.logprobs,
                        speculation,
                        number: self.numbers,
                        owner: job.owner,
                        pictures,
                        read_at: self.turns,
                        cached: kept,
                        parked: false,
                    };
                    let text = Some(text);
                    self.running.fetch_add(1, Ordering::Relaxed);
                    self.slots[to] = Slot {
                        held,
                        whole: kept,
                        text,
                    };
                }
                Err(error) => {
                    let in_pages = self.memory.is_some();
                    self.free_pages(to);
                    self.slots[to].held = if in_pages { Vec::new() } else { held };
                    self.slots[to].whole = if in_pages { 0 } else { kept };
                    job.client.done(Err(error));
                }
            }
        }
        Ok(())
    }

    /// Leaves in slot `to` what need not be read again for `tokens`, or copies it there; how many tokens that is.
    fn share(&mut self, to: usize, tokens: &[u32]) -> Result<usize> {
        if self.memory.is_some() {
            return Ok(self.begin_pages(to, tokens, tokens.len())?.unwrap_or(0));
        }
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

    /// The line of the next that waits, and the slot for it: of the free ones that which begins most alike, of those the nearest to the others that run, since a
    /// step has a row for each slot between the first and the last, and of those the one that keeps least.
    fn place(&self) -> Option<(usize, usize)> {
        let running = self.slots.iter().filter_map(|slot| slot.text.as_ref());
        let running: Vec<Owner> = running.map(|text| text.owner).collect();
        let line = self.waiting.next(&running, self.slots.len())?;
        let tokens = self.waiting.tokens(line);
        let is_free = |at: &usize| self.slots[*at].text.is_none();
        let taken = |at: &usize| !is_free(at);
        let all = 0..self.slots.len();
        let ends = all.clone().find(taken).zip(all.clone().rfind(taken));
        let rows = |at: usize| match ends {
            Some((first, last)) => last.max(at) - first.min(at),
            None => 0,
        };
        let best = all.filter(is_free).max_by_key(|at| {
            let slot = &self.slots[*at];
            (
                slot.shared(tokens, self.piece),
                Reverse((rows(*at), slot.held.len(), *at)),
            )
        });
        best.map(|to| (line, to))
    }

    /// Reads as many tokens of prompts as a step may, a piece of each in turn. Where a prompt is cut depends on its length alone,
    /// so that it is rounded as it always is, whoever else is there.
    fn read(&mut self) -> Result<()> {
        let mut left = self.piece;
        while left > 0 {
            let reading = (0..self.slots.len()).filter(|at| self.slots[*at].unread() > 0);
            let turn = |at: &usize| self.slots[*at].text.as_ref().map(|text| text.read_at);
            let Some(at) = reading.min_by_key(turn) else {
                break;
            };
            self.turns += 1;
            if let Some(text) = &mut self.slots[at].text {
                text.read_at = self.turns;
            }
            self.catch_up(at)?;
            // The last token is left for the step of all texts, which gives its logits.
            let count = self.piece.min(self.slots[at].unread());
            if count == 0 {
                continue;
            }
            let read = match self.has_pictures(at) {
                true => self.read_pictures(at, count)?,
                false => {
                    self.read_piece(at, count)?;
                    count
                }
            };
            left = left.saturating_sub(read);
        }
        Ok(())
    }

    /// Reads the next `count` tokens of a slot's text.
    fn read_piece(&mut self, at: usize, count: usize) -> Result<()> {
        // And room for the next token: a step writes to all slots between two that write.
        let seen = self.slots[at].held.len();
        if !self.make_room(at, seen + count + 1)? {
            return Ok(());
        }
        let slot = &mut self.slots[at];
        let Some(text) = &slot.text else {
            return Ok(());
        };
        let piece = text.writer.tokens()[seen..seen + count].to_vec();
        read(self.backend, &piece, at, &mut self.state)?;
        slot.held.extend(piece);
        // Another text may have other images in front of the same tokens.
        if count == self.piece && !text.pictures.has_begun() && self.rewinds {
            slot.whole = slot.held.len();
            self.keep_pages(at)?;
        }
        Ok(())
    }

    /// Hands a token to its text.
    pub(super) fn push(&mut self, at: usize, token: u32) {
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

    pub(super) fn done(&mut self, at: usize, result: Result<()>) {
        if let Some(text) = self.slots[at].text.take() {
            self.running.fetch_sub(1, Ordering::Relaxed);
            let guesses = text.speculation.map(|speculation| speculation.guesses());
            let result = result.map(|()| Completion {
                guesses,
                cached_tokens: text.cached,
                ..text.writer.finish()
            });
            let finished = |it: &Completion| it.stop_reason != StopReason::Cancelled;
            self.finished += u64::from(result.as_ref().is_ok_and(finished));
            if !self.rewinds {
                self.slots[at].held.clear();
                if let Err(error) = self.state.cut_slot(at, 0) {
                    tracing::error!(%error, slot = at, "cannot empty a slot");
                }
            }
            if self.memory.is_some() {
                self.free_pages(at);
                self.slots[at].held.clear();
                self.slots[at].whole = 0;
                // Before somebody hears of the end and looks.
                self.publish();
            }
            text.client.done(result);
        }
    }

    /// After a failure: tells all texts that run, and begins with an empty cache. Those that wait go on.
    ///
    /// # Errors
    /// The cache cannot be made, or the device fails by itself, such as one that is lost.
    pub(super) fn renew(&mut self, why: &str) -> Result<()> {
        self.ahead = None;
        self.drafter = None;
        // What a panic left of the pages counts for nothing.
        self.clear_memory()?;
        for at in 0..self.slots.len() {
            self.done(at, Err(Error::Batch(why.to_string())));
            self.slots[at] = Slot::default();
        }
        // Pages without texts are as good as new ones, and there may be no memory for both.
        if self.memory.is_none() {
            self.state = self.backend.new_slots(self.slots.len())?;
        }
        self.publish();
        let device = self.backend.device();
        // What the failed step has left to report says nothing of what follows.
        let _ = device.synchronize();
        Tensor::zeros(1, DType::F32, device)
            .and_then(|zero| zero.to_vec1::<f32>())
            .doing("checking the device")
            .map(drop)
    }

    /// Tells everybody, those that wait too.
    pub(super) fn end_all(&mut self, why: &str) {
        for at in 0..self.slots.len() {
            self.done(at, Err(Error::Batch(why.to_string())));
        }
        for job in self.waiting.take_those(|_| true) {
            job.client.done(Err(Error::Batch(why.to_string())));
        }
    }
}

/// Reads tokens into a slot, after those that it has.
pub(super) fn read(
    backend: &CandleBackend,
    tokens: &[u32],
    slot: usize,
    state: &mut ParallelState,
) -> Result<()> {
    let doing = "reading a prompt";
    let ids = Tensor::new(tokens, backend.device()).and_then(|ids| ids.unsqueeze(0));
    let counts = [tokens.len()];
    let model = &backend.model;
    let read = model.read_slots(&ids.doing(doing)?, &counts, slot, state);
    read.doing(doing)
}
