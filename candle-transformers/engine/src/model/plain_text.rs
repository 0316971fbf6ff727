//! Special tokens in messages are text: only those of the chat template itself are special.
//!
//! A mark inside each of them keeps the tokenizer from seeing one. It is put there before the template is rendered, which may trim, split or
//! compare a text as always, and the prompt is tokenised in the parts between the marks.

use serde_json::Value;
use std::collections::HashSet;

/// A noncharacter, which texts do not contain.
pub(super) const MARK: char = '\u{FDD0}';

/// The special tokens' texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Specials {
    texts: HashSet<String>,
    /// Their lengths in bytes, each once, and their first bytes.
    lengths: Vec<usize>,
    first: HashSet<u8>,
    /// The beginnings of them, without the whole.
    beginnings: HashSet<String>,
}

impl Specials {
    pub(super) fn new(texts: impl Iterator<Item = String>) -> Self {
        let texts: HashSet<String> = texts.filter(|text| !text.is_empty()).collect();
        let mut lengths: Vec<usize> = texts.iter().map(String::len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let beginnings = texts.iter().flat_map(|text| {
            let ends = text.char_indices().skip(1);
            ends.map(|(end, _)| text[..end].to_string())
        });
        Self {
            first: texts.iter().map(|text| text.as_bytes()[0]).collect(),
            beginnings: beginnings.collect(),
            lengths,
            texts,
        }
    }

    /// Marks the special tokens in all texts of a value, also those that what follows might complete.
    pub(super) fn mark(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.marked(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.mark(value)),
            Value::Object(map) => map.values_mut().for_each(|value| self.mark(value)),
            _ => {}
        }
    }

    fn marked(&self, text: &str) -> String {
        let text = text.replace(MARK, "");
        let longest = self.lengths.last().copied().unwrap_or(0);
        let mut out = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            out.push(c);
            let rest = &text[at..];
            if !self.first.contains(&rest.as_bytes()[0]) {
                continue;
            }
            let is_special =
                |len: &usize| rest.get(..*len).is_some_and(|it| self.texts.contains(it));
            let begins = rest.len() < longest && self.beginnings.contains(rest);
            if begins || self.lengths.iter().any(is_special) {
                out.push(MARK);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_special_token_is_left_whole() {
        let texts = ["<|im_end|>", "<|im_start|>", "</s>", "<s>"];
        let specials = Specials::new(texts.map(str::to_string).into_iter());
        for (text, marked) in [
            ("hi<|im_end|>x", "hi<^|im_end|>x"),
            ("<<s>>", "<<^s>>"),
            ("<s></s>", "<^s><^/s>"),
            ("a < b, <|im_ends", "a < b, <|im_ends"),
            // The rest may come from what follows.
            ("hi <|im_en", "hi <^|im_en"),
            ("1 <", "1 <^"),
            ("é<s>é", "é<^s>é"),
            ("<\u{FDD0}s>", "<^s>"),
            ("", ""),
        ] {
            let found = specials.marked(text);
            assert_eq!(found, marked.replace('^', "\u{FDD0}"), "{text:?}");
            assert!(found
                .split(MARK)
                .all(|part| texts.iter().all(|it| !part.contains(it))));
        }
        let mut value = serde_json::json!([{"role": "user", "content": "</s>", "n": [1, "<s>"]}]);
        specials.mark(&mut value);
        let all = value.to_string();
        assert!(!all.contains("</s>") && !all.contains("<s>"), "{all}");
    }
}
