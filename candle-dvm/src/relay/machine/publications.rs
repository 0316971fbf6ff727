//! Pending publications: each stays until the relay has answered, or will clearly never do so.
//!
//! Relays refuse events in different ways. By the protocol they send OK with `false`; some send NOTICE, which names no event, some nothing,
//! some close the connection. An event after which one of the latter three happened is doubtful: it is sent again after all others, and
//! counts as refused after a few attempts. Doubtful events and their counts of attempts survive a reconnect.

use super::{Action, Keep, Link, Machine, Outcome, LONGEST_RETRY, SECOND};
use nostr::prelude::{ClientMessage, Event, EventId};

/// Timeouts of an answer; of one to a doubtful event, or while many answers are missing, or after a NOTICE instead. A later answer still
/// counts.
const OK_TIMEOUT: u64 = 20 * SECOND;
const SHORT_TIMEOUT: u64 = 5 * SECOND;
/// Between two tries of an event that gets no answer.
const AGAIN: u64 = 20 * SECOND;
/// After a NOTICE: time for an OK that follows it.
const AFTER_NOTICE: u64 = SECOND;
/// Number of attempts for an event that gets no answer, and for one that gets a NOTICE instead.
const SILENCES: u32 = 3;
const NOTICES: u32 = 2;
/// A connection that ended while an event was the only one without an answer speaks against the event: more so if the relay had answered to
/// others before. With this much against it, it is given up.
const LOSSES: u32 = 9;
const LOSS_ON_LIVE: u32 = 3;
/// Events that are sent and have no answer, at most.
const IN_FLIGHT: usize = 32;
/// Above this many, answers are missing.
const CROWDED: usize = 16;
/// Doubtful ones among them.
const DOUBTFUL: usize = 8;
/// Time after a NOTICE during which events are sent one at a time, so that the next NOTICE identifies its event.
const SINGLY: u64 = 60 * SECOND;
/// For how long after a relay complained of too many events it gets none that only matter now.
const RESTRAINT: u64 = 30 * SECOND;
/// After this long, an event on which connections ended is sent before others.
const PRESSING: u64 = 30 * SECOND;
/// Maximum number of waiting events: short-lived ones, and others. The oldest are dropped.
const MOST_NOW: usize = 64;
const MOST: usize = 1024;

#[derive(Debug)]
pub(super) struct Outgoing {
    json: String,
    pub(super) keep: Keep,
    pub(super) state: OutgoingState,
    /// Earlier ones are sent earlier.
    number: u64,
    tries: u32,
    silences: u32,
    notices: u32,
    losses: u32,
    /// A connection ended while it had no answer.
    lost: bool,
    /// A NOTICE came that may have meant it.
    noticed: bool,
}

impl Outgoing {
    fn is_doubtful(&self) -> bool {
        self.silences > 0 || self.notices > 0 || self.lost
    }

    /// Events that must arrive come first, doubtful ones next, and short-lived ones last: a relay that takes few events per minute should
    /// get the answers.
    fn rank(&self) -> (u8, u64) {
        let class = match self.keep {
            Keep::Until if !self.is_doubtful() => 0,
            Keep::Until => 1,
            Keep::Now => 2,
        };
        (class, self.number)
    }
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

    fn is_sent(self) -> bool {
        matches!(self, Self::Sent(_))
    }
}

impl Machine {
    /// Sends the events that are due, for the first time or again.
    pub(super) fn send_due(&mut self, now: u64) {
        self.time_out(now);
        let mut due: Vec<((u8, u64), EventId)> = Vec::new();
        let (mut flight, mut doubtful, mut alone) = (0, 0, false);
        let mut pressing = None;
        for (id, outgoing) in &self.outgoing {
            match outgoing.state.due_at() {
                None => {
                    flight += 1;
                    doubtful += usize::from(outgoing.is_doubtful());
                    alone |= outgoing.lost;
                }
                Some(at) if at <= now => {
                    due.push((outgoing.rank(), *id));
                    if outgoing.lost && at + PRESSING <= now {
                        pressing = Some(*id);
                    }
                }
                Some(_) => {}
            }
        }
        let most = if now < self.singly_until {
            1
        } else {
            IN_FLIGHT
        };
        if let Some(id) = pressing {
            // Everything else waits for a moment in which it is the only one.
            due.retain(|(_, other)| flight == 0 && *other == id);
        }
        due.sort_unstable();
        for (_, id) in due {
            let Some(outgoing) = self.outgoing.get_mut(&id) else {
                continue;
            };
            if alone || flight >= most {
                return;
            }
            // What may have ended a connection is sent when it is the only one, so that it is known if it does so again.
            let waits =
                (outgoing.lost && flight > 0) || (outgoing.is_doubtful() && doubtful >= DOUBTFUL);
            if waits {
                continue;
            }
            flight += 1;
            doubtful += usize::from(outgoing.is_doubtful());
            alone = outgoing.lost;
            outgoing.tries += 1;
            outgoing.noticed = false;
            outgoing.state = OutgoingState::Sent(now);
            self.actions.push_back(Action::Send(outgoing.json.clone()));
        }
    }

