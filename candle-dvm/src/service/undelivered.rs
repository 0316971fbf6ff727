//! Which answers wait for which relays, so that nobody has to read the journal for it; and which are given up when there are too many.
//!
//! The answers themselves are in the journal. A relay's driver has a few of them at a time, so that one that is dead for a day costs no memory.

use crate::jobs::JobId;
use nostr::prelude::EventId;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Answers that a relay's driver has at a time, at most: more than it sends without waiting for an OK.
pub(super) const WINDOW: usize = 64;

/// An answer that some relay does not have yet.
struct Waiting {
    event: EventId,
    /// When it was signed, and how many were before it.
    order: (u64, u64),
    bytes: u64,
    relays: BTreeSet<String>,
}

/// What waits for one relay, the oldest first.
#[derive(Default)]
struct Line {
    all: BTreeMap<(u64, u64), JobId>,
    /// Those that its driver does not have yet.
    behind: BTreeMap<(u64, u64), JobId>,
}

impl Line {
    /// How many more its driver may have.
    fn free(&self) -> usize {
        WINDOW.saturating_sub(self.all.len() - self.behind.len())
    }
}

/// Answers that wait. One that waits for three relays counts three times: each of them keeps it.
#[derive(Default)]
pub(super) struct Undelivered {
    jobs: HashMap<EventId, JobId>,
    answers: HashMap<JobId, Waiting>,
    relays: BTreeMap<String, Line>,
    next: u64,
    count: usize,
    bytes: u64,
}

impl Undelivered {
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The job that an answer belongs to.
    pub(super) fn job(&self, event: &EventId) -> Option<JobId> {
        self.jobs.get(event).copied()
    }

    /// The event that answers a job.
    pub(super) fn event(&self, id: JobId) -> Option<EventId> {
        self.answers.get(&id).map(|waiting| waiting.event)
    }

    /// Adds an answer.
    pub(super) fn insert(
        &mut self,
        id: JobId,
        event: EventId,
        signed: u64,
        bytes: usize,
        relays: &BTreeSet<String>,
    ) {
        self.remove(id);
        if relays.is_empty() {
            return;
        }
        let bytes = bytes as u64;
        let order = (signed, self.next);
        self.next += 1;
        for relay in relays {
            let line = self.relays.entry(relay.clone()).or_default();
            line.all.insert(order, id);
            line.behind.insert(order, id);
            self.count += 1;
            self.bytes += bytes;
        }
        self.jobs.insert(event, id);
        let relays = relays.clone();
        let waiting = Waiting {
            event,
            order,
            bytes,
            relays,
        };
        self.answers.insert(id, waiting);
    }

    /// A relay has an answer, or never will.
    pub(super) fn settle(&mut self, id: JobId, relay: &str) {
        let Some(waiting) = self.answers.get_mut(&id) else {
            return;
        };
        if !waiting.relays.remove(relay) {
            return;
        }
        self.count -= 1;
        self.bytes -= waiting.bytes;
        if let Some(line) = self.relays.get_mut(relay) {
            line.all.remove(&waiting.order);
            line.behind.remove(&waiting.order);
            if line.all.is_empty() {
                self.relays.remove(relay);
            }
        }
        if waiting.relays.is_empty() {
            self.jobs.remove(&waiting.event);
            self.answers.remove(&id);
        }
    }

    fn remove(&mut self, id: JobId) {
        let relays = self.answers.get(&id).map(|waiting| waiting.relays.clone());
        for relay in relays.into_iter().flatten() {
            self.settle(id, &relay);
        }
    }

    /// Says that a relay's driver gets an answer now. `false` if it has enough, or this one.
    pub(super) fn hand_over(&mut self, id: JobId, relay: &str) -> bool {
        let (Some(waiting), Some(line)) = (self.answers.get(&id), self.relays.get_mut(relay))
        else {
            return false;
        };
        line.free() > 0 && line.behind.remove(&waiting.order).is_some()
    }

    /// The oldest that a relay's driver may get now. Not before it has got rid of half of what it has: they come in bunches.
    pub(super) fn next(&self, relay: &str) -> Vec<JobId> {
        let Some(line) = self.relays.get(relay) else {
            return Vec::new();
        };
        match line.free() {
            free if free < WINDOW / 2 => Vec::new(),
            free => line.behind.values().take(free).copied().collect(),
        }
    }

    /// What has waited for longer than a relay is tried.
    pub(super) fn overdue(&self, at: u64, patience: impl Fn(&str) -> u64) -> Vec<(JobId, String)> {
        let mut overdue = Vec::new();
        for (relay, line) in &self.relays {
            let patience = patience(relay);
            let late = line
                .all
                .iter()
                .take_while(|((signed, _), _)| signed.saturating_add(patience) < at);
            overdue.extend(late.map(|(_, id)| (*id, relay.clone())));
        }
        overdue
    }

