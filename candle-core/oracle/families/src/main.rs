//! Our model families held against those of crates.io's `candle-transformers` 0.11.1, with weights that depend on their names alone.
//!
//! This file is built twice: in `upstream/` over crates.io's three crates, in `ours/` over this repository's. The first run writes what
//! the models return, the others compare their own results with that: to 1e-4 on the CPU, to 1e-3 on WebGPU.
//!
//! ```text
//! families-upstream FOLDER                   writes what they return into FOLDER
//! families-ours FOLDER --compare [NAME]      runs the same and compares; with a name, only runs whose names contain it
//! families-ours FOLDER --webgpu [NAME]       as well, on WebGPU
//! ```

mod common;
#[path = "../../models/src/compare.rs"]
mod compare;
mod dense;
mod encoders;
mod experts;
mod gemma;
mod gguf;
mod lfm2;
mod llamas;
mod qwen;
mod recurrent;
mod segment_anything;
mod seq2seq;
mod speech;
mod stella;
mod vision;
mod vision_convs;
mod vision_transformers;
#[path = "../../models/src/weights.rs"]
mod weights;

use candle_core::{bail, Device, Result, Tensor};
use std::collections::HashMap;
use std::path::Path;
use weights::Place;

/// A model's name and what it returns.
type Run = (&'static str, fn(&Place) -> Result<Vec<Tensor>>);

const RUNS: &[&[Run]] = &[
    dense::RUNS,
    encoders::RUNS,
    experts::RUNS,
    gemma::RUNS,
    gguf::RUNS,
    lfm2::RUNS,
    llamas::RUNS,
    qwen::RUNS,
    recurrent::RUNS,
    segment_anything::RUNS,
    seq2seq::RUNS,
    speech::RUNS,
    stella::RUNS,
    vision::RUNS,
    vision_convs::RUNS,
    vision_transformers::RUNS,
];

fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let (folder, how, only) = match args.as_slice() {
        [folder] => (*folder, None, ""),
        [folder, how] => (*folder, Some(*how), ""),
        [folder, how, only] => (*folder, Some(*how), *only),
        _ => bail!("usage: FOLDER [--compare | --webgpu] [NAME]"),
    };
    let folder = Path::new(folder);
    let device = match how {
        None | Some("--compare") => Device::Cpu,
        Some("--webgpu") => webgpu()?,
        Some(other) => bail!("{other} is not --compare or --webgpu"),
    };
    std::fs::create_dir_all(folder)?;
    let on_cpu = device.is_cpu();
    let place = Place { folder, device };
    if how.is_some() {
        let outputs = outputs(&place, only)?;
        let (file, tolerance) = match on_cpu {
            true => (OUTPUTS, 1e-4),
            false => (OF_DENSE_PRODUCTS, 1e-3),
        };
        return compare::with_file(&outputs, &folder.join(file), tolerance, only.is_empty());
    }
    candle_core::safetensors::save(&outputs(&place, only)?, folder.join(OUTPUTS))?;
    // It is read once by each thread.
    std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1");
    let dense = std::thread::scope(|scope| scope.spawn(|| outputs(&place, only)).join());
    let Ok(dense) = dense else {
        bail!("the models of dense products panicked")
    };
    candle_core::safetensors::save(&dense?, folder.join(OF_DENSE_PRODUCTS))
}

/// What the models return.
const OUTPUTS: &str = "outputs.safetensors";
/// What they return if quantised weights are made dense: on the CPU, products with blocks round activations to 8 bits, which a GPU does
/// not.
const OF_DENSE_PRODUCTS: &str = "dense.safetensors";

fn outputs(place: &Place, only: &str) -> Result<HashMap<String, Tensor>> {
    let mut outputs = HashMap::new();
    let runs = RUNS.iter().flat_map(|runs| runs.iter());
    for (name, run) in runs.filter(|(name, _)| name.contains(only)) {
        let start = std::time::Instant::now();
        let results = match run(place) {
            Ok(results) => results,
            Err(err) => bail!("{name}: {err}"),
        };
        for (i, output) in results.into_iter().enumerate() {
            let output = output.contiguous()?.to_device(&Device::Cpu)?;
            outputs.insert(format!("{name}.{i}"), output);
        }
        println!("{name}: {:.2} s", start.elapsed().as_secs_f64());
    }
    Ok(outputs)
}

#[cfg(feature = "webgpu")]
fn webgpu() -> Result<Device> {
    Device::new_webgpu(0)
}

#[cfg(not(feature = "webgpu"))]
fn webgpu() -> Result<Device> {
    bail!("crates.io's candle-core has no WebGPU")
}
