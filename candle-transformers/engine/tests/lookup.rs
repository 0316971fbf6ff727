//! Prompt lookup: guesses must not change a text.

use crate::support::{embedded, golden, on_each_device, runs_fewer};
use candle_engine::{
    CandleBackend, Chat, ChatTemplate, Completion, CompletionRequest, DeviceKind, InferenceBackend,
};
use std::ops::ControlFlow;

on_each_device!(
    texts_are_the_same,
    draws_are_the_same,
    ends_are_the_same,
    conversations_go_on,
);

/// A prompt that repeats itself, and so does what follows.
const REPEATS: &str = "let a = f(1);\nlet b = f(2);\nlet a = f(1);\nlet b = f(2);\nlet a =";

/// Completes a request and checks that the concatenated pieces are its text.
pub fn complete(backend: &CandleBackend, request: &CompletionRequest) -> Completion {
    let mut streamed = String::new();
    let completion = backend
        .complete_stream(request, &mut |piece| {
            streamed.push_str(piece);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(streamed, completion.text);
    completion
}

/// Completes with and without, and gives how many guesses were made and right.
fn both(backend: &CandleBackend, request: &CompletionRequest, guesses: usize) -> (usize, usize) {
    let plain = complete(backend, request);
    assert_eq!(plain.guesses, None);
    let looked_up = complete(
        backend,
        &CompletionRequest {
            prompt_lookup: guesses,
            ..request.clone()
        },
    );
    assert_eq!(looked_up.token_ids, plain.token_ids, "{request:?}");
    assert_eq!(looked_up.text, plain.text);
    assert_eq!(looked_up.stop_reason, plain.stop_reason);
    let found = looked_up.guesses.unwrap();
    assert!(found.right <= found.made);
    (found.made, found.right)
}

fn request(prompt: &str, max_tokens: usize) -> CompletionRequest {
    CompletionRequest {
        prompt: prompt.to_string(),
        max_tokens,
        ..Default::default()
    }
}

fn texts_are_the_same(kind: DeviceKind) {
    let backend = embedded(kind);
    let (prompts, lengths): (usize, &[usize]) = if runs_fewer(backend.device()) {
        (1, &[7])
    } else {
        (4, &[1, 7, 64])
    };
    for prompt in &golden().prompts[..prompts] {
        both(backend, &request(&prompt.text, 24), 7);
    }
    let (mut made, mut right) = (0, 0);
    for &guesses in lengths {
        let found = both(backend, &request(REPEATS, 32), guesses);
        (made, right) = (made + found.0, right + found.1);
    }
    // Few follow on those that were wrong, however long a step takes while other tests run.
    assert!(right > 0 && made <= 3 * right + 6, "{made}, {right}");
}

fn draws_are_the_same(kind: DeviceKind) {
    let backend = embedded(kind);
    let seeds = if runs_fewer(backend.device()) { 1 } else { 2 };
    for seed in 0..seeds {
        let request = CompletionRequest {
            temperature: 0.7,
            top_k: Some(20),
            repeat_penalty: 1.1,
            seed,
            ..request(REPEATS, 32)
        };
        both(backend, &request, 5);
    }
}

fn ends_are_the_same(kind: DeviceKind) {
    let backend = embedded(kind);
    // A proposal does not exceed the requested number of tokens, nor the model's last position.
    for max_tokens in [1, 2, 5] {
        both(backend, &request(REPEATS, max_tokens), 7);
    }
    let tokens = if runs_fewer(backend.device()) { 20 } else { 48 };
    let whole = complete(backend, &request(REPEATS, tokens)).text;
    let middle: String = whole.chars().skip(whole.chars().count() / 2).collect();
    let stop: String = middle.chars().take(3).collect();
    let stopped = CompletionRequest {
        stop: vec![stop],
        ..request(REPEATS, tokens)
    };
    both(backend, &stopped, 7);
    // `golden::last_positions` reads as many tokens on every device.
    if runs_fewer(backend.device()) {
        return;
    }
    let fits = |prompt: &str| {
        let tokens = backend.prompt_tokens(prompt);
        tokens.is_ok_and(|tokens| tokens.len() <= backend.max_positions() - 6)
    };
    let mut prompt = REPEATS.to_string();
    while fits(&format!("{prompt}{REPEATS}")) {
        prompt.push_str(REPEATS);
    }
    while fits(&format!("{prompt};")) {
        prompt.push(';');
    }
    both(backend, &request(&prompt, 64), 7);
}

fn conversations_go_on(kind: DeviceKind) {
    let backend = embedded(kind);
    let template = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}";
    let template = ChatTemplate::new("test", template.to_string());
    let say = |request: &CompletionRequest| {
        let mut chat = Chat::new(backend, &template, None);
        let mut answers = Vec::new();
        for text in [REPEATS, "let a = f(1);"] {
            let answer = chat.say(text, request, &mut |_| ControlFlow::Continue(()));
            answers.push(answer.unwrap().text);
        }
        (answers, chat.reused_tokens())
    };
    let plain = request("", if runs_fewer(backend.device()) { 12 } else { 24 });
    let guessing = CompletionRequest {
        prompt_lookup: 7,
        ..plain.clone()
    };
    let (expected, reused) = say(&plain);
    let (found, reused_too) = say(&guessing);
    assert_eq!(found, expected);
    assert!(
        reused > 24 && reused_too.abs_diff(reused) <= 1,
        "{reused}, {reused_too}"
    );
}

#[test]
fn too_many_guesses_are_refused() {
    let request = CompletionRequest {
        prompt_lookup: 65,
        ..request(REPEATS, 8)
    };
    let error = request.validate().unwrap_err().to_string();
    assert!(
        error.contains("prompt_lookup") && error.contains("65"),
        "{error}"
    );
}
