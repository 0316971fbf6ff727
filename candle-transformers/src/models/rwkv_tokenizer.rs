//! RWKV's tokenizer: at each position of a text, the longest token that fits.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{bail, Error, Result};

/// A vocabulary of byte strings.
pub struct Tokenizer {
    ids: HashMap<Vec<u8>, u32>,
    tokens: HashMap<u32, Vec<u8>>,
    /// Length of the longest token that begins with each byte.
    longest: [usize; 256],
}

impl Tokenizer {
    /// Reads a JSON object of tokens and their ids.
    ///
    /// # Errors
    /// If the file cannot be read, or holds something else; with its path.
    pub fn new<P: AsRef<Path>>(p: P) -> Result<Self> {
        let path = p.as_ref();
        let read = || -> Result<HashMap<String, u32>> {
            serde_json::from_slice(&std::fs::read(path)?).map_err(Error::wrap)
        };
        let found = read().map_err(|err| err.with_path(path))?;
        let mut this = Self {
            ids: HashMap::new(),
            tokens: HashMap::new(),
            longest: [0; 256],
        };
        for (token, id) in found {
            let token = token.into_bytes();
            if let Some(first) = token.first() {
                let longest = &mut this.longest[usize::from(*first)];
                *longest = token.len().max(*longest);
            }
            this.tokens.insert(id, token.clone());
            this.ids.insert(token, id);
        }
        Ok(this)
    }

    /// The bytes of tokens. Ids that the vocabulary lacks have none.
    pub fn decode_bytes(&self, tokens: &[u32]) -> Vec<u8> {
        let bytes = tokens.iter().filter_map(|id| self.tokens.get(id));
        bytes.flatten().copied().collect()
    }

    /// The text of tokens.
    ///
    /// # Errors
    /// If their bytes are not UTF-8.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        String::from_utf8(self.decode_bytes(tokens)).map_err(Error::wrap)
    }

    /// The tokens of bytes.
    ///
    /// # Errors
    /// If no token fits somewhere.
    pub fn encode_bytes(&self, bytes: &[u8]) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            let longest = self.longest[usize::from(*first)].min(rest.len());
            let fits = |len: usize| self.ids.get(&rest[..len]).map(|id| (len, *id));
            let Some((len, id)) = (1..=longest).rev().find_map(fits) else {
                let at = bytes.len() - rest.len();
                bail!("no token starts with byte {first:#04x}, at byte {at} of the text")
            };
            ids.push(id);
            rest = &rest[len..];
        }
        Ok(ids)
    }

    /// The tokens of a text.
    ///
    /// # Errors
    /// If no token fits somewhere.
    pub fn encode(&self, str: &str) -> Result<Vec<u32>> {
        self.encode_bytes(str.as_bytes())
    }
}