    /// The timeout of an event's answer, with this many unanswered events.
    fn patience(outgoing: &Outgoing, in_flight: usize) -> u64 {
        if outgoing.noticed || outgoing.is_doubtful() || in_flight > CROWDED {
            SHORT_TIMEOUT
        } else {
            OK_TIMEOUT
        }
    }

    /// No longer waits for answers that are late.
    fn time_out(&mut self, now: u64) {
        let in_flight = self.sent();
        let mut over = Vec::new();
        for (id, outgoing) in &mut self.outgoing {
            let OutgoingState::Sent(at) = outgoing.state else {
                continue;
            };
            if at + Self::patience(outgoing, in_flight) > now {
                continue;
            }
            outgoing.silences += 1;
            match (outgoing.keep, outgoing.silences >= SILENCES) {
                (Keep::Until, false) => outgoing.state = OutgoingState::Due(at + AGAIN),
                _ => over.push(*id),
            }
        }
        for id in over {
            self.reject(id, "no answer to the event");
        }
    }

    /// When the next of them is.
    pub(super) fn next_send(&self) -> Option<u64> {
        let in_flight = self.sent();
        let due = self.outgoing.values().filter_map(|o| match o.state {
            OutgoingState::Sent(at) => Some(at + Self::patience(o, in_flight)),
            // An event that was due already waits for those in flight.
            waiting => waiting
                .due_at()
                .filter(|at| in_flight == 0 || *at > self.now),
        });
        due.min()
    }

    /// Publishes an event. The number of waiting events is bounded.
    pub fn publish(&mut self, event: &Event, keep: Keep, now: u64) {
        if let Some(reason) = self.gone.clone() {
            let (id, outcome) = (event.id, Outcome::Rejected(reason));
            return self.actions.push_back(Action::Settled { id, outcome });
        }
        let late = keep == Keep::Now
            && (matches!(self.link, Link::Down { .. }) || now < self.restraint_until);
        if late || self.outgoing.contains_key(&event.id) {
            return;
        }
        self.make_way(keep);
        self.published += 1;
        let outgoing = Outgoing {
            json: ClientMessage::event(event.clone()).as_json(),
            keep,
            state: OutgoingState::Due(0),
            number: self.published,
            tries: 0,
            silences: 0,
            notices: 0,
            losses: 0,
            lost: false,
            noticed: false,
        };
        self.outgoing.insert(event.id, outgoing);
        self.tick(now);
    }

    /// Drops the oldest waiting publication of a sort, if their number is at the limit.
    fn make_way(&mut self, keep: Keep) {
        let most = match keep {
            Keep::Now => MOST_NOW,
            Keep::Until => MOST,
        };
        let waiting = || {
            let waits = |o: &&Outgoing| o.keep == keep && !o.state.is_sent();
            self.outgoing.iter().filter(move |(_, o)| waits(o))
        };
        if waiting().count() >= most {
            if let Some((id, _)) = waiting().min_by_key(|(_, outgoing)| outgoing.number) {
                self.reject(*id, "too many events are waiting for the relay");
            }
        }
    }

    pub(super) fn sent(&self) -> usize {
        let sent = |outgoing: &&Outgoing| outgoing.state.is_sent();
        self.outgoing.values().filter(sent).count()
    }

    /// The relay has an event, or never will.
    fn settle(&mut self, id: EventId, outcome: Outcome) {
        if self.outgoing.remove(&id).is_some() {
            self.actions.push_back(Action::Settled { id, outcome });
        }
    }

