//! The journal's file.

use candle_dvm::jobs::{Answer, Customer, Entry, JobId, Journal, Reading, Stage};
use candle_dvm::journal::RedbJournal;
use redb::backends::InMemoryBackend;
use redb::{Database, StorageBackend, TableDefinition};
use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

/// The tables of the first version.
const OPEN: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("open");
const DONE: TableDefinition<&[u8; 32], &[u8]> = TableDefinition::new("done");
const CURSORS: TableDefinition<&str, u64> = TableDefinition::new("cursors");

fn numbered(n: u32) -> JobId {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    JobId(bytes)
}

/// Writes a journal as the first version did: this many jobs that are done, received at 1000 and after, and one that runs.
fn earlier(database: &Database, done: u32) {
    let write = database.begin_write().unwrap();
    {
        let mut table = write.open_table(DONE).unwrap();
        for n in 0..done {
            let mut entry = entry(1000 + u64::from(n));
            entry.answer(answer());
            entry.settle("ws://a", true);
            entry.shorten();
            let bytes = serde_json::to_vec(&entry).unwrap();
            table.insert(&numbered(n).0, bytes.as_slice()).unwrap();
        }
        let mut open = write.open_table(OPEN).unwrap();
        let bytes = serde_json::to_vec(&entry(7)).unwrap();
        open.insert(&id(0xff).0, bytes.as_slice()).unwrap();
        let mut cursors = write.open_table(CURSORS).unwrap();
        cursors.insert("ws://a", 5000).unwrap();
    }
    write.commit().unwrap();
}

/// Storage in memory that counts what is read, and can be opened again.
#[derive(Clone, Debug)]
struct Counting(Arc<InMemoryBackend>, Arc<AtomicU64>);

impl StorageBackend for Counting {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.1.fetch_add(out.len() as u64, Relaxed);
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

fn id(n: u8) -> JobId {
    JobId([n; 32])
}

fn entry(received: u64) -> Entry {
    Entry::new("{\"id\":1}".to_string(), "ws://a".to_string(), received)
}

fn answer() -> Answer {
    Answer {
        id: "ab".to_string(),
        body: "signed".to_string(),
        is_result: true,
        signed: 3,
        pending: ["ws://a".to_string()].into(),
        acknowledged: BTreeSet::new(),
    }
}

#[test]
fn what_was_written_is_there_after_it_is_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let journal = RedbJournal::open(&file).unwrap();
    assert!(journal.receive(id(1), &entry(2)).unwrap());
    assert!(!journal.receive(id(1), &entry(2)).unwrap());
    assert!(journal.receive(id(2), &entry(1)).unwrap());
    assert!(journal.change(id(1), &mut Entry::start).unwrap().is_some());
    let kept = journal.change(id(1), &mut |entry| entry.answer(answer()));
    assert_eq!(kept.unwrap().unwrap().stage, Stage::Answered);
    assert!(journal.change(id(9), &mut Entry::start).unwrap().is_none());
    journal.advance_cursor("ws://a", 10).unwrap();
    journal.advance_cursor("ws://a", 5).unwrap();
    // A second process would answer the same jobs.
    assert!(RedbJournal::open(&file).is_err());
    drop(journal);

    let journal = RedbJournal::open(&file).unwrap();
    assert_eq!(journal.cursor("ws://a").unwrap(), Some(10), "never back");
    assert_eq!(journal.cursor("ws://b").unwrap(), None);
    let open = journal.open_jobs().unwrap();
    let ids: Vec<JobId> = open.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [id(2), id(1)], "the longest waiting first");
    assert_eq!(open[1].1.answer, Some(answer()));
    journal
        .change(id(1), &mut |entry| entry.settle("ws://a", true))
        .unwrap();
    assert_eq!(journal.open_jobs().unwrap().len(), 1);
    // Known for ever, without its texts.
    assert!(!journal.receive(id(1), &entry(2)).unwrap());
    let done = journal.get(id(1)).unwrap().unwrap();
    assert_eq!(done.stage, Stage::Done);
    assert!(done.request.is_empty() && done.answer.unwrap().body.is_empty());
    assert!(journal.change(id(1), &mut Entry::start).unwrap().is_none());
    assert_eq!(journal.forget(2).unwrap(), 0);
    assert_eq!(journal.forget(3).unwrap(), 1);
    assert_eq!(journal.get(id(1)).unwrap(), None);
}

