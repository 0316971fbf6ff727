//! Text from tokens: characters that are spread over tokens come whole or not at all, and nothing comes of a stop sequence.

use crate::support::{embedded, golden, on_each_device};
use candle_engine::stream::{StopSequences, TokenStream};
use candle_engine::{
    CompletionRequest, DeviceKind, InferenceBackend, ModelFiles, ModelSource, StopReason,
};
use proptest::prelude::*;
use std::ops::ControlFlow;

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
fn invalid_bytes_hold_nothing_back() {
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

/// The text before the stop sequence that is complete first.
fn up_to_stop<'a>(text: &'a str, stops: &[String]) -> Option<&'a str> {
    let ends = text
        .char_indices()
        .map(|(at, c)| &text[..at + c.len_utf8()]);
    ends.filter_map(|head| {
        let found = stops.iter().filter(|stop| head.ends_with(*stop));
        found
            .map(|stop| &head[..head.len() - stop.len()])
            .min_by_key(|before| before.len())
    })
    .next()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_text_ends_before_its_first_stop_sequence(
        pieces in proptest::collection::vec("[abé]{0,4}", 0..8),
        stops in proptest::collection::vec("[abé]{1,4}", 0..3),
    ) {
        let text = pieces.concat();
        let expected = up_to_stop(&text, &stops);
        let mut stream = StopSequences::new(&stops);
        let mut found = String::new();
        for piece in &pieces {
            found.push_str(&stream.push(piece));
            // Never past it, not even for a moment.
            prop_assert!(expected.unwrap_or(&text).starts_with(&found));
        }
        prop_assert_eq!(stream.is_reached(), expected.is_some());
        found.push_str(&stream.finish());
        prop_assert_eq!(found, expected.unwrap_or(&text));
    }
}

#[test]
fn how_a_text_is_cut_does_not_move_its_end() {
    let stops = ["abc", "b"].map(str::to_string);
    for pieces in [&["xabc"][..], &["xab", "c"], &["xa", "b", "c"]] {
        let mut stream = StopSequences::new(&stops);
        let text: String = pieces.iter().map(|piece| stream.push(piece)).collect();
        assert_eq!((text.as_str(), stream.is_reached()), ("xa", true));
    }
}

on_each_device!(
    a_stop_sequence_may_be_spread_over_tokens,
    only_the_likeliest_reach_their_own_share
);

fn a_stop_sequence_may_be_spread_over_tokens(kind: DeviceKind) {
    let prompt = &golden().prompts[0];
    let text = &prompt.greedy_text;
    let backend = embedded(kind);
    let mut request = CompletionRequest {
        prompt: prompt.text.clone(),
        max_tokens: 16,
        ..CompletionRequest::default()
    };
    let whole = backend.complete(&request).unwrap();
    assert!(text.starts_with(&whole.text));
    // Six characters from the middle of the text, which no token of this model has.
    let middle = whole
        .text
        .char_indices()
        .nth(whole.text.chars().count() / 2);
    let stop: String = whole.text[middle.unwrap().0..].chars().take(6).collect();
    request.stop = vec!["never in there".to_string(), stop.clone()];
    let mut pieces = String::new();
    let stopped = backend
        .complete_stream(&request, &mut |piece| {
            pieces.push_str(piece);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(stopped.stop_reason, StopReason::StopSequence);
    assert_eq!(stopped.text, text.split_once(&stop).unwrap().0);
    assert_eq!(pieces, stopped.text);
    assert!(stopped.token_ids.len() < whole.token_ids.len());
    // What was held back comes when the text ends without the rest of it.
    request.stop = vec![format!("{}and no more", whole.text)];
    assert_eq!(backend.complete(&request).unwrap().text, whole.text);
}

fn only_the_likeliest_reach_their_own_share(kind: DeviceKind) {
    let prompt = &golden().prompts[0];
    let request = |min_p| CompletionRequest {
        prompt: prompt.text.clone(),
        max_tokens: 8,
        temperature: 2.0,
        min_p,
        ..CompletionRequest::default()
    };
    let text = |min_p| embedded(kind).complete(&request(min_p)).unwrap().text;
    let drawn = text(None);
    assert!(
        !prompt.greedy_text.starts_with(&drawn),
        "{drawn:?} is the greedy text"
    );
    assert_eq!(text(Some(0.0)), drawn);
    assert!(prompt.greedy_text.starts_with(&text(Some(1.0))));
}
