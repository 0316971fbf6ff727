//! Families with experts. crates.io's `fused_moe`, and `quantized_qwen3_moe` which is based on it, need CUDA: tests in
//! `candle-transformers/tests` compare ours with plain loops and with the dense model.

use crate::common::{config, gguf, steps};
use crate::weights::Place;
use crate::Run;
use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Result, Tensor};
use candle_transformers::models::{
    deepseek2, granitemoehybrid, mixtral, quantized_qwen3, quantized_qwen3_moe, qwen2_moe,
    qwen3_moe,
};
use std::sync::Arc;

pub const RUNS: &[Run] = &[
    ("deepseek2", deepseek2),
    ("deepseek2 short queries", deepseek2_short_queries),
    ("deepseek2 rotary", deepseek2_rotary),
    ("deepseek2 ops", deepseek2_ops),
    ("granitemoehybrid", granitemoehybrid),
    ("mixtral", mixtral),
    ("qwen2_moe", qwen2_moe),
    ("qwen3_moe", qwen3_moe),
    ("qwen3_moe hidden", qwen3_moe_hidden),
    ("quantized_qwen3", quantized_qwen3),
    ("quantized_qwen3 rotary", quantized_qwen3_rotary),
    ("quantized_qwen3_moe attention", quantized_attention),
];

fn mixtral(place: &Place) -> Result<Vec<Tensor>> {
    let config: mixtral::Config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "sliding_window": 64, "num_experts_per_tok": 2, "num_local_experts": 5, "use_flash_attn": false
    }"#,
    )?;
    let mut model = mixtral::Model::new(&config, place.weights("mixtral"))?;
    steps(place, "mixtral", |ids, position| {
        model.forward(ids, position)
    })
}

fn qwen2_moe(place: &Place) -> Result<Vec<Tensor>> {
    let config: qwen2_moe::Config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 64, "max_window_layers": 2,
        "tie_word_embeddings": false, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false,
        "hidden_act": "silu", "decoder_sparse_step": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48, "num_experts_per_tok": 2, "num_experts": 5, "norm_topk_prob": false
    }"#,
    )?;
    let mut model = qwen2_moe::Model::new(&config, place.weights("qwen2_moe"))?;
    steps(place, "qwen2_moe", |ids, position| {
        model.forward(ids, position)
    })
}

const QWEN3_MOE: &str = r#"{
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "head_dim": 32, "attention_bias": false, "num_key_value_heads": 2, "max_position_embeddings": 64, "max_window_layers": 2,
    "tie_word_embeddings": true, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "use_sliding_window": false,
    "hidden_act": "silu", "decoder_sparse_step": 1, "moe_intermediate_size": 32, "num_experts_per_tok": 3,
    "num_experts": 6, "norm_topk_prob": true
}"#;

fn qwen3_moe(place: &Place) -> Result<Vec<Tensor>> {
    let weights = place.weights("qwen3_moe");
    let mut model = qwen3_moe::ModelForCausalLM::new(&config(QWEN3_MOE)?, weights)?;
    steps(place, "qwen3_moe", |ids, position| {
        model.forward(ids, position)
    })
}

fn qwen3_moe_hidden(place: &Place) -> Result<Vec<Tensor>> {
    let mut model = qwen3_moe::Model::new(&config(QWEN3_MOE)?, place.weights("qwen3_moe"))?;
    steps(place, "qwen3_moe", |ids, position| {
        model.forward(ids, position)
    })
}

