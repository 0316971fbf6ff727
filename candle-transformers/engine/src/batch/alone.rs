//! A text that is alone: tokens are proposed to it, and a step verifies several (`generation/speculation`). Texts that run together have a row of
//! a step each, which fills it as well, and nothing is proposed to them.

use super::scheduler::Scheduler;
use super::Heard;
use crate::error::Doing;
use crate::generation::{Choice, Drafter, Queued, Speculation, Wait};
use crate::turn::at_once;
use crate::{Error, Result};

impl Scheduler<'_> {
    /// The slot of the text that runs alone, if tokens are to be proposed to it now.
    pub(super) fn alone(&self) -> Option<usize> {
        let mut taken = (0..self.slots.len()).filter(|at| self.slots[*at].text.is_some());
        let (at, others) = (taken.next()?, taken.next());
        let speculation = self.slots[at].text.as_ref()?.speculation.as_ref()?;
        (others.is_none() && !speculation.is_resting()).then_some(at)
    }

    /// A token came to the text in slot `at` without a proposal.
    pub(super) fn rested(&mut self, at: usize) {
        let text = self.slots[at].text.as_mut();
        let speculation = text.and_then(|text| text.speculation.as_mut());
        if let Some(speculation) = speculation {
            speculation.rested();
        }
    }

    /// A step of the text in slot `at`, whose last token the host knows, with what is proposed to it.
    pub(super) fn write_alone(&mut self, at: usize) -> Result<()> {
        let slot = &mut self.slots[at];
        let Some(text) = &mut slot.text else {
            return Ok(());
        };
        let Some(speculation) = &mut text.speculation else {
            return Ok(());
        };
        if let (None, true, Some(model)) =
            (&self.drafter, speculation.drafts(), self.backend.draft())
        {
            self.drafter = Some(Drafter::new(model)?);
        }
        let unseen = &text.writer.tokens()[slot.held.len()..];
        let proposal = speculation.propose(&text.writer, unseen.len(), self.drafter.as_mut())?;
        let rows = proposal.len() + 1;
        if let Some(memory) = &mut self.memory {
            let end = slot.held.len() + unseen.len() + proposal.len();
            if !memory.grow(at, end, &mut self.state)? {
                let why = format!("{end} positions of one text exceed the cache memory");
                return Err(Error::Batch(why));
            }
        }
        let ids = proposal.after(unseen, self.backend.device())?;
        let model = &self.backend.model;
        let logits = model.logits_of_slots(&ids, rows, at, &mut self.state);
        let logits = logits.and_then(|logits| logits.squeeze(0));
        let logits = logits.doing("running the model")?;
        let choices = Queued::begin(logits, &text.writer, text.logprobs.is_some())?;
        let known = proposal.known(Wait::Blocking, self.drafter.as_mut());
        let (proposed, mut round) = at_once(known)?;
        let choices = at_once(choices.read(Wait::Blocking))?;
        round.ends();
        speculation.made(&round);
        slot.held.extend(unseen);
        let mut right = 0;
        while let Some(text) = &mut self.slots[at].text {
            let (token, likely) = match choices.of(right)? {
                Choice::Id(id) => (id, None),
                Choice::Logits(row) => {
                    let (_, token, likely) = text.draw(row, at)?;
                    (token, likely)
                }
            };
            if let Some(likely) = likely {
                let _ = text.client.hear(Heard::Token(likely));
            }
            let is_right = proposed.get(right) == Some(&token);
            if is_right {
                right += 1;
                text.speculation.iter_mut().for_each(Speculation::right);
                self.slots[at].held.push(token);
            }
            self.push(at, token);
            if !is_right {
                break;
            }
        }
        if let Some(text) = &mut self.slots[at].text {
            let speculation = text.speculation.iter_mut();
            speculation.for_each(|speculation| speculation.saw(&round, right));
        }
        self.forget_beyond(at..at + 1)
    }
}
