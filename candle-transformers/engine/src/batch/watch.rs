//! Whether a step takes so long that it will not end: a device can hang without an error, and with it the thread that waits for it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Written by the engine's thread, read by all others.
pub(super) struct Watch {
    longest: Duration,
    since: Mutex<Option<Instant>>,
}

impl Watch {
    /// `longest` is what a step may take.
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            longest,
            since: Mutex::new(None),
        }
    }

    /// Does some work, watched by [`Watch::hangs`] until it returns or panics.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        let _end = Watched::begin(self);
        work()
    }

    /// Why the work is given up, if it has taken longer than it may.
    pub(super) fn hangs(&self) -> Option<String> {
        let taken = self.since().as_ref()?.elapsed();
        (taken > self.longest).then(|| {
            format!(
                "a step did not finish within {} s: the device hangs or is too slow for the model",
                taken.as_secs()
            )
        })
    }

    fn since(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // A time is never half written.
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Work in progress.
struct Watched<'a>(&'a Watch);

impl<'a> Watched<'a> {
    fn begin(watch: &'a Watch) -> Self {
        *watch.since() = Some(Instant::now());
        Self(watch)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        *self.0.since() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::Watch;
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::time::Duration;

    #[test]
    fn only_work_that_still_runs_hangs() {
        let watch = Watch::new(Duration::ZERO);
        assert_eq!(watch.hangs(), None);
        let during = watch.during(|| {
            std::thread::sleep(Duration::from_millis(2));
            watch.hangs()
        });
        assert!(during.is_some_and(|why| why.contains("did not finish within 0 s")));
        assert_eq!(watch.hangs(), None);
        let panics = || watch.during(|| panic!("as the test asks"));
        let panicked: Result<(), _> = catch_unwind(AssertUnwindSafe(panics));
        assert!(panicked.is_err());
        assert_eq!(watch.hangs(), None);
        let patient = Watch::new(Duration::from_secs(3600));
        assert_eq!(patient.during(|| patient.hangs()), None);
    }
}
