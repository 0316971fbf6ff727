//! A text that is being written and may have calls in it.

use super::{Call, Tools};

/// The text so far, and how much of it is out: what may be a call is held back.
pub(in super::super) struct Said {
    tools: Tools,
    whole: String,
    out_to: usize,
}

impl Said {
    pub(in super::super) fn new(tools: Tools) -> Self {
        Self {
            tools,
            whole: String::new(),
            out_to: 0,
        }
    }

    /// Adds a chunk, and returns the new text that is certainly not part of a call.
    pub(in super::super) fn push(&mut self, piece: &str) -> &str {
        self.whole.push_str(piece);
        let start = self.out_to;
        self.out_to = self.tools.certain(&self.whole).max(start);
        &self.whole[start..self.out_to]
    }

    /// The calls of the whole text; without any, the rest of the text.
    pub(in super::super) fn end(&self) -> (&str, Vec<Call>) {
        let calls = self.tools.read(&self.whole).calls;
        if calls.is_empty() {
            (&self.whole[self.out_to..], calls)
        } else {
            ("", calls)
        }
    }
}
