//! Text to tokens and back, from `tokenizer.json` or a GGUF file's metadata.

use super::most_bytes::most_bytes;
use super::plain_text::{Specials, MARK};
use super::token_bytes::token_bytes;
use crate::error::one_line;
use crate::{Error, Result};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// A tokenizer that puts the begin token where the model expects it.
pub struct TextTokenizer {
    inner: Tokenizer,
    /// The begin token, if the tokenizer's own post-processor does not add it.
    missing_begin: Option<u32>,
    vocab_size: usize,
    /// See [`most_bytes`].
    most_bytes: Option<usize>,
    specials: Arc<Specials>,
}

impl TextTokenizer {
    /// Parses `tokenizer.json`. `begin_token` precedes each prompt unless the tokenizer adds it; ids of `vocab_size` and above have no row
    /// in the model's embedding.
    pub(super) fn parse(
        file: &Path,
        bytes: &[u8],
        begin_token: Option<u32>,
        vocab_size: usize,
    ) -> Result<Self> {
        Self::new(file, read(file, bytes)?, begin_token, vocab_size)
    }

    /// A tokenizer that came from `file`; the rest as in [`Self::parse`].
    pub(super) fn new(
        file: &Path,
        mut inner: Tokenizer,
        begin_token: Option<u32>,
        vocab_size: usize,
    ) -> Result<Self> {
        // Both would change a prompt silently.
        inner
            .with_truncation(None)
            .map_err(|err| Error::file(file, one_line(&err.to_string())))?;
        inner.with_padding(None);
        let added = inner
            .encode("", true)
            .map_err(|err| Error::file(file, one_line(&err.to_string())))?;
        let missing_begin = begin_token.filter(|begin| !added.get_ids().contains(begin));
        Ok(Self {
            most_bytes: most_bytes(&inner),
            specials: Arc::new(specials(&inner)),
            inner,
            missing_begin,
            vocab_size,
        })
    }

    /// The tokens of a prompt, the begin token first.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] if the text itself has no token, and tokens that the model does not know.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>> {
        if self.encode(prompt, false)?.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let encoded = self.encode(prompt, true)?;
        let tokens = self.missing_begin.into_iter().chain(encoded).collect();
        self.known(tokens)
    }

    /// The special tokens, for what marks them.
    pub(super) fn specials(&self) -> Arc<Specials> {
        self.specials.clone()
    }

    /// The special token with this text, which [`decode`](Self::decode) leaves out.
    pub(crate) fn special(&self, text: &str) -> Option<u32> {
        let added = self.inner.get_added_tokens_decoder();
        let mut found = added
            .into_iter()
            .filter(|(_, token)| token.special && token.content == text);
        found.next().map(|(id, _)| id)
    }

    /// The token of this id as the vocabulary spells it, special ones included.
    pub(crate) fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Marks the special tokens in any texts of a value: they are text where [`encode_chat`](Self::encode_chat) comes to
    /// them.
    pub(crate) fn mark(&self, said: &mut Value) {
        self.specials.mark(said);
    }

    /// The tokens of a prompt that a chat template has made, special tokens in its text included, but those that are marked; the begin token
    /// is the template's affair. Where the normaliser puts a space before each text, as that of Llama 2, there is one in a marked token too.
    pub(crate) fn encode_chat(&self, prompt: &str) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        for part in prompt.split(MARK).filter(|part| !part.is_empty()) {
            tokens.extend(self.encode(part, false)?);
        }
        if tokens.is_empty() {
            Err(Error::EmptyPrompt)
        } else {
            self.known(tokens)
        }
    }

    /// The tokens of a text as it is, with those that the tokenizer puts around it or without.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn encode(&self, text: &str, around: bool) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, around);
        let encoding = encoding.map_err(|err| Error::Tokenizer(one_line(&err.to_string())))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Checks that a text of this many bytes may be `limit` tokens or fewer, without tokenising it.
    ///
    /// # Errors
    /// [`Error::PromptTooLarge`] if it cannot. Of a tokenizer whose tokens have no longest one, nothing is too large.
    pub(crate) fn check_bytes(&self, bytes: usize, limit: usize) -> Result<()> {
        let most = self.most_bytes.map(|most| most.saturating_mul(limit));
        if most.is_some_and(|most| bytes > most) {
            Err(Error::PromptTooLarge { bytes, limit })
        } else {
            Ok(())
        }
    }

    /// The tokens, if the model has all of them.
    fn known(&self, tokens: Vec<u32>) -> Result<Vec<u32>> {
        match tokens.iter().find(|id| **id as usize >= self.vocab_size) {
            None => Ok(tokens),
            Some(id) => Err(Error::Tokenizer(format!(
                "the prompt contains token {id}, but the model's vocab_size is {}",
                self.vocab_size
            ))),
        }
    }

    /// The bytes of each token of the model; special tokens begin with `special`, and ids without a token are empty. `None` where tokens are
    /// not sequences of bytes.
    pub fn token_bytes(&self, special: u8) -> Option<Vec<Vec<u8>>> {
        token_bytes(&self.inner, self.vocab_size, special)
    }

    /// The text of `tokens` without special tokens; bytes that do not form a character become U+FFFD.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let text = self.inner.decode(tokens, true);
        text.map_err(|err| Error::Tokenizer(one_line(&err.to_string())))
    }
}

/// The tokens that are special, by what the tokenizer says or by their form.
fn specials(inner: &Tokenizer) -> Specials {
    let added = inner.get_added_tokens_decoder();
    let is_special =
        |text: &str, special: bool| special || (text.starts_with("<|") && text.ends_with("|>"));
    let texts = added
        .into_values()
        .filter(|it| is_special(&it.content, it.special));
    Specials::new(texts.map(|token| token.content))
}

/// Reads a `tokenizer.json`.
pub(crate) fn read(file: &Path, bytes: &[u8]) -> Result<Tokenizer> {
    if let Err(err) = std::str::from_utf8(bytes) {
        return Err(invalid_utf8(file, bytes, err.valid_up_to()));
    }
    Tokenizer::from_bytes(bytes).map_err(|err| Error::file(file, one_line(&err.to_string())))
}

/// Says where in the file the bad byte is: its offset, and the field around it if the rest of the file is JSON.
fn invalid_utf8(file: &Path, bytes: &[u8], offset: usize) -> Error {
    /// Stands for the bad byte; no tokenizer has this noncharacter in its vocabulary.
    const MARK: char = '\u{10FFFE}';
    let problem = format!("invalid UTF-8 at byte {offset}");
    let valid = String::from_utf8_lossy(&bytes[..offset]);
    let rest = String::from_utf8_lossy(&bytes[offset + 1..]);
    let field = serde_json::from_str(&format!("{valid}{MARK}{rest}"))
        .ok()
        .and_then(|json: Value| path_to(&json, MARK))
        .filter(|field| !field.is_empty());
    match field {
        Some(field) => Error::Field {
            file: file.display().to_string(),
            field,
            problem,
        },
        None => Error::file(file, problem),
    }
}

/// The path to the first key or string with `mark` in it.
fn path_to(json: &Value, mark: char) -> Option<String> {
    let below = |name: String, value: &Value| {
        let rest = path_to(value, mark)?;
        Some(if rest.is_empty() {
            name
        } else {
            format!("{name}.{rest}")
        })
    };
    match json {
        Value::String(text) => text.contains(mark).then(String::new),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| below(index.to_string(), item)),
        Value::Object(map) => map.iter().find_map(|(key, value)| {
            if key.contains(mark) {
                Some(String::new())
            } else {
                below(key.clone(), value)
            }
        }),
        _ => None,
    }
}
