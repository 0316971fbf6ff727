//! Answers: signed once, in the journal before anybody sees them, and sent until every relay has them, or never will.
//!
//! A relay that does not take an answer as it is gets it once more without what it repeats of the request: the same text, date and key, so
//! that this form has one id too, however often it is made. The other relays are not affected by what one of them refuses.

use super::actor::Service;
use super::now;
use crate::jobs::{Answer, Entry, JobId, Stage};
use crate::nip90::{sign, Feedback, JobResult, Status, WriteError};
use crate::relay::{Keep, Outcome};
use crate::{Error, Result};
use nostr::prelude::{Event, EventId, Keys};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// Seconds for which a relay is tried: one of ours, and one that a customer named.
const OWN_PATIENCE: u64 = 86_400;
const GUEST_PATIENCE: u64 = 600;

impl Service {
    /// Gives a job its one answer: the text, or the reason why there is none.
    pub(super) fn answer(
        &mut self,
        id: JobId,
        outcome: std::result::Result<String, String>,
    ) -> Result<()> {
        let Some(live) = self.close(id) else {
            return Ok(());
        };
        let limit = self.relays.event_bytes();
        let encryption = live.request.encryption;
        if let Err(problem) = &outcome {
            tracing::info!(job = %id, problem, "fails");
        }
        let error = |service: &Self, problem: String| {
            let feedback = Feedback {
                extra: Some(problem),
                encryption,
                ..Feedback::new(live.event.id, Status::Error)
            };
            feedback.write(&service.keys, now(), &live.event.pubkey)
        };
        let written = match outcome {
            Ok(text) => {
                let invoice = self.journal.get(id)?.and_then(|entry| entry.invoice);
                let result = JobResult {
                    job: live.event.id,
                    text,
                    // The invoice is the one that was paid, so that nobody takes it for another.
                    amount_msat: invoice.as_ref().map(|invoice| invoice.amount_msat),
                    invoice: invoice.map(|invoice| invoice.bolt11),
                    encryption,
                };
                let relay = Some(live.found_on.as_str());
                match result.write(&self.keys, now(), &live.event, relay, limit) {
                    Ok(event) => match self.fits_none(&event) {
                        None => Ok((event, true)),
                        Some(problem) => {
                            let problem = format!("the result cannot be sent: {problem}");
                            error(self, problem).map(|event| (event, false))
                        }
                    },
                    Err(err @ (WriteError::TooLarge { .. } | WriteError::Encryption(_))) => {
                        let problem = format!("the result cannot be sent: {err}");
                        error(self, problem).map(|event| (event, false))
                    }
                    Err(err) => Err(err),
                }
            }
            Err(problem) => error(self, problem).map(|event| (event, false)),
        };
        let (event, is_result) = written.map_err(Error::service)?;
        let own = self.relays.own().iter();
        let answer = Answer {
            id: event.id.to_hex(),
            body: event.as_json(),
            is_result,
            signed: now(),
            pending: own.chain(&live.guests).cloned().collect(),
            acknowledged: BTreeSet::new(),
        };
        let (pending, signed) = (answer.pending.clone(), answer.signed);
        let mut answer = Some(answer);
        let kept = self.journal.change(id, &mut |entry| {
            answer.take().is_some_and(|answer| entry.answer(answer))
        })?;
        if kept.is_none() {
            tracing::error!(job = %id, "has an answer already, which stands");
            return Ok(());
        }
        let counter = match is_result {
            true => &self.metrics.results,
            false => &self.metrics.errors,
        };
        counter.fetch_add(1, Relaxed);
        tracing::info!(job = %id, answer = %event.id, is_result, "answered");
        self.add_delivery(id, signed, &pending)?;
        for relay in pending {
            self.hand_over(&relay, Some((id, &event)))?;
        }
        Ok(())
    }

    /// Why no relay of ours takes an event, if that is so.
    fn fits_none(&self, event: &Event) -> Option<String> {
        let mut problem = None;
        let small = smaller(&self.keys, event);
        for url in self.relays.own() {
            let least = small.as_ref().unwrap_or(event);
            match self.relays.check(url, least) {
                Ok(()) => return None,
                Err(err) => problem = Some(err),
            }
        }
        problem
    }

    /// Sends an answer that was signed before the service was started anew.
    pub(super) fn deliver_again(&mut self, id: JobId, entry: &Entry) -> Result<()> {
        match &entry.answer {
            // It is handed over with the next tick.
            Some(answer) => self.add_delivery(id, answer.signed, &answer.pending),
            None => Ok(()),
        }
    }

    fn add_delivery(&mut self, id: JobId, signed: u64, relays: &BTreeSet<String>) -> Result<()> {
        while let Some(oldest) = self.answers.add(id, signed, relays) {
            tracing::warn!(job = %oldest, "given up: too many answers wait for relays");
            if let Some(entry) = self.journal.get(oldest)? {
                let pending = entry.answer.map(|answer| answer.pending);
                for relay in pending.unwrap_or_default() {
                    self.settle(oldest, &relay, false)?;
                }
            }
            self.answers.remove(oldest);
        }
        Ok(())
    }

    /// Hands a relay the answers that it has to get, as far as it takes more now and has a place. `known` is one that need not be read from
    /// the journal.
    fn hand_over(&mut self, url: &str, known: Option<(JobId, &Event)>) -> Result<()> {
        if !self.answers.owes(url) || !self.has_place(url) {
            return Ok(());
        }
        while let Some(id) = self.answers.hand(url) {
            match known.filter(|(known, _)| *known == id) {
                Some((_, event)) => self.send_answer(url, id, event)?,
                None => match self.answer_of(id)? {
                    Some(event) => self.send_answer(url, id, &event)?,
                    None => self.settle(id, url, false)?,
                },
            }
        }
        Ok(())
    }

