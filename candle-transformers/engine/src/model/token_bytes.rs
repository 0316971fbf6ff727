//! The bytes of each token.

use std::collections::HashMap;
use tokenizers::{ModelWrapper, Tokenizer};

/// SentencePiece's space.
const SPACE: char = '\u{2581}';

/// The bytes of the tokens of a BPE vocabulary over bytes, or of one that falls back to them; `None` of any other.
pub(super) fn token_bytes(
    tokenizer: &Tokenizer,
    vocab: usize,
    special: u8,
) -> Option<Vec<Vec<u8>>> {
    let ModelWrapper::BPE(bpe) = tokenizer.get_model() else {
        return None;
    };
    let mut all = vec![Vec::new(); vocab];
    let letters = letters();
    let added = tokenizer.get_added_tokens_decoder();
    for (token, id) in tokenizer.get_vocab(false) {
        let Some(bytes) = all
            .get_mut(id as usize)
            .filter(|_| !added.contains_key(&id))
        else {
            continue;
        };
        *bytes = if bpe.byte_fallback {
            match byte_of(&token) {
                Some(byte) => vec![byte],
                None => token.replace(SPACE, " ").into_bytes(),
            }
        } else {
            token
                .chars()
                .map(|c| letters.get(&c).copied())
                .collect::<Option<_>>()?
        };
    }
    for (id, token) in added {
        if let Some(bytes) = all.get_mut(id as usize) {
            let mark = token.special.then_some(special);
            *bytes = mark.into_iter().chain(token.content.bytes()).collect();
        }
    }
    Some(all)
}

/// The byte of a token such as `<0x0A>`.
fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

/// The byte of each letter of byte-level BPE: printable Latin-1 characters map to themselves, and U+0100 onwards to the other bytes in
/// order.
fn letters() -> HashMap<char, u8> {
    let is_itself = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..=255u8).filter(|byte| !is_itself(byte));
    let others = others
        .zip(0x100u32..)
        .filter_map(|(byte, code)| Some((char::from_u32(code)?, byte)));
    let itself = (0..=255u8)
        .filter(is_itself)
        .map(|byte| (char::from(byte), byte));
    itself.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn tokens_put_together_are_the_text() {
        let bytes = include_bytes!("../../model/tokenizer.json");
        let tokenizer = Tokenizer::from_bytes(bytes).unwrap();
        let all = token_bytes(&tokenizer, 4096, 0xff).unwrap();
        assert_eq!(all[1], b"\xff<|end_of_text|>");
        let text = "fn main() {\n\tlet é = \"…\"; // 日本\u{0}\u{7f}\n}";
        let encoding = tokenizer.encode(text, false).unwrap();
        let ids = encoding.get_ids().iter();
        let joined: Vec<u8> = ids.flat_map(|id| all[*id as usize].clone()).collect();
        assert_eq!(String::from_utf8(joined).unwrap(), text);
        let letters = letters();
        assert_eq!(letters.len(), 256);
        assert!(ByteLevel::alphabet()
            .iter()
            .all(|c| letters.contains_key(c)));
        assert_eq!(byte_of("<0x0A>"), Some(10));
        assert_eq!(byte_of("<0xZZ>"), None);
    }
}
