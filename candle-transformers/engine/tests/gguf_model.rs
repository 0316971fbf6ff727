//! The embedded model as a GGUF file, as llama.cpp's converter writes one.

use crate::support::model_dir;
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{safetensors, DType, Device, Tensor};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use tempfile::TempDir;

/// A file before it is written.
pub struct GgufModel {
    pub metadata: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, QTensor>,
}

fn text(text: &str) -> Value {
    Value::String(text.into())
}

fn texts<'a>(texts: impl Iterator<Item = &'a str>) -> Value {
    Value::Array(texts.map(text).collect())
}

fn json(name: &str) -> Json {
    let bytes = std::fs::read(model_dir().join(name)).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn number(json: &Json, key: &str) -> usize {
    json[key].as_u64().unwrap() as usize
}

impl GgufModel {
    /// The embedded model with its matrices in the format that `format` gives for their names.
    pub fn new(format: impl Fn(&str) -> GgmlDType) -> Self {
        Self {
            metadata: metadata(),
            tensors: tensors(format),
        }
    }

    pub fn write(&self, path: &Path) {
        let metadata: Vec<_> = self.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
        gguf_file::write(&mut File::create(path).unwrap(), &metadata, &tensors).unwrap();
    }
}

fn metadata() -> BTreeMap<String, Value> {
    let config = json("config.json");
    let whole = |key| Value::U32(number(&config, key) as u32);
    let heads = number(&config, "num_attention_heads");
    let head_dim = number(&config, "hidden_size") / heads;
    let epsilon = config["rms_norm_eps"].as_f64().unwrap() as f32;
    let theta = config["rope_parameters"]["rope_theta"].as_f64().unwrap() as f32;
    let tokenizer = json("tokenizer.json");
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let mut tokens = vec![""; number(&config, "vocab_size")];
    for (token, id) in vocab {
        tokens[id.as_u64().unwrap() as usize] = token;
    }
    let mut kinds = vec![1; tokens.len()];
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        let id = number(added, "id");
        tokens[id] = added["content"].as_str().unwrap();
        kinds[id] = 3;
    }
    let merges: Vec<String> = tokenizer["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| {
            format!(
                "{} {}",
                pair[0].as_str().unwrap(),
                pair[1].as_str().unwrap()
            )
        })
        .collect();
    let entries = [
        ("general.architecture", text("llama")),
        ("general.name", text("demo")),
        ("llama.context_length", whole("max_position_embeddings")),
        ("llama.embedding_length", whole("hidden_size")),
        ("llama.block_count", whole("num_hidden_layers")),
        ("llama.feed_forward_length", whole("intermediate_size")),
        ("llama.attention.head_count", whole("num_attention_heads")),
        (
            "llama.attention.head_count_kv",
            whole("num_key_value_heads"),
        ),
        (
            "llama.attention.layer_norm_rms_epsilon",
            Value::F32(epsilon),
        ),
        ("llama.rope.freq_base", Value::F32(theta)),
        ("llama.rope.dimension_count", Value::U32(head_dim as u32)),
        ("llama.vocab_size", whole("vocab_size")),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.tokens", texts(tokens.into_iter())),
        (
            "tokenizer.ggml.token_type",
            Value::Array(kinds.into_iter().map(Value::I32).collect()),
        ),
        (
            "tokenizer.ggml.merges",
            texts(merges.iter().map(String::as_str)),
        ),
        ("tokenizer.ggml.bos_token_id", whole("bos_token_id")),
        ("tokenizer.ggml.eos_token_id", whole("eos_token_id")),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
    ];
    entries
        .into_iter()
        .map(|(key, value)| (key.to_string(), value))
        .collect()
}

fn tensors(format: impl Fn(&str) -> GgmlDType) -> BTreeMap<String, QTensor> {
    let config = json("config.json");
    let head_dim = number(&config, "hidden_size") / number(&config, "num_attention_heads");
    let weights = safetensors::load(model_dir().join("model.safetensors"), &Device::Cpu).unwrap();
    weights
        .into_iter()
        .map(|(name, weight)| {
            let name = gguf_name(&name);
            let mut weight = weight.to_dtype(DType::F32).unwrap();
            if name.contains("attn_q") || name.contains("attn_k") {
                weight = neighbours(&weight, head_dim);
            }
            let format = match weight.rank() {
                1 => GgmlDType::F32,
                _ => format(&name),
            };
            let tensor = QTensor::quantize(&weight, format).unwrap();
            (name, tensor)
        })
        .collect()
}

/// Hugging Face's files rotate element `i` of a head with `i + head_dim / 2`, GGUF files `2 i` with `2 i + 1`: the rows of q and k
/// are in another order.
fn neighbours(weight: &Tensor, head_dim: usize) -> Tensor {
    let (rows, hidden) = weight.dims2().unwrap();
    let halves = weight
        .reshape((rows / head_dim, 2, head_dim / 2, hidden))
        .unwrap();
    let neighbours = halves.transpose(1, 2).unwrap();
    neighbours.reshape((rows, hidden)).unwrap()
}

fn gguf_name(name: &str) -> String {
    let names = [
        ("model.", ""),
        ("layers.", "blk."),
        ("embed_tokens", "token_embd"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    let mut name = match name {
        "model.norm.weight" => "output_norm.weight".to_string(),
        other => other.to_string(),
    };
    for (from, to) in names {
        name = name.replace(from, to);
    }
    name
}

/// The embedded model in one format throughout, written once for each.
pub fn in_format(format: GgmlDType) -> PathBuf {
    static FILES: OnceLock<(TempDir, Mutex<()>)> = OnceLock::new();
    let (dir, writing) = FILES.get_or_init(|| (tempfile::tempdir().unwrap(), Mutex::new(())));
    let path = dir.path().join(format!("{format:?}.gguf"));
    let _alone = writing.lock().unwrap();
    if !path.exists() {
        GgufModel::new(|_| format).write(&path);
    }
    path
}
