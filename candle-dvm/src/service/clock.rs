//! Checks this machine's clock against those of relays and customers.
//!
//! If the clock is ahead, the service subscribes to requests that do not exist yet; if it is behind, requests seem to be from the future.
//! Neither can be fixed here, so it is logged.

use crate::jobs::Customer;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use web_time::Instant;

/// Seconds by which a relay's clock may differ from ours. Requests are fetched from ten minutes back.
const TOLERANCE: i64 = 120;
/// Requests that are new on a relay come within this many seconds of their date, or a clock is wrong.
const LATE: i64 = 600;
/// Number of customers whose clocks are compared with ours; with fewer than the second number there is no report.
const CUSTOMERS: usize = 16;
const ENOUGH: usize = 5;
/// Minimum number of seconds by which the clock was set back for the service to subscribe again.
const SET: i64 = 60;

/// The measurements of the clock.
pub(super) struct Clock {
    /// The clock's time at an instant, from which it advances unless it is set.
    wall: u64,
    at: Instant,
    /// For each relay that shows its clock, how far ours is ahead of it.
    relays: BTreeMap<String, i64>,
    /// The same for the customers of the latest new requests, each once.
    customers: VecDeque<(Customer, i64)>,
    /// The reported number of seconds by which ours is ahead; 0 while it is right.
    said: i64,
}

/// The clock was set while the service ran.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SetBack {
    /// The difference, in seconds.
    pub(super) by: u64,
    /// When the service began to go by the wrong time, in the new one.
    pub(super) since: u64,
}

impl Clock {
    pub(super) fn new(wall: u64, at: Instant) -> Self {
        Self {
            wall,
            at,
            relays: BTreeMap::new(),
            customers: VecDeque::new(),
            said: 0,
        }
    }

    /// Checks whether the clock was set. A clock that was set forward needs no action: the subscriptions start at an earlier time.
    pub(super) fn set(&mut self, wall: u64, at: Instant) -> Option<SetBack> {
        let ran = at.saturating_duration_since(self.at).as_secs();
        let by = difference(wall, self.wall.saturating_add(ran));
        if by.abs() < SET {
            return None;
        }
        (self.wall, self.at) = (wall, at);
        self.relays.values_mut().for_each(|ahead| *ahead += by);
        self.customers.clear();
        // While a machine sleeps, its instants may stop: this shows as a clock that was set forward.
        (by < 0).then(|| SetBack {
            by: by.unsigned_abs(),
            since: wall.saturating_sub(ran),
        })
    }

    /// Takes a relay's own time.
    pub(super) fn relay(&mut self, url: &str, theirs: u64, ours: u64) {
        self.relays
            .insert(url.to_string(), difference(ours, theirs));
    }

    /// Takes the date of a request that is new on a relay.
    pub(super) fn request(&mut self, customer: Customer, created: u64, ours: u64) {
        self.customers.retain(|(other, _)| *other != customer);
        if self.customers.len() >= CUSTOMERS {
            self.customers.pop_front();
        }
        let ahead = difference(ours, created);
        self.customers.push_back((customer, ahead));
    }

    /// Number of seconds by which the clock is ahead, by most relays' clocks, or if no relay shows one by those of all customers; 0 if it
    /// is right.
    pub(super) fn ahead(&self) -> i64 {
        let relays = middle(self.relays.values().copied());
        if let Some(ahead) = relays {
            return if ahead.abs() > TOLERANCE { ahead } else { 0 };
        }
        let customers = || self.customers.iter().map(|(_, ahead)| *ahead);
        if self.customers.len() < ENOUGH {
            return 0;
        }
        let early = customers().all(|ahead| ahead < -TOLERANCE);
        // One customer may publish old requests again; all of them are unlikely to.
        let late = customers().all(|ahead| ahead > LATE);
        if early || late {
            middle(customers()).unwrap_or(0)
        } else {
            0
        }
    }

    /// Number of seconds by which the clock is ahead, if the state changed: right again, or wrong by a very different number.
    pub(super) fn news(&mut self) -> Option<i64> {
        let ahead = self.ahead();
        let same_side = ahead.signum() == self.said.signum();
        if same_side && (ahead - self.said).abs() <= self.said.abs() / 2 {
            return None;
        }
        self.said = ahead;
        Some(ahead)
    }
}

/// The value in the middle; of two, the one nearer to 0.
fn middle(values: impl Iterator<Item = i64>) -> Option<i64> {
    let mut values: Vec<i64> = values.collect();
    values.sort_unstable();
    let (low, high) = (values.len().checked_sub(1)? / 2, values.len() / 2);
    let (low, high) = (values[low], values[high]);
    Some(if low.abs() < high.abs() { low } else { high })
}

fn difference(a: u64, b: u64) -> i64 {
    // Dates are claims of their authors: this one may be any number.
    i64::try_from(a)
        .unwrap_or(i64::MAX)
        .saturating_sub(i64::try_from(b).unwrap_or(i64::MAX))
}

