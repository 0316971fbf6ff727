//! From a text to tokens: byte pairs, [arXiv 1508.07909](https://arxiv.org/abs/1508.07909).

use std::collections::HashMap;

use candle_core::{bail, Context as _, Error, Result};
use fancy_regex::Regex;
use serde_json::Value;

/// The number of a token, which is also its rank in the order of merges.
type Rank = u32;

/// Splits a text in words, and merges neighbours among a word's bytes to tokens, those of the lowest rank first.
pub struct BPE {
    /// The pattern of words.
    pub re: Regex,
    /// The token after a text, before `offset` is added.
    pub end_of_text: usize,
    /// Added to each token.
    pub offset: usize,
    /// The bytes of tokens, and their ranks. Every single byte is one of them.
    pub ranks: HashMap<Vec<u8>, Rank>,
}

impl BPE {
    /// Reads an object with the fields `pat_str`, `offset`, and `mergeable_ranks`, an object of texts and their ranks. Bytes have the ranks
    /// from 0 to 255, whatever it says of these.
    ///
    /// # Errors
    /// If a field is missing or has another type, or `pat_str` is not a regular expression.
    pub fn from_json(json: &Value, end_of_text: usize) -> Result<Self> {
        let Some(json) = json.as_object() else {
            bail!("a tokenizer's JSON must be an object with pat_str, offset and mergeable_ranks")
        };
        let field = |name| match json.get(name) {
            Some(field) => Ok(field),
            None => bail!("a tokenizer's JSON has no field {name}"),
        };
        let Some(pattern) = field("pat_str")?.as_str() else {
            bail!("a tokenizer's pat_str is not a string")
        };
        let re = Regex::new(pattern).map_err(Error::wrap);
        let number = |name: &str, value: &Value| match value.as_u64() {
            Some(number) if number <= u64::from(Rank::MAX) => Ok(number as Rank),
            _ => bail!("a tokenizer's {name} is {value}; it must be a number of 32 bits"),
        };
        let offset = number("offset", field("offset")?)?;
        let Some(merged) = field("mergeable_ranks")?.as_object() else {
            bail!("a tokenizer's mergeable_ranks are not an object")
        };
        let mut ranks: HashMap<Vec<u8>, Rank> = (0..=u8::MAX)
            .map(|byte| (vec![byte], Rank::from(byte)))
            .collect();
        for (text, rank) in merged {
            let rank = number(&format!("rank of {text:?}"), rank)?;
            if rank > Rank::from(u8::MAX) {
                ranks.insert(text.as_bytes().to_vec(), rank);
            }
        }
        Ok(Self {
            re: re.with_context(|| format!("a tokenizer's pat_str {pattern:?}"))?,
            end_of_text,
            offset: offset as usize,
            ranks,
        })
    }

    fn rank(&self, bytes: &[u8]) -> Option<Rank> {
        self.ranks.get(bytes).copied()
    }

    /// The tokens of a word, without `offset`: none of an empty one. Bytes that `ranks` does not have are left out.
    pub fn byte_pair_encode(&self, piece: &[u8]) -> Vec<Rank> {
        // The ends of tokens. Words are short: each merge considers all neighbours.
        let mut ends: Vec<usize> = (1..=piece.len()).collect();
        loop {
            let pair = |i: usize| {
                let start = if i == 0 { 0 } else { ends[i - 1] };
                self.rank(&piece[start..ends[i + 1]]).map(|rank| (rank, i))
            };
            let pairs = ends.len().saturating_sub(1);
            match (0..pairs).filter_map(pair).min() {
                Some((_, i)) => ends.remove(i),
                None => break,
            };
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let tokens = starts.zip(&ends).map(|(start, end)| &piece[start..*end]);
        tokens.filter_map(|token| self.rank(token)).collect()
    }

    /// The tokens of a text, and the one after it, all with `offset`. What `re` does not take for a word is left out.
    ///
    /// # Errors
    /// If `re` takes too long, or a token with its offset does not fit in 32 bits.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        for word in self.re.find_iter(text) {
            let word = word.map_err(Error::wrap)?;
            tokens.extend(self.byte_pair_encode(word.as_str().as_bytes()));
        }
        let tokens = tokens.into_iter().map(|token| token as usize);
        let shifted = tokens.chain([self.end_of_text]).map(|token| {
            let shifted = token.checked_add(self.offset);
            match shifted.map(u32::try_from) {
                Some(Ok(token)) => Ok(token),
                _ => bail!(
                    "token {token} with the offset {} does not fit in 32 bits",
                    self.offset
                ),
            }
        });
        shifted.collect()
    }
}
