//! The next token of each text whose prompt was read but for its last token: a row of a step for each.

use super::scheduler::{Scheduler, Slot, Text};
use super::{Heard, Likely};
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::generation::Chosen;
use crate::{Error, Result};
use candle_core::{IndexOp, PendingVec1, Tensor};
use candle_nn::sampling::{Changes, Draw};
use candle_transformers::parallel::ParallelState;
use std::ops::Range;

const RUNNING: &str = "running the model";
const CHOOSING: &str = "choosing the next token";
/// What a row that writes nothing is fed.
const NOTHING: u32 = 0;

/// A step of which the device chooses the tokens. The next step needs them on the device alone, and is queued before the host has them: a
/// GPU does not pause while the host reads them and tells everybody.
pub(super) struct Ahead {
    slots: Range<usize>,
    /// The text of each slot that writes, by its number. One that has ended since, or came since, has no part in it.
    texts: Vec<Option<u64>>,
    tokens: Chosen,
}

/// A step after one whose tokens only the device knows.
struct Following {
    slots: Range<usize>,
    texts: Vec<Option<u64>>,
    /// `(slots, vocab)`.
    logits: Tensor,
    /// Its tokens, if the device can choose them by their logits alone.
    tokens: Option<Chosen>,
}

impl<'a> Slot<'a> {
    /// The text, if the next step is fed a token of it: the last one, whose logits give the next; or one that it has written before and reads
    /// again, after it had to wait.
    fn writing(&self) -> Option<&Text<'a>> {
        let text = self.text.as_ref().filter(|text| !text.parked);
        text.filter(|text| self.held.len() + 1 >= text.writer.prompt_tokens() && self.unseen() > 0)
    }

    /// Whether there is one.
    pub(super) fn is_writing(&self) -> bool {
        self.writing().is_some()
    }

    /// The text, if the next step gives its next token.
    fn choosing(&self) -> Option<&Text<'a>> {
        self.writing().filter(|_| self.unseen() == 1)
    }

    /// Whether the text of this number is there.
    fn has(&self, number: Option<u64>) -> bool {
        self.text
            .as_ref()
            .is_some_and(|text| number == Some(text.number))
    }

    /// How the device draws the token after the next `queued` ones by its logits alone, if it can: of a slot that writes nothing, any token.
    fn draw_after(&self, queued: usize) -> Option<Draw> {
        self.text
            .as_ref()
            .map_or(Some(Draw::GREEDY), |text| text.draw_after(queued))
    }
}

impl Text<'_> {
    /// How the device draws its tokens by their logits alone, if it can, and nobody wants to know more of them.
    fn draw_after(&self, queued: usize) -> Option<Draw> {
        let with = self.writer.draw_after(queued);
        with.filter(|_| self.logprobs.is_none())
    }
}

