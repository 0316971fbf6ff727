//! Results held against those of the other side.

use candle_core::{bail, DType, Device, Result, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// Of the larger of 1 and the reference's magnitude: absolute for numbers below 1, relative above.
const TOLERANCE: f64 = 1e-4;

/// Compares every output with that of the same name in the file.
pub fn with_file(outputs: &HashMap<String, Tensor>, file: &Path) -> Result<()> {
    let reference = candle_core::safetensors::load(file, &Device::Cpu)?;
    let mut names: Vec<_> = reference.keys().collect();
    names.sort();
    if names.is_empty() || names.len() != outputs.len() {
        bail!(
            "{} outputs and {} in {}",
            outputs.len(),
            names.len(),
            file.display()
        )
    }
    let mut failures = Vec::new();
    for name in names {
        let Some(output) = outputs.get(name) else {
            bail!("no output {name}")
        };
        let (worst, scale) = worst(output, &reference[name])?;
        println!(
            "{name}: {:?}, differs by at most {worst:.1e} of {scale:.1}",
            output.dims()
        );
        // Not `worst > TOLERANCE`, which is false for NaN. A model whose results are all near 0 tests nothing.
        if !(worst <= TOLERANCE && scale > 1e-3) {
            failures.push(name.as_str());
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    bail!(
        "further than {TOLERANCE} from upstream: {}",
        failures.join(", ")
    )
}

/// The largest difference, and the reference's largest magnitude.
fn worst(output: &Tensor, reference: &Tensor) -> Result<(f64, f64)> {
    if output.dims() != reference.dims() || output.dtype() != reference.dtype() {
        bail!("{output:?} instead of {reference:?}")
    }
    let numbers = |t: &Tensor| t.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
    let (mut worst, mut scale) = (0f64, 0f64);
    for (ours, theirs) in numbers(output)?.into_iter().zip(numbers(reference)?) {
        let difference = (ours - theirs).abs() / theirs.abs().max(1.);
        if difference.is_nan() {
            return Ok((f64::NAN, scale));
        }
        worst = worst.max(difference);
        scale = scale.max(theirs.abs());
    }
    Ok((worst, scale))
}
