use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{ggml_file, GgmlDType, QTensor};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, Llama3RopeConfig, Llama3RopeType};
use candle_transformers::models::quantized_llama::ModelWeights;

use super::gguf::{gguf_name, neighbours, Gguf};
use super::support::{assert_close, tiny_config, tiny_llama, tiny_weights, token_ids, Numbers};

/// f32 sums in another order.
const F32_TOLERANCE: f32 = 1e-5;

/// The format of a tensor by its name.
type Format<'a> = &'a dyn Fn(&str) -> GgmlDType;

fn f32(_: &str) -> GgmlDType {
    GgmlDType::F32
}

/// Wide enough for blocks of 32.
pub fn config() -> Config {
    Config {
        hidden_size: 64,
        intermediate_size: 96,
        ..tiny_config()
    }
}

/// The logits after each of some pieces of `ids`.
fn run(model: &mut ModelWeights, ids: &Tensor, pieces: &[usize]) -> Result<Tensor> {
    let (mut position, mut logits) = (0, Vec::new());
    for &piece in pieces {
        logits.push(model.forward(&ids.narrow(1, position, piece)?, position)?);
        position += piece;
    }
    Tensor::cat(&logits, 0)
}

fn run_dense(model: &Llama, cfg: &Config, ids: &Tensor, pieces: &[usize]) -> Result<Tensor> {
    let mut cache = Cache::new(true, DType::F32, cfg, ids.device())?;
    let (mut position, mut logits) = (0, Vec::new());
    for &piece in pieces {
        let input = ids.narrow(1, position, piece)?;
        logits.push(model.forward(&input, position, &mut cache)?);
        position += piece;
    }
    Tensor::cat(&logits, 0)
}

/// Unquantised, the file's model is the checkpoint's: names, the order of rotated pairs, grouped heads, the tied output layer.
fn of_f32_is_the_dense_model(device: &Device) -> Result<()> {
    for tie_word_embeddings in [false, true] {
        let cfg = Config {
            tie_word_embeddings,
            ..config()
        };
        let dense = tiny_llama(&cfg, DType::F32, device)?;
        let mut model = Gguf::new(&cfg, f32)?.load(device)?;
        for (b, pieces) in [(1, &[9, 1, 1][..]), (3, &[4, 5, 1]), (1, &[1, 1, 30])] {
            let ids = token_ids(b, pieces.iter().sum(), cfg.vocab_size, device)?;
            let expected = run_dense(&dense, &cfg, &ids, pieces)?;
            // Without a reset between them: position 0 starts again.
            assert_close(&run(&mut model, &ids, pieces)?, &expected, F32_TOLERANCE);
        }
    }
    Ok(())
}
test_device!(of_f32_is_the_dense_model);

/// A dense model of the same weights, quantised and made dense again.
fn rounded(cfg: &Config, format: impl Fn(&str) -> GgmlDType, device: &Device) -> Result<Llama> {
    let mut weights = HashMap::new();
    for (name, weight) in tiny_weights(cfg)? {
        let weight = match weight.rank() {
            1 => weight,
            _ => QTensor::quantize(&weight, format(&gguf_name(&name)))?.dequantize(&Device::Cpu)?,
        };
        weights.insert(name, weight);
    }
    Llama::load(VarBuilder::from_tensors(weights, DType::F32, device), cfg)
}

/// Quantised weights give what the dense model of the same rounded weights gives. On the CPU products bring activations to 8 bits:
/// each is off by up to 1/254 of the largest of its block, which two layers of large random weights make 3% of the largest logit.
fn of_blocks_is_the_rounded_model(device: &Device) -> Result<()> {
    // What a file of kind "M" does: other formats for some tensors, so that neighbours cannot all be merged.
    let mixed = |name: &str| match name {
        name if name.contains("attn_v") || name.contains("output") => GgmlDType::Q8_0,
        name if name.contains("ffn_gate") => GgmlDType::Q5_1,
        _ => GgmlDType::Q4_0,
    };
    let formats: [(&str, Format); 7] = [
        ("f16", &|_| GgmlDType::F16),
        ("q8_0", &|_| GgmlDType::Q8_0),
        ("q4_0", &|_| GgmlDType::Q4_0),
        ("q4_1", &|_| GgmlDType::Q4_1),
        ("q5_0", &|_| GgmlDType::Q5_0),
        ("mixed", &mixed),
        ("bf16", &|_| GgmlDType::BF16),
    ];
    for (name, format) in formats {
        check_rounded(name, &config(), format, device)?;
    }
    let wide = Config {
        hidden_size: 256,
        intermediate_size: 512,
        ..tiny_config()
    };
    for format in [GgmlDType::Q4K, GgmlDType::Q5K, GgmlDType::Q6K] {
        check_rounded(&format!("{format:?}"), &wide, &|_| format, device)?;
    }
    Ok(())
}
test_device!(of_blocks_is_the_rounded_model);

