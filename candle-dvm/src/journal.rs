//! The journal in a redb database: one file, one writer, each change on disk before the method returns.

use crate::jobs::{Entry, JobId, Journal, JournalError, Stage};
use redb::backends::InMemoryBackend;
use redb::{
    Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend,
    TableDefinition,
};
use std::path::Path;

/// Jobs under way, as JSON.
const OPEN: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("open");
/// Jobs that are done, shortened. In a separate table, so that a start reads only what is left to do.
const DONE: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("done");
/// For each relay, up to when it was read.
const CURSORS: TableDefinition<&str, u64> = TableDefinition::new("cursors");
/// When requests were refused whose customers were told.
const REFUSED: TableDefinition<&[u8; 32], u64> = TableDefinition::new("refused");

/// Refusals that are remembered; beyond it the older half is forgotten.
const REFUSALS: u64 = 10_000;
/// Bytes that may be kept in memory of what is no file.
const CACHE: usize = 4 << 20;

/// A [`Journal`] in one file.
pub struct RedbJournal {
    database: Database,
}

fn failed(err: impl std::fmt::Display) -> JournalError {
    JournalError(err.to_string())
}

fn encode(entry: &Entry) -> Result<Vec<u8>, JournalError> {
    serde_json::to_vec(entry).map_err(failed)
}

fn decode(bytes: &[u8]) -> Result<Entry, JournalError> {
    serde_json::from_slice(bytes).map_err(failed)
}

impl RedbJournal {
    /// Opens the journal, or makes a new one. After a crash the last change that was complete is what is found.
    ///
    /// # Errors
    /// A file that is no journal, that another process has open, or that cannot be written.
    pub fn open(file: &Path) -> Result<Self, JournalError> {
        let located = |err| failed(format!("{}: {err}", file.display()));
        Self::with(Database::create(file).map_err(located)?)
    }

    /// As [`RedbJournal::open`], in what is no file of an operating system.
    ///
    /// # Errors
    /// As [`RedbJournal::open`].
    pub fn over(storage: impl StorageBackend) -> Result<Self, JournalError> {
        // A gigabyte is the rule, and more than there may be.
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE);
        let database = builder.create_with_backend(storage);
        Self::with(database.map_err(failed)?)
    }

    /// A journal in memory.
    ///
    /// # Errors
    /// None that are known.
    pub fn in_memory() -> Result<Self, JournalError> {
        Self::over(InMemoryBackend::new())
    }

    fn with(database: Database) -> Result<Self, JournalError> {
        let journal = Self { database };
        // Creates the tables, so that reading never fails for a missing one.
        let write = journal.database.begin_write().map_err(failed)?;
        write.open_table(OPEN).map_err(failed)?;
        write.open_table(DONE).map_err(failed)?;
        write.open_table(CURSORS).map_err(failed)?;
        write.open_table(REFUSED).map_err(failed)?;
        write.commit().map_err(failed)?;
        Ok(journal)
    }
}

impl Journal for RedbJournal {
    fn receive(&self, id: JobId, entry: &Entry) -> Result<bool, JournalError> {
        let write = self.database.begin_write().map_err(failed)?;
        {
            let done = write.open_table(DONE).map_err(failed)?;
            let mut open = write.open_table(OPEN).map_err(failed)?;
            if done.get(&id.0).map_err(failed)?.is_some()
                || open.get(&id.0).map_err(failed)?.is_some()
            {
                return Ok(false);
            }
            open.insert(&id.0, encode(entry)?.as_slice())
                .map_err(failed)?;
        }
        write.commit().map_err(failed)?;
        Ok(true)
    }

