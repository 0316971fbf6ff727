//! Texts drawn with and without a draft model over a small vocabulary: the same for each seed, and of the model's own distribution.

use crate::support::load;
use candle_core::{DType, Device, Tensor};
use candle_engine::{CompletionRequest, DeviceKind, InferenceBackend, ModelSource};
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;

/// The size of the vocabulary. The first token begins a text.
const VOCAB: usize = 13;
const HIDDEN: usize = 16;
/// Tokens of a text, and texts.
const LENGTH: usize = 500;
const TEXTS: u64 = 6;

/// Numbers from -1 to 1 that look random.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A Llama whose layers change nothing: what follows a token depends on it alone, by the rows of `head`.
fn write_model(dir: &Path, layers: usize, embedding: &[f32], head: &[f32]) {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 8,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": layers, "vocab_size": VOCAB,
        "max_position_embeddings": LENGTH + 8, "rms_norm_eps": 1e-5, "rope_theta": 10000., "tie_word_embeddings": false,
        "hidden_act": "silu", "bos_token_id": 0,
    });
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut vocab = json!({ "<s>": 0 });
    for id in 1..VOCAB {
        vocab[((b'a' + id as u8 - 1) as char).to_string()] = id.into();
    }
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let zeros = |rows, columns| Tensor::zeros((rows, columns), DType::F32, &Device::Cpu).unwrap();
    let of = |values: &[f32]| Tensor::from_slice(values, (VOCAB, HIDDEN), &Device::Cpu).unwrap();
    let ones = Tensor::ones(HIDDEN, DType::F32, &Device::Cpu).unwrap();
    let mut weights = HashMap::from([
        ("model.embed_tokens.weight".to_string(), of(embedding)),
        ("lm_head.weight".to_string(), of(head)),
        ("model.norm.weight".to_string(), ones.clone()),
    ]);
    for layer in 0..layers {
        let parts = [
            ("input_layernorm", ones.clone()),
            ("post_attention_layernorm", ones.clone()),
            ("self_attn.q_proj", zeros(HIDDEN, HIDDEN)),
            ("self_attn.k_proj", zeros(8, HIDDEN)),
            ("self_attn.v_proj", zeros(8, HIDDEN)),
            ("self_attn.o_proj", zeros(HIDDEN, HIDDEN)),
            ("mlp.gate_proj", zeros(8, HIDDEN)),
            ("mlp.up_proj", zeros(8, HIDDEN)),
            ("mlp.down_proj", zeros(HIDDEN, 8)),
        ];
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        weights.extend(parts.map(|(part, tensor)| (name(part), tensor)));
    }
    candle_core::safetensors::save(&weights, dir.join("model.safetensors")).unwrap();
}

/// The shares of what follows a token.
fn shares(embedding: &[f32], head: &[f32], token: usize, temperature: f64) -> Vec<f64> {
    let row: Vec<f64> = embedding[token * HIDDEN..][..HIDDEN]
        .iter()
        .map(|x| f64::from(*x))
        .collect();
    let square: f64 = row.iter().map(|x| x * x).sum::<f64>() / HIDDEN as f64;
    let norm = (square + 1e-5).sqrt();
    let logit = |row_of_head: &[f32]| {
        let pairs = row_of_head.iter().zip(&row);
        pairs.map(|(w, x)| f64::from(*w) * x / norm).sum::<f64>()
    };
    let weights: Vec<f64> = head
        .chunks(HIDDEN)
        .map(|row| (logit(row) / temperature).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

#[test]
fn a_draft_changes_neither_a_text_nor_the_distribution() {
    const TEMPERATURE: f64 = 0.9;
    let embedding = numbers(1, VOCAB * HIDDEN);
    let head: Vec<f32> = numbers(2, VOCAB * HIDDEN).iter().map(|x| 0.6 * x).collect();
    let noise = numbers(3, VOCAB * HIDDEN);
    let other: Vec<f32> = head.iter().zip(noise).map(|(x, e)| x + 0.15 * e).collect();
    // The draft takes a part of the time, so that it pays.
    let [own, draft] = [(4, &head), (1, &other)].map(|(layers, head)| {
        let dir = tempfile::tempdir().unwrap();
        write_model(dir.path(), layers, &embedding, head);
        dir
    });
    let open = |dir: &tempfile::TempDir| {
        let source = ModelSource::Folder(dir.path().into());
        load(&source, DeviceKind::Cpu, None)
    };
    let alone = open(&own);
    let model = open(&own).with_draft(open(&draft), 4).unwrap();
    let mut follows = vec![[0u32; VOCAB]; VOCAB];
    let (mut made, mut right) = (0, 0);
    for seed in 0..TEXTS {
        let request = CompletionRequest {
            prompt: "a".to_string(),
            max_tokens: LENGTH,
            temperature: TEMPERATURE,
            seed,
            ..CompletionRequest::default()
        };
        let found = model.complete(&request).unwrap();
        let guesses = found.guesses.unwrap();
        (made, right) = (made + guesses.made, right + guesses.right);
        assert_eq!(found.token_ids.len(), LENGTH);
        assert_eq!(found.token_ids, alone.complete(&request).unwrap().token_ids);
        let mut last = 1;
        for token in found.token_ids {
            follows[last][token as usize] += 1;
            last = token as usize;
        }
    }
    // Enough of both, so that the distribution is one of texts with proposals.
    assert!(right > 60 && made - right > 10, "{made}, {right}");
    let (mut chi, mut freedom) = (0f64, 0f64);
    for (token, counts) in follows.iter().enumerate() {
        let all: u32 = counts.iter().sum();
        let shares = shares(&embedding, &head, token, TEMPERATURE);
        for (count, share) in counts.iter().zip(shares) {
            let expected = share * f64::from(all);
            if expected > 5. {
                chi += (f64::from(*count) - expected).powi(2) / expected;
                freedom += 1.;
            }
        }
        freedom -= 1.;
    }
    // Five standard deviations above the mean.
    assert!(
        freedom > 50. && chi < freedom + 5. * (2.0 * freedom).sqrt(),
        "{chi} of {freedom}"
    );
}
