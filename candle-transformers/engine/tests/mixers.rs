//! Texts side by side on models whose layers are not all attention over keys and values.

use crate::batch::{ended, request, submit};
use crate::support::{choice, on_each_device, registry, ModelFolder};
use candle_core::{DType, Device, Tensor};
use candle_engine::batch::{BatchEngine, BatchSettings};
use candle_engine::{
    CandleBackend, CompletionRequest, DeviceKind, InferenceBackend, ModelFiles, ModelSource,
};
use candle_transformers::auto::config_spec;
use candle_transformers::blocks::{Decoder, Reading, Wanted, WeightSource};
use std::collections::HashMap;
use std::sync::Arc;

on_each_device!(texts_do_not_depend_on_the_others);

/// A model for each kind of layer, with the tokens of the embedded model.
const CONFIGS: [(&str, &str); 4] = [
    (
        "short convolutions",
        r#"{"model_type": "lfm2", "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 10000.0, "max_position_embeddings": 512,
            "conv_L_cache": 3, "conv_bias": true, "layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8}"#,
    ),
    (
        "the gated delta rule",
        r#"{"model_type": "qwen3_next", "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_experts": 5, "num_experts_per_tok": 2,
            "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}"#,
    ),
    (
        "latent attention",
        r#"{"model_type": "deepseek_v2", "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
            "num_hidden_layers": 2, "num_attention_heads": 4, "n_shared_experts": 2, "n_routed_experts": 6,
            "num_experts_per_tok": 3, "first_k_dense_replace": 1, "max_position_embeddings": 512, "q_lora_rank": null,
            "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16}"#,
    ),
    (
        "a state space beside attention",
        r#"{"model_type": "falcon_h1", "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "mamba_d_ssm": 48,
            "mamba_n_heads": 6, "mamba_d_head": "auto", "mamba_d_state": 8, "key_multiplier": 0.5, "ssm_in_multiplier": 0.8,
            "ssm_multipliers": [0.9, 0.8, 0.7, 0.6, 0.5], "mlp_multipliers": [0.8, 0.6]}"#,
    ),
];

/// Makes every tensor that a model asks for, and keeps it.
#[derive(Default)]
struct Made(HashMap<String, Tensor>);

impl WeightSource for Made {
    fn contains(&self, _: &str) -> bool {
        true
    }

    fn shape(&self, _: &str) -> Option<candle_core::Shape> {
        None
    }

    fn read<'a>(&'a mut self, wanted: Wanted<'a>) -> Reading<'a> {
        let count: usize = wanted.shape.iter().product();
        let seed = wanted
            .name
            .bytes()
            .fold(7u32, |seed, byte| seed.wrapping_mul(31) ^ u32::from(byte));
        let number = |i: u32| {
            let mixed = (seed ^ i.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
            ((mixed ^ (mixed >> 15)) >> 8) as f32 / (1 << 23) as f32 - 1.
        };
        let of_norm = wanted.shape.len() == 1 && wanted.name.ends_with("weight");
        let (by, from) = if of_norm { (0.25, 1.) } else { (0.3, 0.) };
        let numbers = (0..count as u32).map(|i| from + by * number(i));
        let tensor = Tensor::from_vec(numbers.collect::<Vec<f32>>(), wanted.shape, &Device::Cpu);
        if let Ok(tensor) = &tensor {
            self.0.insert(wanted.name.to_string(), tensor.clone());
        }
        Box::pin(std::future::ready(tensor.map(Into::into)))
    }
}

fn model(config: &str, kind: DeviceKind) -> Arc<CandleBackend> {
    let mut made = Made::default();
    Decoder::load(
        config_spec(config).unwrap(),
        &mut made,
        DType::F32,
        &Device::Cpu,
    )
    .unwrap();
    let folder = ModelFolder::new();
    folder.write("config.json", config);
    candle_core::safetensors::save(&made.0, folder.file("model.safetensors")).unwrap();
    let files = ModelFiles::open(&ModelSource::at(folder.path().to_path_buf())).unwrap();
    let entry = registry().select(choice(kind)).unwrap();
    Arc::new(entry.load(files, Some(DType::F32), &|_| ()).unwrap())
}

/// One token as prompt, and prompts of several pieces; one that ends long before the others.
fn requests() -> Vec<CompletionRequest> {
    let prompts = [
        "fn",
        "use std::collections::HashMap;",
        "let x = 1;",
        "impl Iterator for Rows { type Item",
        "a",
    ];
    let each = prompts.iter().enumerate();
    each.map(|(i, prompt)| request(prompt, [9, 2, 14, 6, 12][i]))
        .collect()
}

fn texts_do_not_depend_on_the_others(kind: DeviceKind) {
    let on_cpu = kind == DeviceKind::Cpu;
    // Kernels of each take a software adapter seconds.
    for (what, config) in CONFIGS.iter().take(if on_cpu { 4 } else { 1 }) {
        let model = model(config, kind);
        let alone: Vec<_> = requests()
            .iter()
            .map(|it| model.complete(it).unwrap())
            .collect();
        let distinct = |ids: &[u32]| ids.iter().collect::<std::collections::HashSet<_>>().len();
        assert!(
            alone.iter().any(|it| distinct(&it.token_ids) > 2),
            "{what}: texts that a fault would not change"
        );
        for (slots, piece) in [(3, 4), (1, 64), (5, 2)]
            .into_iter()
            .take(if on_cpu { 3 } else { 1 })
        {
            let settings = BatchSettings {
                slots,
                piece: Some(piece),
                waiting: 16,
                ..BatchSettings::default()
            };
            let engine = BatchEngine::new(model.clone(), settings).unwrap();
            // Twice: slots are taken by other texts.
            for _ in 0..2 {
                let all: Vec<_> = requests()
                    .iter()
                    .map(|it| submit(&engine, it).unwrap())
                    .collect();
                for (alone, text) in alone.iter().zip(&all) {
                    let found = ended(text);
                    assert_eq!(
                        found.token_ids, alone.token_ids,
                        "{what}: {slots} slots, pieces of {piece}"
                    );
                }
            }
            assert_eq!(engine.open(), 0);
        }
    }
}

#[test]
fn what_these_models_cannot_is_an_error() {
    let model = model(CONFIGS[0].1, DeviceKind::Cpu);
    let settings = BatchSettings {
        slots: 2,
        ..BatchSettings::default()
    };
    let paged = BatchSettings {
        cache_memory: Some(1 << 20),
        ..settings
    };
    let err = BatchEngine::new(model.clone(), paged)
        .err()
        .unwrap()
        .to_string();
    assert!(err.contains("--cache-memory"), "{err}");
    let engine = BatchEngine::new(model, settings).unwrap();
    let guesses = CompletionRequest {
        prompt_lookup: 4,
        ..request("fn main", 4)
    };
    let (_, ended) = submit(&engine, &guesses).unwrap().recv().unwrap();
    let err = ended.unwrap_err().to_string();
    assert!(
        err.contains("prompt_lookup") && err.contains("other than attention"),
        "{err}"
    );
}
