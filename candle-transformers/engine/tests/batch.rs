//! Several completions at once: each has the same result as alone, independently of others that start and end.

use crate::support::runs_fewer;
use candle_core::Device;
use candle_engine::batch::{BatchEngine, BatchSettings, Heard};
use candle_engine::{
    CandleBackend, Completion, CompletionRequest, Error, InferenceBackend, ModelFiles, ModelSource,
    StopReason,
};
use std::ops::ControlFlow;
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::time::Duration;

const PROMPTS: [&str; 6] = [
    "fn main() {",
    "Returns the number of elements in",
    "use std::collections::HashMap;",
    "impl Iterator for",
    "/// A list of",
    "let x = 1;",
];

fn backend(device: &Device) -> Arc<CandleBackend> {
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    let dtype = files.default_dtype(device);
    Arc::new(CandleBackend::load(files, "test", device, dtype, &|_| {}).unwrap())
}

fn engine(slots: usize, piece: usize) -> BatchEngine {
    engine_on(&Device::Cpu, slots, piece)
}

fn engine_on(device: &Device, slots: usize, piece: usize) -> BatchEngine {
    let settings = BatchSettings {
        slots,
        piece: Some(piece),
        waiting: 16,
        ..BatchSettings::default()
    };
    BatchEngine::new(backend(device), settings).unwrap()
}

pub fn request(prompt: &str, max_tokens: usize) -> CompletionRequest {
    CompletionRequest {
        prompt: prompt.to_string(),
        max_tokens,
        ..CompletionRequest::default()
    }
}

type Ended = Receiver<(String, candle_engine::Result<Completion>)>;

/// Starts a completion; the result at its end is the concatenated pieces, and the completion.
pub fn submit(engine: &BatchEngine, request: &CompletionRequest) -> candle_engine::Result<Ended> {
    let (sender, receiver) = channel();
    let mut text = String::new();
    let listener = move |heard: Heard<'_>| {
        match heard {
            Heard::Piece(piece) => text.push_str(piece),
            Heard::Token(_) => {}
            Heard::Done(result) => {
                let _ = sender.send((std::mem::take(&mut text), result));
            }
        }
        ControlFlow::Continue(())
    };
    let tokens = engine.backend().prompt_tokens(&request.prompt)?;
    engine.submit(tokens, request.clone(), None, Box::new(listener))?;
    Ok(receiver)
}

pub fn ended(receiver: &Ended) -> Completion {
    let (text, completion) = receiver.recv_timeout(Duration::from_secs(120)).unwrap();
    let completion = completion.unwrap();
    assert_eq!(text, completion.text);
    completion
}

#[test]
fn greedy_texts_do_not_depend_on_the_others() {
    hold_greedy_texts(&Device::Cpu, &[(1, 256), (3, 2), (6, 1), (8, 256)]);
}

#[test]
#[cfg(feature = "webgpu")]
fn greedy_texts_do_not_depend_on_the_others_webgpu() {
    let device = Device::new_webgpu(0).unwrap();
    let settings = [(3, 8), (6, 256)];
    hold_greedy_texts(
        &device,
        if runs_fewer(&device) {
            &settings[..1]
        } else {
            &settings
        },
    );
}

fn hold_greedy_texts(device: &Device, settings: &[(usize, usize)]) {
    for &(slots, piece) in settings {
        let engine = engine_on(device, slots, piece);
        let requests: Vec<_> = PROMPTS
            .iter()
            .enumerate()
            .map(|(i, prompt)| request(prompt, 3 + 5 * i))
            .collect();
        let all: Vec<_> = requests
            .iter()
            .map(|it| submit(&engine, it).unwrap())
            .collect();
        for (request, receiver) in requests.iter().zip(&all) {
            let found = ended(receiver);
            let alone = engine.backend().complete(request).unwrap();
            assert_eq!(
                found.token_ids, alone.token_ids,
                "{slots} slots, pieces of {piece}"
            );
            assert_eq!(
                (found.text, found.stop_reason),
                (alone.text, alone.stop_reason)
            );
        }
        assert_eq!(engine.open(), 0);
    }
}

#[test]
fn drawn_texts_have_their_seed_stops_and_penalties() {
    hold_drawn_texts(&Device::Cpu);
}

/// Alongside texts whose tokens the device chooses: the device uses each before the host reads it.
#[test]
#[cfg(feature = "webgpu")]
fn drawn_texts_have_their_seed_stops_and_penalties_webgpu() {
    hold_drawn_texts(&Device::new_webgpu(0).unwrap());
}