impl Scheduler<'_> {
    /// A token of each text that is being written, or the start of it.
    pub(super) fn write(&mut self) -> Result<()> {
        if let Some(ahead) = self.ahead.take() {
            let next = match self.goes_on_without_host(&ahead) {
                Some(slots) => Some(self.step_after(&ahead, slots)?),
                None => None,
            };
            let tokens = ahead.tokens.wait()?;
            let rows = ahead.slots.zip(ahead.texts).zip(tokens);
            for ((at, number), token) in rows {
                if self.slots[at].has(number) {
                    self.push(at, token);
                    self.rested(at);
                    let is_fed = next.as_ref().is_some_and(|next| next.slots.contains(&at));
                    if is_fed && self.slots[at].has(number) && !self.slots[at].is_parked() {
                        self.slots[at].held.push(token);
                    }
                }
            }
            if let Some(next) = next {
                self.forget_beyond(next.slots.clone())?;
                let Following {
                    slots,
                    texts,
                    logits,
                    tokens,
                } = next;
                let tokens = match tokens {
                    Some(tokens) => tokens,
                    None => self.draw_known(&logits, slots.start, &texts)?,
                };
                self.ahead = Some(Ahead {
                    slots,
                    texts,
                    tokens,
                });
                return Ok(());
            }
        }
        match self
            .alone()
            .filter(|at| self.slots[*at].choosing().is_some())
        {
            Some(at) => self.write_alone(at),
            None => self.write_known(),
        }
    }

    /// The slots of the next step, if it may be queued before the host knows the tokens of this one: no text joins, and all go on.
    fn goes_on_without_host(&self, ahead: &Ahead) -> Option<Range<usize>> {
        if self.slots.iter().any(Slot::is_writing) || self.alone().is_some() {
            return None;
        }
        let rows = ahead.slots.clone().zip(&ahead.texts);
        let alive: Vec<usize> = rows
            .filter(|(at, number)| self.slots[*at].has(**number))
            .map(|(at, _)| at)
            .collect();
        let go_on = alive.iter().all(|at| {
            let text = self.slots[*at].text.as_ref();
            text.is_some_and(|text| text.writer.has_steps_after(0))
        });
        let (first, last) = alive.first().zip(alive.last())?;
        let slots = *first..last + 1;
        // Without pages for it the youngest text has to wait first, and its last token has to be known.
        let memory = self.memory.as_ref();
        let has_room = memory.is_none_or(|memory| memory.has_room(slots.clone(), &self.state));
        let parked = alive.iter().any(|at| self.slots[*at].is_parked());
        (go_on && has_room && !parked).then_some(slots)
    }

    /// The step after one whose tokens only the device knows.
    fn step_after(&mut self, ahead: &Ahead, slots: Range<usize>) -> Result<Following> {
        let skipped = slots.start - ahead.slots.start;
        let ids = ahead.tokens.ids().narrow(0, skipped, slots.len());
        let ids = ids.and_then(|ids| ids.unsqueeze(1)).doing(RUNNING)?;
        let texts: Vec<Option<u64>> = slots
            .clone()
            .zip(&ahead.texts[skipped..])
            .map(|(at, number)| number.filter(|_| self.slots[at].has(*number)))
            .collect();
        // The token before is not told yet.
        let draws = slots.clone().map(|at| self.slots[at].draw_after(1));
        let draws: Option<Vec<Draw>> = draws.collect();
        let logits = self.run(slots.clone(), &ids, |row| texts[row].is_some())?;
        let tokens = draws.map(|draws| Chosen::begin(&logits, &draws));
        Ok(Following {
            slots,
            texts,
            tokens: tokens.transpose()?,
            logits,
        })
    }

    /// The tokens that the device draws for `texts`, in the slots from `first` on, from their logits with changes that follow from the tokens
    /// before, which the host knows. A text that has ended gets any token.
    fn draw_known(
        &mut self,
        logits: &Tensor,
        first: usize,
        texts: &[Option<u64>],
    ) -> Result<Chosen> {
        let vocab = logits.dim(1).doing(CHOOSING)?;
        let mut draws = Vec::with_capacity(texts.len());
        let mut changes = Vec::with_capacity(texts.len());
        for (slot, number) in self.slots[first..].iter_mut().zip(texts) {
            let has = number.is_some() && slot.has(*number);
            let (draw, change) = match slot.text.as_mut().filter(|_| has) {
                Some(text) => text.writer.draw_next(vocab)?,
                None => (Draw::GREEDY, Changes::default()),
            };
            draws.push(draw);
            changes.push(change);
        }
        Chosen::begin_changed(logits, &draws, &changes)
    }

    /// A step of the texts whose last token the host knows.
    fn write_known(&mut self) -> Result<()> {
        self.make_room_to_write()?;
        let all = 0..self.slots.len();
        let is_writing = |at: &usize| self.slots[*at].is_writing();
        let Some((first, last)) = all.clone().find(is_writing).zip(all.rev().find(is_writing))
        else {
            return Ok(());
        };
        let slots = first..last + 1;
        let rows = &self.slots[slots.clone()];
        let number = |slot: &Slot| slot.choosing().map(|text| text.number);
        let texts: Vec<Option<u64>> = rows.iter().map(number).collect();
        let next = |slot: &Slot| {
            slot.writing()?
                .writer
                .tokens()
                .get(slot.held.len())
                .copied()
        };
        let next: Vec<Option<u32>> = rows.iter().map(next).collect();
        let fed: Vec<u32> = next.iter().map(|id| id.unwrap_or(NOTHING)).collect();
        let writing = slots.clone().zip(&texts).filter(|(_, text)| text.is_some());
        let writing: Vec<usize> = writing.map(|(at, _)| at).collect();
        let device = self.backend.device();
        let ids = Tensor::new(&fed[..], device).and_then(|ids| ids.unsqueeze(1));
        let logits = self.run(slots.clone(), &ids.doing(RUNNING)?, |row| {
            next[row].is_some()
        })?;
        for (at, id) in slots.clone().zip(&next) {
            self.slots[at].held.extend(id);
        }
        self.forget_beyond(slots.clone())?;
        // The CPU has the tokens at once, and a step that turns out to be for nothing costs what any step does.
        if !self.backend.device().is_cpu() {
            let looks = |at: &usize| {
                let text = self.slots[*at].text.as_ref();
                text.is_some_and(|text| text.logprobs.is_some())
            };
            if !writing.iter().any(looks) {
                let tokens = self.draw_known(&logits, first, &texts)?;
                self.ahead = Some(Ahead {
                    slots,
                    texts,
                    tokens,
                });
                return Ok(());
            }
        }
        for (at, token) in self.choose(&logits, first, &writing)? {
            self.push(at, token);
            self.rested(at);
        }
        Ok(())
    }

    /// Room for a position of each text that is written, the oldest first.
    fn make_room_to_write(&mut self) -> Result<()> {
        if self.memory.is_none() {
            return Ok(());
        }
        let mut writing: Vec<(u64, usize)> = (0..self.slots.len())
            .filter_map(|at| Some((self.slots[at].writing()?.number, at)))
            .collect();
        writing.sort_unstable();
        for (_, at) in writing {
            // A text before it may have taken its pages.
            if self.slots[at].is_writing() {
                self.make_room(at, self.slots[at].held.len() + 1)?;
            }
        }
        Ok(())
    }

    /// The logits of the next token of each of these slots, `(slots, vocab)`, after the tokens `ids`, `(slots, 1)`. The rows that are not `fed` a token
    /// have no meaning.
    fn run(
        &mut self,
        slots: Range<usize>,
        ids: &Tensor,
        fed: impl Fn(usize) -> bool,
    ) -> Result<Tensor> {
        if !self.rewinds {
            // What a row is fed in vain cannot be taken back.
            let counts: Vec<usize> = (0..slots.len()).map(|row| usize::from(fed(row))).collect();
            return next_logits(self.backend, ids, &counts, slots.start, &mut self.state);
        }
        let limit = self.backend.slot_positions();
        if let Some(memory) = &mut self.memory {
            for at in slots.clone() {
                let end = self.state.lens()[at] + 1;
                if memory.has_pages(at) && !memory.grow(at, end, &mut self.state)? {
                    let why = "a step has no pages for a text; this is a mistake of the engine";
                    return Err(Error::Batch(why.to_string()));
                }
            }
        }
        for at in slots.clone() {
            // A row that writes nothing needs a position for it all the same.
            let slot = &mut self.slots[at];
            if slot.held.len() == limit {
                slot.held.truncate(limit - 1);
                slot.whole = slot.whole.min(limit - 1);
                self.forget_beyond(at..at + 1)?;
            }
        }
        let counts = vec![1; slots.len()];
        next_logits(self.backend, ids, &counts, slots.start, &mut self.state)
    }

    /// Hides the positions of these slots that are not of tokens that they hold: of rows that wrote nothing, and of texts that have ended.
    pub(super) fn forget_beyond(&mut self, slots: Range<usize>) -> Result<()> {
        for at in slots {
            let held = self.slots[at].held.len();
            self.state.cut_slot(at, held).doing(RUNNING)?;
        }
        Ok(())
    }

    /// How the device draws the next token of each of these slots, if it can: of those that are not `writing`, any token.
    fn draws_of(&self, slots: Range<usize>, writing: &[usize]) -> Vec<Option<Draw>> {
        slots
            .map(|at| match writing.contains(&at) {
                true => self.slots[at].draw_after(0),
                false => Some(Draw::GREEDY),
            })
            .collect()
    }

    /// The next token of each of the slots `writing`, from the logits of the slots from `first` on.
    fn choose(
        &mut self,
        logits: &Tensor,
        first: usize,
        writing: &[usize],
    ) -> Result<Vec<(usize, u32)>> {
        // All reads are on their way before the first is waited for, and only rows that are looked at are read.
        let rows = logits.dim(0).doing(CHOOSING)?;
        let draws = self.draws_of(first..first + rows, writing);
        let draw = |at: &usize| draws[*at - first];
        let ids = match writing.iter().any(|at| draw(at).is_some()) {
            true => {
                let draws = draws.iter().map(|draw| draw.unwrap_or(Draw::GREEDY));
                let draws: Vec<Draw> = draws.collect();
                Some(Chosen::begin(logits, &draws)?)
            }
            false => None,
        };
        let row = |at: &usize| {
            let row = logits.i(*at - first).and_then(|row| row.begin_to_vec1());
            row.doing(CHOOSING).map(|read| (*at, read))
        };
        let rows = writing.iter().filter(|at| draw(at).is_none()).map(row);
        let rows: Vec<(usize, PendingVec1<f32>)> = rows.collect::<Result<_>>()?;
        let ids = ids.map(Chosen::wait).transpose()?;
        let plain = writing.iter().filter(|at| draw(at).is_some());
        let mut chosen: Vec<(usize, u32)> = plain
            .filter_map(|at| Some((*at, ids.as_ref()?[*at - first])))
            .collect();
        let mut texts: Vec<Option<&mut Text>> = self
            .slots
            .iter_mut()
            .map(|slot| slot.text.as_mut())
            .collect();
        let mut work = Vec::with_capacity(rows.len());
        for (at, read) in rows {
            let row = read.wait().doing(CHOOSING)?;
            work.extend(texts[at].take().map(|text| (at, text, row)));
        }
        for (at, token, likely) in side_by_side(work, |(at, text, row)| text.draw(row, at))? {
            if let (Some(likely), Some(text)) = (likely, &mut self.slots[at].text) {
                let _ = text.client.hear(Heard::Token(likely));
            }
            chosen.push((at, token));
        }
        Ok(chosen)
    }
}

