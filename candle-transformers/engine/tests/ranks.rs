//! Models whose layers are shared by ranks, here on the CPU: texts together, drafts and lookup, as on one device.

use crate::batch::{ended, request, submit};
use crate::support::{choice, registry};
use candle_engine::batch::{BatchEngine, BatchSettings};
use candle_engine::{
    CandleBackend, CompletionRequest, DeviceKind, InferenceBackend, ModelFiles, ModelSource,
};
use std::sync::Arc;

fn shared(ranks: usize) -> CandleBackend {
    let entry = registry().select(choice(DeviceKind::Cpu)).unwrap();
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    let loaded = entry.load_shared(files, ranks, None, &|_| ());
    loaded.unwrap()
}

fn texts(backend: CandleBackend, settings: BatchSettings) -> Vec<Vec<u32>> {
    let engine = BatchEngine::new(Arc::new(backend), settings).unwrap();
    // More than there are slots, two of which begin alike.
    let prompts = [
        "fn main",
        "pub struct Tensor {\n",
        "pub struct Tensor {\n    shape",
        "use std::",
        "impl",
    ];
    let begun = prompts.map(|prompt| submit(&engine, &request(prompt, 12)).unwrap());
    begun.iter().map(|it| ended(it).token_ids).collect()
}

#[test]
fn texts_together_are_those_of_one_device() {
    for cache_memory in [None, Some(4 << 20)] {
        let settings = BatchSettings {
            slots: 3,
            piece: Some(4),
            cache_memory,
            ..BatchSettings::default()
        };
        assert_eq!(texts(shared(2), settings), texts(shared(1), settings));
    }
}

#[test]
fn tokens_are_proposed_to_ranks() {
    let one = shared(1);
    let drafted = shared(2).with_draft(shared(1), 3).unwrap();
    for prompt_lookup in [0, 4] {
        let request = CompletionRequest {
            prompt: "fn main".to_string(),
            max_tokens: 16,
            prompt_lookup,
            ..CompletionRequest::default()
        };
        let expected = one.complete(&request).unwrap();
        let found = drafted.complete(&request).unwrap();
        assert_eq!(found.token_ids, expected.token_ids);
        let guesses = found.guesses.unwrap();
        assert!(guesses.right > 0, "{guesses:?}");
    }
}
