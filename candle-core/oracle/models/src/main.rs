//! Models of crates.io's `candle-transformers` 0.11.1 with weights that depend on their names alone.
//!
//! This file is built twice: in `upstream/` over crates.io's `candle-core`, in `ours/` over this repository's, which
//! `[patch.crates-io]` puts in its place. The first run writes what the models return, the second compares its own results with
//! that to 1e-4.
//!
//! ```text
//! models-upstream FOLDER            writes FOLDER/outputs.safetensors and FOLDER/llama.gguf
//! models-ours FOLDER --compare      runs the same and compares
//! ```

mod audio;
mod compare;
mod language;
mod quantized;
mod training;
mod vision;
mod weights;

use candle_core::{Result, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// A model's name and what it returns, by name.
type Run = (&'static str, fn(&Path) -> Result<Vec<Tensor>>);

const RUNS: &[Run] = &[
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
    ("quantized_llama", quantized::llama),
    (
        "quantized_llama of our own file",
        quantized::llama_written_here,
    ),
    ("losses with AdamW", training::adam_w),
    ("losses with SGD", training::sgd),
];

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let (folder, compares) = match args.as_slice() {
        [folder] => (Path::new(folder), false),
        [folder, flag] if flag == "--compare" => (Path::new(folder), true),
        _ => candle_core::bail!("usage: FOLDER [--compare]"),
    };
    let mut outputs = HashMap::new();
    for (name, run) in RUNS {
        let start = std::time::Instant::now();
        for (i, output) in run(folder)?.into_iter().enumerate() {
            outputs.insert(format!("{name}.{i}"), output.contiguous()?);
        }
        println!("{name}: {:.2} s", start.elapsed().as_secs_f64());
    }
    let file = folder.join("outputs.safetensors");
    if compares {
        return compare::with_file(&outputs, &file);
    }
    std::fs::create_dir_all(folder)?;
    candle_core::safetensors::save(&outputs, file)
}
