//! Number of kernels per token on a WebGPU device, which limits the speed of a small model's decoding step.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::ops::GatedActivation;
use candle_transformers::blocks::{Projection, Routing, SparseMoe};
use candle_transformers::models::llama::{Cache, Config};

use super::gguf::Gguf;
use super::support::{assert_close, runs_fewer, tiny_config, tiny_llama, Numbers};

/// The demo model's shape.
fn config() -> Config {
    Config {
        hidden_size: 256,
        intermediate_size: 768,
        vocab_size: 4096,
        num_hidden_layers: 6,
        max_position_embeddings: 300,
        tie_word_embeddings: true,
        ..tiny_config()
    }
}

/// Dispatches of a token, from its id to the next one on the host.
fn step(device: &Device, forward: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<u64> {
    let dispatches = || device.as_webgpu_device().map(|d| d.stats().dispatches);
    let input = Tensor::new(&[[7u32]], device)?;
    let before = dispatches()?;
    let logits = forward(&input)?;
    logits.squeeze(0)?.argmax(D::Minus1)?.to_scalar::<u32>()?;
    Ok(dispatches()? - before)
}

#[test]
fn of_a_token_webgpu() -> Result<()> {
    // A separate device: tests that run in parallel count on others.
    let device = Device::new_webgpu(0)?;
    let cfg = config();
    let dtypes = [DType::F16, DType::F32, DType::BF16];
    for &dtype in &dtypes[..if runs_fewer(&device) { 1 } else { 3 }] {
        let model = tiny_llama(&cfg, dtype, &device)?;
        let mut cache = Cache::new(true, dtype, &cfg, &device)?;
        step(&device, |id| model.forward(id, 0, &mut cache))?;
        // In a layer: queries, keys and values; rotation; attention; its output; gate and up; down. Around them: the token's
        // vector; the logits, and those in f32; the greatest.
        let conversion = u64::from(dtype != DType::F32);
        let found = step(&device, |id| model.forward(id, 1, &mut cache))?;
        assert_eq!(found, 6 * 6 + 3 + conversion, "{dtype:?}");
        // Past a workgroup's share of keys attention takes two.
        let prompt = Tensor::zeros((1, 200), DType::U32, &device)?;
        model.forward(&prompt, 2, &mut cache)?;
        let found = step(&device, |id| model.forward(id, 202, &mut cache))?;
        assert!(found <= 7 * 6 + 3 + conversion, "{dtype:?}: {found}");
    }
    Ok(())
}

/// Quantised weights take no more than dense ones.
#[test]
fn of_a_token_with_quantised_weights_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    for format in [GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4K] {
        let mut model = Gguf::new(&config(), |_| format)?.load(&device)?;
        step(&device, |id| model.forward(id, 0))?;
        let found = step(&device, |id| model.forward(id, 1))?;
        assert_eq!(found, 6 * 6 + 3, "{format:?}");
    }
    Ok(())
}

/// A step through experts does not wait: reading back a router's choice would take a submission for each of the three products, in addition
/// to those of full lists of kernels.
#[test]
fn experts_of_a_token_webgpu() -> Result<()> {
    let device = Device::new_webgpu(0)?;
    let submits = || device.as_webgpu_device().map(|d| d.stats().submits);
    for format in [None, Some(GgmlDType::F32), Some(GgmlDType::Q4_0), Some(GgmlDType::Q4K)] {
        let mut numbers = Numbers::new(3);
        let mut on_both = |shape: &[usize]| -> Result<[QMatMul; 2]> {
            let dense = numbers.tensor(shape, 0.3, &Device::Cpu)?;
            let on = |device: &Device| match format {
                None => Ok(QMatMul::Tensor(dense.to_device(device)?)),
                Some(format) => {
                    QMatMul::from_qtensor(QTensor::quantize_onto(&dense, format, device)?)
                }
            };
            Ok([on(&Device::Cpu)?, on(&device)?])
        };
        let [router, here] = on_both(&[6, 256])?;
        let [gate, gate_here] = on_both(&[6, 256, 256])?;
        let [up, up_here] = on_both(&[6, 256, 256])?;
        let [down, down_here] = on_both(&[6, 256, 256])?;
        let moe = |router, experts| {
            let (router, silu) = (Projection::new(router, None), GatedActivation::Silu);
            SparseMoe::new(router, experts, silu, Routing::softmax(2, true))
        };
        let on_cpu = moe(router, [gate, up, down])?;
        let moe = moe(here, [gate_here, up_here, down_here])?;
        let xs = Numbers::new(9).tensor(&[2, 1, 256], 1., &Device::Cpu)?;
        let here = xs.to_device(&device)?;
        moe.forward(&here)?.to_device(&Device::Cpu)?;
        let before = submits()?;
        let ys = moe.forward(&here)?;
        let found = submits()? - before;
        assert!(found <= 1, "{format:?}: {found} submissions");
        // Blocks are multiplied by activations of 8 bits on the CPU.
        let tolerance = if format.is_some_and(|f| f != GgmlDType::F32) { 0.03 } else { 1e-5 };
        assert_close(&ys, &on_cpu.forward(&xs)?, tolerance);
    }
    Ok(())
}