/// The metadata of a file of this architecture.
fn metadata(architecture: &str) -> Vec<(String, Value)> {
    let whole = Value::U32;
    let keys = [
        ("attention.head_count", whole(4)),
        ("attention.head_count_kv", whole(2)),
        ("attention.key_length", whole(32)),
        ("attention.value_length", whole(32)),
        ("embedding_length", whole(64)),
        ("feed_forward_length", whole(96)),
        ("context_length", whole(64)),
        ("block_count", whole(2)),
        ("attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("rope.freq_base", Value::F32(10_000.)),
    ];
    let named = keys.map(|(key, value)| (format!("{architecture}.{key}"), value));
    let of_all = [
        ("general.architecture", Value::String(architecture.into())),
        // Otherwise upstream's qwen3 uses f16.
        ("general.dtype", whole(0)),
    ];
    let of_all = of_all.map(|(key, value)| (key.to_string(), value));
    of_all.into_iter().chain(named).collect()
}

/// The tensors of a file, including these of a layer's feed-forward block.
fn tensors(feed_forward: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![128, 64]),
        ("output_norm.weight".to_string(), vec![64]),
    ];
    let attention: [(&str, &[usize]); 8] = [
        ("attn_norm.weight", &[64]),
        ("attn_q.weight", &[128, 64]),
        ("attn_k.weight", &[64, 64]),
        ("attn_v.weight", &[64, 64]),
        ("attn_output.weight", &[64, 128]),
        ("attn_q_norm.weight", &[32]),
        ("attn_k_norm.weight", &[32]),
        ("ffn_norm.weight", &[64]),
    ];
    for layer in 0..2 {
        let parts = attention.iter().chain(feed_forward);
        tensors.extend(parts.map(|(part, dims)| (format!("blk.{layer}.{part}"), dims.to_vec())));
    }
    tensors
}

fn quantized_qwen3(place: &Place) -> Result<Vec<Tensor>> {
    let tensors = tensors(&[
        ("ffn_gate.weight", &[96, 64]),
        ("ffn_up.weight", &[96, 64]),
        ("ffn_down.weight", &[64, 96]),
    ]);
    let metadata = metadata("qwen3");
    let metadata: Vec<_> = metadata
        .iter()
        .map(|(k, v)| (k.as_str(), v.clone()))
        .collect();
    let (content, mut file) = gguf(place, "qwen3", &metadata, &tensors)?;
    let mut model = quantized_qwen3::ModelWeights::from_gguf(content, &mut file, &place.device)?;
    steps(place, "quantized_qwen3", |ids, position| {
        model.forward(ids, position)
    })
}

fn quantized_qwen3_rotary(place: &Place) -> Result<Vec<Tensor>> {
    let tables = quantized_qwen3::RotaryEmbedding::new(DType::F32, 32, 64, 10_000., &place.device)?;
    let q = place.input("rotary q", (2, 4, 5, 32))?;
    let k = place.input("rotary k", (2, 2, 5, 32))?;
    let (q, k) = tables.apply(&q, &k, 7)?;
    let (cos, sin) = tables.cos_sin_at(9);
    let row = [cos, sin].concat();
    Ok(vec![q, k, Tensor::new(row, &place.device)?])
}

fn quantized_attention(place: &Place) -> Result<Vec<Tensor>> {
    let metadata = metadata("qwen3moe");
    let metadata: Vec<_> = metadata
        .iter()
        .map(|(k, v)| (k.as_str(), v.clone()))
        .collect();
    let (content, mut file) = gguf(place, "qwen3moe attention", &metadata, &tensors(&[]))?;
    let device = &place.device;
    let rotary = quantized_qwen3::RotaryEmbedding::new(DType::F32, 32, 64, 10_000., device)?;
    let mut file = quantized_qwen3::Gguf::new(content, &mut file, device.clone());
    let mut attention = quantized_qwen3_moe::QuantizedAttention::new(
        &mut file,
        "blk.1",
        DType::F32,
        4,
        2,
        32,
        1e-6,
        device,
        Arc::new(rotary),
    )?;
    let first = place.input("attention first", (1, 3, 64))?;
    let hidden = f32::NEG_INFINITY;
    let mask = [[0., hidden, 0.], [0., 0., hidden], [0., 0., 0f32]];
    let mask = Tensor::new(&mask, device)?;
    let first = attention.forward(&first, Some(&mask), 0)?;
    let second = place.input("attention second", (1, 1, 64))?;
    Ok(vec![first, attention.forward(&second, None, 3)?])
}

fn granitemoehybrid(place: &Place) -> Result<Vec<Tensor>> {
    let config: granitemoehybrid::GraniteMoeHybridConfig = config(
        r#"{
        "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 64,
        "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32, "rope_type": "granite"},
        "layer_types": ["attention", "attention"], "attention_multiplier": 0.2, "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4, "logits_scaling": 2.0, "shared_intermediate_size": 80
    }"#,
    )?;
    let config = config.into_config(false);
    let model =
        granitemoehybrid::GraniteMoeHybrid::load(place.weights("granitemoehybrid"), &config)?;
    let (dtype, device) = (DType::F32, &place.device);
    let mut cache = granitemoehybrid::GraniteMoeHybridCache::new(true, dtype, &config, device)?;
    steps(place, "granitemoehybrid", |ids, position| {
        model.forward(ids, position, &mut cache)
    })
}

