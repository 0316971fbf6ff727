//! Tracks a text's thoughts, token by token, and the tokens that have to come next.

use super::format::{At, Thinking};
use super::Splitter;
use crate::model::TextTokenizer;
use crate::Result;
use std::collections::VecDeque;

/// The phase of a text, for the code that constrains its next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Thoughts may begin, or the answer.
    Undecided,
    /// In thoughts or in marks.
    Thoughts,
    /// In the answer.
    Answer,
}

/// The state of one text.
pub(crate) struct Pace {
    splitter: Splitter,
    /// The tokens that begin thoughts, at least one; those that end them; those with which an answer after thoughts begins.
    open: Vec<u32>,
    close: Vec<u32>,
    answer_begins: Vec<u32>,
    limit: Option<usize>,
    forced: VecDeque<u32>,
    /// Tokens before it is decided whether there are thoughts, and tokens of thoughts.
    undecided: usize,
    tokens: usize,
}

impl Pace {
    /// # Errors
    /// The tokenizer's.
    pub(crate) fn new(tokenizer: &TextTokenizer, thinking: &Thinking) -> Result<Self> {
        let ids = |text: &str| tokenizer.encode(text, false);
        Ok(Self {
            splitter: Splitter::new(Some(thinking)),
            open: ids(thinking.format.opens())?,
            close: ids(&thinking.format.closes())?,
            answer_begins: ids(&thinking.answer_begins)?,
            limit: thinking.limit,
            forced: match (thinking.at, thinking.limit) {
                (At::Thoughts, Some(0)) => ids(&thinking.format.closes())?.into(),
                _ => VecDeque::new(),
            },
            undecided: 0,
            tokens: 0,
        })
    }

    /// The token that has to come next, if one has to.
    pub(crate) fn forced(&self) -> Option<u32> {
        self.forced.front().copied()
    }

