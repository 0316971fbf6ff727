//! The journal in a redb database: one file, one writer.
//!
//! Changes of jobs are on disk before a method returns. [`Journal::flush`] writes cursors and refusals: losing the last second of them
//! costs reading a few events again. No method reads a whole table, except [`Journal::each_open`] and [`Journal::served`], which run at the
//! start, and [`Journal::forget`] for the table of customers.

mod served;

use crate::jobs::{Customer, Entry, JobId, Journal, JournalError, Reading, Stage};
use redb::backends::{FileBackend, InMemoryBackend};
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, StorageBackend};
use redb::{TableDefinition, WriteTransaction};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Unfinished jobs, as JSON.
const OPEN: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("open");
/// Finished jobs, shortened. In a separate table, so that a start reads only unfinished jobs.
const DONE: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("done");
/// The same jobs by time of admission, so that deletion reads only the jobs that it deletes.
const DONE_BY_TIME: TableDefinition<(u64, &[u8; 32]), ()> = TableDefinition::new("done by time");
/// For each relay, up to when it was read.
const CURSORS: TableDefinition<&str, u64> = TableDefinition::new("cursors");
/// For each relay, when it was served for the first time.
const FIRST: TableDefinition<&str, u64> = TableDefinition::new("first");
/// Requests that were refused, and when; the second table is the same by time.
const REFUSED: TableDefinition<&[u8; 32], u64> = TableDefinition::new("refused");
const REFUSED_BY_TIME: TableDefinition<(u64, &[u8; 32]), ()> =
    TableDefinition::new("refused by time");

/// Size of the file's cache, in bytes: jobs are written and read a few times within minutes, and then never again.
const CACHE: usize = 4 << 20;
/// Maximum number of stored refusals: the oldest are dropped.
const REFUSALS: u64 = 20_000;

/// A file of this many bytes is small enough, whatever is in it.
const SMALL: u64 = 8 << 20;
/// Upper bounds on the measured file size per finished job and per refusal.
const DONE_BYTES: u64 = 700;
const REFUSED_BYTES: u64 = 150;
/// The same of a customer who had a result, by calculation: 40 bytes in pages that are half full.
const SERVED_BYTES: u64 = 100;

/// A [`Journal`] in one file.
pub struct RedbJournal {
    database: RwLock<Database>,
    pending: Mutex<Pending>,
    /// The file, if there is one.
    file: Option<PathBuf>,
    /// Bytes of unfinished jobs.
    open_bytes: AtomicU64,
    /// Size of the file after the last compaction.
    tidied: AtomicU64,
}