fn hold_drawn_texts(device: &Device) {
    let engine = engine_on(device, 4, 256);
    let tokens = if runs_fewer(device) { 10 } else { 24 };
    let mut requests = Vec::new();
    for seed in 0..4 {
        requests.push(CompletionRequest {
            temperature: 0.9,
            seed,
            top_k: (seed == 1).then_some(5),
            top_p: (seed == 2).then_some(0.8),
            repeat_penalty: if seed == 3 { 1.3 } else { 1.0 },
            ..request(PROMPTS[seed as usize], tokens)
        });
    }
    requests.push(CompletionRequest {
        stop: vec!["\n".to_string()],
        ..request(PROMPTS[0], 60)
    });
    let alone: Vec<_> = requests
        .iter()
        .map(|it| engine.backend().complete(it).unwrap())
        .collect();
    // A penalty needs the host. Without that text the device draws a step after another.
    for with_penalty in [true, false] {
        let chosen = requests.iter().zip(&alone);
        let chosen: Vec<_> = chosen
            .filter(|(request, _)| with_penalty || request.repeat_penalty == 1.0)
            .collect();
        let all: Vec<_> = chosen
            .iter()
            .map(|(request, _)| submit(&engine, request).unwrap())
            .collect();
        for ((request, alone), receiver) in chosen.iter().zip(&all) {
            assert_eq!(ended(receiver).token_ids, alone.token_ids, "{request:?}");
        }
    }
}

/// A text that begins as an earlier one is not read again, and is the same.
#[test]
fn what_begins_alike_is_shared() {
    let engine = engine(2, 64);
    let long = "use std::collections::HashMap;\n".repeat(12);
    let first = submit(&engine, &request(&long, 8)).unwrap();
    ended(&first);
    // One takes the slot that has it, the other a copy.
    let requests = ["fn a", "struct B"].map(|end| request(&format!("{long}{end}"), 12));
    let both = requests.clone().map(|it| submit(&engine, &it).unwrap());
    for (request, receiver) in requests.iter().zip(&both) {
        let alone = engine.backend().complete(request).unwrap();
        assert_eq!(ended(receiver).token_ids, alone.token_ids);
    }
}

/// And nothing of it stays in the cache that the texts get.
#[test]
#[cfg(feature = "webgpu")]
fn kernels_are_compiled_ahead_webgpu() {
    let settings = BatchSettings {
        slots: 2,
        piece: Some(16),
        compile_ahead: true,
        ..BatchSettings::default()
    };
    let engine = BatchEngine::new(backend(&Device::new_webgpu(0).unwrap()), settings).unwrap();
    for prompt in &PROMPTS[..2] {
        let request = request(prompt, 4);
        let found = engine.complete(&request).unwrap();
        let alone = engine.backend().complete(&request).unwrap();
        assert_eq!(found.token_ids, alone.token_ids);
    }
}

/// A row that writes nothing in a step still needs a position; a full slot has none left.
#[test]
fn a_full_slot_between_others_does_not_stop_them() {
    let engine = engine(3, 256);
    let limit = engine.backend().max_positions();
    let prompts = [PROMPTS[0], PROMPTS[1]].map(|prompt| request(prompt, 40));
    let first = submit(&engine, &prompts[0]).unwrap();
    let listener = |_: Heard<'_>| ControlFlow::Continue(());
    engine
        .submit(vec![5; limit], request("", 9), None, Box::new(listener))
        .unwrap();
    let last = submit(&engine, &prompts[1]).unwrap();
    for (request, receiver) in prompts.iter().zip([first, last]) {
        let alone = engine.backend().complete(request).unwrap();
        assert_eq!(ended(&receiver).token_ids, alone.token_ids);
    }
}

#[test]
fn who_leaves_frees_a_place() {
    let engine = engine(1, 256);
    let (sender, receiver) = channel();
    let mut pieces = 0;
    let listener = move |heard: Heard<'_>| {
        match heard {
            Heard::Piece("") => {}
            Heard::Piece(_) => pieces += 1,
            Heard::Token(_) => {}
            Heard::Done(result) => sender.send(result.unwrap()).unwrap(),
        }
        if pieces < 3 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let long = request(PROMPTS[0], 2000);
    let tokens = engine.backend().prompt_tokens(&long.prompt).unwrap();
    let forever = CompletionRequest {
        temperature: 1.5,
        ..long
    };
    engine
        .submit(tokens, forever, None, Box::new(listener))
        .unwrap();
    let next = submit(&engine, &request(PROMPTS[1], 4)).unwrap();
    let left = receiver.recv_timeout(Duration::from_secs(120)).unwrap();
    assert_eq!(left.stop_reason, StopReason::Cancelled);
    assert!(left.token_ids.len() < 50, "{}", left.token_ids.len());
    ended(&next);
    assert_eq!(engine.open(), 0);
}

