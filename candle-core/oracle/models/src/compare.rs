//! Compares results with those of the other side.

use candle_core::{bail, DType, Device, Result, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// Compares every output with that of the same name in the file. `tolerance` is relative to the larger of 1 and the reference's magnitude:
/// absolute for numbers below 1, relative above. With `all` the file has no others.
pub fn with_file(
    outputs: &HashMap<String, Tensor>,
    file: &Path,
    tolerance: impl Fn(&str) -> f64,
    all: bool,
) -> Result<()> {
    let reference = candle_core::safetensors::load(file, &Device::Cpu)?;
    let mut names: Vec<_> = outputs.keys().collect();
    names.sort();
    if names.is_empty() || all && names.len() != reference.len() {
        bail!(
            "{} outputs and {} in {}",
            outputs.len(),
            reference.len(),
            file.display()
        )
    }
    let mut failures = Vec::new();
    for name in names {
        let output = &outputs[name];
        let Some(expected) = reference.get(name) else {
            bail!("no {name} in {}", file.display())
        };
        let (worst, scale) = match worst(output, expected) {
            Ok(found) => found,
            Err(err) => {
                println!("{name}: {err}");
                failures.push(name.as_str());
                continue;
            }
        };
        println!(
            "{name}: {:?}, differs by at most {worst:.1e} of {scale:.1}",
            output.dims()
        );
        // Not `worst > tolerance`, which is false for NaN. A model whose results are all near 0 tests nothing.
        if !(worst <= tolerance(name) && scale > 1e-3) {
            failures.push(name.as_str());
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    bail!(
        "further from upstream than allowed: {}",
        failures.join(", ")
    )
}

/// The largest difference, and the reference's largest magnitude.
pub fn worst(output: &Tensor, reference: &Tensor) -> Result<(f64, f64)> {
    if output.dims() != reference.dims() || output.dtype() != reference.dtype() {
        bail!("{output:?} instead of {reference:?}")
    }
    let numbers = |t: &Tensor| {
        t.to_device(&Device::Cpu)?
            .flatten_all()?
            .to_dtype(DType::F64)?
            .to_vec1::<f64>()
    };
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
