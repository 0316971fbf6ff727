//! Answers: signed once, in the journal before they are published, and sent until every relay has them, or never will.
//!
//! A relay that does not take an answer as it is gets it once more without what it repeats of the request: the same text, date and key, so
//! that this form has one id too, however often it is made. The other relays are not affected by what one of them refuses.

use super::actor::Service;
use super::guests::known;
use super::now;
use super::offers::Product;
use crate::jobs::{Answer, Entry, JobId};
use crate::nip90::{sign, Feedback, JobResult, Status, Usage, WriteError};
use crate::relay::{Keep, Outcome};
use crate::{Error, Result};
use nostr::prelude::{Event, EventId, Keys};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use web_time::Instant;

/// Seconds for which a relay is tried: one of ours, and one that a customer named.
const OWN_PATIENCE: u64 = 86_400;
const GUEST_PATIENCE: u64 = 600;
/// Time between two log lines about answers that are dropped because too many wait.
const SHED_SAID: Duration = Duration::from_secs(60);

impl Service {
    /// Gives a job its one answer: what it came to, or the reason why there is none.
    pub(super) fn answer(
        &mut self,
        id: JobId,
        outcome: std::result::Result<Product, String>,
    ) -> Result<()> {
        let Some(live) = self.close(id) else {
            return Ok(());
        };
        let limit = self.relays.event_bytes();
        let encryption = live.request.encryption;
        if let Err(problem) = &outcome {
            match encryption {
                None => tracing::info!(job = %id, problem, "fails"),
                Some(_) => tracing::info!(job = %id, "fails"),
            }
        }
        let cash = self.payment.cash().map(|cash| cash.held(id));
        let cash = cash.transpose().map_err(Error::service)?.flatten();
        let (change, all) = cash.map_or((None, None), |money| (money.change, money.all));
        let error = |service: &Self, problem: String| {
            let feedback = Feedback {
                extra: Some(problem),
                cashu: all.clone(),
                encryption,
                ..Feedback::new(live.event.id, Status::Error)
            };
            feedback.write(&service.keys, now(), &live.event.pubkey)
        };
        let written = match outcome {
            Ok(product) => {
                let invoice = self.journal.get(id)?.and_then(|entry| entry.invoice);
                let result = JobResult {
                    job: live.event.id,
                    usage: self.offers.model(live.request.kind).map(|model| Usage {
                        model: model.to_string(),
                        prompt_tokens: product.prompt_tokens as u64,
                        completion_tokens: product.tokens as u64,
                    }),
                    text: product.text,
                    // The invoice is the paid one, so that it is not mistaken for another.
                    amount_msat: invoice.as_ref().map(|invoice| invoice.amount_msat),
                    invoice: invoice.map(|invoice| invoice.bolt11),
                    cashu: change,
                    encryption,
                };
                let relay = Some(live.found_on.as_str());
                match result.write(&self.keys, now(), &live.event, relay, limit) {
                    Ok(event) => match self.fits_none(&event) {
                        None => Ok((event, true)),
                        Some(problem) => {
                            let problem = format!("cannot send the result: {problem}");
                            error(self, problem).map(|event| (event, false))
                        }
                    },
                    Err(err @ (WriteError::TooLarge { .. } | WriteError::Encryption(_))) => {
                        let problem = format!("cannot send the result: {err}");
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
        let (pending, signed) = (known(&answer.pending), answer.signed);
        let bytes = answer.body.len() as u64;
        let mut answer = Some(answer);
        let kept = self.journal.change(id, &mut |entry| {
            answer.take().is_some_and(|answer| entry.answer(answer))
        })?;
        if kept.is_none() {
            tracing::error!(job = %id, "the job already has an answer; keeping it");
            return Ok(());
        }
        self.settle_money(id, is_result)?;
        let counter = if is_result {
            &self.metrics.results
        } else {
            &self.metrics.errors
        };
        counter.fetch_add(1, Relaxed);
        tracing::info!(job = %id, answer = %event.id, is_result, "answered");
        self.answers.add(id, signed, bytes, &pending);
        self.shed_deliveries()?;
        for relay in pending {
            self.hand_over(&relay, Some((id, &event)))?;
        }
        Ok(())
    }

    /// The reason why no relay of ours takes an event, if none does.
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

    /// Resumes an answer that was signed before a restart. Relays get it with the next tick.
    pub(super) fn deliver_again(&mut self, id: JobId, entry: &Entry) {
        if let Some(answer) = &entry.answer {
            let bytes = answer.body.len() as u64;
            let pending = known(&answer.pending);
            self.answers.add(id, answer.signed, bytes, &pending);
            self.want_relays_again(id, entry);
        }
    }

    /// An answer whose customer's relays were not known yet goes to these.
    pub(super) fn deliver_to_guests(
        &mut self,
        id: JobId,
        event: &Event,
        relays: &BTreeSet<String>,
    ) -> Result<()> {
        let (signed, bytes) = (event.created_at.as_secs(), event.as_json().len());
        self.answers.extend(id, relays);
        // Relays of ours may have it by now, so that it is not there any more.
        self.answers.add(id, signed, bytes as u64, relays);
        self.shed_deliveries()?;
        for relay in relays {
            self.hand_over(relay, Some((id, event)))?;
        }
        Ok(())
    }

    /// Gives answers up while more of them wait than may.
    pub(super) fn shed_deliveries(&mut self) -> Result<()> {
        let (most, bytes) = (self.settings.undelivered, self.settings.undelivered_bytes);
        let up = self.relays.up();
        let is_up = |relay: &str| up.contains(relay);
        let mut last = None;
        while let Some((relay, id)) = self.answers.excess(most, bytes, is_up) {
            self.metrics.given_up.fetch_add(1, Relaxed);
            self.settle(id, &relay, false)?;
            last = Some(relay);
        }
        let quiet = |said: Instant| said.elapsed() < SHED_SAID;
        if let Some(relay) = last.filter(|_| !self.shed_said.is_some_and(quiet)) {
            self.shed_said = Some(Instant::now());
            tracing::warn!(
                relay = self.relays.shown(&relay),
                waiting = self.answers.len(),
                "too many answers are waiting: dropping the oldest, first those for disconnected relays"
            );
        }
        Ok(())
    }

    /// Hands a relay its waiting answers, up to the number that it takes now, if it has a slot. `known` is an answer that need not be read
    /// from the journal.
    pub(super) fn hand_over(&mut self, url: &str, known: Option<(JobId, &Event)>) -> Result<()> {
        // One of ours that is down gets them when it is back: until then the journal has them, and memory need not.
        let absent = self.relays.is_own_and_down(url);
        if absent || !self.answers.owes(url) || !self.has_place(url) {
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
                tracing::error!(job = %id, error = %err, "cannot read an answer from the journal");
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
                    let relay = self.relays.shown(url);
                    tracing::warn!(job = %id, relay, problem, "dropped: the answer is too large for the relay");
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
                let relay = self.relays.shown(url);
                tracing::debug!(relay, event = %event, reason, "the relay rejected an event");
            }
            return Ok(());
        };
        if let Outcome::Rejected(reason) = outcome {
            let relay = self.relays.shown(url);
            tracing::warn!(relay, event = %event, reason, "the relay rejected an answer");
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
        // These concern our identity and the amount that we send.
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
        if entry.is_some() {
            self.metrics.delivered.fetch_add(u64::from(has), Relaxed);
        }
        Ok(())
    }

    /// Stops to try relays that have not taken an answer for too long.
    pub(super) fn give_up_deliveries(&mut self, at: u64) -> Result<()> {
        let relays = &self.relays;
        let late = self.answers.late(|relay| {
            let patience = if relays.is_own(relay) {
                OWN_PATIENCE
            } else if relays.is_barred(relay) {
                0
            } else {
                GUEST_PATIENCE
            };
            at.saturating_sub(patience)
        });
        for (relay, id) in late {
            let shown = self.relays.shown(&relay);
            tracing::warn!(job = %id, relay = shown, "dropped: the relay never accepted the answer");
            self.metrics.given_up.fetch_add(1, Relaxed);
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