    fn reject(&mut self, id: EventId, reason: &str) {
        self.settle(id, Outcome::Rejected(reason.chars().take(200).collect()));
    }

    pub(super) fn reject_all(&mut self, reason: &str) {
        for id in self.outgoing.keys().copied().collect::<Vec<_>>() {
            self.reject(id, reason);
        }
    }

    /// The connection has ended.
    pub(super) fn lost_in_flight(&mut self) {
        // What was only worth sending at once is not worth keeping.
        self.outgoing
            .retain(|_, outgoing| outgoing.keep == Keep::Until);
        let weight = match (self.sent(), self.has_answered) {
            (1, true) => LOSS_ON_LIVE,
            (1, false) => 1,
            _ => 0,
        };
        let mut over = Vec::new();
        for (id, outgoing) in &mut self.outgoing {
            if outgoing.state.is_sent() {
                outgoing.lost = true;
                outgoing.losses += weight;
                outgoing.state = OutgoingState::Due(0);
                over.extend((outgoing.losses >= LOSSES).then_some(*id));
            }
        }
        for id in over {
            self.reject(
                id,
                "the relay closes the connection whenever the event is sent",
            );
        }
    }

    /// Everything that waits may be sent on a new connection.
    pub(super) fn due_again(&mut self, now: u64) {
        for outgoing in self.outgoing.values_mut() {
            outgoing.state = OutgoingState::Due(now);
        }
    }

    /// The relay says something to a person. Some mean an event with it that they do not take.
    pub(super) fn notice(&mut self, text: &str, now: u64) {
        let brief: String = text.chars().take(200).collect();
        tracing::debug!(relay = self.url, text = brief, "notice");
        let small = brief.to_ascii_lowercase();
        let limited = ["rate", "slow down", "too fast", "too many events"]
            .iter()
            .any(|word| small.contains(word));
        if limited {
            self.restrain(now);
        }
        let sent = self.outgoing.iter_mut().filter(|(_, o)| o.state.is_sent());
        let mut sent: Vec<(EventId, &mut Outgoing)> = sent.map(|(id, o)| (*id, o)).collect();
        if sent.is_empty() {
            return;
        }
        self.singly_until = now + SINGLY;
        let asked = self.subscriptions.values().any(|s| s.owes_answer()) || self.auth.is_some();
        let [(id, outgoing)] = sent.as_mut_slice() else {
            sent.iter_mut().for_each(|(_, o)| o.noticed = true);
            return;
        };
        let id = *id;
        if asked {
            // It may mean that.
            outgoing.noticed = true;
            return;
        }
        if limited && outgoing.keep == Keep::Until && outgoing.tries < 20 {
            outgoing.state = OutgoingState::Due(retry_at(outgoing.tries, now));
            return;
        }
        outgoing.notices += 1;
        if outgoing.keep == Keep::Until && outgoing.notices < NOTICES {
            outgoing.state = OutgoingState::Due(now + AFTER_NOTICE)
        } else {
            self.reject(id, &brief)
        }
    }

    /// Too many events: short-lived ones are dropped for a while.
    fn restrain(&mut self, now: u64) {
        self.restraint_until = now + RESTRAINT;
        self.outgoing
            .retain(|_, o| o.keep == Keep::Until || o.state.is_sent());
    }

    pub(super) fn ok(&mut self, id: EventId, accepted: bool, message: &str, now: u64) {
        if self.auth == Some(id) {
            return self.auth_answered(accepted, message, now);
        }
        let starts = |prefix: &str| message.starts_with(prefix);
        if !accepted && starts("rate-limited:") {
            self.restrain(now);
        }
        let authenticated = self.authenticated;
        let Some(outgoing) = self.outgoing.get_mut(&id) else {
            return;
        };
        self.has_answered = true;
        let tries = outgoing.tries;
        let retry_at = retry_at(tries, now);
        let sent_unknown = match (outgoing.state, self.auth_sent) {
            (OutgoingState::Sent(at), Some(answered)) => at <= answered,
            _ => false,
        };
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
            _ if accepted || starts("duplicate:") => self.settle(id, Outcome::Accepted),
            _ => self.reject(id, message),
        }
    }
}

fn retry_at(tries: u32, now: u64) -> u64 {
    now + ((5 * SECOND) << tries.min(6)).min(LONGEST_RETRY)
}