    /// What is given up next, if more wait than may: of relays that are not connected, or if all are then of all, the one for which most
    /// wait; and of what waits for it, the oldest.
    pub(super) fn excess(
        &self,
        most: usize,
        most_bytes: u64,
        is_up: impl Fn(&str) -> bool,
    ) -> Option<(JobId, String)> {
        if self.count <= most && self.bytes <= most_bytes {
            return None;
        }
        let worst = |(relay, line): &(&String, &Line)| (!is_up(relay), line.all.len());
        let (relay, line) = self.relays.iter().max_by_key(worst)?;
        let id = line.all.values().next()?;
        Some((*id, relay.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(n: u8) -> JobId {
        JobId([n; 32])
    }

    fn event(n: u8) -> EventId {
        EventId::from_byte_array([n; 32])
    }

    /// Ten answers, signed two in a second, for a relay that is up and one that is not.
    fn ten() -> Undelivered {
        let mut undelivered = Undelivered::default();
        let relays = ["dead", "live"].map(str::to_string).into();
        for n in 0..10 {
            undelivered.insert(job(n), event(n), 100 + u64::from(n / 2), 1000, &relays);
        }
        undelivered
    }

    #[test]
    fn the_oldest_of_the_dead_relay_go_first() {
        let mut undelivered = ten();
        let mut given_up = Vec::new();
        while let Some((id, relay)) = undelivered.excess(8, u64::MAX, |relay| relay == "live") {
            undelivered.settle(id, &relay);
            given_up.push((id, relay));
        }
        let expected: Vec<_> = (0..10).map(|n| (job(n), "dead".to_string())).collect();
        assert_eq!(given_up[..10], expected);
        assert_eq!(
            given_up[10..],
            [(job(0), "live".to_string()), (job(1), "live".to_string())]
        );
        assert_eq!(undelivered.len(), 8);
        assert_eq!(undelivered.job(&event(1)), None);
        assert_eq!(undelivered.job(&event(2)), Some(job(2)));
    }

    #[test]
    fn bytes_count_as_well_and_nothing_is_left_behind() {
        let mut undelivered = ten();
        assert_eq!(undelivered.excess(20, 20_000, |_| false), None);
        assert!(undelivered.excess(20, 19_999, |_| false).is_some());
        // The same again counts once.
        undelivered.insert(job(9), event(9), 109, 1000, &["live".to_string()].into());
        assert_eq!((undelivered.len(), undelivered.bytes), (19, 19_000));
        for n in 0..10 {
            undelivered.settle(job(n), "live");
            undelivered.settle(job(n), "live");
            undelivered.settle(job(n), "dead");
        }
        assert!(undelivered.is_empty() && undelivered.relays.is_empty());
        assert!(undelivered.jobs.is_empty());
        assert_eq!((undelivered.len(), undelivered.bytes), (0, 0));
    }

    #[test]
    fn each_relay_has_its_own_patience() {
        let undelivered = ten();
        let patience = |relay: &str| if relay == "dead" { 10 } else { 100 };
        assert_eq!(undelivered.overdue(110, patience), []);
        let dead = "dead".to_string();
        let overdue = undelivered.overdue(111, patience);
        assert_eq!(overdue, [(job(0), dead.clone()), (job(1), dead)]);
        assert_eq!(undelivered.overdue(1000, patience).len(), 20);
    }

    #[test]
    fn a_driver_has_a_few_at_a_time_and_gets_the_oldest_next() {
        let mut undelivered = Undelivered::default();
        let relay = ["a".to_string()].into();
        for n in 0..200 {
            undelivered.insert(job(n), event(n), 100, 1000, &relay);
        }
        // One that came up while others waited.
        assert!(undelivered.hand_over(job(199), "a"));
        assert!(!undelivered.hand_over(job(199), "a"), "once");
        let oldest = undelivered.next("a");
        assert_eq!(oldest, (0..63).map(job).collect::<Vec<_>>());
        for id in &oldest {
            assert!(undelivered.hand_over(*id, "a"));
        }
        assert!(!undelivered.hand_over(job(63), "a"), "it has enough");
        oldest[..31]
            .iter()
            .for_each(|id| undelivered.settle(*id, "a"));
        assert_eq!(undelivered.next("a"), [], "not one by one");
        undelivered.settle(oldest[31], "a");
        let next: Vec<JobId> = (63..95).map(job).collect();
        assert_eq!(undelivered.next("a"), next);
        assert_eq!(undelivered.next("b"), []);
    }
}