/// Changes that the next flush writes.
#[derive(Default)]
struct Pending {
    cursors: BTreeMap<String, u64>,
    refused: BTreeMap<JobId, u64>,
    served: BTreeMap<Customer, u64>,
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
    /// Opens the journal, or creates one that only its owner may read. After a crash, the journal is in the state of the last complete
    /// change. A journal of an earlier version gets the missing tables.
    ///
    /// # Errors
    /// A file that is not a journal, is open in another process, or cannot be written.
    pub fn open(file: &Path) -> Result<Self, JournalError> {
        let located = |err: &dyn std::fmt::Display| failed(format!("{}: {err}", file.display()));
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt;
            // Requests may be private.
            options.mode(0o600);
        }
        let opened = options.open(file).map_err(|err| located(&err))?;
        #[cfg(unix)]
        keep_private(&opened, file);
        let storage = FileBackend::new(opened).map_err(|err| located(&err))?;
        let mut journal = Self::over(storage).map_err(|err| located(&err.0))?;
        journal.file = Some(file.to_path_buf());
        Ok(journal)
    }

    /// As [`RedbJournal::open`], on a custom storage backend.
    ///
    /// # Errors
    /// As [`RedbJournal::open`].
    pub fn over(storage: impl StorageBackend) -> Result<Self, JournalError> {
        // A gigabyte is the rule, and more than there may be.
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE);
        let database = builder.create_with_backend(storage).map_err(failed)?;
        let open_bytes = prepare(&database)?;
        Ok(Self {
            database: RwLock::new(database),
            pending: Mutex::default(),
            file: None,
            open_bytes: AtomicU64::new(open_bytes),
            tidied: AtomicU64::new(0),
        })
    }

    /// A journal in memory.
    ///
    /// # Errors
    /// None that are known.
    pub fn in_memory() -> Result<Self, JournalError> {
        Self::over(InMemoryBackend::new())
    }

    fn read(&self) -> Result<redb::ReadTransaction, JournalError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        database.begin_read().map_err(failed)
    }

    /// One transaction, which is committed if `change` returns `Some`.
    fn write<T>(
        &self,
        change: impl FnOnce(&WriteTransaction) -> Result<Option<T>, JournalError>,
    ) -> Result<Option<T>, JournalError> {
        let database = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let write = database.begin_write().map_err(failed)?;
        let kept = change(&write)?;
        match &kept {
            Some(_) => write.commit().map_err(failed)?,
            None => write.abort().map_err(failed)?,
        }
        Ok(kept)
    }

    /// Records that an unfinished job takes `now` bytes instead of `before`.
    fn resized(&self, before: usize, now: usize) {
        self.open_bytes.fetch_add(now as u64, Relaxed);
        self.open_bytes.fetch_sub(before as u64, Relaxed);
    }

    /// About how many bytes of the file are needed.
    fn needed(&self) -> Result<u64, JournalError> {
        let read = self.read()?;
        let done = read.open_table(DONE).map_err(failed)?;
        let refused = read.open_table(REFUSED).map_err(failed)?;
        let open = self.open_bytes.load(Relaxed);
        // A long value has pages to itself, up to twice its length.
        Ok(2 * open
            + DONE_BYTES * done.len().map_err(failed)?
            + REFUSED_BYTES * refused.len().map_err(failed)?
            + SERVED_BYTES * served::count(&read)?)
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RedbJournal {
    fn drop(&mut self) {
        if let Err(err) = self.flush() {
            tracing::warn!(error = %err, "lost the last second of the journal");
        }
    }
}

/// Takes a file that others may read away from them.
#[cfg(unix)]
fn keep_private(opened: &std::fs::File, file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let Ok(mode) = opened.metadata().map(|data| data.permissions().mode()) else {
        return;
    };
    if mode & 0o077 == 0 {
        return;
    }
    let (file, mode) = (file.display(), mode & 0o777);
    match opened.set_permissions(PermissionsExt::from_mode(0o600)) {
        Ok(()) => tracing::warn!("{file} had mode {mode:03o}; changed it to 600"),
        Err(err) => {
            tracing::warn!("{file} has mode {mode:03o}, so other users can read it; run `chmod 600` on it: {err}")
        }
    }
}

/// Creates tables, so that reading never fails for a missing one, and fills those that an earlier version did not have. Returns the bytes of
/// jobs under way.
fn prepare(database: &Database) -> Result<u64, JournalError> {
    let write = database.begin_write().map_err(failed)?;
    let mut open_bytes = 0;
    {
        let open = write.open_table(OPEN).map_err(failed)?;
        for row in open.iter().map_err(failed)? {
            let (_, bytes) = row.map_err(failed)?;
            open_bytes += bytes.value().len() as u64;
        }
        write.open_table(CURSORS).map_err(failed)?;
        write.open_table(FIRST).map_err(failed)?;
        write.open_table(served::SERVED).map_err(failed)?;
        write.open_table(REFUSED).map_err(failed)?;
        write.open_table(REFUSED_BY_TIME).map_err(failed)?;
        let done = write.open_table(DONE).map_err(failed)?;
        let mut by_time = write.open_table(DONE_BY_TIME).map_err(failed)?;
        if done.len().map_err(failed)? != by_time.len().map_err(failed)? {
            by_time.retain(|_, _| false).map_err(failed)?;
            for row in done.iter().map_err(failed)? {
                let (id, bytes) = row.map_err(failed)?;
                let received = decode(bytes.value())?.received;
                by_time.insert((received, id.value()), ()).map_err(failed)?;
            }
        }
    }
    write.commit().map_err(failed)?;
    Ok(open_bytes)
}

impl Journal for RedbJournal {
    fn receive(&self, id: JobId, entry: &Entry) -> Result<bool, JournalError> {
        let kept = self.write(|write| {
            let done = write.open_table(DONE).map_err(failed)?;
            let mut open = write.open_table(OPEN).map_err(failed)?;
            if done.get(&id.0).map_err(failed)?.is_some()
                || open.get(&id.0).map_err(failed)?.is_some()
            {
                return Ok(None);
            }
            let bytes = encode(entry)?;
            open.insert(&id.0, bytes.as_slice()).map_err(failed)?;
            Ok(Some(bytes.len()))
        })?;
        self.resized(0, kept.unwrap_or(0));
        Ok(kept.is_some())
    }

    fn change(
        &self,
        id: JobId,
        change: &mut dyn FnMut(&mut Entry) -> bool,
    ) -> Result<Option<Entry>, JournalError> {
        let kept = self.write(|write| {
            let mut open = write.open_table(OPEN).map_err(failed)?;
            let found = match open.get(&id.0).map_err(failed)? {
                Some(bytes) => Some((decode(bytes.value())?, bytes.value().len())),
                None => None,
            };
            let Some((mut entry, before)) = found else {
                return Ok(None);
            };
            if !change(&mut entry) {
                return Ok(None);
            }
            if entry.stage == Stage::Done {
                let mut short = entry.clone();
                short.shorten();
                let mut done = write.open_table(DONE).map_err(failed)?;
                let mut by_time = write.open_table(DONE_BY_TIME).map_err(failed)?;
                open.remove(&id.0).map_err(failed)?;
                done.insert(&id.0, encode(&short)?.as_slice())
                    .map_err(failed)?;
                by_time
                    .insert((entry.received, &id.0), ())
                    .map_err(failed)?;
                return Ok(Some((entry, before, 0)));
            }
            let bytes = encode(&entry)?;
            open.insert(&id.0, bytes.as_slice()).map_err(failed)?;
            Ok(Some((entry, before, bytes.len())))
        })?;
        Ok(kept.map(|(entry, before, now)| {
            self.resized(before, now);
            entry
        }))
    }

    fn get(&self, id: JobId) -> Result<Option<Entry>, JournalError> {
        let read = self.read()?;
        for table in [OPEN, DONE] {
            let table = read.open_table(table).map_err(failed)?;
            let found = table.get(&id.0).map_err(failed)?;
            if let Some(bytes) = found {
                return decode(bytes.value()).map(Some);
            }
        }
        Ok(None)
    }

    fn each_open(&self, visit: &mut dyn FnMut(JobId, Entry)) -> Result<(), JournalError> {
        let read = self.read()?;
        let open = read.open_table(OPEN).map_err(failed)?;
        for row in open.iter().map_err(failed)? {
            let (id, bytes) = row.map_err(failed)?;
            visit(JobId(*id.value()), decode(bytes.value())?);
        }
        Ok(())
    }

    fn refused(&self, id: JobId) -> Result<bool, JournalError> {
        if self.pending().refused.contains_key(&id) {
            return Ok(true);
        }
        let read = self.read()?;
        let refused = read.open_table(REFUSED).map_err(failed)?;
        let found = refused.get(&id.0).map_err(failed)?;
        Ok(found.is_some())
    }

    fn note_refused(&self, id: JobId, now: u64) -> Result<(), JournalError> {
        self.pending().refused.entry(id).or_insert(now);
        Ok(())
    }

    fn note_served(&self, customer: Customer, now: u64) -> Result<(), JournalError> {
        self.pending().served.insert(customer, now);
        Ok(())
    }

    fn served(&self) -> Result<Vec<(Customer, u64)>, JournalError> {
        served::all(&self.read()?)
    }

    fn begin(&self, relay: &str, now: u64, since: u64) -> Result<Reading, JournalError> {
        let pending = self.pending().cursors.remove(relay);
        let kept = self.write(|write| {
            let mut cursors = write.open_table(CURSORS).map_err(failed)?;
            let mut first = write.open_table(FIRST).map_err(failed)?;
            let known = cursors.get(relay).map_err(failed)?.map(|at| at.value());
            let reading = match known.max(pending) {
                None => Reading {
                    cursor: since,
                    since,
                    ahead: 0,
                },
                Some(cursor) => Reading {
                    cursor: cursor.min(now),
                    // A journal of an earlier version does not say.
                    since: first
                        .get(relay)
                        .map_err(failed)?
                        .map_or(0, |at| at.value().min(now)),
                    ahead: cursor.saturating_sub(now),
                },
            };
            cursors.insert(relay, reading.cursor).map_err(failed)?;
            first.insert(relay, reading.since).map_err(failed)?;
            Ok(Some(reading))
        })?;
        kept.ok_or_else(|| failed("a transaction without a result"))
    }

    fn cursor(&self, relay: &str) -> Result<Option<u64>, JournalError> {
        let read = self.read()?;
        let cursors = read.open_table(CURSORS).map_err(failed)?;
        let found = cursors.get(relay).map_err(failed)?.map(|at| at.value());
        Ok(found.max(self.pending().cursors.get(relay).copied()))
    }

    fn advance_cursor(&self, relay: &str, to: u64) -> Result<(), JournalError> {
        let mut pending = self.pending();
        let at = pending.cursors.entry(relay.to_string()).or_default();
        *at = to.max(*at);
        Ok(())
    }

    fn flush(&self) -> Result<(), JournalError> {
        let Pending {
            cursors,
            refused,
            served,
        } = std::mem::take(&mut *self.pending());
        if cursors.is_empty() && refused.is_empty() && served.is_empty() {
            return Ok(());
        }
        self.write(|write| {
            let mut kept = write.open_table(CURSORS).map_err(failed)?;
            for (relay, to) in &cursors {
                let at = kept.get(relay.as_str()).map_err(failed)?;
                if at.is_none_or(|at| at.value() < *to) {
                    kept.insert(relay.as_str(), to).map_err(failed)?;
                }
            }
            drop(kept);
            if !refused.is_empty() {
                add_refused(write, &refused)?;
            }
            if !served.is_empty() {
                served::add(write, &served)?;
            }
            Ok(Some(()))
        })?;
        Ok(())
    }

    fn forget(&self, before: u64) -> Result<usize, JournalError> {
        let forgotten = self.write(|write| {
            let mut done = write.open_table(DONE).map_err(failed)?;
            let mut by_time = write.open_table(DONE_BY_TIME).map_err(failed)?;
            let mut old = Vec::new();
            for row in by_time
                .extract_from_if(..(before, &[0; 32]), |_, _| true)
                .map_err(failed)?
            {
                let (key, _) = row.map_err(failed)?;
                old.push(*key.value().1);
            }
            for id in &old {
                done.remove(id).map_err(failed)?;
            }
            let refusals = forget_refused(write, before)?;
            let customers = served::forget(write, before)?;
            Ok((!old.is_empty() || refusals + customers > 0).then_some(old.len()))
        })?;
        Ok(forgotten.unwrap_or(0))
    }

    fn tidy(&self) -> Result<bool, JournalError> {
        let Some(file) = &self.file else {
            return Ok(false);
        };
        let size = || std::fs::metadata(file).map_or(0, |data| data.len());
        let before = size();
        let tidied = self.tidied.load(Relaxed);
        // If it did not help the last time, it does not until the file has grown.
        if before <= SMALL || before < tidied + tidied / 2 || before / 2 < self.needed()? {
            return Ok(false);
        }
        let mut database = self
            .database
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        database.compact().map_err(failed)?;
        let after = size();
        self.tidied.store(after, Relaxed);
        tracing::info!(before, after, "compacted the journal file");
        Ok(true)
    }
}

/// Adds refusals; beyond [`REFUSALS`] the oldest go.
fn add_refused(
    write: &WriteTransaction,
    refused: &BTreeMap<JobId, u64>,
) -> Result<(), JournalError> {
    let mut kept = write.open_table(REFUSED).map_err(failed)?;
    let mut by_time = write.open_table(REFUSED_BY_TIME).map_err(failed)?;
    for (id, now) in refused {
        if kept.get(&id.0).map_err(failed)?.is_none() {
            kept.insert(&id.0, now).map_err(failed)?;
            by_time.insert((*now, &id.0), ()).map_err(failed)?;
        }
    }
    while kept.len().map_err(failed)? > REFUSALS {
        let Some((key, _)) = by_time.pop_first().map_err(failed)? else {
            break;
        };
        kept.remove(key.value().1).map_err(failed)?;
    }
    Ok(())
}

fn forget_refused(write: &WriteTransaction, before: u64) -> Result<usize, JournalError> {
    let mut kept = write.open_table(REFUSED).map_err(failed)?;
    let mut by_time = write.open_table(REFUSED_BY_TIME).map_err(failed)?;
    let old = by_time.extract_from_if(..(before, &[0; 32]), |_, _| true);
    let mut count = 0;
    for row in old.map_err(failed)? {
        let (key, _) = row.map_err(failed)?;
        kept.remove(key.value().1).map_err(failed)?;
        count += 1;
    }
    Ok(count)
}