/// The form for threads that wait, as `serve` uses it.
#[test]
fn threads_wait_for_their_texts() {
    let engine = engine(3, 256);
    std::thread::scope(|scope| {
        for prompt in PROMPTS {
            let engine = &engine;
            scope.spawn(move || {
                let request = request(prompt, 12);
                let mut text = String::new();
                let found = engine.complete_stream(&request, &mut |piece| {
                    text.push_str(piece);
                    ControlFlow::Continue(())
                });
                let found = found.unwrap();
                assert_eq!(found.text, text);
                assert_eq!(
                    found.text,
                    engine.backend().complete(&request).unwrap().text
                );
            });
        }
    });
    // Whoever has enough hears no more.
    let mut pieces = 0;
    let left = engine.complete_stream(&request(PROMPTS[0], 400), &mut |_| {
        pieces += 1;
        ControlFlow::Break(())
    });
    let left = left.unwrap();
    assert_eq!((pieces, left.stop_reason), (1, StopReason::Cancelled));
    assert!(left.token_ids.len() < 20, "{}", left.token_ids.len());
    assert_eq!(engine.open(), 0);
    let bad = engine.complete(&request(PROMPTS[0], 0));
    assert!(matches!(bad, Err(Error::Parameter { .. })));
}

#[test]
fn probabilities_come_with_the_tokens() {
    let engine = engine(2, 256);
    let request = request(PROMPTS[0], 5);
    let tokens = engine.backend().prompt_tokens(&request.prompt).unwrap();
    let (sender, receiver) = channel();
    let mut all = Vec::new();
    let listener = move |heard: Heard<'_>| {
        match heard {
            Heard::Token(likely) => all.push(likely),
            Heard::Piece(_) => {}
            Heard::Done(result) => sender
                .send((std::mem::take(&mut all), result.unwrap()))
                .unwrap(),
        }
        ControlFlow::Continue(())
    };
    engine
        .submit(tokens, request, Some(3), Box::new(listener))
        .unwrap();
    let (likely, completion) = receiver.recv_timeout(Duration::from_secs(120)).unwrap();
    let ids: Vec<u32> = likely.iter().map(|it| it.id).collect();
    assert_eq!(ids[..completion.token_ids.len()], completion.token_ids);
    for it in &likely {
        assert_eq!(it.top.len(), 3);
        assert_eq!(
            it.top[0],
            (it.id, it.logprob),
            "greedily the first is chosen"
        );
        assert!(it.top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        let sum: f32 = it.top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!(sum > 0. && sum <= 1.0001, "{sum}");
    }
}

#[test]
fn what_cannot_be_is_an_error() {
    let backend = backend(&Device::Cpu);
    for settings in [
        BatchSettings {
            slots: 0,
            ..BatchSettings::default()
        },
        BatchSettings {
            piece: Some(0),
            ..BatchSettings::default()
        },
    ] {
        let error = BatchEngine::new(backend.clone(), settings).err().unwrap();
        assert!(matches!(error, Error::Parameter { .. }), "{error}");
    }
    let settings = BatchSettings {
        slots: 1,
        waiting: 1,
        ..BatchSettings::default()
    };
    let engine = BatchEngine::new(backend, settings).unwrap();
    let long = request(PROMPTS[0], 400);
    let running = [(), ()].map(|()| submit(&engine, &long).unwrap());
    assert!(matches!(submit(&engine, &long), Err(Error::Busy(2))));
    running.iter().for_each(|it| drop(ended(it)));
    let bad = CompletionRequest {
        temperature: -1.,
        ..request(PROMPTS[0], 4)
    };
    assert!(matches!(
        submit(&engine, &bad),
        Err(Error::Parameter { .. })
    ));
    let limit = engine.backend().max_positions();
    let listener = |_: Heard<'_>| ControlFlow::Continue(());
    let tokens = vec![5; limit + 1];
    let error = engine.submit(tokens, request("", 1), None, Box::new(listener));
    assert!(matches!(error, Err(Error::PromptTooLong { .. })));
    let error = engine.submit(Vec::new(), request("", 1), None, Box::new(listener));
    assert!(matches!(error, Err(Error::EmptyPrompt)));
    // The longest possible text: one token fits after it.
    let (sender, receiver) = channel();
    let listener = move |heard: Heard<'_>| {
        if let Heard::Done(result) = heard {
            sender.send(result).unwrap();
        }
        ControlFlow::Continue(())
    };
    let tokens = vec![5; limit];
    engine
        .submit(tokens, request("", 9), None, Box::new(listener))
        .unwrap();
    let completion = receiver
        .recv_timeout(Duration::from_secs(300))
        .unwrap()
        .unwrap();
    assert_eq!(completion.token_ids.len(), 1);
}
