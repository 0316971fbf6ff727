//! What is published, until the relay has answered.

use super::{Action, Keep, Machine, Outcome, LONGEST_RETRY, SECOND};
use nostr::prelude::{ClientMessage, Event, EventId};

const OK_TIMEOUT: u64 = 20 * SECOND;
/// Events that are sent and have no answer, at most.
const IN_FLIGHT: usize = 32;

#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) json: String,
    pub(super) keep: Keep,
    pub(super) tries: u32,
    pub(super) state: OutgoingState,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OutgoingState {
    Due(u64),
    NeedsAuth,
    Sent(u64),
}

impl Machine {
    /// Sends the events that are due, for the first time or again.
    pub(super) fn send_due(&mut self, now: u64) {
        let late =
            |o: &Outgoing| matches!(o.state, OutgoingState::Sent(at) if at + OK_TIMEOUT <= now);
        if self.outgoing.values().any(|o| late(o) && o.tries >= 3) {
            return self.give_up("it does not answer to events", now);
        }
        let mut room = IN_FLIGHT.saturating_sub(self.sent());
        for id in &self.order {
            let Some(outgoing) = self.outgoing.get_mut(id) else {
                continue;
            };
            let again = late(outgoing);
            let due = matches!(outgoing.state, OutgoingState::Due(at) if at <= now);
            if again || (due && room > 0) {
                room -= usize::from(due);
                outgoing.tries += 1;
                outgoing.state = OutgoingState::Sent(now);
                self.actions.push_back(Action::Send(outgoing.json.clone()));
            }
        }
    }

    /// When the next of them is.
    pub(super) fn next_send(&self) -> Option<u64> {
        let full = self.sent() >= IN_FLIGHT;
        let due = self.outgoing.values().filter_map(|o| match o.state {
            OutgoingState::Due(at) if !full => Some(at),
            OutgoingState::Sent(at) => Some(at + OK_TIMEOUT),
            _ => None,
        });
        due.min()
    }

    /// Publishes an event.
    pub fn publish(&mut self, event: &Event, keep: Keep, now: u64) {
        if self.outgoing.contains_key(&event.id) || (keep == Keep::Now && !self.is_up()) {
            return;
        }
        let outgoing = Outgoing {
            json: ClientMessage::event(event.clone()).as_json(),
            keep,
            tries: 0,
            state: OutgoingState::Due(0),
        };
        self.outgoing.insert(event.id, outgoing);
        self.order.push_back(event.id);
        self.tick(now);
    }

    pub(super) fn sent(&self) -> usize {
        let sent = |outgoing: &&Outgoing| matches!(outgoing.state, OutgoingState::Sent(_));
        self.outgoing.values().filter(sent).count()
    }

    pub(super) fn ok(&mut self, id: EventId, accepted: bool, message: &str, now: u64) {
        if self.auth == Some(id) {
            return self.auth_answered(accepted, message, now);
        }
        let authenticated = self.authenticated;
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        let retry = |wait: u64, tries: u32| {
            let wait = (wait << tries.min(6)).min(LONGEST_RETRY);
            OutgoingState::Due(now + wait)
        };
        let tries = outgoing.tries;
        let again = match message {
            _ if accepted || message.starts_with("duplicate:") => None,
            _ if message.starts_with("auth-required:") && !authenticated => {
                Some(OutgoingState::NeedsAuth)
            }
            _ if message.starts_with("rate-limited:") && tries < 20 => {
                Some(retry(5 * SECOND, tries))
            }
            _ if message.starts_with("error:") && tries < 5 => Some(retry(5 * SECOND, tries)),
            _ => None,
        };
        match again {
            Some(state) if outgoing.keep == Keep::Until => outgoing.state = state,
            _ => {
                let accepted = accepted || message.starts_with("duplicate:");
                self.outgoing.remove(&id);
                self.order.retain(|other| *other != id);
                let outcome = match accepted {
                    true => Outcome::Accepted,
                    false => Outcome::Rejected(message.chars().take(200).collect()),
                };
                self.actions.push_back(Action::Settled { id, outcome });
            }
        }
    }
}
