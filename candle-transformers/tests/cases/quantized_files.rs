//! Files that are not models.

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Result, Tensor};

use super::gguf::Gguf;
use super::quantized_llama::config;
use super::support::token_ids;

/// Broken files, and the words that their errors contain.
#[test]
fn bad_files() -> Result<()> {
    type Break = fn(&mut Gguf) -> Result<()>;
    let device = &Device::Cpu;
    let cases: &[(Break, &[&str])] = &[
        (
            |f| f.without_key("llama.block_count"),
            &["llama.block_count", "missing"],
        ),
        (
            |f| f.without_key("llama.attention.layer_norm_rms_epsilon"),
            &["llama.attention.layer_norm_rms_epsilon", "missing"],
        ),
        (
            |f| f.set("llama.embedding_length", Value::String("64".into())),
            &["llama.embedding_length", "string"],
        ),
        (
            |f| f.set("llama.attention.head_count", Value::U32(0)),
            &["llama.attention.head_count", "at least 1"],
        ),
        (
            |f| f.set("llama.attention.head_count_kv", Value::U32(3)),
            &["attention.head_count_kv", "3"],
        ),
        (
            |f| f.set("llama.attention.head_count", Value::U32(5)),
            &["llama.embedding_length", "5"],
        ),
        (
            |f| f.set("llama.attention.value_length", Value::U32(8)),
            &["llama.attention.value_length", "8", "16"],
        ),
        (
            |f| f.set("llama.rope.dimension_count", Value::U32(18)),
            &["rope.dimension_count", "18"],
        ),
        (
            |f| f.set("llama.rope.dimension_count", Value::U32(7)),
            &["rope.dimension_count", "7"],
        ),
        (
            |f| f.set("llama.context_length", Value::U32(u32::MAX)),
            &["context_length", "4294967295"],
        ),
        (
            |f| f.set("llama.block_count", Value::U64(u64::MAX)),
            &["llama.block_count"],
        ),
        (
            |f| f.set("llama.block_count", Value::U32(2_000_000_000)),
            // Before anything is made for each of them.
            &["llama.block_count", "2000000000 layers", "4096"],
        ),
        (
            |f| f.set("llama.rope.freq_base", Value::F32(f32::NAN)),
            &["llama.rope.freq_base", "NaN"],
        ),
        (
            |f| f.set("llama.rope.scaling.type", Value::String("yarn".into())),
            &["llama.rope.scaling", "factor", "yarn"],
        ),
        (
            |f| f.set("llama.expert_count", Value::U32(4)),
            &["expert_used_count", "4"],
        ),
        (
            |f| f.set("general.architecture", Value::String("gpt2".into())),
            &["general.architecture", "gpt2", "llama, qwen2"],
        ),
        (
            |f| f.without_tensor("token_embd.weight"),
            &["token_embd.weight", "missing"],
        ),
        (
            |f| f.without_tensor("blk.1.ffn_up.weight"),
            &["blk.1.ffn_up.weight", "missing"],
        ),
        (
            |f| {
                f.put(
                    "blk.1.attn_k.weight",
                    &Tensor::zeros((64, 64), DType::F32, &Device::Cpu)?,
                )
            },
            &["blk.1.attn_k.weight", "[64, 64]", "[32, 64]"],
        ),
        (
            |f| {
                f.put(
                    "blk.0.attn_q.bias",
                    &Tensor::zeros(3, DType::F32, &Device::Cpu)?,
                )
            },
            &["blk.0.attn_q.bias", "[3]", "[64]"],
        ),
        (
            |f| {
                f.put(
                    "output_norm.weight",
                    &Tensor::zeros((8, 8), DType::F32, &Device::Cpu)?,
                )
            },
            &["output_norm.weight", "[8, 8]", "[64]"],
        ),
        (
            |f| {
                f.put(
                    "rope_freqs.weight",
                    &Tensor::zeros(9, DType::F32, &Device::Cpu)?,
                )
            },
            &["rope_freqs.weight", "[9]", "[8]"],
        ),
    ];
    for (change, parts) in cases {
        let mut file = Gguf::new(&config(), |_| GgmlDType::F32)?;
        change(&mut file)?;
        let error = file.load(device).unwrap_err().to_string();
        for part in *parts {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
    }
    let mut model = Gguf::new(&config(), |_| GgmlDType::F32)?.load(device)?;
    let ids = token_ids(1, 41, 61, device)?;
    let error = model.forward(&ids, 0).unwrap_err().to_string();
    assert!(error.contains("41") && error.contains("40"), "{error}");
    Ok(())
}
