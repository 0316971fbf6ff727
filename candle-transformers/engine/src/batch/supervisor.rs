//! Steps, one after another, and what becomes of the engine where they fail.
//!
//! A step that fails or panics ends the texts that ran; those that wait, and all that come, go on with an empty cache. Where that does not help
//! the engine ends, and says so: whoever serves with it is better started anew than an answer of errors for ever.

use super::scheduler::Scheduler;
use super::watch::Watch;
use super::Job;
use crate::{Error, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::Receiver;
use std::sync::OnceLock;

/// After how many grave failures the engine ends, if no text was finished between them.
pub(super) const MOST_FAILURES: usize = 3;

/// What texts are told, and the log is: a panic's message may quote the text of somebody else. Its hook, which comes first, prints where it was.
const PANICKED: &str = "a step panicked; all running requests were aborted";

/// The result, or nothing after a panic.
pub(super) fn caught<T>(work: impl FnOnce() -> T) -> Option<T> {
    // What a panic leaves half done is replaced: the state by `Scheduler::renew`, a listener is asked no more.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => Some(result),
        Err(payload) => {
            tracing::error!("the batch engine or one of its listeners panicked");
            // Its destructor may panic too.
            std::mem::forget(payload);
            None
        }
    }
}

/// Grave failures since a text was finished.
#[derive(Default)]
struct Trouble {
    failures: usize,
    /// How many texts were finished at the last of them.
    finished: u64,
}

impl Trouble {
    /// Notes one more; whether it is the last that is put up with.
    fn is_too_much(&mut self, finished: u64) -> bool {
        if finished > self.finished {
            *self = Self {
                failures: 0,
                finished,
            };
        }
        self.failures += 1;
        self.failures >= MOST_FAILURES
    }
}

/// Takes jobs and does steps, until nobody can order any more and all texts have ended, or `failure` is set.
pub(super) fn run(
    mut scheduler: Scheduler<'_>,
    orders: &Receiver<Job>,
    failure: &OnceLock<String>,
    watch: &Watch,
    mut step: impl FnMut(&mut Scheduler<'_>) -> Result<()>,
) {
    let mut trouble = Trouble::default();
    loop {
        if scheduler.is_idle() {
            match orders.recv() {
                Ok(job) => scheduler.wait(job),
                Err(_) => return,
            }
        }
        while let Ok(job) = orders.try_recv() {
            scheduler.wait(job);
        }
        let done = caught(|| watch.during(|| step(&mut scheduler)));
        if let Some(why) = failure.get() {
            // It came back after it was given up.
            return end(scheduler, orders, why);
        }
        let (why, panicked) = match done {
            Some(Ok(())) => continue,
            Some(Err(error)) => (error.one_line(), false),
            None => (PANICKED.to_string(), true),
        };
        let renewed = match caught(|| watch.during(|| scheduler.renew(&why))) {
            Some(Ok(())) => true,
            Some(Err(error)) => {
                tracing::error!(%error, "the device does not recover after a failed step");
                false
            }
            None => false,
        };
        // An error alone is not grave: memory that a long prompt did not find is there for the next.
        let is_grave = panicked || !renewed;
        if is_grave && trouble.is_too_much(scheduler.finished()) {
            let why = format!(
                "{MOST_FAILURES} consecutive steps failed and no request finished in between: {why}"
            );
            tracing::error!(why, "the batch engine is shutting down");
            // First: who hears of the end must not find an engine that seems to be well.
            return end(scheduler, orders, failure.get_or_init(|| why));
        }
    }
}

/// Tells everybody who waits for something.
fn end(mut scheduler: Scheduler<'_>, orders: &Receiver<Job>, why: &str) {
    scheduler.end_all(why);
    for job in orders.try_iter() {
        job.client.done(Err(Error::Batch(why.to_string())));
    }
}

#[cfg(test)]
mod tests {
    use super::{caught, Trouble};

    #[test]
    fn a_finished_text_makes_good_what_was_before() {
        let mut trouble = Trouble::default();
        let found = [0, 0, 1, 1, 5, 5, 5].map(|finished| trouble.is_too_much(finished));
        assert_eq!(found, [false, false, false, false, false, false, true]);
    }

    #[test]
    fn a_panic_is_no_result() {
        assert_eq!(caught(|| 3), Some(3));
        assert_eq!(caught(|| -> u32 { panic!("as the test asks") }), None);
    }
}
