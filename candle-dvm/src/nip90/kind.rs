//! The sorts of jobs, and their kinds of events.

use super::ReadError;
use nostr::prelude::Event;

/// A sort of job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    /// Text generation.
    #[default]
    Text,
    /// Speech to text.
    Speech,
}

impl JobKind {
    /// Each of them.
    pub const ALL: [Self; 2] = [Self::Text, Self::Speech];

    /// The kind of its requests.
    pub const fn request(self) -> u16 {
        match self {
            Self::Text => 5050,
            Self::Speech => 5000,
        }
    }

    /// The kind of its results.
    pub const fn result(self) -> u16 {
        self.request() + 1000
    }

    /// Its name in sentences.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text generation",
            Self::Speech => "speech to text",
        }
    }

    /// The sort that requests of this kind ask for.
    pub fn asked_by(kind: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|sort| sort.request() == kind)
    }

    pub(super) fn of_request(event: &Event) -> Result<Self, ReadError> {
        let found = event.kind.as_u16();
        Self::asked_by(found).ok_or(ReadError::Kind {
            found,
            expected: Self::Text.request(),
        })
    }

    pub(super) fn of_result(event: &Event) -> Result<Self, ReadError> {
        let found = event.kind.as_u16();
        let mut all = Self::ALL.into_iter();
        all.find(|sort| sort.result() == found)
            .ok_or(ReadError::Kind {
                found,
                expected: Self::Text.result(),
            })
    }
}
