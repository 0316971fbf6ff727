//! Answers: signed once, in the journal before anybody sees them, and sent until every relay has them.

use super::actor::Service;
use super::guests::LATER;
use super::now;
use crate::backend::Completion;
use crate::jobs::{Answer, Entry, JobId, Stage};
use crate::nip90::{Feedback, JobResult, Status, Usage, WriteError};
use crate::relay::{Keep, Outcome};
use crate::{Error, Result};
use nostr::prelude::{Event, EventId};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;

/// Seconds for which a relay is tried: one of ours, and one that a customer named.
const OWN_PATIENCE: u64 = 86_400;
const GUEST_PATIENCE: u64 = 600;

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
        Ok(())
    }

    /// Sends an answer that was signed before the service was started anew.
    pub(super) fn deliver_again(&mut self, id: JobId, entry: &Entry) {
        let Some(answer) = &entry.answer else {
            return;
        };
        match Event::from_json(answer.body.as_bytes()) {
            Ok(event) => self.deliver(id, &event, &answer.pending),
            Err(err) => {
                tracing::error!(job = %id, error = %err, "the journal's answer cannot be read")
            }
        }
    }

    fn deliver(&mut self, id: JobId, event: &Event, relays: &BTreeSet<String>) {
        self.answers.insert(event.id, id);
        for relay in relays.iter().filter(|relay| *relay != LATER) {
            self.relays.publish_to(relay, event, Keep::Until);
        }
    }

    pub(super) fn settled(&mut self, url: &str, event: EventId, outcome: &Outcome) -> Result<()> {
        if let Outcome::Rejected(reason) = outcome {
            let relay = self.relays.shown(url);
            tracing::warn!(relay, event = %event, reason, "the relay does not take an event");
        }
        let Some(id) = self.answers.get(&event).copied() else {
            return Ok(());
        };
        self.settle(id, url, *outcome == Outcome::Accepted)
    }

    /// Notes that a relay has a job's answer, or will never have it.
    fn settle(&mut self, id: JobId, relay: &str, has: bool) -> Result<()> {
        let entry = self
            .journal
            .change(id, &mut |entry| entry.settle(relay, has))?;
        if let Some(entry) = entry {
            self.metrics.delivered.fetch_add(u64::from(has), Relaxed);
            if entry.stage == Stage::Done {
                self.answers.retain(|_, job| *job != id);
            }
        }
        Ok(())
    }

    /// Stops to try relays that have not taken an answer for too long.
    pub(super) fn give_up_deliveries(&mut self, at: u64) -> Result<()> {
        if self.answers.is_empty() {
            return Ok(());
        }
        for (id, entry) in self.journal.open_jobs()? {
            let Some(answer) = &entry.answer else {
                continue;
            };
            for relay in &answer.pending {
                let patience = match self.relays.is_own(relay) {
                    true => OWN_PATIENCE,
                    false => GUEST_PATIENCE,
                };
                if answer.signed + patience < at {
                    let shown = self.relays.shown(relay);
                    tracing::warn!(job = %id, relay = shown, "given up: the relay has not taken the answer");
                    self.settle(id, relay, false)?;
                }
            }
        }
        Ok(())
    }
}
