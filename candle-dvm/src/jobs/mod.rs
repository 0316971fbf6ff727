//! Jobs, independent of the protocol: which are admitted, in which order they run, and which facts are stored.
//!
//! This module does not depend on Nostr: ids and customers are 32 bytes, and the protocol layer writes and reads the texts of requests and
//! answers.

pub mod admission;
pub mod entry;
pub mod journal;
pub mod places;
pub mod queue;
pub mod telling;
pub mod toll;
pub mod waiting;

pub use admission::{Admission, Limits, Offer, Refusal, Tell};
pub use entry::{Answer, Entry, Invoice, Stage};
pub use journal::{Journal, JournalError, Reading};
pub use places::{Places, Seat};
pub use queue::FairQueue;
pub use telling::Telling;
pub use toll::Toll;
pub use waiting::{Waiting, WaitingLimits};

use std::fmt;

/// A job's id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub [u8; 32]);

/// The customer of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Customer(pub [u8; 32]);

fn hex(bytes: &[u8], f: &mut fmt::Formatter) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Display for Customer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Customer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        hex(&self.0, f)
    }
}