/// The logits of what follows the tokens `ids`, `(rows, 1)`, in the slots from `first` on: `(rows, vocab)`. Rows with a count of 0 change no slot.
pub(super) fn next_logits(
    backend: &CandleBackend,
    ids: &Tensor,
    counts: &[usize],
    first: usize,
    state: &mut ParallelState,
) -> Result<Tensor> {
    let model = &backend.model;
    let logits = model.next_logits_of_slots(ids, counts, first, state);
    logits.doing(RUNNING)
}

impl Text<'_> {
    /// The next token of slot `at` by its logits, with its probability if that is asked for.
    pub(super) fn draw(
        &mut self,
        row: Vec<f32>,
        at: usize,
    ) -> Result<(usize, u32, Option<Likely>)> {
        let Some(count) = self.logprobs else {
            return Ok((at, self.writer.choose(row)?, None));
        };
        let token = self.writer.choose(row.clone())?;
        Ok((at, token, Some(likely(&row, token, count))))
    }
}

/// What becomes of each piece of work, on a thread for each: to draw from a vocabulary of 100,000 takes as long as several layers.
fn side_by_side<T: Send, R: Send>(
    work: Vec<T>,
    each: impl Fn(T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let mut work = work.into_iter();
    let first = work.next();
    std::thread::scope(|scope| {
        let each = &each;
        let others: Vec<_> = work.map(|it| scope.spawn(move || each(it))).collect();
        let first = first.map(each);
        let others = others.into_iter().map(|other| {
            let ended = other.join();
            ended.unwrap_or_else(|payload| std::panic::resume_unwind(payload))
        });
        first.into_iter().chain(others).collect()
    })
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
