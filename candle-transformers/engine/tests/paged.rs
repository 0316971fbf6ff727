//! Texts whose keys and values are in pages: each is what it is alone, with beginnings in common, and when the pages run out.

use crate::batch::{ended, request, submit};
#[cfg(feature = "webgpu")]
use crate::support::runs_fewer;
use candle_core::Device;
use candle_engine::batch::{BatchEngine, BatchSettings, Heard};
use candle_engine::{
    CandleBackend, CompletionRequest, Error, InferenceBackend, ModelFiles, ModelSource, StopReason,
};
use std::ops::ControlFlow;
use std::slice;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const PROMPTS: [&str; 6] = [
    "fn main() {",
    "Returns the number of elements in",
    "use std::collections::HashMap;",
    "impl Iterator for",
    "/// A list of",
    "let x = 1;",
];
const PIECE: usize = 16;

fn backend() -> Arc<CandleBackend> {
    static MODEL: OnceLock<Arc<CandleBackend>> = OnceLock::new();
    MODEL.get_or_init(|| load(&Device::Cpu)).clone()
}

fn load(device: &Device) -> Arc<CandleBackend> {
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    let dtype = files.default_dtype(device);
    Arc::new(CandleBackend::load(files, "test", device, dtype, &|_| {}).unwrap())
}

/// An engine with this number of pages.
fn engine(backend: &Arc<CandleBackend>, slots: usize, piece: usize, pages: u64) -> BatchEngine {
    let settings = |bytes| BatchSettings {
        slots,
        piece: Some(piece),
        waiting: 16,
        cache_memory: Some(bytes),
        ..BatchSettings::default()
    };
    let some = BatchEngine::new(backend.clone(), settings(1 << 24)).unwrap();
    let page_bytes = some.cache_memory().unwrap().page_bytes;
    let engine = BatchEngine::new(backend.clone(), settings((pages + 1) * page_bytes)).unwrap();
    assert_eq!(engine.cache_memory().unwrap().pages, pages);
    engine
}

/// Submits all at once, and compares each with what it is alone; how many of their tokens were cached.
fn hold(engine: &BatchEngine, requests: &[CompletionRequest], what: &str) -> Vec<usize> {
    let submitted: Vec<_> = requests
        .iter()
        .map(|it| submit(engine, it).unwrap())
        .collect();
    let found: Vec<_> = submitted.iter().map(ended).collect();
    for (request, found) in requests.iter().zip(&found) {
        let alone = slots_alone(engine, request);
        assert_eq!(found.token_ids, alone.0, "{what}: {}", request.prompt);
        assert_eq!(found.text, alone.1, "{what}");
    }
    assert_eq!(engine.open(), 0);
    found.iter().map(|it| it.cached_tokens).collect()
}

/// The text without a batch engine.
fn slots_alone(engine: &BatchEngine, request: &CompletionRequest) -> (Vec<u32>, String) {
    let alone = engine.backend().complete(request).unwrap();
    (alone.token_ids, alone.text)
}

fn requests() -> Vec<CompletionRequest> {
    let each = PROMPTS.iter().enumerate();
    each.map(|(i, prompt)| request(prompt, 3 + 15 * i))
        .collect()
}

/// A beginning of some pieces, with something else behind it.
fn long(end: &str, max_tokens: usize) -> CompletionRequest {
    let beginning =
        "pub fn push(&mut self, value: T) -> Option<usize> {\n    self.values.push(value);\n";
    request(&format!("{beginning}{beginning}{end}"), max_tokens)
}

#[test]
fn greedy_texts_are_the_same_in_pages() {
    let model = backend();
    for (slots, piece) in [(1, 256), (3, 2), (6, 1), (8, 16)] {
        let engine = engine(&model, slots, piece, 200);
        hold(&engine, &requests(), &format!("{slots} slots, {piece}"));
        let memory = engine.cache_memory().unwrap();
        assert_eq!((memory.preemptions, memory.preempted), (0, 0));
    }
}

#[test]
fn texts_wait_for_pages_and_are_the_same() {
    // The longest has about 90 positions: 6 pages of 16.
    let engine = engine(&backend(), 6, PIECE, 9);
    for _ in 0..2 {
        hold_preempted(&engine, &requests());
    }
}

fn hold_preempted(engine: &BatchEngine, requests: &[CompletionRequest]) {
    hold(engine, requests, "preempted");
    let memory = engine.cache_memory().unwrap();
    assert!(memory.preemptions > 0, "{memory:?}");
    assert_eq!((memory.preempted, engine.failure()), (0, None));
}

#[test]
fn beginnings_in_common_are_read_once() {
    hold_shared(&backend(), 30);
}

/// Each piece of the common beginning of texts that begin at once is read by one of them.
#[test]
fn texts_that_begin_at_once_read_their_beginning_once() {
    let engine = engine(&backend(), 4, PIECE, 60);
    let ends = [
        "    Some(0)",
        "    None",
        "    self.len += 2;",
        "    todo!()",
    ];
    let all = ends.map(|end| long(end, 6));
    let tokens = all
        .each_ref()
        .map(|it| engine.backend().prompt_tokens(&it.prompt).unwrap());
    let same = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let common = tokens.iter().map(|it| same(it, &tokens[0])).min().unwrap();
    let whole = common / PIECE * PIECE;
    assert!(whole >= 2 * PIECE, "{common} tokens in common");
    let cached = hold(&engine, &all, "at once");
    let sum = cached.iter().sum::<usize>();
    assert!(sum >= 3 * whole, "{cached:?} of {whole} each");
}

