//! Models from GGUF files only.

use crate::common::{gguf, steps};
use crate::weights::Place;
use crate::Run;
use candle_core::quantized::gguf_file::Value;
use candle_core::{DType, Result, Tensor};
use candle_transformers::models::{quantized_glm4, quantized_phi, quantized_phi3};

pub const RUNS: &[Run] = &[
    ("quantized_phi", phi),
    ("quantized_phi3", phi3),
    ("quantized_glm4", glm4),
];

/// The keys of every architecture.
fn keys(architecture: &'static str) -> Vec<(String, Value)> {
    let mut keys = vec![(
        "general.architecture".to_string(),
        Value::String(architecture.into()),
    )];
    let sizes = [
        ("attention.head_count", 4),
        // Phi-2 shares none.
        (
            "attention.head_count_kv",
            if architecture == "phi2" { 4 } else { 2 },
        ),
        ("attention.key_length", 16),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("context_length", 64),
        ("block_count", 2),
        // Upstream rotates whole heads of Phi-3, and half of GLM-4's, whatever the file specifies.
        (
            "rope.dimension_count",
            if architecture == "phi3" { 16 } else { 8 },
        ),
    ];
    for (key, size) in sizes {
        keys.push((format!("{architecture}.{key}"), Value::U32(size)));
    }
    let floats = [
        ("attention.layer_norm_rms_epsilon", 1e-5),
        ("attention.layer_norm_epsilon", 1e-5),
        ("rope.freq_base", 10_000.),
    ];
    for (key, number) in floats {
        keys.push((format!("{architecture}.{key}"), Value::F32(number)));
    }
    keys
}

/// Tensors of the model, and of each layer, by name and shape.
fn tensors(
    of_model: &[(&str, &[usize])],
    of_layer: &[(&str, &[usize])],
) -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("token_embd.weight".to_string(), vec![128, 64]),
        ("output.weight".to_string(), vec![128, 64]),
        ("output_norm.weight".to_string(), vec![64]),
    ];
    all.extend(
        of_model
            .iter()
            .map(|(name, dims)| (name.to_string(), dims.to_vec())),
    );
    for layer in 0..2 {
        let named =
            |(part, dims): &(&str, &[usize])| (format!("blk.{layer}.{part}"), dims.to_vec());
        all.extend(of_layer.iter().map(named));
    }
    all
}

fn file(
    place: &Place,
    architecture: &'static str,
    tensors: Vec<(String, Vec<usize>)>,
) -> Result<(candle_core::quantized::gguf_file::Content, std::fs::File)> {
    let keys = keys(architecture);
    let keys: Vec<(&str, Value)> = keys
        .iter()
        .map(|(key, v)| (key.as_str(), v.clone()))
        .collect();
    gguf(place, architecture, &keys, &tensors)
}

fn phi(place: &Place) -> Result<Vec<Tensor>> {
    let of_layer: [(&str, &[usize]); 10] = [
        ("attn_norm.weight", &[64]),
        ("attn_norm.bias", &[64]),
        ("attn_qkv.weight", &[192, 64]),
        ("attn_qkv.bias", &[192]),
        ("attn_output.weight", &[64, 64]),
        ("attn_output.bias", &[64]),
        ("ffn_up.weight", &[96, 64]),
        ("ffn_up.bias", &[96]),
        ("ffn_down.weight", &[64, 96]),
        ("ffn_down.bias", &[64]),
    ];
    let of_model: [(&str, &[usize]); 2] = [("output_norm.bias", &[64]), ("output.bias", &[128])];
    let (content, mut file) = file(place, "phi2", tensors(&of_model, &of_layer))?;
    let mut model = quantized_phi::ModelWeights::from_gguf(content, &mut file, &place.device)?;
    steps(place, "phi2", |ids, position| model.forward(ids, position))
}

/// Layers with norms without a mean, and with gate and up projections in one weight.
const JOINED: &[(&str, &[usize])] = &[
    ("attn_norm.weight", &[64]),
    ("attn_output.weight", &[64, 64]),
    ("ffn_norm.weight", &[64]),
    ("ffn_up.weight", &[192, 64]),
    ("ffn_down.weight", &[64, 96]),
];

fn phi3(place: &Place) -> Result<Vec<Tensor>> {
    let of_layer: [&[(&str, &[usize])]; 2] = [JOINED, &[("attn_qkv.weight", &[128, 64])]];
    let (content, mut file) = file(place, "phi3", tensors(&[], &of_layer.concat()))?;
    let device = &place.device;
    let mut model = quantized_phi3::ModelWeights::from_gguf(false, content, &mut file, device)?;
    steps(place, "phi3", |ids, position| model.forward(ids, position))
}

fn glm4(place: &Place) -> Result<Vec<Tensor>> {
    let own: [(&str, &[usize]); 8] = [
        ("attn_q.weight", &[64, 64]),
        ("attn_q.bias", &[64]),
        ("attn_k.weight", &[32, 64]),
        ("attn_k.bias", &[32]),
        ("attn_v.weight", &[32, 64]),
        ("attn_v.bias", &[32]),
        ("post_attention_norm.weight", &[64]),
        ("post_ffw_norm.weight", &[64]),
    ];
    let of_layer: [&[(&str, &[usize])]; 2] = [JOINED, &own];
    let (content, mut file) = file(place, "glm4", tensors(&[], &of_layer.concat()))?;
    let device = &place.device;
    let mut model =
        quantized_glm4::ModelWeights::from_gguf(content, &mut file, device, DType::F32)?;
    steps(place, "glm4", |ids, position| model.forward(ids, position))
}
