//! The order in which jobs run.

use super::{Customer, JobId};
use std::collections::{HashMap, VecDeque};

/// A round-robin queue over customers, first in, first out for each: a customer with many jobs delays only itself. It
/// is unbounded: [`super::Admission`] is what bounds it.
#[derive(Debug)]
pub struct FairQueue<T> {
    len: usize,
    turns: VecDeque<Customer>,
    jobs: HashMap<Customer, VecDeque<(JobId, T)>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            len: 0,
            turns: VecDeque::new(),
            jobs: HashMap::new(),
        }
    }
}

impl<T> FairQueue<T> {
    /// How many jobs wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a job.
    pub fn push(&mut self, customer: Customer, id: JobId, job: T) {
        let jobs = self.jobs.entry(customer).or_default();
        if jobs.is_empty() {
            self.turns.push_back(customer);
        }
        jobs.push_back((id, job));
        self.len += 1;
    }

    /// Takes the next job.
    pub fn pop(&mut self) -> Option<(JobId, T)> {
        let customer = self.turns.pop_front()?;
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
            queue.push(customer(1), id(n), n);
        }
        queue.push(customer(2), id(10), 10);
        queue.push(customer(3), id(20), 20);
        let order: Vec<u8> = std::iter::from_fn(|| queue.pop()).map(|(_, n)| n).collect();
        assert_eq!(order, [0, 10, 20, 1, 2, 3]);
        assert!(queue.is_empty() && queue.turns.is_empty() && queue.jobs.is_empty());
    }

    #[test]
    fn a_job_that_is_taken_out_leaves_no_turn_behind() {
        let mut queue = FairQueue::default();
        queue.push(customer(1), id(1), 1);
        queue.push(customer(2), id(2), 2);
        assert_eq!(queue.remove(customer(1), id(2)), None);
        assert_eq!(queue.remove(customer(1), id(1)), Some(1));
        assert_eq!(queue.remove(customer(1), id(1)), None);
        assert_eq!(queue.len(), 1);
        assert_eq!(queue.pop(), Some((id(2), 2)));
        assert_eq!(queue.pop(), None);
    }
}