/// Whether any relay can be reached.
#[derive(Default)]
pub(super) struct Reachable {
    /// Relays that were tried in vain since they were connected last.
    failed: BTreeMap<String, String>,
    said: Option<Instant>,
}

/// Between two lines in the log that say that no relay can be reached.
const AGAIN: Duration = Duration::from_secs(600);

impl Reachable {
    /// A relay is connected.
    pub(super) fn up(&mut self, url: &str) {
        self.failed.remove(url);
        self.said = None;
    }

    /// A relay could not be reached, or the connection has ended.
    pub(super) fn down(&mut self, url: &str, reason: &str) {
        self.failed.insert(url.to_string(), reason.to_string());
    }

    /// Whether each of `relays` was tried in vain.
    pub(super) fn none(&self, relays: &[String]) -> bool {
        relays.iter().all(|url| self.failed.contains_key(url))
    }

    /// The message about unreachable relays, when it is due: the reason for each.
    pub(super) fn news(&mut self, relays: &[String], at: Instant) -> Option<String> {
        let due = |said: Instant| at.saturating_duration_since(said) >= AGAIN;
        if !self.none(relays) || !self.said.is_none_or(due) {
            return None;
        }
        self.said = Some(at);
        let reasons = relays.iter().filter_map(|url| {
            let reason = self.failed.get(url)?;
            Some(format!("{url}: {reason}"))
        });
        Some(reasons.collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn clock() -> Clock {
        Clock::new(NOW, Instant::now())
    }

    fn customer(n: u8) -> Customer {
        Customer([n; 32])
    }

    #[test]
    fn most_relays_have_to_agree_that_it_is_wrong() {
        let mut clock = clock();
        clock.relay("a", NOW - 3600, NOW);
        assert_eq!(clock.ahead(), 3600);
        assert_eq!(clock.news(), Some(3600));
        clock.relay("a", NOW - 3610, NOW);
        assert_eq!(clock.news(), None, "said already");
        clock.relay("b", NOW - 1, NOW);
        assert_eq!(clock.news(), Some(0), "one of two may be wrong itself");
        clock.relay("c", NOW - 3600, NOW);
        assert_eq!(clock.news(), Some(3600));
        clock.relay("a", u64::MAX, NOW);
        clock.relay("b", u64::MAX, NOW);
        assert!(clock.news().unwrap() < -3600);
    }

    #[test]
    fn customers_dates_count_if_relays_show_no_clock() {
        for (created, expected) in [(NOW + 3600, -3600), (NOW - 3600, 3600), (NOW - 60, 0)] {
            let mut clock = clock();
            for _ in 0..100 {
                clock.request(customer(1), created, NOW);
            }
            assert_eq!(clock.ahead(), 0, "one customer is too few");
            for n in 0..5 {
                clock.request(customer(n), created, NOW);
            }
            assert_eq!(clock.ahead(), expected);
            clock.request(customer(5), NOW, NOW);
            assert_eq!(clock.ahead(), 0, "not all");
            for n in 0..255 {
                clock.request(customer(n), created, NOW);
            }
            assert_eq!(clock.customers.len(), CUSTOMERS);
            clock.relay("a", NOW, NOW);
            assert_eq!(clock.ahead(), 0, "a relay knows better");
        }
    }

    #[test]
    fn a_clock_that_is_set_back_is_noticed() {
        let mut clock = clock();
        let started = clock.at;
        let after = |seconds| started + Duration::from_secs(seconds);
        clock.relay("a", NOW - 86_400, NOW);
        assert_eq!(clock.set(NOW + 100, after(100)), None);
        assert_eq!(clock.set(NOW + 70, after(100)), None, "half a minute");
        let set = clock.set(NOW + 300 - 86_400, after(300)).unwrap();
        let since = NOW - 86_400;
        assert_eq!((set.by, set.since), (86_400, since));
        assert_eq!(clock.ahead(), 0);
        assert_eq!(clock.set(NOW + 301 - 86_400, after(301)), None);
        assert_eq!(clock.set(NOW, after(302)), None, "forward");
    }

    #[test]
    fn that_no_relay_is_reached_is_said_at_once_and_now_and_then() {
        let relays = ["a", "b"].map(str::to_string);
        let mut reachable = Reachable::default();
        let at = Instant::now();
        reachable.down("a", "no such host");
        assert_eq!(reachable.news(&relays, at), None, "b is not tried yet");
        reachable.down("b", "refused");
        let said = reachable.news(&relays, at).unwrap();
        assert_eq!(said, "a: no such host; b: refused");
        assert_eq!(reachable.news(&relays, at), None);
        assert!(reachable.news(&relays, at + AGAIN).is_some());
        reachable.up("b");
        assert_eq!(reachable.news(&relays, at + 2 * AGAIN), None);
        reachable.down("b", "closed");
        assert!(reachable.news(&relays, at + 2 * AGAIN).is_some());
    }
}
