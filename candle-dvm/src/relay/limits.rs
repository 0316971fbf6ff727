//! What a relay says that it takes (NIP-11).

use serde_json::Value;

/// The limits of a relay, as far as it names them.
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
    /// How many seconds before now an event may be dated.
    pub created_at_lower_limit: Option<u64>,
    /// How many seconds after now an event may be dated.
    pub created_at_upper_limit: Option<u64>,
}

impl RelayLimits {
    /// Reads them from a relay's information document. Fields that are no numbers, or 0, are ignored.
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
}