    fn change(
        &self,
        id: JobId,
        change: &mut dyn FnMut(&mut Entry) -> bool,
    ) -> Result<Option<Entry>, JournalError> {
        let write = self.database.begin_write().map_err(failed)?;
        let entry = {
            let mut open = write.open_table(OPEN).map_err(failed)?;
            let found = match open.get(&id.0).map_err(failed)? {
                Some(bytes) => Some(decode(bytes.value())?),
                None => None,
            };
            let Some(mut entry) = found else {
                return Ok(None);
            };
            if !change(&mut entry) {
                return Ok(None);
            }
            if entry.stage == Stage::Done {
                let mut short = entry.clone();
                short.shorten();
                let mut done = write.open_table(DONE).map_err(failed)?;
                open.remove(&id.0).map_err(failed)?;
                done.insert(&id.0, encode(&short)?.as_slice())
                    .map_err(failed)?;
            } else {
                open.insert(&id.0, encode(&entry)?.as_slice())
                    .map_err(failed)?;
            }
            entry
        };
        write.commit().map_err(failed)?;
        Ok(Some(entry))
    }

    fn get(&self, id: JobId) -> Result<Option<Entry>, JournalError> {
        let read = self.database.begin_read().map_err(failed)?;
        for table in [OPEN, DONE] {
            let table = read.open_table(table).map_err(failed)?;
            let found = table.get(&id.0).map_err(failed)?;
            if let Some(bytes) = found {
                return decode(bytes.value()).map(Some);
            }
        }
        Ok(None)
    }

    fn refuse(&self, id: JobId, at: u64) -> Result<bool, JournalError> {
        if self.is_refused(id)? {
            return Ok(false);
        }
        let write = self.database.begin_write().map_err(failed)?;
        {
            let mut refused = write.open_table(REFUSED).map_err(failed)?;
            if refused.len().map_err(failed)? >= REFUSALS {
                let mut times = Vec::new();
                for row in refused.iter().map_err(failed)? {
                    times.push(row.map_err(failed)?.1.value());
                }
                times.sort_unstable();
                let mut left = times.len() / 2;
                let until = times[left];
                // Of those of one second, only as many as it takes.
                refused
                    .retain(|_, at| {
                        let goes = left > 0 && at <= until;
                        left -= usize::from(goes);
                        !goes
                    })
                    .map_err(failed)?;
            }
            refused.insert(&id.0, at).map_err(failed)?;
        }
        write.commit().map_err(failed)?;
        Ok(true)
    }

    fn is_refused(&self, id: JobId) -> Result<bool, JournalError> {
        let read = self.database.begin_read().map_err(failed)?;
        let refused = read.open_table(REFUSED).map_err(failed)?;
        Ok(refused.get(&id.0).map_err(failed)?.is_some())
    }

    fn open_jobs(&self) -> Result<Vec<(JobId, Entry)>, JournalError> {
        let read = self.database.begin_read().map_err(failed)?;
        let open = read.open_table(OPEN).map_err(failed)?;
        let mut jobs = Vec::new();
        for row in open.iter().map_err(failed)? {
            let (id, bytes) = row.map_err(failed)?;
            jobs.push((JobId(*id.value()), decode(bytes.value())?));
        }
        // Those that have waited longest first.
        jobs.sort_by_key(|(_, entry)| entry.received);
        Ok(jobs)
    }

    fn cursor(&self, relay: &str) -> Result<Option<u64>, JournalError> {
        let read = self.database.begin_read().map_err(failed)?;
        let cursors = read.open_table(CURSORS).map_err(failed)?;
        let found = cursors.get(relay).map_err(failed)?;
        Ok(found.map(|at| at.value()))
    }

    fn advance_cursor(&self, relay: &str, to: u64) -> Result<(), JournalError> {
        if self.cursor(relay)?.is_some_and(|at| at >= to) {
            return Ok(());
        }
        let write = self.database.begin_write().map_err(failed)?;
        {
            let mut cursors = write.open_table(CURSORS).map_err(failed)?;
            cursors.insert(relay, to).map_err(failed)?;
        }
        write.commit().map_err(failed)
    }

    fn forget(&self, before: u64) -> Result<usize, JournalError> {
        let write = self.database.begin_write().map_err(failed)?;
        let mut old = Vec::new();
        {
            let mut done = write.open_table(DONE).map_err(failed)?;
            for row in done.iter().map_err(failed)? {
                let (id, bytes) = row.map_err(failed)?;
                if decode(bytes.value())?.received < before {
                    old.push(*id.value());
                }
            }
            for id in &old {
                done.remove(id).map_err(failed)?;
            }
        }
        write.commit().map_err(failed)?;
        Ok(old.len())
    }
}
