//! A job's cancellation: a request to delete it (kind 5, NIP-09), which only its author may send.

use super::{all, expect_kind, sign, tag, tags, JobKind, ReadError, WriteError, DELETION};
use nostr::prelude::{Event, EventId, Keys};

/// Asks to cancel `job`, which is of the sort `kind`.
///
/// # Errors
/// Failures to sign.
pub fn write(keys: &Keys, now: u64, kind: JobKind, job: &EventId) -> Result<Event, WriteError> {
    let kind = kind.request().to_string();
    let tags = vec![tag("e", [job.to_hex()]), tag("k", [kind])];
    sign(keys, now, DELETION, String::new(), tags)
}

/// The events that are to be deleted, at most 64. Whoever acts on them checks that they are by the same author.
///
/// # Errors
/// Another kind.
pub fn read(event: &Event) -> Result<Vec<EventId>, ReadError> {
    expect_kind(event, DELETION)?;
    let tags = tags(event);
    Ok(all(&tags, "e")
        .filter_map(|e| EventId::from_hex(e.first()?).ok())
        .take(64)
        .collect())
}
