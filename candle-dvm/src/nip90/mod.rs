//! NIP-90, "Data Vending Machines", for the kinds 5050, text generation, and 5000, speech to text: conversion between events and typed
//! values. No I/O.
//!
//! Strict when writing, lenient when reading: unknown tags and parameters are ignored, several spellings in use are understood, and errors
//! are returned as a [`ReadError`] that can be sent to the customer. Events are not verified here: the caller verifies their signatures
//! first. [`request`] lists the locations of a prompt, and the requests that are meant for other providers.
//!
//! Written to the revision of NIP-90 of May 2026, which marks the whole document `unrecommended`; there is no successor that
//! customers use. Heartbeats (kind 11998) follow the open proposal #2465.

pub mod announcement;
pub mod cancellation;
pub mod crypto;
pub mod feedback;
pub mod kind;
pub mod params;
pub mod request;
pub mod result;
pub mod speech;

pub use announcement::{Announcement, Heartbeat};
pub use crypto::Scheme;
pub use feedback::{Feedback, Status};
pub use kind::JobKind;
pub use request::{Input, InputKind, JobRequest, Task};
pub use result::{JobResult, Usage};
pub use speech::SpeechParams;

use nostr::event::FinalizeUnsignedEvent;
use nostr::nips::nip13::SingleThreadPow;
use nostr::prelude::{Event, EventBuilder, FinalizeEvent, Keys, Kind, PublicKey, Tag, Timestamp};
use std::num::NonZeroU8;

/// A provider's feedback on a running job.
pub const FEEDBACK: u16 = 7000;
/// A provider's announcement (NIP-89).
pub const ANNOUNCEMENT: u16 = 31990;
/// A provider's heartbeat.
pub const HEARTBEAT: u16 = 11998;
/// A request to delete (NIP-09), which for a job means to cancel it.
pub const DELETION: u16 = 5;
/// A person's list of relays (NIP-65).
pub const RELAY_LIST: u16 = 10002;

/// The tag with a token that goes back to the customer, encrypted to them (NIP-44) whatever else is.
pub(crate) fn token_tag(keys: &Keys, customer: &PublicKey, token: &str) -> Result<Tag, WriteError> {
    let hidden = Scheme::Nip44.encrypt(keys, customer, token)?;
    Ok(tag("cashu", [hidden]))
}

/// The token that an answer has for the customer, if it has one that opens.
pub(crate) fn token(tags: &[Vec<String>], keys: &Keys, author: &PublicKey) -> Option<String> {
    let hidden = first(tags, "cashu")?.first()?;
    crypto::decrypt(keys, author, hidden)
        .ok()
        .map(|(token, _)| token)
}