fn check_rounded(name: &str, cfg: &Config, format: Format, device: &Device) -> Result<()> {
    let ids = token_ids(2, 12, cfg.vocab_size, device)?;
    let pieces = [9, 1, 2];
    let expected = run_dense(&rounded(cfg, format, device)?, cfg, &ids, &pieces)?;
    let mut model = Gguf::new(cfg, format)?.load(device)?;
    let logits = run(&mut model, &ids, &pieces)?;
    let worst = (&logits - &expected)?
        .abs()?
        .max_all()?
        .to_scalar::<f32>()?;
    let scale = expected.abs()?.max_all()?.to_scalar::<f32>()?;
    println!("{name}: off by {worst} of {scale}");
    let tolerance = match name {
        "f16" | "bf16" => F32_TOLERANCE,
        // Activations are rounded to 8 bits.
        _ => 0.1,
    };
    assert_close(&logits, &expected, tolerance);
    Ok(())
}

/// Llama 3's scaling as files have it: a divisor for each frequency.
#[test]
fn rope_factors() -> Result<()> {
    let device = &Device::Cpu;
    let plain = config();
    let scaled = Config {
        rope_scaling: Some(Llama3RopeConfig {
            factor: 8.,
            low_freq_factor: 1.,
            high_freq_factor: 4.,
            original_max_position_embeddings: 64,
            rope_type: Llama3RopeType::Llama3,
        }),
        ..config()
    };
    let ratios = plain
        .inverse_frequencies()
        .into_iter()
        .zip(scaled.inverse_frequencies());
    let factors: Vec<f32> = ratios.map(|(plain, scaled)| plain / scaled).collect();
    assert!(factors.iter().any(|f| *f > 2.), "{factors:?}");

    let mut file = Gguf::new(&plain, f32)?;
    file.put("rope_freqs.weight", &Tensor::new(factors, device)?)?;
    let ids = token_ids(1, 30, plain.vocab_size, device)?;
    let logits = run(&mut file.load(device)?, &ids, &[30])?;
    let model = tiny_llama(&scaled, DType::F32, device)?;
    let expected = run_dense(&model, &scaled, &ids, &[30])?;
    assert_close(&logits, &expected, F32_TOLERANCE);
    let unscaled = run_dense(&model, &plain, &ids, &[30])?;
    let moved = (unscaled - expected)?
        .abs()?
        .max_all()?
        .to_scalar::<f32>()?;
    assert!(moved > 1e-2, "the scaling changes nothing: {moved}");
    Ok(())
}

/// Positions divided by 4 are frequencies divided by 4, all of them.
#[test]
fn linear_rope_scaling() -> Result<()> {
    let device = &Device::Cpu;
    let cfg = config();
    let mut file = Gguf::new(&cfg, f32)?;
    file.set("llama.rope.scaling.type", Value::String("linear".into()))?;
    file.set("llama.rope.scaling.factor", Value::F32(4.))?;
    let mut scaled = file.load(device)?;
    let mut factors = Gguf::new(&cfg, f32)?;
    let fours = Tensor::full(4f32, 8, device)?;
    factors.put("rope_freqs.weight", &fours)?;
    let ids = token_ids(1, 20, cfg.vocab_size, device)?;
    let expected = run(&mut factors.load(device)?, &ids, &[20])?;
    assert_close(&run(&mut scaled, &ids, &[20])?, &expected, F32_TOLERANCE);
    Ok(())
}

