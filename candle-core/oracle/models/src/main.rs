//! Models of crates.io's `candle-transformers` 0.11.1 with weights that depend only on their names.
//!
//! This file is built twice: in `upstream/` with crates.io's `candle-core` and `candle-nn`, in `ours/` with this repository's, which
//! `[patch.crates-io]` substitutes. The first run writes the models' results, the others compare their own results with them: to 1e-4 on
//! the CPU, to 1e-3 on WebGPU.
//!
//! ```text
//! models-upstream FOLDER            writes FOLDER/outputs.safetensors and FOLDER/llama.gguf
//! models-ours FOLDER --compare      runs the same and compares
//! models-ours FOLDER --webgpu       runs on WebGPU what can run there, and compares
//! ```

mod audio;
mod compare;
mod language;
mod layers;
mod quantized;
mod training;
mod vision;
mod weights;

use candle_core::{bail, Device, Result, Tensor};
use std::collections::HashMap;
use std::path::Path;
use weights::Place;

/// A model's name and the function that computes its results.
type Run = (&'static str, fn(&Place) -> Result<Vec<Tensor>>);

/// Runs for every device.
const EVERYWHERE: &[Run] = &[
    ("llama", language::llama),
    ("qwen2", language::qwen2),
    ("mistral", language::mistral),
    ("phi", language::phi),
    ("bert", language::bert),
    ("t5", language::t5),
    ("clip", vision::clip),
    ("vit", vision::vit),
    ("resnet18", vision::resnet18),
    ("convnext", vision::convnext),
    ("unet", vision::unet),
    ("vae decoder", vision::vae_decoder),
    ("whisper", audio::whisper),
    ("encodec", audio::encodec),
    ("losses with AdamW", training::adam_w),
    ("losses with SGD", training::sgd),
    ("recurrent layers", layers::recurrent),
    ("norms", layers::norms),
    ("convolutions", layers::convolutions),
    ("losses", layers::losses),
    ("flash attention", layers::flash_attention),
    ("packed sequences", layers::packed_sequences),
    ("caches", layers::caches),
];

/// Runs for the CPU only: quantized tensors, and functions of slices.
const ON_CPU: &[Run] = &[
    ("interleaved caches", layers::interleaved_caches),
    ("quantized_llama", quantized::llama),
];

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let (folder, device, compares) = match args.as_slice() {
        [folder] => (Path::new(folder), Device::Cpu, false),
        [folder, "--compare"] => (Path::new(folder), Device::Cpu, true),
        [folder, "--webgpu"] => (Path::new(folder), webgpu()?, true),
        _ => bail!("usage: FOLDER [--compare | --webgpu]"),
    };
    let on_cpu = device.is_cpu();
    let place = Place { folder, device };
    let mut outputs = HashMap::new();
    let more = if on_cpu { ON_CPU } else { &[] };
    for (name, run) in EVERYWHERE.iter().chain(more) {
        let start = std::time::Instant::now();
        let results = match run(&place) {
            Ok(results) => results,
            Err(err) => bail!("{name}: {err}"),
        };
        for (i, output) in results.into_iter().enumerate() {
            let output = output.contiguous()?.to_device(&Device::Cpu)?;
            outputs.insert(format!("{name}.{i}"), output);
        }
        println!("{name}: {:.2} s", start.elapsed().as_secs_f64());
    }
    let file = folder.join("outputs.safetensors");
    if compares {
        let tolerance = if on_cpu { 1e-4 } else { 1e-3 };
        return compare::with_file(&outputs, &file, |_| tolerance, on_cpu);
    }
    std::fs::create_dir_all(folder)?;
    candle_core::safetensors::save(&outputs, file)
}

#[cfg(feature = "webgpu")]
fn webgpu() -> Result<Device> {
    Device::new_webgpu(0)
}

#[cfg(not(feature = "webgpu"))]
fn webgpu() -> Result<Device> {
    bail!("crates.io's candle-core has no WebGPU")
}
