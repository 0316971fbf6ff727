//! Compares our model families with those of crates.io's `candle-transformers` 0.11.1, with weights that depend only on their names.
//!
//! This file is built twice: in `upstream/` with crates.io's three crates, in `ours/` with this repository's. The first run writes the
//! models' results, the others compare their own results with them: to 1e-4 on the CPU, to 1e-3 on WebGPU, and to 3e-3 if GELU has another
//! form. If an adapter rounds activations to 8 bits for quantised weights, its results differ from those of dense products by at most twice
//! the difference of upstream's, which rounds as well.
//!
//! ```text
//! families-upstream FOLDER                   writes what they return into FOLDER
//! families-ours FOLDER --compare [NAME]      runs the same and compares; with a name, only runs whose names contain it
//! families-ours FOLDER --webgpu [NAME]       as well, on WebGPU
//! ```

mod codecs;
mod common;
#[path = "../../models/src/compare.rs"]
mod compare;
mod csm;
mod dense;
mod diffusion;
mod encoders;
mod experts;
mod flux;
mod gemma;
mod gguf;
mod lfm2;
mod llamas;
mod mimi;
mod mmdit;
mod multimodal;
mod qwen;
mod recurrent;
mod segment_anything;
mod seq2seq;
mod speech;
mod stella;
mod tts;
mod vision;
mod vision_convs;
mod vision_language;
mod vision_transformers;
#[path = "../../models/src/weights.rs"]
mod weights;
mod wuerstchen;
mod z_image;

use candle_core::{bail, Device, Result, Tensor};
use std::collections::HashMap;
use std::path::Path;
use weights::Place;

/// A model's name and the function that computes its results.
type Run = (&'static str, fn(&Place) -> Result<Vec<Tensor>>);

const RUNS: &[&[Run]] = &[
    codecs::RUNS,
    csm::RUNS,
    dense::RUNS,
    diffusion::RUNS,
    encoders::RUNS,
    experts::RUNS,
    flux::RUNS,
    gemma::RUNS,
    gguf::RUNS,
    lfm2::RUNS,
    llamas::RUNS,
    mimi::RUNS,
    mmdit::RUNS,
    multimodal::RUNS,
    qwen::RUNS,
    recurrent::RUNS,
    segment_anything::RUNS,
    seq2seq::RUNS,
    speech::RUNS,
    stella::RUNS,
    tts::RUNS,
    vision::RUNS,
    vision_convs::RUNS,
    vision_language::RUNS,
    vision_transformers::RUNS,
    wuerstchen::RUNS,
    z_image::RUNS,
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
    std::fs::create_dir_all(folder)?;
    let place = |device| Place { folder, device };
    match how {
        None => write(&place(Device::Cpu), only),
        Some("--compare") => {
            let outputs = outputs(&place(Device::Cpu), |name| name.contains(only))?;
            let tolerance = |name: &str| if has_exact_gelu(name) { 3e-3 } else { 1e-4 };
            compare::with_file(&outputs, &folder.join(OUTPUTS), tolerance, only.is_empty())
        }
        Some("--webgpu") => {
            let exact = outputs(&place(webgpu("-int8")?), |name| name.contains(only))?;
            compare::with_file(
                &exact,
                &folder.join(OF_DENSE_PRODUCTS),
                |name| if has_exact_gelu(name) { 3e-3 } else { 1e-3 },
                only.is_empty(),
            )?;
            let quantized = |name: &str| name.starts_with("quantized") && name.contains(only);
            rounded_as_well(&outputs(&place(webgpu("")?), quantized)?, folder)
        }
        Some(other) => bail!("{other} is not --compare or --webgpu"),
    }
}

/// Models of images that use their authors' exact GELU here, and its tanh form upstream; DINOv2's norms have its authors' eps too.
fn has_exact_gelu(name: &str) -> bool {
    let families = [
        "beit",
        "depth_anything",
        "dinov2",
        "sam_tiny_vit",
        "stable_diffusion_parts",
        "unet_2d",
    ];
    families.iter().any(|family| name.starts_with(family))
}

fn write(place: &Place, only: &str) -> Result<()> {
    let wanted = |name: &str| name.contains(only);
    candle_core::safetensors::save(&outputs(place, wanted)?, place.folder.join(OUTPUTS))?;
    place.keep_names()?;
    // Each thread reads it once.
    std::env::set_var("CANDLE_DEQUANTIZE_ALL", "1");
    let dense = std::thread::scope(|scope| scope.spawn(|| outputs(place, wanted)).join());
    let Ok(dense) = dense else {
        bail!("the models of dense products panicked")
    };
    candle_core::safetensors::save(&dense?, place.folder.join(OF_DENSE_PRODUCTS))
}

/// Fails if an output differs from that of dense products by more than twice upstream's difference, and by more than 1e-3.
fn rounded_as_well(outputs: &HashMap<String, Tensor>, folder: &Path) -> Result<()> {
    let read = |file| candle_core::safetensors::load(folder.join(file), &Device::Cpu);
    let (rounded, dense) = (read(OUTPUTS)?, read(OF_DENSE_PRODUCTS)?);
    let mut further = Vec::new();
    let mut names: Vec<_> = outputs.keys().collect();
    names.sort();
    for name in names {
        let (Some(rounded), Some(dense)) = (rounded.get(name), dense.get(name)) else {
            bail!("no {name} in {}", folder.display())
        };
        let (ours, _) = compare::worst(&outputs[name], dense)?;
        let (theirs, _) = compare::worst(rounded, dense)?;
        println!("{name}: {ours:.1e} from dense products, upstream {theirs:.1e}");
        // Not `ours > …`, which is false for NaN.
        if !(ours <= f64::max(2. * theirs, 1e-3)) {
            further.push(name.as_str());
        }
    }
    if further.is_empty() {
        Ok(())
    } else {
        bail!(
            "further from dense products than twice upstream's: {}",
            further.join(", ")
        )
    }
}

/// The models' results.
const OUTPUTS: &str = "outputs.safetensors";
/// The results with dequantised weights: on the CPU, products with blocks round activations to 8 bits.
const OF_DENSE_PRODUCTS: &str = "dense.safetensors";

fn outputs(place: &Place, wanted: impl Fn(&str) -> bool) -> Result<HashMap<String, Tensor>> {
    let mut outputs = HashMap::new();
    let runs = RUNS.iter().flat_map(|runs| runs.iter());
    for (name, run) in runs.filter(|(name, _)| wanted(name)) {
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
fn webgpu(without: &str) -> Result<Device> {
    let options = candle_core::webgpu_backend::Options {
        without: without.into(),
        ..Default::default()
    };
    candle_core::WebGpuDevice::with_options(0, &options).map(Device::WebGpu)
}

#[cfg(not(feature = "webgpu"))]
fn webgpu(_: &str) -> Result<Device> {
    bail!("crates.io's candle-core has no WebGPU")
}
