//! The item of a response that has the thoughts of a model.

use super::super::reply;
use serde_json::{json, Value};

/// Thoughts that are being written.
pub(super) struct Thoughts {
    id: String,
    text: String,
}

impl Thoughts {
    pub(super) fn new(text: String) -> Self {
        Self {
            id: reply::id("rs"),
            text,
        }
    }

    fn part(&self) -> Value {
        json!({ "type": "reasoning_text", "text": self.text })
    }

    pub(super) fn item(&self, status: &str) -> Value {
        json!({
            "type": "reasoning", "id": self.id, "status": status, "summary": [], "content": [self.part()],
        })
    }

    /// The events that start the item at this index of the output.
    pub(super) fn begin(&self, at: usize) -> [(&'static str, Value); 2] {
        let mut item = self.item("in_progress");
        item["content"] = json!([]);
        let part = json!({
            "item_id": self.id, "output_index": at, "content_index": 0, "part": self.part(),
        });
        [
            (
                "response.output_item.added",
                json!({ "output_index": at, "item": item }),
            ),
            ("response.content_part.added", part),
        ]
    }

    /// The event of more text.
    pub(super) fn push(&mut self, text: &str, at: usize) -> (&'static str, Value) {
        self.text.push_str(text);
        let delta = json!({
            "item_id": self.id, "output_index": at, "content_index": 0, "delta": text,
        });
        ("response.reasoning_text.delta", delta)
    }

    /// The events that end the item.
    pub(super) fn end(&self, at: usize) -> [(&'static str, Value); 3] {
        let place = json!({ "item_id": self.id, "output_index": at, "content_index": 0 });
        let (mut text, mut part) = (place.clone(), place);
        text["text"] = self.text.clone().into();
        part["part"] = self.part();
        let item = json!({ "output_index": at, "item": self.item("completed") });
        [
            ("response.reasoning_text.done", text),
            ("response.content_part.done", part),
            ("response.output_item.done", item),
        ]
    }
}
