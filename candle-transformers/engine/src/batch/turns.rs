//! The texts that wait for a slot, and whose is next.
//!
//! The owner with the fewest running texts comes first, and of equal ones the owner that was served longest ago. After a second owner was seen,
//! nobody gets the last slot for a while: a short text does not wait for the end of somebody's long one.

use super::Job;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The client that a text belongs to, such as an API key or an address. Owners take turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner(pub u64);

/// How long an owner counts after its last request.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Owners that are remembered.
const MOST_OWNERS: usize = 1024;
/// With fewer slots, none is kept free: it would be too large a share.
const LEAST_SLOTS: usize = 4;

/// A queue for each owner.
#[derive(Default)]
pub(super) struct Turns {
    /// The owner that was served longest ago first; none is empty.
    lines: VecDeque<(Owner, VecDeque<Job>)>,
    /// When each owner came last.
    seen: HashMap<Owner, Instant>,
}

impl Turns {
    pub(super) fn push(&mut self, job: Job) {
        self.see(job.owner);
        match self.lines.iter_mut().find(|line| line.0 == job.owner) {
            Some((_, line)) => line.push_back(job),
            None => self.lines.push_back((job.owner, VecDeque::from([job]))),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The line whose first text may have one of `slots`, of which `running` are taken.
    pub(super) fn next(&self, running: &[Owner], slots: usize) -> Option<usize> {
        let count = |owner: Owner| running.iter().filter(|it| **it == owner).count();
        let most = match slots >= LEAST_SLOTS && self.is_shared(running) {
            true => slots - 1,
            false => slots,
        };
        let lines = self.lines.iter().enumerate();
        let lines = lines.map(|(at, (owner, _))| (count(*owner), at));
        lines
            .filter(|(count, _)| *count < most)
            .min()
            .map(|it| it.1)
    }

    /// The tokens of the first text in a line.
    pub(super) fn tokens(&self, line: usize) -> &[u32] {
        let job = self.lines.get(line).and_then(|(_, line)| line.front());
        job.map_or(&[], |job| &job.tokens)
    }

    /// Takes the first text of a line, whose owner is last then.
    pub(super) fn take(&mut self, line: usize) -> Option<Job> {
        let (owner, mut jobs) = self.lines.remove(line)?;
        let job = jobs.pop_front();
        if !jobs.is_empty() {
            self.lines.push_back((owner, jobs));
        }
        self.see(owner);
        job
    }

    /// Takes the texts that `is_gone` names.
    pub(super) fn take_those(&mut self, mut is_gone: impl FnMut(&mut Job) -> bool) -> Vec<Job> {
        let mut gone = Vec::new();
        for (_, line) in &mut self.lines {
            let mut at = 0;
            while let Some(job) = line.get_mut(at) {
                match is_gone(job) {
                    true => gone.extend(line.remove(at)),
                    false => at += 1,
                }
            }
        }
        self.lines.retain(|(_, line)| !line.is_empty());
        gone
    }

    fn see(&mut self, owner: Owner) {
        if self.seen.len() >= MOST_OWNERS {
            self.seen.retain(|_, seen| seen.elapsed() < REMEMBERED);
        }
        if self.seen.len() < MOST_OWNERS {
            self.seen.insert(owner, Instant::now());
        }
    }

    /// Whether more than one owner is there, or was lately.
    fn is_shared(&self, running: &[Owner]) -> bool {
        let lately = self.seen.iter().filter(|it| it.1.elapsed() < REMEMBERED);
        let mut all = lately.map(|it| it.0).chain(running);
        let first = all.next();
        all.any(|owner| Some(owner) != first)
    }
}
