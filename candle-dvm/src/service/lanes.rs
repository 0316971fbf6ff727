//! The queue of each sort of job, and how many of it run: texts share the model's steps, a recording has its model to itself.

use super::offers::Ready;
use crate::jobs::{Customer, FairQueue, JobId};
use crate::nip90::JobKind;

struct Lane {
    queue: FairQueue<Ready>,
    running: usize,
    most: usize,
}

/// A lane for each sort of job.
pub(super) struct Lanes {
    text: Lane,
    speech: Lane,
}

impl Lanes {
    /// With at most `texts` jobs of text at once, and one of speech.
    pub(super) fn new(texts: usize) -> Self {
        let lane = |most| Lane {
            queue: FairQueue::default(),
            running: 0,
            most,
        };
        Self {
            text: lane(texts),
            speech: lane(1),
        }
    }

    fn of(&mut self, kind: JobKind) -> &mut Lane {
        match kind {
            JobKind::Text => &mut self.text,
            JobKind::Speech => &mut self.speech,
        }
    }

    /// Adds a job that has all it needs.
    pub(super) fn push(&mut self, customer: Customer, is_known: bool, id: JobId, ready: Ready) {
        let lane = self.of(ready.kind());
        lane.queue.push(customer, is_known, id, ready);
    }

    /// Takes the next job for which there is a free slot, if any.
    pub(super) fn pop(&mut self) -> Option<(JobId, Ready)> {
        let mut lanes = [&mut self.text, &mut self.speech].into_iter();
        lanes.find_map(|lane| {
            if lane.running < lane.most {
                lane.queue.pop()
            } else {
                None
            }
        })
    }

    /// Removes a job that was cancelled.
    pub(super) fn remove(&mut self, kind: JobKind, customer: Customer, id: JobId) {
        self.of(kind).queue.remove(customer, id);
    }

    /// Notes that a job runs.
    pub(super) fn started(&mut self, kind: JobKind) {
        self.of(kind).running += 1;
    }

    /// Notes that one has ended.
    pub(super) fn ended(&mut self, kind: JobKind) {
        let lane = self.of(kind);
        lane.running = lane.running.saturating_sub(1);
    }

    /// Number of waiting jobs.
    pub(super) fn len(&self) -> usize {
        self.text.queue.len() + self.speech.queue.len()
    }

    /// Number of running jobs.
    pub(super) fn running(&self) -> usize {
        self.text.running + self.speech.running
    }
}
