//! JSON schemas as constraints on the tokens of a language model, for an HTTP server, a command line and a browser alike.
//!
//! A [`Vocabulary`] knows the bytes of each token. It makes a [`Grammar`] of a schema, and each answer gets a [`Guide`], which says before
//! each token which ones may follow.

#![deny(missing_docs)]

mod schema;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{json, Value};
use std::sync::Arc;

/// The byte before the text of a special token: no text has it, so that no grammar allows such a token.
pub const SPECIAL: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// The most bytes of a schema.
const SCHEMA_BYTES: usize = 256 << 10;
/// White space between the parts of JSON: a blank, or a new line and its indent. Without a limit, a small model writes nothing else.
const SPACE: &str = r"( |\n[ \t]{0,20})?";

/// Failures, each of one line and without text of an answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The model has no token that ends a text, so no answer could end after its JSON.
    #[error("the model has no end token")]
    NoEnd,
    /// The tokens do not form a vocabulary.
    #[error("{0}")]
    Vocabulary(String),
    /// A schema that is malformed, too long or not supported.
    #[error("{0}")]
    Schema(String),
    /// A token that may not follow, or an answer that is too complex to be followed.
    #[error("{0}")]
    Answer(String),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// A model's tokens, as grammars need them. Making one takes some 100 ms for 128,000 tokens.
pub struct Vocabulary {
    factory: ParserFactory,
    stops: Arc<[u32]>,
}

impl Vocabulary {
    /// The vocabulary of the tokens with these bytes, by id, those of special tokens after [`SPECIAL`]. Each of `stops` ends an answer.
    ///
    /// # Errors
    /// No stop token, or one beyond the vocabulary.
    pub fn new(tokens: &[Vec<u8>], stops: &[u32]) -> Result<Self> {
        let end = *stops.first().ok_or(Error::NoEnd)?;
        let count = tokens.len() as u32;
        if let Some(stop) = stops.iter().find(|stop| **stop >= count) {
            let problem = format!("stop token {stop} is not one of {count} tokens");
            return Err(Error::Vocabulary(problem));
        }
        let trie = TokTrie::from(&TokRxInfo::new(count, end), tokens);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let factory = ParserFactory::new_simple(&env);
        let mut factory = factory.map_err(|error| Error::Vocabulary(one_line(&error)))?;
        factory.quiet();
        // Messages would quote the text so far.
        factory.limits_mut().verbose_errors = false;
        Ok(Self {
            factory,
            stops: stops.into(),
        })
    }

    /// The constraint of answers to a JSON schema. Objects whose schema names properties get no others, unless it says so.
    ///
    /// # Errors
    /// A schema that is malformed, longer than 256 KiB or not supported.
    pub fn grammar(&self, schema: Value) -> Result<Grammar> {
        let mut schema = schema::closed(schema).map_err(Error::Schema)?;
        let bytes = serde_json::to_string(&schema).map_or(0, |text| text.len());
        if bytes > SCHEMA_BYTES {
            let problem = format!("has {bytes} bytes; the maximum is {SCHEMA_BYTES}");
            return Err(Error::Schema(problem));
        }
        let spaces = json!({ "whitespace_pattern": SPACE });
        schema.insert("x-guidance".to_string(), spaces);
        let grammar = TopLevelGrammar::from_json_schema(Value::Object(schema));
        let parser = self.factory.create_parser(grammar);
        let parser = parser.map_err(|error| Error::Schema(one_line(&error)))?;
        Ok(Grammar {
            matcher: Matcher::new(Ok(parser)),
            stops: self.stops.clone(),
        })
    }
}

/// The form of answers.
pub struct Grammar {
    matcher: Matcher,
    stops: Arc<[u32]>,
}

impl Grammar {
    /// The constraint of one answer, at its beginning.
    pub fn guide(&self) -> Guide {
        Guide {
            matcher: self.matcher.deep_clone(),
            stops: self.stops.clone(),
        }
    }
}

/// The constraint of an answer that is being written.
pub struct Guide {
    matcher: Matcher,
    stops: Arc<[u32]>,
}