#[test]
fn errors_name_a_file_that_is_not_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    std::fs::write(&file, "something else").unwrap();
    let err = RedbJournal::open(&file).err().unwrap().to_string();
    assert!(err.contains("journal.redb"), "{err}");
}

#[test]
fn refusals_are_known_after_a_start_and_do_not_pile_up() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let journal = RedbJournal::open(&file).unwrap();
    assert!(!journal.refused(numbered(1)).unwrap());
    journal.note_refused(numbered(1), 100).unwrap();
    assert!(journal.refused(numbered(1)).unwrap());
    journal.flush().unwrap();
    drop(journal);

    let journal = RedbJournal::open(&file).unwrap();
    assert!(journal.refused(numbered(1)).unwrap());
    assert!(!journal.refused(numbered(2)).unwrap());
    for n in 2..20_002 {
        journal
            .note_refused(numbered(n), 100 + u64::from(n))
            .unwrap();
    }
    journal.flush().unwrap();
    assert!(
        !journal.refused(numbered(1)).unwrap(),
        "the oldest made way"
    );
    assert!(journal.refused(numbered(2)).unwrap());
    assert_eq!(journal.forget(200).unwrap(), 0, "no job");
    assert!(!journal.refused(numbered(99)).unwrap());
    assert!(journal.refused(numbered(100)).unwrap());
}

#[test]
fn a_journal_of_the_first_version_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let database = Database::create(&file).unwrap();
    earlier(&database, 10);
    drop(database);
    for _ in 0..2 {
        let journal = RedbJournal::open(&file).unwrap();
        let open = journal.open_jobs().unwrap();
        assert_eq!((open.len(), open[0].0), (1, id(0xff)));
        assert!(!journal.receive(numbered(9), &entry(1)).unwrap(), "known");
        let reading = journal.begin("ws://a", 6000, 6000).unwrap();
        assert_eq!((reading.cursor, reading.since), (5000, 0));
    }
    let journal = RedbJournal::open(&file).unwrap();
    assert_eq!(journal.forget(1004).unwrap(), 4);
    assert_eq!(journal.forget(1004).unwrap(), 0);
    assert!(journal.get(numbered(3)).unwrap().is_none());
    assert!(journal.get(numbered(4)).unwrap().is_some());
}

#[test]
fn a_hundred_thousand_jobs_that_are_done_cost_what_a_hundred_cost() {
    let read = [100, 100_000].map(|done| {
        let storage = Counting(Arc::default(), Arc::default());
        let builder = Database::builder();
        earlier(&builder.create_with_backend(storage.clone()).unwrap(), done);
        drop(RedbJournal::over(storage.clone()).unwrap());
        let journal = RedbJournal::over(storage.clone()).unwrap();
        let before = storage.1.load(Relaxed);
        for n in 0..5 {
            let mut running = entry(1_000_000);
            running.start();
            let new = numbered(0xf000_0000 + n);
            assert!(journal.receive(new, &running).unwrap());
            journal.change(new, &mut Entry::cancel).unwrap();
            // One of them each time.
            assert_eq!(journal.forget(1001 + u64::from(n)).unwrap(), 1);
            assert_eq!(journal.open_jobs().unwrap().len(), 1);
            assert!(!journal.tidy().unwrap());
        }
        storage.1.load(Relaxed) - before
    });
    // A few pages more on the way down a deeper tree; the table itself has some 30 MB.
    println!("{} and {} bytes were read", read[0], read[1]);
    assert!(read[1] < read[0] + (1 << 19), "{read:?}");
}