    /// Number of tokens of thoughts so far, with those of their marks.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn phase(&self) -> Phase {
        if self.splitter.is_undecided() {
            Phase::Undecided
        } else if self.splitter.is_thinking() {
            Phase::Thoughts
        } else {
            Phase::Answer
        }
    }

    /// The tokens that a text may begin with, other than those of a constrained answer: of thoughts, and of the text before a constraint.
    pub(crate) fn beginnings(&self) -> impl Iterator<Item = u32> {
        let first = |tokens: &[u32]| tokens.first().copied();
        let both = [first(&self.open), first(&self.answer_begins)];
        both.into_iter().flatten()
    }

    /// Takes the first token of a text with a constrained answer; whether it is one of that answer.
    pub(crate) fn decide(&mut self, token: u32) -> bool {
        let begun = |tokens: &[u32]| match tokens.split_first() {
            Some((first, _)) if *first == token => Some(VecDeque::from(tokens.to_vec())),
            _ => None,
        };
        // What is several tokens has to be complete.
        if let Some(all) = begun(&self.open) {
            self.forced = all;
            return false;
        }
        self.splitter.answer_now();
        if let Some(all) = begun(&self.answer_begins) {
            self.forced = all;
            return false;
        }
        true
    }

    /// Takes a token and the text that is certain with it.
    pub(crate) fn push(&mut self, token: u32, piece: &str) {
        if self.forced() == Some(token) {
            self.forced.pop_front();
        }
        let was_thinking = self.splitter.is_thinking();
        self.splitter.push(piece);
        if self.splitter.is_undecided() {
            self.undecided += 1;
            return;
        }
        let is_thinking = self.splitter.is_thinking();
        if was_thinking || is_thinking {
            self.tokens += 1 + self.undecided;
        }
        self.undecided = 0;
        let is_spent = self.limit.is_some_and(|limit| self.tokens >= limit);
        if is_spent && self.splitter.is_in_thoughts() && self.forced.is_empty() {
            self.forced.extend(&self.close);
        }
        if was_thinking && !is_thinking {
            self.forced.extend(&self.answer_begins);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ChatTemplate, ModelFiles, ModelSource};
    use crate::stream::TokenStream;

    fn tokenizer() -> TextTokenizer {
        ModelFiles::open(&ModelSource::Embedded).unwrap().tokenizer
    }

    fn thinking(source: &str, prompt: &str) -> Thinking {
        Thinking::of(&ChatTemplate::new("test", source.to_string()), prompt).unwrap()
    }

    /// Pushes tokens with their texts, and then those that are forced; the whole text.
    fn write(pace: &mut Pace, tokenizer: &TextTokenizer, tokens: &[u32]) -> String {
        let mut stream = TokenStream::new(tokenizer);
        let mut text = String::new();
        let mut push = |pace: &mut Pace, token: u32| {
            let piece = stream.push(token).unwrap().unwrap_or_default();
            pace.push(token, &piece);
            text.push_str(&piece);
        };
        for token in tokens {
            push(pace, *token);
        }
        while let Some(token) = pace.forced() {
            push(pace, token);
        }
        text
    }

    #[test]
    fn thoughts_end_when_their_limit_is_reached() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode("fn main() {", false).unwrap();
        for (source, prompt, before, closes) in [
            ("<think>", "<think>\n", "", "\n</think>\n\n"),
            ("[THINK]", "", "[THINK]", "\n[/THINK]\n\n"),
            (
                "<|channel|>analysis",
                "",
                "<|channel|>analysis<|message|>",
                "<|end|><|start|>assistant<|channel|>final<|message|>",
            ),
        ] {
            let mut begin = tokenizer.encode(before, false).unwrap();
            let limit = begin.len() + ids.len();
            begin.extend(&ids);
            let thinking = thinking(source, prompt).limited(Some(limit));
            let thinking = thinking.answer_beginning("let");
            let mut pace = Pace::new(&tokenizer, &thinking).unwrap();
            let (last, all) = begin.split_last().unwrap();
            let first = write(&mut pace, &tokenizer, all);
            assert_eq!(pace.forced(), None, "{first}");
            assert_eq!(pace.phase(), Phase::Thoughts);
            assert_eq!(pace.tokens(), limit - 1);
            let rest = write(&mut pace, &tokenizer, &[*last]);
            assert!(rest.ends_with(&format!("{closes}let")), "{rest:?}");
            assert_eq!(pace.phase(), Phase::Answer);
            let made = limit + tokenizer.encode(closes, false).unwrap().len();
            assert!((limit + 1..=made).contains(&pace.tokens()), "{source}");
        }
    }

    #[test]
    fn a_limit_of_none_ends_thoughts_at_once() {
        let tokenizer = tokenizer();
        let thinking = thinking("<think>", "<think>").limited(Some(0));
        let mut pace = Pace::new(&tokenizer, &thinking).unwrap();
        assert_eq!(write(&mut pace, &tokenizer, &[]), "\n</think>\n\n");
        assert_eq!(pace.phase(), Phase::Answer);
    }

    #[test]
    fn the_first_token_decides_whether_a_constrained_text_thinks() {
        let tokenizer = tokenizer();
        let thinking = thinking("[THINK]", "").answer_beginning("<tool>");
        let first = |text: &str| tokenizer.encode(text, false).unwrap()[0];
        for (text, is_of_answer, whole) in [
            ("[THINK]", false, "[THINK]"),
            ("<tool>", false, "<tool>"),
            ("{", true, "{"),
        ] {
            let mut pace = Pace::new(&tokenizer, &thinking).unwrap();
            assert_eq!(pace.phase(), Phase::Undecided);
            let token = first(text);
            let free: Vec<u32> = pace.beginnings().collect();
            assert_eq!(free.contains(&token), !is_of_answer, "{text}");
            assert_eq!(pace.decide(token), is_of_answer, "{text}");
            assert_eq!(write(&mut pace, &tokenizer, &[token]), whole);
            let thinks = text == "[THINK]";
            assert_eq!(pace.phase() == Phase::Thoughts, thinks, "{text}");
            assert_eq!(pace.tokens() > 0, thinks, "{text}");
        }
    }
}