/// The reason why an event cannot be read as the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Another kind of event.
    #[error("kind {found}, expected {expected}")]
    Kind {
        /// The event's kind.
        found: u16,
        /// The kind it was read as.
        expected: u16,
    },
    /// Encrypted for another provider.
    #[error("encrypted for another key")]
    NotForUs,
    /// Encrypted for this key, and neither NIP-44 nor NIP-04 opens it.
    #[error("cannot decrypt the content with NIP-44 or NIP-04")]
    Undecryptable,
    /// A tag or a part of the content whose value does not fit.
    #[error("`{name}` {value:?}: expected {expected}")]
    Value {
        /// The tag or field.
        name: String,
        /// The value found, shortened.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// Something that has to be there and is not.
    #[error("`{0}` is missing")]
    Missing(&'static str),
    /// More items than are read. Dropping the rest would answer another question than the customer's.
    #[error("`{name}`: found {found}; the maximum is {most}")]
    TooMany {
        /// The tag's name.
        name: &'static str,
        /// The number found.
        found: usize,
        /// The maximum number.
        most: usize,
    },
}

impl ReadError {
    /// Whether the request may be another sort of job that uses the same kind: it has no prompt, has an input of an unknown type, or
    /// requests output that is not text. Unless the request names this provider, others have to answer it.
    pub fn is_other_job(&self) -> bool {
        match self {
            Self::Missing(name) => *name == "i",
            Self::Value { name, .. } => name == "i" || name == "output",
            _ => false,
        }
    }

    pub(crate) fn value(name: &str, value: &str, expected: &'static str) -> Self {
        // Both end up in messages: a megabyte sent as a number should not.
        Self::Value {
            name: name.chars().take(40).collect(),
            value: value.chars().take(80).collect(),
            expected,
        }
    }
}

/// The reason why a value cannot be written as an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The value breaks a rule of the format.
    #[error("{0}")]
    Invalid(String),
    /// The event would be larger than a relay takes.
    #[error("the event has {size} bytes after dropping everything optional; the limit is {limit}")]
    TooLarge {
        /// The smallest form's size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// Encryption failed.
    #[error("encryption: {0}")]
    Encryption(String),
    /// Signing failed.
    #[error("signing: {0}")]
    Signing(String),
}

/// A tag from its name and values.
pub(crate) fn tag<S: Into<String>>(name: &str, values: impl IntoIterator<Item = S>) -> Tag {
    Tag::custom(name, values)
}

/// The values of the first tag of this name.
pub(crate) fn first<'a>(tags: &'a [Vec<String>], name: &'a str) -> Option<&'a [String]> {
    all(tags, name).next()
}

/// The values of each tag of this name, without the name itself.
pub(crate) fn all<'a>(
    tags: &'a [Vec<String>],
    name: &'a str,
) -> impl Iterator<Item = &'a [String]> {
    tags.iter()
        .filter(move |tag| tag.first().is_some_and(|first| first == name))
        .map(|tag| &tag[1..])
}

/// An event's tags as lists of strings.
pub(crate) fn tags(event: &Event) -> Vec<Vec<String>> {
    event
        .tags
        .iter()
        .map(|tag| tag.as_slice().to_vec())
        .collect()
}

pub(crate) fn expect_kind(event: &Event, expected: u16) -> Result<(), ReadError> {
    let found = event.kind.as_u16();
    if found == expected {
        Ok(())
    } else {
        Err(ReadError::Kind { found, expected })
    }
}

/// Signs an event. The time comes from the caller: nothing here asks a clock.
pub fn sign(
    keys: &Keys,
    now: u64,
    kind: u16,
    content: String,
    tags: Vec<Tag>,
) -> Result<Event, WriteError> {
    sign_with_work(keys, now, kind, content, tags, 0)
}

/// Signs an event whose id shows `work` bits of proof of work (NIP-13). Each bit doubles the time that this takes.
pub(crate) fn sign_with_work(
    keys: &Keys,
    now: u64,
    kind: u16,
    content: String,
    tags: Vec<Tag>,
    work: u8,
) -> Result<Event, WriteError> {
    let event = EventBuilder::new(Kind::from_u16(kind), content)
        .tags(tags)
        .custom_created_at(Timestamp::from(now));
    let signed = match NonZeroU8::new(work) {
        None => event.finalize(keys),
        Some(bits) => event
            .finalize_unsigned(keys.public_key())
            .mine(&SingleThreadPow, bits)
            .unwrap_or_else(|never| match never {})
            .finalize(keys),
    };
    signed.map_err(|err| WriteError::Signing(err.to_string()))
}

/// Whether `event` has `bits` of proof of work (NIP-13): the id has them, and its `nonce` tag commits to them.
pub fn has_work(event: &Event, bits: u8) -> bool {
    work(event) >= bits
}

/// The bits of proof of work of `event` (NIP-13): its id has them, and its `nonce` tag commits to them.
pub fn work(event: &Event) -> u8 {
    let meant = first(&tags(event), "nonce")
        .and_then(|nonce| nonce.get(1)?.parse::<u8>().ok())
        .unwrap_or(0);
    // A byte holds the number: a longer run of zeros than 255 bits is none that anybody finds.
    let bytes = event.id.to_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let rest = bytes.get(zeros).map_or(0, |byte| byte.leading_zeros());
    let found = (zeros as u32 * 8 + rest).min(255) as u8;
    meant.min(found)
}

/// When an event says that it stops to matter (NIP-40).
pub fn expiration(event: &Event) -> Option<u64> {
    first(&tags(event), "expiration")?.first()?.parse().ok()
}
