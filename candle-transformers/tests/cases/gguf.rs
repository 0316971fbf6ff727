//! The tiny Llama of `support` as the content of a GGUF file.

use std::collections::HashMap;
use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result, Tensor};
use candle_transformers::models::llama::Config;
use candle_transformers::models::quantized_llama::ModelWeights;

use super::support::tiny_weights;

/// A file before it is written.
pub struct Gguf {
    pub metadata: HashMap<String, Value>,
    pub tensors: HashMap<String, QTensor>,
}

fn whole(n: usize) -> Value {
    Value::U32(n as u32)
}

/// Rows of a projection to heads, from the order of halves (`i` rotates with `i + head_dim / 2`) to that of neighbours.
pub fn neighbours(weight: &Tensor, head_dim: usize) -> Result<Tensor> {
    let (rows, hidden) = weight.dims2()?;
    weight
        .reshape((rows / head_dim, 2, head_dim / 2, hidden))?
        .transpose(1, 2)?
        .reshape((rows, hidden))
}

/// The name in a GGUF file for a tensor of a Hugging Face checkpoint.
pub fn gguf_name(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    let in_layer = |rest: &str| {
        let (layer, part) = rest.split_once('.').unwrap();
        let part = match part.strip_suffix(".weight").unwrap() {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.o_proj" => "attn_output",
            "post_attention_layernorm" => "ffn_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            other => panic!("no tensor of a Llama: {other}"),
        };
        format!("blk.{layer}.{part}.weight")
    };
    match name {
        "embed_tokens.weight" => "token_embd.weight".into(),
        "norm.weight" => "output_norm.weight".into(),
        "lm_head.weight" => "output.weight".into(),
        other => in_layer(other.strip_prefix("layers.").unwrap()),
    }
}

impl Gguf {
    /// The tiny weights of `cfg`, matrices in the format that `format` gives for their names, with the rows of q and k in the order
    /// of neighbours.
    pub fn new(cfg: &Config, format: impl Fn(&str) -> GgmlDType) -> Result<Self> {
        let mut tensors = HashMap::new();
        for (name, weight) in tiny_weights(cfg)? {
            let name = gguf_name(&name);
            let head_dim = cfg.hidden_size / cfg.num_attention_heads;
            let weight = if name.contains("attn_q") || name.contains("attn_k") {
                neighbours(&weight, head_dim)?
            } else {
                weight
            };
            let format = match weight.rank() {
                1 => GgmlDType::F32,
                _ => format(&name),
            };
            tensors.insert(name, QTensor::quantize(&weight, format)?);
        }
        let entries = [
            ("general.architecture", Value::String("llama".into())),
            ("llama.attention.head_count", whole(cfg.num_attention_heads)),
            (
                "llama.attention.head_count_kv",
                whole(cfg.num_key_value_heads),
            ),
            ("llama.block_count", whole(cfg.num_hidden_layers)),
            ("llama.embedding_length", whole(cfg.hidden_size)),
            ("llama.context_length", whole(cfg.max_position_embeddings)),
            ("llama.rope.freq_base", Value::F32(cfg.rope_theta)),
            (
                "llama.attention.layer_norm_rms_epsilon",
                Value::F32(cfg.rms_norm_eps as f32),
            ),
        ];
        let metadata = entries.map(|(key, value)| (key.to_string(), value));
        Ok(Self {
            metadata: metadata.into(),
            tensors,
        })
    }

    pub fn set(&mut self, key: &str, value: Value) -> Result<()> {
        self.metadata.insert(key.into(), value);
        Ok(())
    }

    pub fn without_key(&mut self, key: &str) -> Result<()> {
        self.metadata.remove(key).expect("a key that is there");
        Ok(())
    }

    pub fn without_tensor(&mut self, name: &str) -> Result<()> {
        self.tensors.remove(name).expect("a tensor that is there");
        Ok(())
    }

    /// Adds or replaces a tensor, which keeps its elements as f32.
    pub fn put(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let tensor = QTensor::quantize(tensor, GgmlDType::F32)?;
        self.tensors.insert(name.into(), tensor);
        Ok(())
    }

    /// Written, and read again.
    pub fn load(&self, device: &Device) -> Result<ModelWeights> {
        let (content, mut file) = self.content()?;
        ModelWeights::from_gguf(content, &mut file, device)
    }

    /// Written, and its header read again, with what it is in.
    pub fn content(&self) -> Result<(Content, Cursor<Vec<u8>>)> {
        let mut file = Cursor::new(Vec::new());
        let metadata = self
            .metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value));
        let tensors = self.tensors.iter().map(|(name, t)| (name.as_str(), t));
        gguf_file::write(
            &mut file,
            &metadata.collect::<Vec<_>>(),
            &tensors.collect::<Vec<_>>(),
        )?;
        file.set_position(0);
        Ok((Content::read(&mut file)?, file))
    }
}
