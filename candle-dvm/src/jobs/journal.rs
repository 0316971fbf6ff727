//! Where jobs are remembered, as a trait.

use super::{Entry, JobId};

/// The journal could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the journal: {0}")]
pub struct JournalError(pub String);

/// Remembers jobs across crashes: what a method has returned from is there after a `kill -9`.
pub trait Journal: Send + Sync {
    /// Remembers a new job. `false` if its id is known, whatever became of it.
    ///
    /// # Errors
    /// As every method here: the storage failed.
    fn receive(&self, id: JobId, entry: &Entry) -> Result<bool, JournalError>;

    /// Changes a job in one step, which is kept if `change` returns `true`. Returns the entry if it was kept.
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

    /// Remembers that a request was refused and its customer told. `false` if that is known already. Only the latest ones are kept.
    ///
    /// # Errors
    /// The storage failed.
    fn refuse(&self, id: JobId, at: u64) -> Result<bool, JournalError>;

    /// Whether a request was refused, as far as that is remembered.
    ///
    /// # Errors
    /// The storage failed.
    fn is_refused(&self, id: JobId) -> Result<bool, JournalError>;

    /// Every job that is not done.
    ///
    /// # Errors
    /// The storage failed.
    fn open_jobs(&self) -> Result<Vec<(JobId, Entry)>, JournalError>;

    /// Up to when requests on this relay have been read.
    ///
    /// # Errors
    /// The storage failed.
    fn cursor(&self, relay: &str) -> Result<Option<u64>, JournalError>;

    /// Moves the cursor forward; never back.
    ///
    /// # Errors
    /// The storage failed.
    fn advance_cursor(&self, relay: &str, to: u64) -> Result<(), JournalError>;

    /// Forgets jobs that are done and were let in before `before`. Returns how many.
    ///
    /// # Errors
    /// The storage failed.
    fn forget(&self, before: u64) -> Result<usize, JournalError>;
}
