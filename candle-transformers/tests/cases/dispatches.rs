//! How many kernels a token takes on a WebGPU device: what a decoding step of a small model is bound by.

use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Result, Tensor, D};
use candle_transformers::models::llama::{Cache, Config};

use super::gguf::Gguf;
use super::support::{tiny_config, tiny_llama};

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
    for dtype in [DType::F32, DType::F16, DType::BF16] {
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
