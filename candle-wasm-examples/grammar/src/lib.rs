//! JSON schemas as constraints on a language model's tokens, in a module apart from the model's: few pages need it.
//!
//! ```js
//! const { bytes, lengths, stops } = await model.vocabulary();
//! const vocabulary = new Vocabulary(bytes, lengths, stops);
//! const constraint = vocabulary.guide(JSON.stringify({ type: "object" }));
//! await model.chat(messages, { constraint });
//! ```

#![deny(missing_docs)]

use candle_grammar::SPECIAL;
use js_sys::Uint32Array;
use wasm_bindgen::prelude::*;

fn failed(error: impl std::fmt::Display) -> JsError {
    JsError::new(&error.to_string())
}

/// The byte before the text of a special token in a vocabulary.
#[wasm_bindgen]
pub fn special_byte() -> u8 {
    SPECIAL
}

/// A model's tokens.
#[wasm_bindgen]
pub struct Vocabulary(candle_grammar::Vocabulary);

#[wasm_bindgen]
impl Vocabulary {
    /// The tokens whose bytes follow each other in `bytes`, with as many bytes as `lengths` says. Each of `stops` ends an answer.
    #[wasm_bindgen(constructor)]
    pub fn new(bytes: &[u8], lengths: &[u32], stops: &[u32]) -> Result<Vocabulary, JsError> {
        let mut rest = bytes;
        let mut tokens = Vec::with_capacity(lengths.len());
        for length in lengths {
            let Some((token, after)) = rest.split_at_checked(*length as usize) else {
                let have = bytes.len();
                return Err(failed(format!(
                    "vocabulary: the tokens' lengths exceed the {have} bytes"
                )));
            };
            tokens.push(token.to_vec());
            rest = after;
        }
        if !rest.is_empty() {
            let left = rest.len();
            return Err(failed(format!(
                "vocabulary: {left} bytes are left after {} tokens",
                tokens.len()
            )));
        }
        let inner = candle_grammar::Vocabulary::new(&tokens, stops);
        Ok(Self(inner.map_err(failed)?))
    }

    /// The constraint of one answer to a JSON schema.
    pub fn guide(&self, schema: &str) -> Result<Guide, JsError> {
        let schema = serde_json::from_str(schema).map_err(failed)?;
        Ok(Guide(self.0.grammar(schema).map_err(failed)?.guide()))
    }
}

/// The constraint of an answer that is being written.
#[wasm_bindgen]
pub struct Guide(candle_grammar::Guide);

#[wasm_bindgen]
impl Guide {
    /// The tokens that may follow, a bit each: bit `id % 32` of word `id / 32`.
    pub fn allowed(&mut self) -> Result<Uint32Array, JsError> {
        let allowed = self.0.allowed().map_err(failed)?;
        Ok(Uint32Array::from(allowed.as_slice()))
    }

    /// Takes the next token of the answer.
    pub fn push(&mut self, token: u32) -> Result<(), JsError> {
        self.0.push(token).map_err(failed)
    }
}