/// Prompts that the pages cannot hold together begin in sequence: none gives up what it has read.
#[test]
fn no_more_texts_begin_than_the_pages_can_hold() {
    let model = backend();
    let prompt = |i: usize| {
        format!(
            "fn f{i}() {{ {i}; {} }}",
            "let x = self.values[0];".repeat(6)
        )
    };
    let all: Vec<_> = (0..6).map(|i| request(&prompt(i), 3)).collect();
    let tokens = model.prompt_tokens(&all[0].prompt).unwrap().len();
    assert!(tokens > 3 * PIECE, "{tokens} tokens");
    // Two prompts, a page for each to go on, and one that is not enough for a third.
    let pages = 2 * (tokens.div_ceil(PIECE) + 1) + 1;
    let engine = engine(&model, 6, PIECE, pages as u64);
    hold(&engine, &all, "in turn");
    let memory = engine.cache_memory().unwrap();
    assert_eq!((memory.preemptions, memory.preempted), (0, 0));
}

#[test]
fn beginnings_are_forgotten_when_their_pages_are_needed() {
    let model = backend();
    let first = long("    self.len += 1;", 8);
    let small = engine(&model, 2, PIECE, 12);
    assert_eq!(hold(&small, slice::from_ref(&first), "first"), [0]);
    let kept = small.cache_memory().unwrap().kept as usize;
    assert!(kept > 1);
    hold(&small, &[request("let x = 1;", 150)], "another");
    let again = hold(&small, &[first], "forgotten")[0];
    assert!(
        again < kept * PIECE,
        "{again} of {kept} pages are there still"
    );
}

fn hold_shared(model: &Arc<CandleBackend>, tokens: usize) {
    let engine = engine(model, 4, PIECE, 60);
    let first = long("    self.len += 1;", 8);
    assert_eq!(hold(&engine, slice::from_ref(&first), "first"), [0]);
    let prompt = engine.backend().prompt_tokens(&first.prompt).unwrap().len();
    let whole = (prompt - 1) / PIECE * PIECE;
    assert!(whole >= 2 * PIECE, "{prompt} tokens");
    // The same one again, and at once with others that begin alike.
    assert_eq!(hold(&engine, slice::from_ref(&first), "again"), [whole]);
    let all = ["    Some(0)", "    None", "    self.len += 2;"];
    let all: Vec<_> = all.iter().map(|end| long(end, tokens)).collect();
    let cached = hold(&engine, &all, "together");
    assert!(cached.iter().all(|it| *it >= 2 * PIECE), "{cached:?}");
    let memory = engine.cache_memory().unwrap();
    assert!(memory.kept > 0 && memory.preemptions == 0, "{memory:?}");
}

#[test]
fn what_never_fits_is_refused_and_what_is_cancelled_returns_its_pages() {
    let model = backend();
    let engine = engine(&model, 2, PIECE, 4);
    let long = request(&"let x = 1;\n".repeat(40), 4);
    let refused = submit(&engine, &long);
    assert!(
        matches!(refused, Err(Error::CacheTooSmall { limit: 64, .. })),
        "{:?}",
        refused.err()
    );
    // The text ends where the pages do.
    let found = ended(&submit(&engine, &request("let x = 1;", 400)).unwrap());
    assert_eq!(found.prompt_tokens + found.token_ids.len(), 64 + 1);
    let (sender, end) = channel();
    let listener = move |heard: Heard<'_>| match heard {
        Heard::Done(result) => {
            sender.send(result).unwrap();
            ControlFlow::Break(())
        }
        Heard::Piece("") | Heard::Token(_) => ControlFlow::Continue(()),
        // It goes as soon as it has written something.
        Heard::Piece(_) => ControlFlow::Break(()),
    };
    let tokens = engine.backend().prompt_tokens("fn main() {").unwrap();
    let gone = request("fn main() {", 50);
    engine
        .submit(tokens, gone, None, Box::new(listener))
        .unwrap();
    let gone = end.recv_timeout(Duration::from_secs(120)).unwrap().unwrap();
    assert_eq!(gone.stop_reason, StopReason::Cancelled);
    let memory = engine.cache_memory().unwrap();
    assert_eq!((memory.held, memory.preempted), (0, 0));
    hold(&engine, &[request("/// A list of", 20)], "after");
    let memory = engine.cache_memory().unwrap();
    assert_eq!((memory.held, memory.preempted), (0, 0));
}

#[test]
fn memory_for_less_than_two_pages_is_refused() {
    let settings = BatchSettings {
        cache_memory: Some(1000),
        ..BatchSettings::default()
    };
    let error = BatchEngine::new(backend(), settings).err().unwrap();
    assert!(error.to_string().contains("cache_memory"), "{error}");
}

#[test]
#[cfg(feature = "webgpu")]
fn texts_in_pages_are_the_same_webgpu() {
    let device = Device::new_webgpu(0).unwrap();
    let model = load(&device);
    hold_preempted(&engine(&model, 3, PIECE, 5), &requests()[1..4]);
    hold_shared(&model, if runs_fewer(&device) { 8 } else { 30 });
}
