//! Maximum text length for a number of tokens: a prompt of megabytes is refused before it is tokenised.

use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, ModelWrapper, Tokenizer};

/// NFC makes one character of up to three, such as the letters of a Korean syllable.
const COMPOSED: usize = 3;

/// Maximum number of bytes of text that can become one token. `None` if a token may represent any number of them: an unknown word, or white
/// space that is dropped.
pub(super) fn most_bytes(tokenizer: &Tokenizer) -> Option<usize> {
    let ModelWrapper::BPE(bpe) = tokenizer.get_model() else {
        return None;
    };
    let vocab = bpe.get_vocab();
    let is_token = |c: char| vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str);
    // Each byte that is not part of another token is one.
    let longest = if bpe.byte_fallback {
        vocab.keys().map(String::len).max()?
    } else if ByteLevel::alphabet().into_iter().all(is_token) {
        vocab.keys().map(|token| token.chars().count()).max()?
    } else {
        return None;
    };
    let added = tokenizer.get_added_tokens_decoder();
    let strips = |token: &AddedToken| token.lstrip || token.rstrip;
    if added.values().any(strips)
        || tokenizer
            .get_pre_tokenizer()
            .is_some_and(|it| drops(&json(it)))
    {
        return None;
    }
    let added = added.values().map(|token| token.content.len()).max();
    let shrinks = match tokenizer.get_normalizer() {
        Some(normalizer) => shrinks(&json(normalizer))?,
        None => 1,
    };
    longest.max(added.unwrap_or(0)).max(1).checked_mul(shrinks)
}

/// A part of a tokenizer as its file has it.
fn json(part: &impl serde::Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

/// Whether a pre-tokenizer drops a part of the text, such as white space, or may.
fn drops(part: &Value) -> bool {
    match part["type"].as_str() {
        Some("ByteLevel" | "Digits" | "Metaspace") => false,
        Some("Split" | "Punctuation") => part["behavior"] == "Removed",
        Some("Sequence") => part["pretokenizers"]
            .as_array()
            .is_none_or(|parts| parts.iter().any(drops)),
        _ => true,
    }
}

/// By how much a normaliser may divide the number of bytes; `None` if there is no limit.
fn shrinks(part: &Value) -> Option<usize> {
    match part["type"].as_str()? {
        "NFC" => Some(COMPOSED),
        "Prepend" | "ByteLevel" => Some(1),
        // A space becomes a longer character.
        "Replace" if part["pattern"]["String"] == " " && part["content"] != "" => Some(1),
        "Sequence" => {
            let parts = part["normalizers"].as_array()?.iter();
            parts
                .map(shrinks)
                .try_fold(1, |all: usize, it| all.checked_mul(it?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(part: &str, value: Value) -> Option<usize> {
        let bytes = include_bytes!("../../model/tokenizer.json");
        let mut json: Value = serde_json::from_slice(bytes).unwrap();
        json[part] = value;
        most_bytes(&serde_json::from_value(json).unwrap())
    }

    #[test]
    fn a_token_has_no_more_bytes_than_the_longest() {
        use serde_json::json;
        let normalizer = |value| with("normalizer", value);
        // A line of slashes.
        assert_eq!(normalizer(Value::Null), Some(59));
        assert_eq!(normalizer(json!({"type": "NFC"})), Some(177));
        let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "_"});
        assert_eq!(normalizer(space), Some(59));
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": " "});
        assert_eq!(normalizer(spaces), None);
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        let both = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, strip]});
        assert_eq!(normalizer(both), None);
        assert_eq!(with("pre_tokenizer", json!({"type": "Whitespace"})), None);
    }
}
