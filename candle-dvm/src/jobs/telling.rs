//! Chooses which customers hear of a refusal, when not all can: a signature costs more than a key.
//!
//! Refusals that cannot be sent at once wait. In rotation, the service tells one with much proof of work, one who asked before, and the
//! newest. So a crowd of fresh keys that ask once each takes at most two of three turns from a customer who asks again or adds proof of
//! work, and none from one who comes after it.

use super::Customer;
use std::collections::VecDeque;

/// The most refusals that strangers hear in a minute, all together.
const A_MINUTE: u64 = 60;
/// The most that wait; beyond it the oldest go.
const MOST: usize = 4096;
/// Seconds after which the customer is assumed to be gone.
const STALE: u64 = 120;

/// An allowance per minute. Unused, it refills every second.
#[derive(Debug)]
pub(super) struct Budget {
    a_minute: u64,
    /// In sixtieths.
    left: u64,
    at: u64,
}

impl Budget {
    pub(super) fn new(a_minute: u64) -> Self {
        Self {
            a_minute,
            left: a_minute * 60,
            at: 0,
        }
    }

    /// `false` if the allowance is used up.
    pub(super) fn take(&mut self, now: u64) -> bool {
        let back = now.saturating_sub(self.at).saturating_mul(self.a_minute);
        self.left = self.left.saturating_add(back).min(self.a_minute * 60);
        self.at = now;
        let taken = self.left >= 60;
        self.left -= if taken { 60 } else { 0 };
        taken
    }
}

#[derive(Debug)]
struct Waiter<T> {
    customer: Customer,
    since: u64,
    work: u8,
    is_again: bool,
    refusal: T,
}

/// Refusals that strangers have not heard yet, the oldest first.
#[derive(Debug)]
pub struct Telling<T> {
    budget: Budget,
    waiters: VecDeque<Waiter<T>>,
    turn: usize,
    dropped: u64,
}

impl<T> Default for Telling<T> {
    fn default() -> Self {
        Self {
            budget: Budget::new(A_MINUTE),
            waiters: VecDeque::new(),
            turn: 0,
            dropped: 0,
        }
    }
}

impl<T> Telling<T> {
    /// Number of waiting refusals.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Number of refusals dropped unsent since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Queues a refusal for a customer; `work` is the proof of work of the request, in bits. It replaces an earlier one of the same
    /// customer.
    pub fn push(&mut self, customer: Customer, work: u8, refusal: T, now: u64) {
        let before = self.waiters.len();
        self.waiters.retain(|waiter| waiter.customer != customer);
        let is_again = self.waiters.len() < before;
        self.dropped += u64::from(is_again);
        if self.waiters.len() >= MOST {
            self.waiters.pop_front();
            self.dropped += 1;
        }
        self.waiters.push_back(Waiter {
            customer,
            since: now,
            work,
            is_again,
            refusal,
        });
    }

    /// The next refusal to send now. `None` if there is none, or the allowance of the last minute is used up.
    pub fn next(&mut self, now: u64) -> Option<T> {
        let is_stale = |waiter: &Waiter<T>| waiter.since.saturating_add(STALE) < now;
        while self.waiters.front().is_some_and(is_stale) {
            self.waiters.pop_front();
            self.dropped += 1;
        }
        if self.waiters.is_empty() || !self.budget.take(now) {
            return None;
        }
        let at = (0..3).find_map(|_| {
            self.turn = (self.turn + 1) % 3;
            self.of_turn(self.turn)
        });
        self.waiters.remove(at?).map(|waiter| waiter.refusal)
    }

    /// The index of the refusal to send at `turn`; among equals the newest.
    fn of_turn(&self, turn: usize) -> Option<usize> {
        let waiters = self.waiters.iter().enumerate();
        let found = match turn {
            0 => waiters.max_by_key(|(at, _)| *at),
            1 => waiters
                .filter(|(_, waiter)| waiter.work > 0)
                .max_by_key(|(at, waiter)| (waiter.work, *at)),
            _ => waiters
                .filter(|(_, waiter)| waiter.is_again)
                .max_by_key(|(at, _)| *at),
        };
        found.map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn key(number: u32) -> Customer {
        let mut customer = [0; 32];
        customer[..4].copy_from_slice(&number.to_le_bytes());
        Customer(customer)
    }

    /// The state after a crowd of `keys` fresh keys, and the refusals that were sent at once.
    fn after_crowd(keys: u32) -> Telling<u32> {
        let mut telling = Telling::default();
        let mut said = 0;
        for n in 0..keys {
            telling.push(key(n), 0, n, NOW);
            said += u32::from(telling.next(NOW).is_some());
        }
        assert_eq!(said, keys.min(60));
        telling
    }

    #[test]
    fn who_comes_after_a_crowd_hears_it_next() {
        let mut telling = after_crowd(3000);
        telling.push(key(9999), 0, 9999, NOW);
        assert_eq!(telling.next(NOW), None);
        assert_eq!(telling.next(NOW + 1), Some(9999));
        assert_eq!(telling.next(NOW + 1), None, "one a second");
    }

    #[test]
    fn in_a_crowd_those_who_work_or_ask_again_have_turns() {
        let mut telling = after_crowd(1000);
        telling.push(key(1), 0, 1, NOW);
        telling.push(key(2000), 8, 2000, NOW);
        telling.push(key(2001), 12, 2001, NOW);
        telling.push(key(500), 0, 500, NOW);
        let mut heard = Vec::new();
        for second in 1..=6 {
            // The crowd does not end.
            telling.push(key(3000 + second), 0, 3000 + second, NOW);
            heard.extend(telling.next(NOW + u64::from(second)));
        }
        // Key 1 heard at once when it asked first, so it asks as if for the first time.
        let (rest, wanted): (Vec<u32>, Vec<u32>) = heard.iter().partition(|n| **n >= 3000);
        assert_eq!(wanted, [2001, 500, 2000]);
        assert_eq!(rest.len(), 3, "{heard:?}");
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_time() {
        let mut telling = after_crowd(60);
        for n in 100..(100 + MOST as u32 + 5) {
            telling.push(key(n), 0, n, NOW);
        }
        telling.push(key(200), 0, 200, NOW + 1);
        assert_eq!(telling.len(), MOST);
        assert_eq!(telling.take_dropped(), 6);
        assert_eq!(telling.next(NOW + 1 + STALE), Some(200));
        assert_eq!(telling.next(NOW + 2 + STALE), None);
        assert!(telling.is_empty());
        assert_eq!(telling.take_dropped(), MOST as u64 - 1);
    }
}
