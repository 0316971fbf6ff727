//! Jobs that wait for their inputs or their payment. Their slots are separate from the queue's, because a stranger can hold them for free.

use super::{Customer, JobId, Refusal};
use std::collections::VecDeque;

/// Maximum number of waiting jobs, and the time for which each keeps its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingLimits {
    /// The most jobs of everybody.
    pub all: usize,
    /// The most jobs of one customer.
    pub per_customer: usize,
    /// Seconds for which a job keeps its slot. After that the oldest job has to leave when another needs the slot.
    pub safe: u64,
}

impl Default for WaitingLimits {
    fn default() -> Self {
        Self {
            all: 256,
            per_customer: 2,
            safe: 20,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    id: JobId,
    customer: Customer,
    since: u64,
    /// Whether the customer had a result from us before.
    is_known: bool,
}

/// The jobs that wait, the oldest first.
#[derive(Debug, Default)]
pub struct Waiting {
    limits: WaitingLimits,
    jobs: VecDeque<Waiter>,
}

impl Waiting {
    /// Nobody waits.
    pub fn new(limits: WaitingLimits) -> Self {
        Self {
            limits,
            jobs: VecDeque::new(),
        }
    }

    /// Number of waiting jobs.
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Whether this job does.
    pub fn contains(&self, id: JobId) -> bool {
        self.jobs.iter().any(|job| job.id == id)
    }

    /// Whether a job may wait, and which one has to leave for it. Nothing changes yet.
    ///
    /// The one that leaves is the oldest of a customer who never had a result from us, or else the oldest of all. Fresh keys cost
    /// nothing, so they cannot push out known customers while there is another to leave, nor anybody within [`WaitingLimits::safe`]
    /// seconds. A known customer need not wait for a stranger's safe time to end.
    ///
    /// # Errors
    /// [`Refusal::TooManyWaiting`], and [`Refusal::WaitingFull`] if no job may be evicted yet.
    pub fn admit(
        &self,
        customer: Customer,
        is_known: bool,
        now: u64,
    ) -> Result<Option<JobId>, Refusal> {
        let theirs = self.jobs.iter().filter(|job| job.customer == customer);
        let theirs = theirs.count();
        if theirs >= self.limits.per_customer {
            return Err(Refusal::TooManyWaiting(theirs));
        }
        if self.jobs.len() < self.limits.all {
            return Ok(None);
        }
        let stranger = self.jobs.iter().find(|job| !job.is_known);
        let oldest = stranger.or(self.jobs.front());
        let leaves = oldest.filter(|job| {
            let safe = now < job.since.saturating_add(self.limits.safe);
            !safe || (is_known && !job.is_known)
        });
        leaves.map(|job| Some(job.id)).ok_or(Refusal::WaitingFull)
    }

    /// A job waits from now on.
    pub fn enter(&mut self, id: JobId, customer: Customer, is_known: bool, now: u64) {
        self.jobs.push_back(Waiter {
            id,
            customer,
            since: now,
            is_known,
        });
    }

    /// A job does not wait any more. `false` if it did not.
    pub fn leave(&mut self, id: JobId) -> bool {
        let before = self.jobs.len();
        self.jobs.retain(|job| job.id != id);
        self.jobs.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn id(n: u8) -> JobId {
        JobId([n; 32])
    }

    fn customer(n: u8) -> Customer {
        Customer([n; 32])
    }

    /// Four slots, two per customer, safe for 20 seconds; taken by customers 1, 1, 2 and 3, a second apart.
    fn full(known: &[u8]) -> Waiting {
        let limits = WaitingLimits {
            all: 4,
            ..WaitingLimits::default()
        };
        let mut waiting = Waiting::new(limits);
        for (n, who) in [1, 1, 2, 3].into_iter().enumerate() {
            let at = NOW + n as u64;
            assert_eq!(waiting.admit(customer(who), false, at), Ok(None));
            waiting.enter(id(n as u8), customer(who), known.contains(&who), at);
        }
        waiting
    }

    #[test]
    fn a_customer_has_two_places() {
        let mut waiting = full(&[]);
        let third = |waiting: &Waiting| waiting.admit(customer(1), false, NOW + 100);
        assert_eq!(third(&waiting), Err(Refusal::TooManyWaiting(2)));
        assert!(waiting.leave(id(0)));
        assert!(!waiting.leave(id(0)));
        assert_eq!(third(&waiting), Ok(None));
    }

    #[test]
    fn the_oldest_leaves_when_its_safe_time_is_over() {
        let waiting = full(&[]);
        let next = |at| waiting.admit(customer(9), false, at);
        assert_eq!(next(NOW + 19), Err(Refusal::WaitingFull));
        assert_eq!(next(NOW + 20), Ok(Some(id(0))));
    }

    #[test]
    fn strangers_leave_before_customers_that_are_known() {
        let waiting = full(&[1]);
        let stranger = |at| waiting.admit(customer(9), false, at);
        assert_eq!(stranger(NOW + 20), Err(Refusal::WaitingFull));
        assert_eq!(stranger(NOW + 22), Ok(Some(id(2))));
        // One who is known need not wait for strangers.
        assert_eq!(waiting.admit(customer(8), true, NOW + 5), Ok(Some(id(2))));
        let waiting = full(&[1, 2, 3]);
        let next = |at| waiting.admit(customer(9), true, at);
        assert_eq!(next(NOW + 5), Err(Refusal::WaitingFull));
        assert_eq!(next(NOW + 20), Ok(Some(id(0))));
    }
}
