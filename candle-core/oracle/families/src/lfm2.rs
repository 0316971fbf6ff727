//! LFM2.

use crate::common::{config, gguf, steps};
use crate::weights::Place;
use crate::Run;
use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Result, Tensor};
use candle_transformers::models::{lfm2, quantized_lfm2};

pub const RUNS: &[Run] = &[("lfm2", lfm2), ("quantized_lfm2", quantized_lfm2)];

fn lfm2(place: &Place) -> Result<Vec<Tensor>> {
    let config: lfm2::Lfm2Config = config(
        r#"{
        "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rope_theta": 10000.0, "max_position_embeddings": 64, "conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"],
        "tie_embedding": true, "block_ffn_dim_multiplier": 0.4, "block_multiple_of": 16
    }"#,
    )?;
    let config = config.into_config(false);
    let model = lfm2::Model::new(&config, place.weights("lfm2"))?;
    let mut cache = lfm2::Cache::new(true, DType::F32, &config, &place.device)?;
    steps(place, "lfm2", |ids, position| {
        model.forward(ids, position, &mut cache)
    })
}

fn quantized_lfm2(place: &Place) -> Result<Vec<Tensor>> {
    let whole = Value::U32;
    let kv_heads = [0, 2, 0].map(whole).to_vec();
    let metadata = [
        ("general.architecture", Value::String("lfm2".into())),
        ("lfm2.attention.head_count", whole(4)),
        ("lfm2.attention.head_count_kv", Value::Array(kv_heads)),
        ("lfm2.embedding_length", whole(64)),
        ("lfm2.feed_forward_length", whole(96)),
        ("lfm2.context_length", whole(64)),
        ("lfm2.block_count", whole(3)),
        ("lfm2.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("lfm2.rope.freq_base", Value::F32(10_000.)),
        ("lfm2.shortconv.l_cache", whole(3)),
    ];
    let mut tensors = vec![
        ("token_embd.weight".to_string(), vec![128, 64]),
        ("token_embd_norm.weight".to_string(), vec![64]),
    ];
    let conv: &[(&str, &[usize])] = &[
        ("shortconv.in_proj.weight", &[192, 64]),
        ("shortconv.conv.weight", &[64, 3]),
        ("shortconv.out_proj.weight", &[64, 64]),
    ];
    let attention: &[(&str, &[usize])] = &[
        ("attn_q.weight", &[64, 64]),
        ("attn_k.weight", &[32, 64]),
        ("attn_v.weight", &[32, 64]),
        ("attn_output.weight", &[64, 64]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
    ];
    let both: [(&str, &[usize]); 5] = [
        ("attn_norm.weight", &[64]),
        ("ffn_norm.weight", &[64]),
        ("ffn_gate.weight", &[96, 64]),
        ("ffn_up.weight", &[96, 64]),
        ("ffn_down.weight", &[64, 96]),
    ];
    for (layer, mixer) in [conv, attention, conv].into_iter().enumerate() {
        let parts = mixer.iter().chain(&both);
        tensors.extend(parts.map(|(part, dims)| (format!("blk.{layer}.{part}"), dims.to_vec())));
    }
    let (content, mut file) = gguf(place, "lfm2", &metadata, &tensors)?;
    let mut model = quantized_lfm2::ModelWeights::from_gguf(content, &mut file, &place.device)?;
    steps(place, "quantized_lfm2", |ids, position| {
        model.forward(ids, position)
    })
}
