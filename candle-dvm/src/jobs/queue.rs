//! The order in which jobs run.

use super::{Customer, JobId};
use std::collections::{HashMap, VecDeque};

/// A round-robin queue over customers, first in, first out for each: a customer with many jobs delays only itself. The queue is unbounded;
/// [`super::Admission`] limits it.
///
/// A known customer with no job in the queue does not wait for all strangers: such customers get every other turn. From their second job on
/// they queue with the others.
#[derive(Debug)]
pub struct FairQueue<T> {
    len: usize,
    turns: VecDeque<Customer>,
    /// Known customers whose first job waits.
    first: VecDeque<Customer>,
    /// Whether the last job came from `first`.
    was_first: bool,
    jobs: HashMap<Customer, VecDeque<(JobId, T)>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            len: 0,
            turns: VecDeque::new(),
            first: VecDeque::new(),
            was_first: false,
            jobs: HashMap::new(),
        }
    }
}

impl<T> FairQueue<T> {
    /// Number of waiting jobs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a job. `is_known` says whether its customer had a result before.
    pub fn push(&mut self, customer: Customer, is_known: bool, id: JobId, job: T) {
        let jobs = self.jobs.entry(customer).or_default();
        if jobs.is_empty() {
            if is_known {
                self.first.push_back(customer)
            } else {
                self.turns.push_back(customer)
            }
        }
        jobs.push_back((id, job));
        self.len += 1;
    }

    /// Takes the next job.
    pub fn pop(&mut self) -> Option<(JobId, T)> {
        self.was_first = match (self.first.is_empty(), self.turns.is_empty()) {
            (false, false) => !self.was_first,
            (no_first, _) => !no_first,
        };
        let customer = if self.was_first {
            self.first.pop_front()?
        } else {
            self.turns.pop_front()?
        };
        let jobs = self.jobs.get_mut(&customer)?;
        let job = jobs.pop_front()?;
        self.len -= 1;
        if jobs.is_empty() {
            self.jobs.remove(&customer);
        } else {
            self.turns.push_back(customer);
        }
        Some(job)
    }

    /// Removes a job that was cancelled.
    pub fn remove(&mut self, customer: Customer, id: JobId) -> Option<T> {
        let jobs = self.jobs.get_mut(&customer)?;
        let at = jobs.iter().position(|(other, _)| *other == id)?;
        let (_, job) = jobs.remove(at)?;
        self.len -= 1;
        if jobs.is_empty() {
            self.jobs.remove(&customer);
            self.turns.retain(|other| *other != customer);
            self.first.retain(|other| *other != customer);
        }
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> JobId {
        JobId([n; 32])
    }

    fn customer(n: u8) -> Customer {
        Customer([n; 32])
    }

    #[test]
    fn customers_take_turns() {
        let mut queue = FairQueue::default();
        for n in 0..4 {
            queue.push(customer(1), false, id(n), n);
        }
        queue.push(customer(2), false, id(10), 10);
        queue.push(customer(3), false, id(20), 20);
        let order: Vec<u8> = std::iter::from_fn(|| queue.pop()).map(|(_, n)| n).collect();
        assert_eq!(order, [0, 10, 20, 1, 2, 3]);
        assert!(queue.is_empty() && queue.turns.is_empty() && queue.jobs.is_empty());
    }

    #[test]
    fn every_other_turn_is_for_known_customers_who_had_none() {
        let mut queue = FairQueue::default();
        for n in 0..4 {
            queue.push(customer(n), false, id(n), n);
        }
        for (who, n) in [(10, 10), (10, 11), (10, 12), (20, 20)] {
            queue.push(customer(who), true, id(n), n);
        }
        let order: Vec<u8> = std::iter::from_fn(|| queue.pop()).map(|(_, n)| n).collect();
        assert_eq!(order, [10, 0, 20, 1, 2, 3, 11, 12]);
        // Strangers get every other turn, even if known customers arrive without end.
        queue.push(customer(1), false, id(1), 1);
        queue.push(customer(2), false, id(2), 2);
        let mut next = |n| {
            queue.push(customer(n), true, id(n), n);
            queue.pop().map(|(_, job)| job)
        };
        assert_eq!([30, 31, 32, 33].map(&mut next), [30, 1, 31, 2].map(Some));
    }

    #[test]
    fn a_job_that_is_taken_out_leaves_no_turn_behind() {
        let mut queue = FairQueue::default();
        queue.push(customer(1), false, id(1), 1);
        queue.push(customer(2), true, id(2), 2);
        assert_eq!(queue.remove(customer(1), id(2)), None);
        assert_eq!(queue.remove(customer(1), id(1)), Some(1));
        assert_eq!(queue.remove(customer(1), id(1)), None);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.pop(), Some((id(2), 2)));
        assert_eq!(queue.pop(), None);
    }
}
