//! Qwen2 and Qwen3.

use crate::common::{config, gguf, steps};
use crate::weights::Place;
use crate::Run;
use candle_core::quantized::gguf_file::Value;
use candle_core::{Result, Tensor};
use candle_transformers::models::{quantized_qwen2, qwen2, qwen3};

pub const RUNS: &[Run] = &[
    ("qwen2", qwen2),
    ("qwen2 hidden", qwen2_hidden),
    ("qwen3", qwen3),
    ("qwen3 hidden", qwen3_hidden),
    ("quantized_qwen2", quantized_qwen2),
];

const QWEN2: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 64, "max_window_layers": 2,
    "tie_word_embeddings": true, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false,
    "hidden_act": "silu"
}"#;

fn qwen2(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = qwen2::ModelForCausalLM::new(&config(QWEN2)?, place.weights("qwen2"))?;
    steps(place, "qwen2", |ids, position| model.forward(ids, position))
}

/// With every second token hidden and no other rule.
fn qwen2_hidden(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = qwen2::Model::new(&config(QWEN2)?, place.weights("qwen2"))?;
    let ids = place.tokens("qwen2", 8, 128)?;
    let mask = Tensor::new(&[[1u8, 1, 1, 0, 1, 0, 1, 0]], &place.device)?;
    Ok(vec![model.forward(&ids, 0, Some(&mask))?])
}

const QWEN3: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "head_dim": 32, "attention_bias": false, "num_key_value_heads": 2, "max_position_embeddings": 64, "max_window_layers": 2,
    "tie_word_embeddings": false, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false,
    "hidden_act": "silu"
}"#;

fn qwen3(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = qwen3::ModelForCausalLM::new(&config(QWEN3)?, place.weights("qwen3"))?;
    steps(place, "qwen3", |ids, position| model.forward(ids, position))
}

fn qwen3_hidden(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = qwen3::Model::new(&config(QWEN3)?, place.weights("qwen3"))?;
    steps(place, "qwen3", |ids, position| model.forward(ids, position))
}

fn quantized_qwen2(place: &Place) -> Result<Vec<Tensor>> {
    let whole = Value::U32;
    let metadata = [
        ("general.architecture", Value::String("qwen2".into())),
        ("qwen2.attention.head_count", whole(4)),
        ("qwen2.attention.head_count_kv", whole(2)),
        ("qwen2.embedding_length", whole(64)),
        ("qwen2.feed_forward_length", whole(96)),
        ("qwen2.context_length", whole(64)),
        ("qwen2.block_count", whole(2)),
        ("qwen2.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("qwen2.rope.freq_base", Value::F32(10_000.)),
    ];
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![128, 64]),
        ("output_norm.weight".to_string(), vec![64]),
    ];
    for layer in 0..2 {
        let parts: [(&str, &[usize]); 12] = [
            ("attn_norm.weight", &[64]),
            ("attn_q.weight", &[64, 64]),
            ("attn_q.bias", &[64]),
            ("attn_k.weight", &[32, 64]),
            ("attn_k.bias", &[32]),
            ("attn_v.weight", &[32, 64]),
            ("attn_v.bias", &[32]),
            ("attn_output.weight", &[64, 64]),
            ("ffn_norm.weight", &[64]),
            ("ffn_gate.weight", &[96, 64]),
            ("ffn_up.weight", &[96, 64]),
            ("ffn_down.weight", &[64, 96]),
        ];
        tensors.extend(parts.map(|(part, dims)| (format!("blk.{layer}.{part}"), dims.to_vec())));
    }
    let (content, mut file) = gguf(place, "qwen2", &metadata, &tensors)?;
    let mut model = quantized_qwen2::ModelWeights::from_gguf(content, &mut file, &place.device)?;
    steps(place, "quantized_qwen2", |ids, position| {
        model.forward(ids, position)
    })
}
