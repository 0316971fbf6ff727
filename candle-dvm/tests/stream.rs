//! Text from tokens: characters that are spread over tokens come whole or not at all.

use candle_dvm::stream::TokenStream;
use candle_dvm::{ModelFiles, ModelSource};

const TEXT: &str = "Größe → 漢字 😀👩‍💻 naïve\u{0301} end";

#[test]
fn characters_are_never_split() {
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    let tokens = files.tokenizer.encode_prompt(TEXT).unwrap();
    assert!(
        tokens.len() > TEXT.chars().count(),
        "the text should need several tokens for some characters"
    );
    for end in 1..=tokens.len() {
        let mut stream = TokenStream::new(&files.tokenizer);
        let mut text = String::new();
        for token in &tokens[..end] {
            if let Some(piece) = stream.push(*token).unwrap() {
                assert!(!piece.is_empty());
                text.push_str(&piece);
            }
        }
        assert!(TEXT.starts_with(&text), "{text:?}");
        text.push_str(&stream.finish().unwrap().unwrap_or_default());
        assert_eq!(text, files.tokenizer.decode(&tokens[..end]).unwrap());
    }
}

#[test]
fn bytes_that_are_no_character_hold_nothing_back() {
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    // The first token of 漢 alone, twice, then plain text.
    let lone = files.tokenizer.encode_prompt("漢").unwrap()[1];
    let plain = files.tokenizer.encode_prompt("plain").unwrap();
    let mut stream = TokenStream::new(&files.tokenizer);
    let mut text = String::new();
    for token in [lone, lone].iter().chain(&plain[1..]) {
        text.push_str(&stream.push(*token).unwrap().unwrap_or_default());
    }
    assert!(text.ends_with("plain"), "{text:?}");
    assert!(stream.finish().unwrap().is_none());
}
