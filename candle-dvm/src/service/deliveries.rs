//! Which relay has to get which answers: their ids only, since the journal has the answers.

use crate::jobs::JobId;
use nostr::prelude::EventId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Answers that a relay gets before it has answered to earlier ones.
const HANDED: usize = 128;
/// Answers that some relay has to get yet, at most: beyond it the oldest are given up.
const UNDELIVERED: usize = 20_000;

/// Answers that have not reached all their relays.
#[derive(Default)]
pub(super) struct Deliveries {
    /// By when they were signed.
    jobs: BTreeSet<(u64, JobId)>,
    answers: HashMap<JobId, Signed>,
    /// Which answer an event is, or a shorter form of it; of those that relays were given.
    events: HashMap<EventId, JobId>,
    relays: BTreeMap<String, Queue>,
}

struct Signed {
    at: u64,
    forms: Vec<EventId>,
}

#[derive(Default)]
struct Queue {
    waiting: BTreeSet<(u64, JobId)>,
    handed: BTreeSet<(u64, JobId)>,
    /// How often the relay had to leave its place to others.
    parked: u32,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.handed.is_empty()
    }
}

impl Deliveries {
    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Adds an answer. Returns the oldest one if there are too many.
    pub(super) fn add<'a>(
        &mut self,
        id: JobId,
        signed: u64,
        relays: impl IntoIterator<Item = &'a String>,
    ) -> Option<JobId> {
        for relay in relays {
            let queue = self.relays.entry(relay.clone()).or_default();
            queue.waiting.insert((signed, id));
        }
        self.jobs.insert((signed, id));
        let forms = Vec::new();
        self.answers.insert(id, Signed { at: signed, forms });
        let oldest = self.jobs.first().map(|(_, id)| *id);
        oldest.filter(|_| self.jobs.len() > UNDELIVERED)
    }

    /// The answer that a relay is to get next, if it can take one: the newest, for which somebody waits.
    pub(super) fn hand(&mut self, relay: &str) -> Option<JobId> {
        let queue = self.relays.get_mut(relay)?;
        if queue.handed.len() >= HANDED {
            return None;
        }
        let next = queue.waiting.pop_last()?;
        queue.handed.insert(next);
        Some(next.1)
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

    /// Takes back what a relay was given: it had to leave its place.
    pub(super) fn park(&mut self, relay: &str) {
        if let Some(queue) = self.relays.get_mut(relay) {
            queue.waiting.append(&mut queue.handed);
            queue.parked += 1;
        }
    }

    /// A relay has an answer, or never will.
    pub(super) fn settle(&mut self, relay: &str, id: JobId) {
        let Some(answer) = self.answers.get(&id) else {
            return;
        };
        if let Some(queue) = self.relays.get_mut(relay) {
            queue.waiting.remove(&(answer.at, id));
            queue.handed.remove(&(answer.at, id));
            if queue.is_empty() {
                self.relays.remove(relay);
            }
        }
    }

    /// No relay has to get an answer any more.
    pub(super) fn remove(&mut self, id: JobId) {
        let Some(answer) = self.answers.remove(&id) else {
            return;
        };
        let key = (answer.at, id);
        self.jobs.remove(&key);
        self.relays.retain(|_, queue| {
            queue.waiting.remove(&key);
            queue.handed.remove(&key);
            !queue.is_empty()
        });
        for event in answer.forms {
            self.events.remove(&event);
        }
    }

    /// Whether a relay has to get answers.
    pub(super) fn owes(&self, relay: &str) -> bool {
        self.relays.contains_key(relay)
    }

    /// Relays for which answers wait, those first that have not had to leave their place yet.
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
            let end = (oldest(url), JobId([0; 32]));
            let ids = queue.waiting.range(..end).chain(queue.handed.range(..end));
            ids.map(|(_, id)| (url.clone(), *id)).collect::<Vec<_>>()
        };
        self.relays.iter().flat_map(late).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> JobId {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        JobId(bytes)
    }

    fn urls(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn a_relay_gets_the_newest_first_and_a_few_at_a_time() {
        let mut deliveries = Deliveries::default();
        for n in 0..200 {
            let relays = urls(&["a", "b"]);
            assert_eq!(deliveries.add(id(n), u64::from(n), &relays), None);
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
        assert_eq!(deliveries.late(|_| 2).len(), 4);
        for n in 0..200 {
            deliveries.remove(id(n));
        }
        assert!(deliveries.is_empty() && !deliveries.owes("a") && !deliveries.owes("b"));
    }

    #[test]
    fn of_too_many_the_oldest_are_given_up() {
        let mut deliveries = Deliveries::default();
        let relays = urls(&["a"]);
        let count = UNDELIVERED as u32;
        for n in 0..count {
            assert_eq!(deliveries.add(id(n), u64::from(n) + 5, &relays), None);
        }
        assert_eq!(deliveries.add(id(count), 9_000_000, &relays), Some(id(0)));
        deliveries.remove(id(0));
        assert_eq!(deliveries.jobs.len(), UNDELIVERED);
    }
}
