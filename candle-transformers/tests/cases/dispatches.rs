//! How many kernels a token takes on a WebGPU device: what a decoding step of a small model is bound by.

use candle_core::{DType, Device, Result, Tensor, D};
use candle_transformers::models::llama::{Cache, Config, Llama};

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

/// Dispatches of a token at `position`, from its id to the next one on the host.
fn step(model: &Llama, cache: &mut Cache, position: usize, device: &Device) -> Result<u64> {
    let dispatches = || device.as_webgpu_device().map(|d| d.stats().dispatches);
    let input = Tensor::new(&[[7u32]], device)?;
    let before = dispatches()?;
    let logits = model.forward(&input, position, cache)?;
    logits.squeeze(0)?.argmax(D::Minus1)?.to_scalar::<u32>()?;
    Ok(dispatches()? - before)
}

#[test]
fn of_a_token_webgpu() -> Result<()> {
    // A device of its own: others are counted on by tests that run beside this one.
    let device = Device::new_webgpu(0)?;
    let cfg = config();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let model = tiny_llama(&cfg, dtype, &device)?;
        let mut cache = Cache::new(true, dtype, &cfg, &device)?;
        step(&model, &mut cache, 0, &device)?;
        // In a layer: queries, keys and values; rotation; attention; its output; gate and up; down. Around them: the token's
        // vector; the logits, and those in f32; the greatest.
        let conversion = u64::from(dtype != DType::F32);
        let found = step(&model, &mut cache, 1, &device)?;
        assert_eq!(found, 6 * 6 + 3 + conversion, "{dtype:?}");
        // Past a workgroup's share of keys attention takes two.
        let prompt = Tensor::zeros((1, 200), DType::U32, &device)?;
        model.forward(&prompt, 2, &mut cache)?;
        let found = step(&model, &mut cache, 202, &device)?;
        assert!(found <= 7 * 6 + 3 + conversion, "{dtype:?}: {found}");
    }
    Ok(())
}
