//! The answers that each relay has to get: their ids only, since the journal has the answers.

use super::guests::LATER;
use crate::jobs::JobId;
use nostr::prelude::EventId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Answers that a relay gets before it has answered to earlier ones.
const HANDED: usize = 128;

/// When an answer was signed, and which of that second it is.
type Key = (u64, u64, JobId);

/// Answers that have not reached all their relays.
#[derive(Default)]
pub(super) struct Deliveries {
    answers: HashMap<JobId, Signed>,
    /// The job of each answer, and of each shorter form of it, that relays were given.
    events: HashMap<EventId, JobId>,
    relays: BTreeMap<String, Queue>,
    added: u64,
    /// Number of waiting answers, and their bytes: an answer for two relays counts twice, and one for relays that are not known yet does
    /// not count.
    count: usize,
    bytes: u64,
}

struct Signed {
    key: Key,
    bytes: u64,
    /// Relays that do not have it.
    missing: usize,
    forms: Vec<EventId>,
}

#[derive(Default)]
struct Queue {
    waiting: BTreeSet<Key>,
    handed: BTreeSet<Key>,
    /// Number of times that the relay had to give its slot to others.
    parked: u32,
}

impl Queue {
    fn len(&self) -> usize {
        self.waiting.len() + self.handed.len()
    }

    fn oldest(&self) -> Option<JobId> {
        let oldest = self.waiting.first().into_iter().chain(self.handed.first());
        oldest.min().map(|(_, _, id)| *id)
    }
}