impl Guide {
    /// The tokens that may follow, a bit each: bit `id % 32` of word `id / 32`.
    ///
    /// # Errors
    /// An answer that is too complex to be followed.
    pub fn allowed(&mut self) -> Result<Vec<u32>> {
        let allowed = self.matcher.compute_mask_or_eos();
        let allowed = allowed.map_err(|error| Error::Answer(one_line(&error)))?;
        let ends = self.stops.first();
        let ends = ends.is_some_and(|end| allowed.is_allowed(*end));
        let mut words = allowed.as_slice().to_vec();
        // The grammar knows of one token that ends an answer; each of them does, or none.
        for stop in self.stops.iter() {
            let (word, bit) = (*stop as usize / 32, 1 << (stop % 32));
            if ends {
                words[word] |= bit;
            } else {
                words[word] &= !bit;
            }
        }
        Ok(words)
    }

    /// Takes the next token of the answer.
    ///
    /// # Errors
    /// It may not follow.
    pub fn push(&mut self, token: u32) -> Result<()> {
        let taken = self.matcher.consume_token(token);
        taken.map_err(|error| Error::Answer(one_line(&error)))
    }
}

/// An error's chain of causes, without line breaks.
fn one_line(error: &impl std::fmt::Display) -> String {
    let text = format!("{error:#}");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each byte is a token, then come two special ones.
    fn bytes() -> (Vec<Vec<u8>>, u32, u32) {
        let mut tokens: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
        for name in ["end", "stop"] {
            tokens.push([&[SPECIAL], name.as_bytes()].concat());
        }
        (tokens, 256, 257)
    }

    fn is_allowed(words: &[u32], id: u32) -> bool {
        words[id as usize / 32] >> (id % 32) & 1 == 1
    }

    #[test]
    fn an_answer_keeps_to_its_schema() {
        let (tokens, end, stop) = bytes();
        let vocabulary = Vocabulary::new(&tokens, &[end, stop]).unwrap();
        let schema = json!({
            "type": "object",
            "properties": { "a": { "type": "boolean" } },
            "required": ["a"],
        });
        let grammar = vocabulary.grammar(schema).unwrap();
        let mut guide = grammar.guide();
        for byte in *br#"{"a":true}"# {
            let allowed = guide.allowed().unwrap();
            assert!(is_allowed(&allowed, byte.into()), "{:?}", char::from(byte));
            assert!(!is_allowed(&allowed, b'x'.into()));
            assert!(!is_allowed(&allowed, end) && !is_allowed(&allowed, stop));
            guide.push(byte.into()).unwrap();
        }
        let allowed = guide.allowed().unwrap();
        assert!(is_allowed(&allowed, end) && is_allowed(&allowed, stop));
        assert!(!is_allowed(&allowed, b'}'.into()));
        // A new answer begins at the beginning.
        let allowed = grammar.guide().allowed().unwrap();
        assert!(is_allowed(&allowed, b'{'.into()) && !is_allowed(&allowed, b'['.into()));
        assert!(!is_allowed(&allowed, end));
    }

    #[test]
    fn bad_input_is_an_error() {
        let (tokens, end, _) = bytes();
        assert_eq!(Vocabulary::new(&tokens, &[]).err(), Some(Error::NoEnd));
        let beyond = Vocabulary::new(&tokens, &[end, 258]).err().unwrap();
        assert!(beyond.to_string().contains("258"), "{beyond}");
        let vocabulary = Vocabulary::new(&tokens, &[end]).unwrap();
        for (schema, told) in [
            (json!([]), "expected an object"),
            (json!({ "type": "colour" }), "colour"),
            (
                json!({ "const": "x".repeat(SCHEMA_BYTES) }),
                "the maximum is 262144",
            ),
        ] {
            let problem = vocabulary.grammar(schema).err().unwrap().to_string();
            assert!(problem.contains(told), "{problem}");
            assert!(!problem.contains('\n'), "{problem}");
        }
        let mut guide = vocabulary.grammar(json!(true)).unwrap().guide();
        assert!(guide.push(b'}'.into()).is_err());
    }
}