    /// Whether there is a connection to a relay, or can be. One that has to go for it gets its answers later.
    fn has_place(&mut self, url: &str) -> bool {
        let answers = &self.answers;
        let (place, parted) = self.relays.place(url, |url| answers.owes(url), now());
        if let Some(parted) = parted {
            self.answers.park(&parted);
        }
        place
    }

    /// A job's answer, from the journal.
    fn answer_of(&self, id: JobId) -> Result<Option<Event>> {
        let answer = self.journal.get(id)?.and_then(|entry| entry.answer);
        let Some(answer) = answer else {
            return Ok(None);
        };
        match Event::from_json(answer.body.as_bytes()) {
            Ok(event) => Ok(Some(event)),
            Err(err) => {
                tracing::error!(job = %id, error = %err, "the journal's answer cannot be read");
                Ok(None)
            }
        }
    }

    /// Sends an answer in the form that a relay says it takes.
    fn send_answer(&mut self, url: &str, id: JobId, event: &Event) -> Result<()> {
        let small = match self.relays.check(url, event) {
            Ok(()) => None,
            Err(problem) => match smaller(&self.keys, event) {
                Some(small) if self.relays.check(url, &small).is_ok() => Some(small),
                _ => {
                    tracing::warn!(job = %id, relay = url, problem, "given up: the answer is too large for the relay");
                    return self.settle(id, url, false);
                }
            },
        };
        let event = small.as_ref().unwrap_or(event);
        self.answers.is_answer(event.id, id);
        self.relays.publish_to(url, event, Keep::Until);
        Ok(())
    }

    pub(super) fn settled(&mut self, url: &str, event: EventId, outcome: &Outcome) -> Result<()> {
        let Some(id) = self.answers.job(&event) else {
            if let Outcome::Rejected(reason) = outcome {
                tracing::debug!(relay = url, event = %event, reason, "the relay does not take an event");
            }
            return Ok(());
        };
        if let Outcome::Rejected(reason) = outcome {
            tracing::warn!(relay = url, event = %event, reason, "the relay does not take an answer");
            if let Some(small) = self.smaller_form(id, event, reason)? {
                self.answers.is_answer(small.id, id);
                self.relays.publish_to(url, &small, Keep::Until);
                return Ok(());
            }
        }
        self.settle(id, url, *outcome == Outcome::Accepted)?;
        self.hand_over(url, None)
    }

    /// The form in which a refused answer may be taken.
    fn smaller_form(&self, id: JobId, event: EventId, reason: &str) -> Result<Option<Event>> {
        // Who we are, and how much we send, is what these are about.
        let others = [
            "auth-required:",
            "blocked:",
            "restricted:",
            "rate-limited:",
            "pow:",
        ];
        if others.iter().any(|prefix| reason.starts_with(prefix)) {
            return Ok(None);
        }
        let complete = self.answer_of(id)?.filter(|complete| complete.id == event);
        Ok(complete.and_then(|complete| smaller(&self.keys, &complete)))
    }

    /// Notes that a relay has a job's answer, or will never have it.
    fn settle(&mut self, id: JobId, relay: &str, has: bool) -> Result<()> {
        self.answers.settle(relay, id);
        let entry = self
            .journal
            .change(id, &mut |entry| entry.settle(relay, has))?;
        if let Some(entry) = entry {
            self.metrics.delivered.fetch_add(u64::from(has), Relaxed);
            if entry.stage == Stage::Done {
                self.answers.remove(id);
            }
        }
        Ok(())
    }

    /// Stops to try relays that have not taken an answer for too long.
    pub(super) fn give_up_deliveries(&mut self, at: u64) -> Result<()> {
        let relays = &self.relays;
        let late = self.answers.late(|relay| {
            let patience = match relays.is_own(relay) {
                true => OWN_PATIENCE,
                false if relays.is_barred(relay) => 0,
                false => GUEST_PATIENCE,
            };
            at.saturating_sub(patience)
        });
        for (relay, id) in late {
            tracing::warn!(job = %id, relay, "given up: the relay has not taken the answer");
            self.settle(id, &relay, false)?;
        }
        Ok(())
    }

    /// Leaves relays that have nothing to do, and hands answers to those that can take some.
    pub(super) fn tick_relays(&mut self, at: u64) -> Result<()> {
        for url in self.relays.held() {
            self.has_place(&url);
        }
        let answers = &self.answers;
        self.relays.tick(at, |url| answers.owes(url));
        for url in self.answers.waiting() {
            self.hand_over(&url, None)?;
        }
        Ok(())
    }
}

/// An answer without what it repeats of its request, which customers have. `None` if it repeats nothing.
fn smaller(keys: &Keys, event: &Event) -> Option<Event> {
    let repeats =
        |tag: &&nostr::prelude::Tag| matches!(tag.as_slice()[0].as_str(), "i" | "request");
    if !event.tags.iter().any(|tag| repeats(&tag)) {
        return None;
    }
    let tags = event.tags.iter().filter(|tag| !repeats(tag)).cloned();
    let (created, kind) = (event.created_at.as_secs(), event.kind.as_u16());
    sign(keys, created, kind, event.content.clone(), tags.collect()).ok()
}
