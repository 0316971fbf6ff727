//! Text from tokens as they come, never half a character, up to a stop sequence.

use crate::model::TextTokenizer;
use crate::Result;

/// A decoder's output for bytes that do not form a character, or not yet.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Decodes a stream of tokens into pieces of text.
///
/// A character may span several tokens. Until its last byte arrives, the decoder shows it as U+FFFD, so text that ends in U+FFFD is held
/// back. Each step decodes only a window of the latest tokens. The window keeps the tokens of the previous piece, because decoders treat
/// the first token of a text differently (they strip its space).
pub struct TokenStream<'a> {
    tokenizer: &'a TextTokenizer,
    window: Vec<u32>,
    /// Number of tokens at the window's start whose text has been returned.
    done: usize,
    /// The part of the window's text already handed out.
    emitted: String,
    /// Special tokens that are in the text, with theirs: the decoder leaves them out.
    shown: Vec<(u32, &'static str)>,
}

impl<'a> TokenStream<'a> {
    /// A stream in which nothing has been seen.
    pub fn new(tokenizer: &'a TextTokenizer) -> Self {
        Self {
            tokenizer,
            window: Vec::new(),
            done: 0,
            emitted: String::new(),
            shown: Vec::new(),
        }
    }

    /// With those of the texts `marks` in the text that are special tokens, which decoders leave out.
    pub fn showing(mut self, marks: &[&'static str]) -> Self {
        let ids = marks.iter().filter_map(|mark| {
            let id = self.tokenizer.special(mark)?;
            Some((id, *mark))
        });
        self.shown = ids.collect();
        self
    }

    /// Takes the next token and returns the text that is now certain, if there is any.
    ///
    /// # Errors
    /// The tokenizer's, on an id that it cannot decode.
    pub fn push(&mut self, token: u32) -> Result<Option<String>> {
        if let Some((_, text)) = self.shown.iter().find(|(id, _)| *id == token) {
            let rest = self.finish()?.unwrap_or_default();
            self.window.clear();
            self.done = 0;
            self.emitted.clear();
            return Ok(Some(rest + text));
        }
        self.window.push(token);
        let text = self.tokenizer.decode(&self.window)?;
        let certain = text.trim_end_matches(REPLACEMENT);
        let whole = certain.len() == text.len();
        let piece = match certain.strip_prefix(self.emitted.as_str()) {
            Some(rest) => rest.to_string(),
            // Bytes that do not form a character can change how the decoder shows those before them.
            None if whole => self.tokenizer.decode(&self.window[self.done..])?,
            None => return Ok(None),
        };
        if piece.is_empty() {
            return Ok(None);
        }
        if whole {
            self.window.drain(..self.done);
            self.done = self.window.len();
            self.emitted = self.tokenizer.decode(&self.window)?;
        } else {
            self.emitted = certain.to_string();
        }
        Ok(Some(piece))
    }

    /// The rest, once no token follows: bytes that never became a character show as U+FFFD.
    ///
    /// # Errors
    /// The tokenizer's, on an id that it cannot decode.
    pub fn finish(&self) -> Result<Option<String>> {
        let text = self.tokenizer.decode(&self.window)?;
        let rest = text.strip_prefix(self.emitted.as_str());
        Ok(rest.filter(|rest| !rest.is_empty()).map(str::to_string))
    }
}

/// Ends a text before the first stop sequence in it.
///
/// Text that may be the start of one is held back until more is known, so that nothing of a stop sequence is handed out. Of several the
/// one that is complete first counts.
#[derive(Debug)]
pub struct StopSequences {
    stops: Vec<String>,
    held: String,
    reached: bool,
}

impl StopSequences {
    /// Searches for `stops`, which must not be empty strings.
    pub fn new(stops: &[String]) -> Self {
        Self {
            stops: stops.to_vec(),
            held: String::new(),
            reached: false,
        }
    }

    /// Adds the next piece of text, and returns the text that certainly precedes a stop sequence. Returns nothing after one.
    pub fn push(&mut self, piece: &str) -> String {
        if self.reached {
            return String::new();
        }
        self.held.push_str(piece);
        let found = self.stops.iter().filter_map(|stop| {
            let start = self.held.find(stop)?;
            Some((start + stop.len(), start))
        });
        // Ordered by its end: the result must not depend on how the text is split into pieces.
        if let Some((_, start)) = found.min() {
            self.reached = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let open = self.stops.iter().map(|stop| overlap(&self.held, stop));
        let kept = self.held.len() - open.max().unwrap_or(0);
        let rest = self.held.split_off(kept);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether the text has come to a stop sequence.
    pub fn is_reached(&self) -> bool {
        self.reached
    }

    /// The text that was held back, once there are no more pieces.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Number of bytes at the end of `text` that are a proper prefix of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let ends = stop.char_indices().map(|(at, _)| at);
    ends.rev()
        .find(|end| text.ends_with(&stop[..*end]))
        .unwrap_or(0)
}
