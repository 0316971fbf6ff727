//! A program for Hugging Face's Candle, ported: crates.io's unmodified `candle-transformers` runs its Qwen2 on WebGPU.
//!
//! ```sh
//! cargo run --manifest-path candle-core/examples/ported/Cargo.toml -- [cpu|webgpu]
//! ```
//!
//! `Cargo.before.toml` is the manifest with crates.io's packages, `Cargo.toml` the one with these. The only change in the source is the
//! requested device. To go back, remove the patch and the feature.

use candle_core::{bail, DType, Device, Result, Tensor};
use candle_nn::{Activation, VarBuilder, VarMap};
use candle_transformers::models::qwen2::{Config, ModelForCausalLM};

const PROMPT: &[u32] = &[3, 14, 15, 92, 65];
const CONFIG: Config = Config {
    vocab_size: 128,
    hidden_size: 64,
    intermediate_size: 96,
    num_hidden_layers: 2,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    max_position_embeddings: 64,
    sliding_window: 64,
    max_window_layers: 2,
    tie_word_embeddings: true,
    rope_theta: 10_000.,
    rms_norm_eps: 1e-6,
    use_sliding_window: false,
    hidden_act: Activation::Silu,
};

fn main() -> Result<()> {
    // Before: Device::cuda_if_available(0)?
    let device = match std::env::args().nth(1).as_deref() {
        None => Device::best_available()?,
        Some("cpu") => Device::Cpu,
        Some("webgpu") => Device::new_webgpu(0)?,
        Some(other) => bail!("unknown device `{other}`: give `cpu`, `webgpu` or nothing"),
    };
    // Random weights: the variables that the model requests, on the CPU.
    Device::Cpu.set_seed(42)?;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let on_cpu = ModelForCausalLM::new(&CONFIG, vb)?;
    for var in variables.all_vars() {
        var.set(&var.randn_like(0., 0.3)?)?;
    }
    let data = variables.data().lock().expect("one thread");
    let named = |(name, var): (&String, &candle_core::Var)| (name.clone(), var.as_tensor().clone());
    let weights = data.iter().map(named).collect();
    let model = ModelForCausalLM::new(
        &CONFIG,
        VarBuilder::from_tensors(weights, DType::F32, &device),
    )?;

    let want = generate(on_cpu, &Device::Cpu)?;
    let got = generate(model, &device)?;
    println!("On {device:?}, after the tokens {PROMPT:?}:\n{got:?}");
    if got != want {
        bail!("the CPU says {want:?}")
    }
    println!("The CPU says the same.");
    Ok(())
}

/// The likeliest 12 tokens.
fn generate(mut model: ModelForCausalLM, device: &Device) -> Result<Vec<u32>> {
    let mut tokens = PROMPT.to_vec();
    let mut seen = 0;
    while tokens.len() < PROMPT.len() + 12 {
        let input = Tensor::new(&tokens[seen..], device)?.unsqueeze(0)?;
        let logits = model.forward(&input, seen)?.flatten_all()?;
        seen = tokens.len();
        tokens.push(logits.argmax(0)?.to_scalar()?);
    }
    Ok(tokens[PROMPT.len()..].to_vec())
}