/// Heads whose size is not the hidden size divided by their number, with only the first elements rotated: the same as heads of only these
/// elements, if the others are 0.
#[test]
fn head_size_and_rotated_part() -> Result<()> {
    let device = &Device::Cpu;
    let cfg = config();
    let (head_dim, wide) = (16, 24);
    let mut file = Gguf::new(&cfg, f32)?;
    let mut model = file.load(device)?;
    let widen = |t: &Tensor, heads: usize, scale: f64| -> Result<Tensor> {
        let t = (t.reshape((heads, head_dim, 64))? * scale)?;
        t.pad_with_zeros(1, 0, wide - head_dim)?
            .reshape((heads * wide, 64))
    };
    let names: Vec<String> = file.tensors.keys().cloned().collect();
    for name in names {
        let old = file.tensors[&name].dequantize(device)?;
        // Scores are divided by the root of the head's size.
        let scale = (wide as f64 / head_dim as f64).sqrt();
        let new = match name.split('.').nth(2) {
            Some("attn_q") => widen(&old, 4, scale)?,
            Some("attn_k" | "attn_v") => widen(&old, 2, 1.)?,
            Some("attn_output") => widen(&old.t()?, 4, 1.)?.t()?.contiguous()?,
            _ => continue,
        };
        file.put(&name, &new)?;
    }
    for key in ["attention.key_length", "attention.value_length"] {
        file.set(&format!("llama.{key}"), Value::U32(wide as u32))?;
    }
    file.set("llama.rope.dimension_count", Value::U32(head_dim as u32))?;
    let ids = token_ids(1, 12, cfg.vocab_size, device)?;
    let expected = run(&mut model, &ids, &[11, 1])?;
    let logits = run(&mut file.load(device)?, &ids, &[11, 1])?;
    assert_close(&logits, &expected, F32_TOLERANCE);
    Ok(())
}

/// `qwen2` rotates halves and has biases: with biases of 0 it is the dense model with its rows as they are.
fn qwen2(device: &Device) -> Result<()> {
    let cfg = config();
    let mut file = Gguf::new(&cfg, f32)?;
    let entries = std::mem::take(&mut file.metadata).into_iter();
    file.metadata = entries
        .map(|(key, value)| (key.replace("llama.", "qwen2."), value))
        .collect();
    file.set("general.architecture", Value::String("qwen2".into()))?;
    for (name, weight) in tiny_weights(&cfg)? {
        file.put(&gguf_name(&name), &weight)?;
    }
    let ids = token_ids(1, 10, cfg.vocab_size, device)?;
    let dense = tiny_llama(&cfg, DType::F32, device)?;
    let expected = run_dense(&dense, &cfg, &ids, &[9, 1])?;
    assert_close(
        &run(&mut file.load(device)?, &ids, &[9, 1])?,
        &expected,
        F32_TOLERANCE,
    );

    // A key's bias is the same for all positions before rotation; the value's goes straight through attention.
    let mut numbers = Numbers::new(5);
    let bias = numbers.tensor(&[32], 1., &Device::Cpu)?;
    for (part, rows) in [("attn_q", 64), ("attn_k", 32), ("attn_v", 32)] {
        for layer in 0..2 {
            let bias = match part {
                "attn_v" if layer == 1 => bias.clone(),
                _ => Tensor::zeros(rows, DType::F32, &Device::Cpu)?,
            };
            file.put(&format!("blk.{layer}.{part}.bias"), &bias)?;
        }
    }
    let biased = run(&mut file.load(device)?, &ids, &[9, 1])?;
    let moved = (&biased - &expected)?
        .abs()?
        .max_all()?
        .to_scalar::<f32>()?;
    assert!(moved > 1e-2, "the bias changes nothing: {moved}");
    Ok(())
}
test_device!(qwen2);

