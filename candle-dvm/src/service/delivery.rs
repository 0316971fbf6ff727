//! Answers: signed once, in the journal before anybody sees them, and sent until every relay has them.

use super::actor::Service;
use super::guests::known;
use super::now;
use crate::backend::Completion;
use crate::jobs::{Answer, Entry, JobId};
use crate::nip90::{Feedback, JobResult, Status, Usage, WriteError};
use crate::relay::{Keep, Outcome};
use crate::{Error, Result};
use nostr::prelude::{Event, EventId};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use web_time::Instant;

/// Seconds for which a relay is tried: one of ours, and one that a customer named.
const OWN_PATIENCE: u64 = 86_400;
const GUEST_PATIENCE: u64 = 600;
/// Between two lines in the log about answers that are given up because too many wait.
const SHED_SAID: Duration = Duration::from_secs(60);

impl Service {
    /// Gives a job its one answer: the completion, or the reason why there is none.
    pub(super) fn answer(
        &mut self,
        id: JobId,
        outcome: std::result::Result<Completion, String>,
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
        let error = |service: &Self, problem: String| {
            let feedback = Feedback {
                extra: Some(problem),
                encryption,
                ..Feedback::new(live.event.id, Status::Error)
            };
            feedback.write(&service.keys, now(), &live.event.pubkey)
        };
        let written = match outcome {
            Ok(completion) => {
                let invoice = self.journal.get(id)?.and_then(|entry| entry.invoice);
                let result = JobResult {
                    job: live.event.id,
                    usage: Some(Usage {
                        model: self.model.clone(),
                        prompt_tokens: completion.prompt_tokens as u64,
                        completion_tokens: completion.token_ids.len() as u64,
                    }),
                    text: completion.text,
                    // The invoice is the one that was paid, so that nobody takes it for another.
                    amount_msat: invoice.as_ref().map(|invoice| invoice.amount_msat),
                    invoice: invoice.map(|invoice| invoice.bolt11),
                    encryption,
                };
                let relay = Some(live.found_on.as_str());
                match result.write(&self.keys, now(), &live.event, relay, limit) {
                    Ok(event) => Ok((event, true)),
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
        let pending = answer.pending.clone();
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
        self.deliver(id, &event, &pending);
        self.shed_deliveries()
    }

    /// Takes up an answer that was signed before the service was started anew.
    pub(super) fn deliver_again(&mut self, id: JobId, entry: &Entry) {
        let Some(answer) = &entry.answer else {
            return;
        };
        let Ok(event) = EventId::parse(&answer.id) else {
            tracing::error!(job = %id, "the journal's answer has no id");
            return;
        };
        self.want_relays_again(id, entry);
        let (pending, bytes) = (known(&answer.pending), answer.body.len());
        self.undelivered
            .insert(id, event, answer.signed, bytes, &pending);
        // Our relays get it when they are connected; nothing connects to others by itself.
        let guests = pending.iter().filter(|url| !self.relays.is_own(url));
        let guests: Vec<&String> = guests.collect();
        if let (false, Ok(event)) = (guests.is_empty(), Event::from_json(&answer.body)) {
            for relay in guests {
                self.hand_over(id, &event, relay);
            }
        }
    }

    pub(super) fn deliver(&mut self, id: JobId, event: &Event, relays: &BTreeSet<String>) {
        let (signed, bytes) = (event.created_at.as_secs(), event.as_json().len());
        let relays = known(relays);
        self.undelivered
            .insert(id, event.id, signed, bytes, &relays);
        for relay in &relays {
            self.hand_over(id, event, relay);
        }
    }

    /// Publishes an answer on a relay, unless that relay is not connected or has enough: then it gets it by [`Service::feed`].
    fn hand_over(&mut self, id: JobId, event: &Event, relay: &str) {
        if self.relays.takes(relay) && self.undelivered.hand_over(id, relay) {
            self.relays.publish_to(relay, event, Keep::Until);
        }
    }

    /// Gives a relay the next of the answers that wait for it, from the journal.
    pub(super) fn feed(&mut self, relay: &str) -> Result<()> {
        if !self.relays.takes(relay) {
            return Ok(());
        }
        for id in self.undelivered.next(relay) {
            let entry = self.journal.get(id)?;
            let body = entry
                .and_then(|entry| entry.answer)
                .map(|answer| answer.body);
            match Event::from_json(body.unwrap_or_default()) {
                Ok(event) => self.hand_over(id, &event, relay),
                Err(err) => {
                    tracing::error!(job = %id, error = %err, "the journal's answer cannot be read");
                    self.settle(id, relay, false)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn settled(&mut self, url: &str, event: EventId, outcome: &Outcome) -> Result<()> {
        if let Outcome::Rejected(reason) = outcome {
            let relay = self.relays.shown(url);
            tracing::warn!(relay, event = %event, reason, "the relay does not take an event");
        }
        let Some(id) = self.undelivered.job(&event) else {
            return Ok(());
        };
        self.settle(id, url, *outcome == Outcome::Accepted)?;
        self.feed(url)
    }

    /// Notes that a relay has a job's answer, or will never have it.
    fn settle(&mut self, id: JobId, relay: &str, has: bool) -> Result<()> {
        let entry = self
            .journal
            .change(id, &mut |entry| entry.settle(relay, has))?;
        self.undelivered.settle(id, relay);
        if entry.is_some() {
            self.metrics.delivered.fetch_add(u64::from(has), Relaxed);
        }
        Ok(())
    }

    /// Stops to try relays that have not taken an answer for too long.
    pub(super) fn give_up_deliveries(&mut self, at: u64) -> Result<()> {
        let relays = &self.relays;
        let patience = |relay: &str| match relays.is_own(relay) {
            true => OWN_PATIENCE,
            false => GUEST_PATIENCE,
        };
        for (id, relay) in self.undelivered.overdue(at, patience) {
            let shown = self.relays.shown(&relay);
            tracing::warn!(job = %id, relay = shown, "given up: the relay has not taken the answer");
            self.give_up(id, &relay)?;
        }
        Ok(())
    }

    /// Gives answers up while more of them wait than may.
    pub(super) fn shed_deliveries(&mut self) -> Result<()> {
        let (most, most_bytes) = (self.settings.undelivered, self.settings.undelivered_bytes);
        let up = self.relays.up();
        let mut last = None;
        while let Some((id, relay)) = self
            .undelivered
            .excess(most, most_bytes, |relay| up.contains(relay))
        {
            self.give_up(id, &relay)?;
            last = Some(relay);
        }
        let quiet = |said: Instant| said.elapsed() < SHED_SAID;
        if let Some(relay) = last.filter(|_| !self.shed_said.is_some_and(quiet)) {
            self.shed_said = Some(Instant::now());
            let relay = self.relays.shown(&relay);
            tracing::warn!(
                relay,
                waiting = self.undelivered.len(),
                "too many answers wait: the oldest are given up, first those for relays that are not connected"
            );
        }
        Ok(())
    }

    fn give_up(&mut self, id: JobId, relay: &str) -> Result<()> {
        if let Some(event) = self.undelivered.event(id) {
            self.relays.forget(relay, event);
        }
        self.metrics.given_up.fetch_add(1, Relaxed);
        self.settle(id, relay, false)
    }
}
