//! A quantized model from a GGUF file.

use crate::weights::{weight, Place};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Result, Shape, Tensor};
use candle_transformers::models::quantized_llama::ModelWeights;
use std::fs::File;
use std::path::Path;

/// A k-quant's block is 256 elements long.
const WIDTH: usize = 256;
const LAYERS: usize = 2;

/// The file that upstream wrote, on both sides: the same blocks, read and multiplied.
pub fn llama(place: &Place) -> Result<Vec<Tensor>> {
    let path = place.folder.join("llama.gguf");
    if !path.exists() {
        std::fs::create_dir_all(place.folder)?;
        write(&path)?;
    }
    read(place, &path)
}

fn read(place: &Place, path: &Path) -> Result<Vec<Tensor>> {
    let mut file = File::open(path)?;
    let content = gguf_file::Content::read(&mut file)?;
    let mut model = ModelWeights::from_gguf(content, &mut file, &place.device)?;
    let prompt = place.tokens("quantized llama", 6, 64)?;
    let first = model.forward(&prompt, 0)?;
    Ok(vec![first, model.forward(&prompt.narrow(1, 2, 1)?, 6)?])
}

fn write(path: &Path) -> Result<()> {
    let whole = |n: usize| Value::U32(n as u32);
    let metadata = [
        ("general.architecture", Value::String("llama".into())),
        ("llama.attention.head_count", whole(4)),
        ("llama.attention.head_count_kv", whole(4)),
        ("llama.block_count", whole(LAYERS)),
        ("llama.embedding_length", whole(WIDTH)),
        ("llama.rope.dimension_count", whole(WIDTH / 4)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
    ];
    let mut tensors = Vec::new();
    let mut add = |name: String, dims: &[usize], dtype| -> Result<()> {
        let plain = weight(&name, &Shape::from(dims))?;
        tensors.push((name, QTensor::quantize(&plain, dtype)?));
        Ok(())
    };
    add("token_embd.weight".into(), &[64, WIDTH], GgmlDType::Q4_0)?;
    add("output.weight".into(), &[64, WIDTH], GgmlDType::Q6K)?;
    add("output_norm.weight".into(), &[WIDTH], GgmlDType::F32)?;
    for layer in 0..LAYERS {
        let square = [WIDTH, WIDTH];
        for (part, dims, dtype) in [
            ("attn_q", square, GgmlDType::Q4K),
            ("attn_k", square, GgmlDType::Q5K),
            ("attn_v", square, GgmlDType::Q6K),
            ("attn_output", square, GgmlDType::Q4_0),
            ("ffn_gate", [2 * WIDTH, WIDTH], GgmlDType::Q4_0),
            ("ffn_up", [2 * WIDTH, WIDTH], GgmlDType::Q3K),
            ("ffn_down", [WIDTH, 2 * WIDTH], GgmlDType::Q5_0),
        ] {
            add(format!("blk.{layer}.{part}.weight"), &dims, dtype)?;
        }
        for part in ["attn_norm", "ffn_norm"] {
            add(
                format!("blk.{layer}.{part}.weight"),
                &[WIDTH],
                GgmlDType::F32,
            )?;
        }
    }
    let metadata: Vec<_> = metadata
        .iter()
        .map(|(name, value)| (*name, value))
        .collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
    gguf_file::write(&mut File::create(path)?, &metadata, &tensors)
}