/// Experts in one tensor and in one each are the same model; and a model whose tokens take all of several equal experts is the dense one.
#[test]
fn experts_of_either_naming() -> Result<()> {
    let device = &Device::Cpu;
    let cfg = config();
    let ids = token_ids(1, 10, cfg.vocab_size, device)?;
    let dense = run(&mut Gguf::new(&cfg, f32)?.load(device)?, &ids, &[9, 1])?;
    let mut numbers = Numbers::new(31);
    let mut results = Vec::new();
    let router = numbers.tensor(&[3, 64], 1., device)?;
    for stacked in [true, false] {
        for format in [GgmlDType::F32, GgmlDType::Q8_0] {
            let mut file = Gguf::new(&cfg, |_| format)?;
            file.set("llama.expert_count", Value::U32(3))?;
            file.set("llama.expert_used_count", Value::U32(2))?;
            for layer in 0..2 {
                file.put(&format!("blk.{layer}.ffn_gate_inp.weight"), &router)?;
                for part in ["ffn_gate", "ffn_up", "ffn_down"] {
                    let name = format!("blk.{layer}.{part}");
                    let one = file.tensors.remove(&format!("{name}.weight")).unwrap();
                    let one = one.dequantize(device)?;
                    if stacked {
                        let all = Tensor::stack(&[&one, &one, &one], 0)?;
                        let all = QTensor::quantize(&all, format)?;
                        file.tensors.insert(format!("{name}_exps.weight"), all);
                    } else {
                        for expert in 0..3 {
                            let one = QTensor::quantize(&one, format)?;
                            file.tensors.insert(format!("{name}.{expert}.weight"), one);
                        }
                    }
                }
            }
            results.push(run(&mut file.load(device)?, &ids, &[9, 1])?);
        }
    }
    assert_close(&results[0], &dense, F32_TOLERANCE);
    // Weights and activations of 8 bits: an RMS error of 1 % of the largest value; the worst element has three times that.
    assert_close(&results[1], &dense, 0.04);
    assert_close(&results[2], &results[0], 0.);
    assert_close(&results[3], &results[1], 0.);
    Ok(())
}

#[test]
fn of_ggml() -> Result<()> {
    let device = &Device::Cpu;
    let cfg = config();
    let file = Gguf::new(&cfg, |_| GgmlDType::Q8_0)?;
    let ids = token_ids(1, 10, cfg.vocab_size, device)?;
    let expected = run(&mut file.load(device)?, &ids, &[9, 1])?;
    let content = |file: Gguf| ggml_file::Content {
        magic: ggml_file::VersionedMagic::GgjtV3,
        hparams: ggml_file::HParams {
            n_vocab: cfg.vocab_size as u32,
            n_embd: 64,
            n_mult: 32,
            n_head: 4,
            n_layer: 2,
            n_rot: 16,
            ftype: 7,
        },
        vocab: ggml_file::Vocab {
            token_score_pairs: Vec::new(),
        },
        tensors: file
            .tensors
            .into_iter()
            .map(|(name, t)| (old_name(&name), t))
            .collect(),
        device: Device::Cpu,
    };
    let mut model = ModelWeights::from_ggml(content(file), 2)?;
    assert_close(&run(&mut model, &ids, &[9, 1])?, &expected, F32_TOLERANCE);
    let file = Gguf::new(&cfg, |_| GgmlDType::Q8_0)?;
    let error = ModelWeights::from_ggml(content(file), 3)
        .unwrap_err()
        .to_string();
    assert!(error.contains("4 heads") && error.contains('3'), "{error}");
    Ok(())
}

fn old_name(name: &str) -> String {
    let mut old = name.replace("blk.", "layers.");
    for (new, ggml) in [
        ("token_embd", "tok_embeddings"),
        ("output_norm", "norm"),
        ("attn_norm", "attention_norm"),
        ("attn_q", "attention.wq"),
        ("attn_k", "attention.wk"),
        ("attn_v", "attention.wv"),
        ("attn_output", "attention.wo"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_down", "feed_forward.w2"),
        ("ffn_up", "feed_forward.w3"),
    ] {
        old = old.replace(new, ggml);
    }
    old
}

#[test]
fn the_rows_of_neighbours() -> Result<()> {
    let rows = Tensor::arange(0u32, 8, &Device::Cpu)?.reshape((8, 1))?;
    let rows = neighbours(&rows, 4)?.flatten_all()?.to_vec1::<u32>()?;
    assert_eq!(rows, [0, 2, 1, 3, 4, 6, 5, 7]);
    Ok(())
}