impl Deliveries {
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Number of waiting answers.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Adds an answer.
    pub(super) fn add<'a>(
        &mut self,
        id: JobId,
        signed: u64,
        bytes: u64,
        relays: impl IntoIterator<Item = &'a String>,
    ) {
        if self.answers.contains_key(&id) {
            return;
        }
        let key = (signed, self.added, id);
        self.added += 1;
        let signed = Signed {
            key,
            bytes,
            missing: 0,
            forms: Vec::new(),
        };
        self.answers.insert(id, signed);
        self.extend(id, relays);
        if self.answers.get(&id).is_some_and(|new| new.missing == 0) {
            self.answers.remove(&id);
        }
    }

    /// Adds relays to an answer that waits for others already.
    pub(super) fn extend<'a>(&mut self, id: JobId, relays: impl IntoIterator<Item = &'a String>) {
        let Some(answer) = self.answers.get_mut(&id) else {
            return;
        };
        for relay in relays {
            let queue = self.relays.entry(relay.clone()).or_default();
            if !queue.handed.contains(&answer.key) && queue.waiting.insert(answer.key) {
                answer.missing += 1;
                if relay != LATER {
                    self.count += 1;
                    self.bytes += answer.bytes;
                }
            }
        }
    }

    /// The answer to drop next, if more wait than allowed: the oldest one for the relay with the most waiting answers, among relays that
    /// are not connected, or among all if every relay is.
    pub(super) fn excess(
        &self,
        most: usize,
        most_bytes: u64,
        is_up: impl Fn(&str) -> bool,
    ) -> Option<(String, JobId)> {
        if self.count <= most && self.bytes <= most_bytes {
            return None;
        }
        let worst = |(relay, queue): &(&String, &Queue)| (!is_up(relay), queue.len());
        let relays = self.relays.iter().filter(|(relay, _)| *relay != LATER);
        let (relay, queue) = relays.max_by_key(worst)?;
        Some((relay.clone(), queue.oldest()?))
    }

    /// The next answer for a relay, if it can take one: the newest, for which the customer still waits.
    pub(super) fn hand(&mut self, relay: &str) -> Option<JobId> {
        let queue = self.relays.get_mut(relay)?;
        if queue.handed.len() >= HANDED {
            return None;
        }
        let next = queue.waiting.pop_last()?;
        queue.handed.insert(next);
        Some(next.2)
    }

    /// Notes that an event is an answer, or a shorter form of it.
    pub(super) fn is_answer(&mut self, event: EventId, id: JobId) {
        if let Some(answer) = self.answers.get_mut(&id) {
            if self.events.insert(event, id).is_none() {
                answer.forms.push(event);
            }
        }
    }

    pub(super) fn job(&self, event: &EventId) -> Option<JobId> {
        self.events.get(event).copied()
    }

    /// Takes back the answers handed to a relay that had to give up its slot.
    pub(super) fn park(&mut self, relay: &str) {
        if let Some(queue) = self.relays.get_mut(relay) {
            queue.waiting.append(&mut queue.handed);
            queue.parked += 1;
        }
    }

    /// A relay has an answer, or never will.
    pub(super) fn settle(&mut self, relay: &str, id: JobId) {
        let (Some(answer), Some(queue)) = (self.answers.get_mut(&id), self.relays.get_mut(relay))
        else {
            return;
        };
        if !queue.waiting.remove(&answer.key) && !queue.handed.remove(&answer.key) {
            return;
        }
        if relay != LATER {
            self.count -= 1;
            self.bytes -= answer.bytes;
        }
        answer.missing -= 1;
        let complete = answer.missing == 0;
        if queue.len() == 0 {
            self.relays.remove(relay);
        }
        if complete {
            let answer = self.answers.remove(&id);
            for event in answer.into_iter().flat_map(|answer| answer.forms) {
                self.events.remove(&event);
            }
        }
    }

    /// Whether a relay has to get answers.
    pub(super) fn owes(&self, relay: &str) -> bool {
        self.relays.contains_key(relay)
    }

    /// Relays for which answers wait; first those that have not had to give up a slot.
    pub(super) fn waiting(&self) -> Vec<String> {
        let waits = |(_, queue): &(&String, &Queue)| {
            !queue.waiting.is_empty() && queue.handed.len() < HANDED
        };
        let mut relays: Vec<_> = self.relays.iter().filter(waits).collect();
        relays.sort_by_key(|(_, queue)| queue.parked);
        relays.into_iter().map(|(url, _)| url.clone()).collect()
    }

    /// Answers that were signed before the date that `oldest` gives for their relay.
    pub(super) fn late(&self, oldest: impl Fn(&str) -> u64) -> Vec<(String, JobId)> {
        let late = |(url, queue): (&String, &Queue)| {
            let end = (oldest(url), 0, JobId([0; 32]));
            let ids = queue.waiting.range(..end).chain(queue.handed.range(..end));
            ids.map(|(_, _, id)| (url.clone(), *id)).collect::<Vec<_>>()
        };
        self.relays.iter().flat_map(late).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> JobId {
        // Ids are in no order.
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.reverse_bits().to_be_bytes());
        JobId(bytes)
    }

    fn urls(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn a_relay_gets_the_newest_first_and_a_few_at_a_time() {
        let mut deliveries = Deliveries::default();
        for n in 0..200 {
            // Two in a second.
            deliveries.add(id(n), u64::from(n / 2), 1, &urls(&["a", "b"]));
        }
        let handed: Vec<_> = std::iter::from_fn(|| deliveries.hand("a")).collect();
        assert_eq!(handed.len(), HANDED);
        assert_eq!(handed[0], id(199));
        assert_eq!(deliveries.waiting(), ["b"], "a has enough for now");
        deliveries.settle("a", id(199));
        assert_eq!(deliveries.hand("a"), Some(id(71)));
        deliveries.park("a");
        assert_eq!(
            deliveries.waiting(),
            ["b", "a"],
            "who has had a try is last"
        );
        assert_eq!(deliveries.hand("a"), Some(id(198)));
        assert_eq!(deliveries.late(|_| 1).len(), 4);
        for n in 0..200 {
            deliveries.settle("a", id(n));
            deliveries.settle("b", id(n));
            deliveries.settle("b", id(n));
        }
        assert!(deliveries.is_empty() && !deliveries.owes("a") && !deliveries.owes("b"));
        assert_eq!((deliveries.len(), deliveries.bytes), (0, 0));
        assert!(deliveries.events.is_empty());
    }

    #[test]
    fn of_too_many_the_oldest_of_the_dead_relay_go_first() {
        let mut deliveries = Deliveries::default();
        for n in 0..10 {
            deliveries.add(id(n), 100, 1000, &urls(&["dead", "live"]));
        }
        while let Some(id) = deliveries.hand("dead") {
            let event = EventId::from_byte_array(id.0);
            deliveries.is_answer(event, id);
        }
        let is_up = |relay: &str| relay == "live";
        let mut given_up = Vec::new();
        while let Some((relay, id)) = deliveries.excess(8, u64::MAX, is_up) {
            deliveries.settle(&relay, id);
            given_up.push((relay, id));
        }
        let dead = (0..10).map(|n| ("dead".to_string(), id(n)));
        let live = (0..2).map(|n| ("live".to_string(), id(n)));
        assert_eq!(given_up, dead.chain(live).collect::<Vec<_>>());
        assert_eq!(deliveries.len(), 8);
        assert_eq!(deliveries.answers.len(), 8);
        assert_eq!(deliveries.events.len(), 8);
    }

    #[test]
    fn bytes_count_as_well() {
        let mut deliveries = Deliveries::default();
        for n in 0..10 {
            deliveries.add(id(n), 100, 1000, &urls(&["a"]));
            deliveries.add(id(n), 100, 1000, &urls(&["a"]));
            deliveries.extend(id(n), &urls(&["a", "b"]));
        }
        deliveries.extend(id(3), &urls(&[LATER]));
        assert_eq!(deliveries.excess(20, 20_000, |_| true), None);
        deliveries.settle(LATER, id(3));
        assert!(deliveries.excess(20, 19_999, |_| true).is_some());
        assert!(deliveries.excess(19, 20_000, |_| true).is_some());
    }
}
