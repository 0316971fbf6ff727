//! Models from folders that are as they should be; `cli.rs` has the broken ones.

use crate::support::{golden, load, model_dir, ModelFolder};
use candle_core::DType;
use candle_engine::{
    CompletionRequest, DeviceKind, InferenceBackend, ModelFiles, ModelSource, StopReason,
};
use serde_json::json;

fn complete(folder: &ModelFolder, prompt: &str) -> candle_engine::Completion {
    let source = ModelSource::Folder(folder.path().to_path_buf());
    let request = CompletionRequest {
        prompt: prompt.to_string(),
        max_tokens: 48,
        ..Default::default()
    };
    load(&source, DeviceKind::Cpu, None)
        .complete(&request)
        .unwrap()
}

#[test]
fn shards_give_the_same_text_as_one_file() {
    let folder = ModelFolder::new();
    folder.shard();
    let prompt = &golden().prompts[0];
    assert_eq!(complete(&folder, &prompt.text).token_ids, prompt.greedy_ids);
}

#[test]
fn the_older_spelling_of_the_rope_settings() {
    let folder = ModelFolder::new();
    folder.edit("config.json", |config| {
        let config = config.as_object_mut().unwrap();
        config.remove("rope_parameters");
        config.insert("rope_theta".to_string(), json!(10000.0));
        config.insert("rope_scaling".to_string(), json!(null));
    });
    let prompt = &golden().prompts[1];
    assert_eq!(complete(&folder, &prompt.text).token_ids, prompt.greedy_ids);
}

/// As models have it that also take images.
#[test]
fn a_language_model_in_text_config() {
    let folder = ModelFolder::new();
    folder.edit("config.json", |config| {
        let mut text = config.take();
        let kind = text["model_type"].take();
        *config = json!({ "model_type": kind, "text_config": text, "vision_config": {}, "bos_token_id": null });
    });
    let prompt = &golden().prompts[1];
    assert_eq!(complete(&folder, &prompt.text).token_ids, prompt.greedy_ids);
}

/// 15 is the full stop, which the first prompt's text reaches after two tokens.
#[test]
fn end_tokens_come_from_both_configurations() {
    let folder = ModelFolder::new();
    folder.edit("generation_config.json", |config| {
        config["eos_token_id"] = json!([1, 15]);
    });
    let prompt = &golden().prompts[0];
    let completion = complete(&folder, &prompt.text);
    assert_eq!(completion.stop_reason, StopReason::EndOfText);
    assert_eq!(completion.token_ids, prompt.greedy_ids[..2]);
}

#[test]
fn a_tokenizer_that_adds_no_begin_token() {
    let folder = ModelFolder::new();
    folder.edit("tokenizer.json", |tokenizer| {
        tokenizer["post_processor"] = json!(null);
    });
    let source = ModelSource::Folder(folder.path().to_path_buf());
    let files = ModelFiles::open(&source).unwrap();
    for prompt in &golden().prompts {
        assert_eq!(files.prompt_tokens(&prompt.text).unwrap(), prompt.ids);
    }
}

#[test]
fn default_dtypes() {
    let cpu = candle_core::Device::Cpu;
    let gpu = candle_core::Device::new_webgpu(0).unwrap();
    let embedded = ModelFiles::open(&ModelSource::Embedded).unwrap();
    assert_eq!(embedded.default_dtype(&cpu), DType::F32);
    assert_eq!(embedded.default_dtype(&gpu), DType::F32);
    let folder = ModelFiles::open(&ModelSource::Folder(model_dir())).unwrap();
    assert_eq!(folder.default_dtype(&cpu), DType::F32);
    assert_eq!(folder.default_dtype(&gpu), DType::BF16);
}

#[test]
fn progress_hears_of_every_byte() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let files = ModelFiles::open(&ModelSource::Embedded).unwrap();
    let total = files.total_bytes();
    let heard = AtomicU64::new(0);
    let entry = crate::support::registry()
        .select(candle_engine::DeviceChoice::Cpu)
        .unwrap();
    let count = |bytes| {
        heard.fetch_add(bytes, Ordering::Relaxed);
    };
    entry.load(files, None, &count).unwrap();
    assert_eq!(heard.into_inner(), total);
    assert!(total > 11_000_000);
}
