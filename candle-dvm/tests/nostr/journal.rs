//! The journal's file.

use candle_dvm::jobs::{Answer, Entry, JobId, Journal, Stage};
use candle_dvm::journal::RedbJournal;
use std::collections::BTreeSet;

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
fn a_file_that_is_no_journal_is_named() {
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
    let refused = |n: u32| {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        JobId(bytes)
    };
    assert!(!journal.refused(refused(1)).unwrap());
    journal.note_refused(refused(1), 100).unwrap();
    assert!(journal.refused(refused(1)).unwrap());
    journal.flush().unwrap();
    drop(journal);

    let journal = RedbJournal::open(&file).unwrap();
    assert!(journal.refused(refused(1)).unwrap());
    assert!(!journal.refused(refused(2)).unwrap());
    for n in 2..20_002 {
        journal
            .note_refused(refused(n), 100 + u64::from(n))
            .unwrap();
    }
    journal.flush().unwrap();
    assert!(!journal.refused(refused(1)).unwrap(), "the oldest made way");
    assert!(journal.refused(refused(2)).unwrap());
    assert_eq!(journal.forget(200).unwrap(), 0, "no job");
    assert!(!journal.refused(refused(99)).unwrap());
    assert!(journal.refused(refused(100)).unwrap());
}
