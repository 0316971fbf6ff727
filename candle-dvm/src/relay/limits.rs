//! What a relay says that it takes (NIP-11).

use super::machine::LARGEST_MESSAGE;
use nostr::prelude::Event;
use serde_json::Value;

/// Bytes reserved for parts that relays count differently.
pub const MARGIN: usize = 256;
/// Minimum message size for an answer: an event with a few words, its signature and the tags that name its job.
const LEAST_MESSAGE: usize = 1024;
const LEAST_CONTENT: usize = 64;
const LEAST_TAGS: usize = 4;

/// The limits of a relay, of those that it publishes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayLimits {
    /// Bytes of a message.
    pub max_message_length: Option<usize>,
    /// Characters of a content.
    pub max_content_length: Option<usize>,
    /// Tags of an event.
    pub max_event_tags: Option<usize>,
    /// Events that one subscription gets from the store.
    pub max_limit: Option<usize>,
    /// Maximum number of seconds by which an event may be dated back.
    pub created_at_lower_limit: Option<u64>,
    /// Maximum number of seconds by which an event may be dated ahead.
    pub created_at_upper_limit: Option<u64>,
}

impl RelayLimits {
    /// Reads the limits from a relay's information document. Fields that are not numbers, or 0, are ignored.
    pub fn read(document: &str) -> Self {
        let json: Value = serde_json::from_str(document).unwrap_or_default();
        let number = |name: &str| {
            json["limitation"][name]
                .as_u64()
                .filter(|number| *number > 0)
        };
        let size = |name: &str| number(name).and_then(|number| usize::try_from(number).ok());
        Self {
            max_message_length: size("max_message_length"),
            max_content_length: size("max_content_length"),
            max_event_tags: size("max_event_tags"),
            max_limit: size("max_limit"),
            created_at_lower_limit: number("created_at_lower_limit"),
            created_at_upper_limit: number("created_at_upper_limit"),
        }
    }

    /// The most bytes that an event's JSON may have. `["EVENT",…]` is around it.
    pub fn event_bytes(&self) -> Option<usize> {
        self.max_message_length.map(|most| most.saturating_sub(16))
    }

    /// Takes out limits that no answer could keep: a relay that names them takes events all the same, or is none. Returns their names and
    /// values.
    pub fn remove_absurd(&mut self) -> Vec<(&'static str, usize)> {
        let mut absurd = Vec::new();
        for (name, limit, least) in [
            (
                "max_message_length",
                &mut self.max_message_length,
                LEAST_MESSAGE,
            ),
            (
                "max_content_length",
                &mut self.max_content_length,
                LEAST_CONTENT,
            ),
            ("max_event_tags", &mut self.max_event_tags, LEAST_TAGS),
        ] {
            if let Some(value) = limit.take_if(|value| *value < least) {
                absurd.push((name, value));
            }
        }
        absurd
    }

    /// Whether an event keeps to them. `bytes` is the most where the relay does not say.
    ///
    /// # Errors
    /// The first limit that it breaks, in a line.
    pub fn check(&self, event: &Event, bytes: usize) -> Result<(), String> {
        let check = |what: &str, found: usize, most: Option<usize>| match most {
            Some(most) if found > most => Err(format!(
                "the event has {found} {what}; the relay's limit is {most}"
            )),
            _ => Ok(()),
        };
        let bytes = self.event_bytes().unwrap_or(bytes);
        let most = bytes.min(LARGEST_MESSAGE).saturating_sub(MARGIN);
        check("bytes", event.as_json().len(), Some(most))?;
        // The content alone counts: the tags are not part of it.
        let content = event.content.chars().count();
        check("characters of content", content, self.max_content_length)?;
        check("tags", event.tags.len(), self.max_event_tags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nostr::prelude::{EventBuilder, FinalizeEvent, Keys, Kind};

    fn event(content: usize) -> Event {
        EventBuilder::new(Kind::from_u16(6050), "ä".repeat(content))
            .finalize(&Keys::generate())
            .unwrap()
    }

    #[test]
    fn a_limit_of_the_content_is_one_of_the_content_alone() {
        let limits = RelayLimits::read(r#"{"limitation":{"max_content_length":256}}"#);
        assert_eq!(limits.check(&event(256), 64 << 10), Ok(()));
        let err = limits.check(&event(257), 64 << 10).unwrap_err();
        assert!(err.contains("257 characters of content"), "{err}");
    }

    #[test]
    fn limits_that_no_answer_could_keep_are_taken_out() {
        let text = r#"{"limitation":{"max_message_length":300,"max_content_length":10,"max_event_tags":1,"max_limit":5}}"#;
        let mut limits = RelayLimits::read(text);
        let names: Vec<_> = limits.remove_absurd();
        let expected = [
            ("max_message_length", 300),
            ("max_content_length", 10),
            ("max_event_tags", 1),
        ];
        assert_eq!(names, expected);
        let rest = RelayLimits {
            max_limit: Some(5),
            ..RelayLimits::default()
        };
        assert_eq!(limits, rest);
        assert!(limits.remove_absurd().is_empty());
        assert_eq!(limits.check(&event(1000), 64 << 10), Ok(()));
        assert!(limits.check(&event(1000), 1024).is_err());
    }
}
