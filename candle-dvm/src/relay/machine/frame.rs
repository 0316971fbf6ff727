//! What can be said of an EVENT message that `nostr` does not take: relays differ in what they let in, and one of them has it.

use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;

/// The fields of a subscription's event that paging needs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventFrame {
    pub(super) subscription: String,
    /// In seconds, if it has a date.
    pub(super) created: Option<u64>,
}

#[derive(Deserialize)]
struct Dated {
    #[serde(default)]
    created_at: Value,
}

/// Reads only these fields of a message; `None` if it is not an EVENT message. Nothing else is stored, however large it is.
pub(super) fn event_frame(text: &str) -> Option<EventFrame> {
    let (label, subscription, event): (Cow<str>, Cow<str>, Dated) =
        serde_json::from_str(text).ok()?;
    (label == "EVENT").then(|| EventFrame {
        subscription: subscription.into_owned(),
        created: event.created_at.as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::event_frame;

    #[test]
    fn the_date_of_an_event_is_read_whatever_else_it_has() {
        let read = |text: &str| event_frame(text).map(|frame| (frame.subscription, frame.created));
        let jobs = |created| Some(("jobs".to_string(), created));
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        for (text, expected) in [
            (
                r#"["EVENT","jobs",{"created_at":5,"tags":[[]]}]"#.to_string(),
                jobs(Some(5)),
            ),
            (
                r#"["EVENT","jobs",{"tags":[["n",5]],"created_at":6,"id":null,"content":"\ud800"}]"#
                    .to_string(),
                jobs(Some(6)),
            ),
            (
                format!(r#"["EVENT","jobs",{{"tags":{deep},"created_at":7}}]"#),
                jobs(Some(7)),
            ),
            (
                r#"["EVENT","jobs",{"created_at":-5}]"#.to_string(),
                jobs(None),
            ),
            (r#"["EVENT","jobs",{}]"#.to_string(), jobs(None)),
            (r#"["EVENT","jobs"]"#.to_string(), None),
            (r#"["EVENT",5,{"created_at":5}]"#.to_string(), None),
            (r#"["OK","jobs",{"created_at":5}]"#.to_string(), None),
            ("{".to_string(), None),
        ] {
            let start: String = text.chars().take(80).collect();
            assert_eq!(read(&text), expected, "{start}");
        }
    }
}
