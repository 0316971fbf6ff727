//! The journal of jobs, as a trait.

use super::{Customer, Entry, JobId};

/// The journal could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the journal: {0}")]
pub struct JournalError(pub String);

/// The cursor from which requests on a relay are read, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Up to when it was read.
    pub cursor: u64,
    /// Requests dated earlier were made before the relay was first served.
    pub since: u64,
    /// Number of seconds by which the cursor was ahead of the clock before it was set back: the clock was wrong then.
    pub ahead: u64,
}

/// Remembers jobs across crashes: what a method has returned from is there after a `kill -9`, save where it says that it waits for
/// [`Journal::flush`].
pub trait Journal: Send + Sync {
    /// Remembers a new job. `false` if its id is known, whatever became of it.
    ///
    /// # Errors
    /// As every method here: the storage failed.
    fn receive(&self, id: JobId, entry: &Entry) -> Result<bool, JournalError>;

    /// Changes a job in one step; the change is stored if `change` returns `true`. Returns the stored entry.
    ///
    /// # Errors
    /// The storage failed.
    fn change(
        &self,
        id: JobId,
        change: &mut dyn FnMut(&mut Entry) -> bool,
    ) -> Result<Option<Entry>, JournalError>;

    /// A job, if it is known.
    ///
    /// # Errors
    /// The storage failed.
    fn get(&self, id: JobId) -> Result<Option<Entry>, JournalError>;

    /// Shows every job that is not done, in no order. It reads all of them: for a start, not for every now and then.
    ///
    /// # Errors
    /// The storage failed.
    fn each_open(&self, visit: &mut dyn FnMut(JobId, Entry)) -> Result<(), JournalError>;

    /// Every job that is not done, those that have waited longest first.
    ///
    /// # Errors
    /// The storage failed.
    fn open_jobs(&self) -> Result<Vec<(JobId, Entry)>, JournalError> {
        let mut jobs = Vec::new();
        self.each_open(&mut |id, entry| jobs.push((id, entry)))?;
        jobs.sort_by_key(|(_, entry)| entry.received);
        Ok(jobs)
    }

    /// Whether a request was refused, if the journal still has the refusal.
    ///
    /// # Errors
    /// The storage failed.
    fn refused(&self, id: JobId) -> Result<bool, JournalError>;

    /// Records that a request was refused, so that the customer hears of it once. The record is visible at once, and on disk with the next
    /// [`Journal::flush`]. The number of records is bounded; the oldest are dropped.
    ///
    /// # Errors
    /// The storage failed.
    fn note_refused(&self, id: JobId, now: u64) -> Result<(), JournalError>;

    /// Remembers that a customer had a result. On disk with the next [`Journal::flush`].
    ///
    /// # Errors
    /// The storage failed.
    fn note_served(&self, customer: Customer, now: u64) -> Result<(), JournalError>;

    /// Customers who had results, and when the last one, the oldest first. What waits for the next flush is not among them.
    ///
    /// # Errors
    /// The storage failed.
    fn served(&self) -> Result<Vec<(Customer, u64)>, JournalError>;

    /// Starts reading a relay. The first time, both dates are `since`; later they are the stored ones, but never after `now`: a clock that
    /// was ahead must not exclude requests until that time. On disk when this returns.
    ///
    /// # Errors
    /// The storage failed.
    fn begin(&self, relay: &str, now: u64, since: u64) -> Result<Reading, JournalError>;

    /// Up to when requests on this relay have been read.
    ///
    /// # Errors
    /// The storage failed.
    fn cursor(&self, relay: &str) -> Result<Option<u64>, JournalError>;

    /// Moves the cursor forward; never back. On disk with the next [`Journal::flush`].
    ///
    /// # Errors
    /// The storage failed.
    fn advance_cursor(&self, relay: &str, to: u64) -> Result<(), JournalError>;

    /// Writes what was noted since the last time and is not on disk yet.
    ///
    /// # Errors
    /// The storage failed.
    fn flush(&self) -> Result<(), JournalError>;

    /// Deletes finished jobs that were admitted before `before`, refusals of that time, and customers without a result since. Returns the
    /// number of jobs.
    ///
    /// # Errors
    /// The storage failed.
    fn forget(&self, before: u64) -> Result<usize, JournalError>;

    /// Gives storage back that is not needed any more, if that is worth the work. Returns whether it was.
    ///
    /// # Errors
    /// The storage failed.
    fn tidy(&self) -> Result<bool, JournalError>;
}
