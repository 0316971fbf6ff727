//! Grammars over a model's tokens.

use super::Mask;
use crate::model::TextTokenizer;
use crate::{Error, Result};
use candle_grammar::{Guide, Vocabulary, SPECIAL};

impl TextTokenizer {
    /// The tokens, of which grammars are made; each of `stops` ends a text.
    ///
    /// # Errors
    /// Tokens without bytes, no end token.
    pub fn grammar_vocabulary(&self, stops: &[u32]) -> candle_grammar::Result<Vocabulary> {
        let tokens = self.token_bytes(SPECIAL);
        let tokens = tokens.ok_or_else(|| {
            let problem = "the model's tokens have no bytes: its tokenizer is not BPE over bytes";
            candle_grammar::Error::Vocabulary(problem.to_string())
        })?;
        Vocabulary::new(&tokens, stops)
    }
}

fn failed(error: candle_grammar::Error) -> Error {
    Error::Constraint(error.to_string())
}

impl Mask for Guide {
    fn allowed(&mut self) -> Result<Vec<u32>> {
        Guide::allowed(self).map_err(failed)
    }

    fn push(&mut self, token: u32) -> Result<()> {
        Guide::push(self, token).map_err(failed)
    }
}
