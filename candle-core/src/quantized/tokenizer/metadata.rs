//! The entries `tokenizer.ggml.*` of the metadata.

use std::collections::HashMap;

use super::super::gguf_file::Value;
use crate::{Context, Error, Result};

const PREFIX: &str = "tokenizer.ggml.";

/// The kind of a token; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// 1, and all other numbers.
    Normal,
    /// 3: only written by programs.
    Control,
    /// 4: matched verbatim in a text.
    UserDefined,
    /// 2 (unknown), 5 (unused), 6 (a byte).
    Other,
}

impl TokenKind {
    /// Whether the token is a part of ordinary text.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined)
    }
}

/// A token; its id is its index.
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) kind: TokenKind,
}

/// Metadata by keys without their prefix.
pub(super) struct Metadata<'a>(pub(super) &'a HashMap<String, Value>);

impl<'a> Metadata<'a> {
    fn find(&self, key: &str) -> Option<&'a Value> {
        self.0.get(&format!("{PREFIX}{key}"))
    }

    /// The error for a missing required key.
    pub(super) fn missing(&self, key: &str) -> Error {
        Error::Msg(format!("GGUF tokenizer: metadata {PREFIX}{key} is missing")).bt()
    }

    /// The error for a key with an invalid value.
    pub(super) fn refuse(&self, key: &str, why: String) -> Error {
        Error::Msg(format!("GGUF tokenizer: metadata {PREFIX}{key}: {why}")).bt()
    }

    /// A value, if the key exists; errors name the key.
    fn get<T>(&self, key: &str, read: impl FnOnce(&'a Value) -> Result<T>) -> Result<Option<T>> {
        let Some(value) = self.find(key) else {
            return Ok(None);
        };
        let value = read(value).with_context(|| format!("GGUF tokenizer: metadata {PREFIX}{key}"));
        value.map(Some)
    }

    fn require<T>(&self, key: &str, read: impl FnOnce(&'a Value) -> Result<T>) -> Result<T> {
        self.get(key, read)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn text(&self, key: &str) -> Result<&'a String> {
        self.require(key, Value::to_string)
    }

    pub(super) fn optional_text(&self, key: &str) -> Result<Option<&'a String>> {
        self.get(key, Value::to_string)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.get(key, Value::to_bool)
    }

    /// The strings of an array.
    pub(super) fn texts(
        &self,
        key: &'static str,
    ) -> Result<impl Iterator<Item = Result<&'a str>> + use<'a>> {
        let values = self.require(key, Value::to_vec)?;
        Ok(values.iter().enumerate().map(move |(i, value)| {
            let text = value.to_string().map(String::as_str);
            text.with_context(|| format!("GGUF tokenizer: metadata {PREFIX}{key}, element {i}"))
        }))
    }

    pub(super) fn tokens(&self) -> Result<Vec<Token<'a>>> {
        let texts = self.texts("tokens")?.collect::<Result<Vec<_>>>()?;
        let kinds = self.get("token_type", |value| {
            value
                .to_vec()?
                .iter()
                .map(Value::to_i64)
                .collect::<Result<Vec<_>>>()
        })?;
        if let Some(kinds) = kinds.as_ref().filter(|kinds| kinds.len() != texts.len()) {
            let why = format!(
                "found {} token types for {} tokens",
                kinds.len(),
                texts.len()
            );
            return Err(self.refuse("token_type", why));
        }
        let kind = |id: usize| match kinds.as_ref().map_or(1, |kinds| kinds[id]) {
            3 => TokenKind::Control,
            4 => TokenKind::UserDefined,
            2 | 5 | 6 => TokenKind::Other,
            _ => TokenKind::Normal,
        };
        let tokens = texts.into_iter().enumerate();
        Ok(tokens
            .map(|(id, text)| Token {
                text,
                kind: kind(id),
            })
            .collect())
    }

    /// The score of each of `count` tokens.
    pub(super) fn scores(&self, count: usize) -> Result<Vec<f32>> {
        let scores: Vec<f32> = self.require("scores", |value| {
            value.to_vec()?.iter().map(Value::to_f32).collect()
        })?;
        if scores.len() != count {
            let why = format!("found {} scores for {count} tokens", scores.len());
            return Err(self.refuse("scores", why));
        }
        Ok(scores)
    }

    /// The token whose id is the value of a key.
    pub(super) fn token(&self, key: &str, tokens: &[Token<'a>]) -> Result<Option<(u32, &'a str)>> {
        let Some(id) = self.get(key, Value::to_u32)? else {
            return Ok(None);
        };
        match tokens.get(id as usize) {
            Some(token) => Ok(Some((id, token.text))),
            None => Err(self.refuse(
                key,
                format!(
                    "token {id} is out of range; there are {} tokens",
                    tokens.len()
                ),
            )),
        }
    }
}