#[test]
fn the_file_gets_smaller_when_answers_are_delivered() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let journal = RedbJournal::open(&file).unwrap();
    let size = || std::fs::metadata(&file).unwrap().len();
    let answers = 400;
    for n in 0..answers {
        let mut waiting = entry(1);
        waiting.request = "x".repeat(50_000);
        waiting.answer(answer());
        journal.receive(numbered(n), &waiting).unwrap();
    }
    let full = size();
    assert!(full > 16 << 20, "{full}");
    assert!(!journal.tidy().unwrap(), "all of {full} bytes is needed");
    for n in 0..answers {
        let settled = journal.change(numbered(n), &mut |entry| entry.settle("ws://a", true));
        assert_eq!(settled.unwrap().unwrap().stage, Stage::Done);
    }
    journal.tidy().unwrap();
    println!("{full} bytes, then {}", size());
    assert!(size() < 4 << 20, "{}", size());
    assert!(!journal.tidy().unwrap(), "once");
    assert!(journal.get(numbered(0)).unwrap().is_some());
    drop(journal);
    let journal = RedbJournal::open(&file).unwrap();
    assert!(journal.get(numbered(answers - 1)).unwrap().is_some());
}

#[test]
fn a_cursor_is_never_ahead_of_the_clock() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let journal = RedbJournal::open(&file).unwrap();
    let reading = |cursor, since, ahead| Reading {
        cursor,
        since,
        ahead,
    };
    // The clock is a day ahead.
    let first = journal.begin("ws://a", 101_000, 101_000).unwrap();
    assert_eq!(first, reading(101_000, 101_000, 0));
    journal.advance_cursor("ws://a", 101_500).unwrap();
    drop(journal);
    let journal = RedbJournal::open(&file).unwrap();
    let second = journal.begin("ws://a", 15_000, 15_000).unwrap();
    assert_eq!(second, reading(15_000, 15_000, 86_500));
    assert_eq!(journal.cursor("ws://a").unwrap(), Some(15_000));
    // What was noted and is on no disk yet does not come back.
    journal.advance_cursor("ws://a", 101_600).unwrap();
    let third = journal.begin("ws://a", 15_010, 15_010).unwrap();
    assert_eq!(third, reading(15_010, 15_000, 86_590));
    journal.flush().unwrap();
    assert_eq!(journal.cursor("ws://a").unwrap(), Some(15_010));
}

#[test]
#[cfg(unix)]
fn a_journal_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.redb");
    let mode = || std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    drop(RedbJournal::open(&file).unwrap());
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    drop(RedbJournal::open(&file).unwrap());
    assert_eq!(mode(), 0o600);
}

#[test]
fn customers_are_remembered_by_their_last_result_and_within_bounds() {
    let journal = RedbJournal::in_memory().unwrap();
    let customer = |n: u32| Customer(numbered(n).0);
    for (n, at) in [(1, 10), (2, 20), (1, 30), (3, 25)] {
        journal.note_served(customer(n), at).unwrap();
    }
    assert!(journal.served().unwrap().is_empty(), "not flushed yet");
    journal.flush().unwrap();
    let all = [(2, 20), (3, 25), (1, 30)].map(|(n, at)| (customer(n), at));
    assert_eq!(journal.served().unwrap(), all);
    journal.forget(25).unwrap();
    assert_eq!(journal.served().unwrap(), all[1..]);
    for n in 0..10_005 {
        journal.note_served(customer(100 + n), 1000).unwrap();
    }
    journal.flush().unwrap();
    journal.forget(0).unwrap();
    let kept = journal.served().unwrap();
    assert_eq!(kept.len(), 10_000);
    assert!(!kept.contains(&all[2]), "the oldest go first");
}