/// The common part of its configurations. Groups are omitted: crates.io's are selected by the scores of experts.
fn deepseek2_config(attention: &str) -> Result<deepseek2::DeepSeekV2Config> {
    config(&format!(
        r#"{{
        "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3,
        "num_attention_heads": 4, "n_shared_experts": 2, "n_routed_experts": 6, "num_experts_per_tok": 3,
        "first_k_dense_replace": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "qk_rope_head_dim": 16, "kv_lora_rank": 24, "v_head_dim": 20, "qk_nope_head_dim": 12, "n_group": 1, "topk_group": 1,
        {attention}
    }}"#
    ))
}

fn deepseek2(place: &Place) -> Result<Vec<Tensor>> {
    let config = deepseek2_config(
        r#""attention_bias": false, "routed_scaling_factor": 1.5, "rope_scaling": {"type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 16, "beta_fast": 32, "beta_slow": 1, "mscale": 0.8, "mscale_all_dim": 0.6}"#,
    )?;
    let mut model = deepseek2::DeepSeekV2::new(&config, place.weights("deepseek2"))?;
    steps(place, "deepseek2", |ids, position| {
        model.forward(ids, position)
    })
}

fn deepseek2_short_queries(place: &Place) -> Result<Vec<Tensor>> {
    let config = deepseek2_config(
        r#""attention_bias": true, "q_lora_rank": 40, "tie_word_embeddings": true"#,
    )?;
    let mut model = deepseek2::DeepSeekV2::new(&config, place.weights("deepseek2 short"))?;
    steps(place, "deepseek2 short", |ids, position| {
        model.forward(ids, position)
    })
}

fn deepseek2_rotary(place: &Place) -> Result<Vec<Tensor>> {
    let config = deepseek2::DeepSeekV2RopeConfig {
        rope_scaling: Some(deepseek2::DeepSeekV2RopeScaling::Yarn {
            original_max_position_embeddings: 16,
            beta_fast: 32.,
            beta_slow: 1.,
            mscale: 1.,
            mscale_all_dim: 0.5,
            factor: 8.,
            scaling_type: deepseek2::ScaledRopeType::Yarn,
        }),
        max_position_embeddings: 128,
        rope_theta: 10_000.,
        qk_rope_head_dim: 16,
    };
    let rotary = deepseek2::DeepSeekV2RotaryEmbedding::new(&config, DType::F32, &place.device)?;
    let q = place.input("deepseek2 q", (2, 4, 5, 16))?;
    let k = place.input("deepseek2 k", (2, 1, 5, 16))?;
    let (q, k) = rotary.forward(&q, &k, 31)?;
    Ok(vec![q, k])
}

fn deepseek2_ops(place: &Place) -> Result<Vec<Tensor>> {
    use deepseek2::{BincountOp, NonZeroOp, SplitOp, TopKLastDimOp};
    let xs = place.input("deepseek2 ops", (3, 4, 5))?;
    let kept = (&xs * xs.gt(0f32)?.to_dtype(DType::F32)?)?;
    let (sorted, unsorted) = (xs.topk(3)?, xs.topk_unsorted(2)?);
    let numbers = Tensor::new(&[3u32, 0, 3, 5, 1, 3], &place.device)?;
    let mut results = vec![
        kept.nonzero()?,
        sorted.values,
        sorted.indices,
        unsorted.values,
        unsorted.indices,
        Tensor::new(numbers.bincount(4)?, &place.device)?,
        Tensor::new(numbers.bincount(9)?, &place.device)?,
    ];
    results.extend(SplitOp::split(&xs, &[1, 3], 1)?);
    let whole = |t: Tensor| match t.dtype() {
        DType::U32 => t.to_dtype(DType::F32),
        _ => Ok(t),
    };
    results.into_iter().map(whole).collect()
}
