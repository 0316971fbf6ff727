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
    /// As a subscription's.
    NeedsAuth(u64),
    Sent(u64),
}

impl OutgoingState {
    fn due_at(self) -> Option<u64> {
        match self {
            Self::Due(at) | Self::NeedsAuth(at) => Some(at),
            Self::Sent(_) => None,
        }
    }
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
            let due = outgoing.state.due_at().is_some_and(|at| at <= now);
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
            OutgoingState::Sent(at) => Some(at + OK_TIMEOUT),
            _ if full => None,
            waiting => waiting.due_at(),
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

    /// Gives a publication up. If it was sent, the relay may have it all the same.
    pub fn forget(&mut self, id: EventId) {
        if self.outgoing.remove(&id).is_some() {
            self.order.retain(|other| *other != id);
        }
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
        let tries = outgoing.tries;
        let retry_at = now + ((5 * SECOND) << tries.min(6)).min(LONGEST_RETRY);
        let sent_unknown = match (outgoing.state, self.auth_sent) {
            (OutgoingState::Sent(at), Some(answered)) => at <= answered,
            _ => false,
        };
        let starts = |prefix: &str| message.starts_with(prefix);
        let again = match message {
            _ if accepted || starts("duplicate:") => None,
            _ if starts("auth-required:") && (!authenticated || sent_unknown) => {
                Some(OutgoingState::NeedsAuth(retry_at))
            }
            // nostr-rs-relay has no special prefix for events of those that it does not know yet.
            _ if sent_unknown && (starts("blocked:") || starts("restricted:")) => {
                Some(OutgoingState::NeedsAuth(retry_at))
            }
            _ if starts("rate-limited:") && tries < 20 => Some(OutgoingState::Due(retry_at)),
            _ if starts("error:") && tries < 5 => Some(OutgoingState::Due(retry_at)),
            _ => None,
        };
        match again {
            Some(state) if outgoing.keep == Keep::Until => outgoing.state = state,
            // The relay wants to know by whom it is. One that never asks gets it three times at most.
            Some(state @ OutgoingState::NeedsAuth(_)) if tries < 3 => outgoing.state = state,
            _ => {
                let accepted = accepted || starts("duplicate:");
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
