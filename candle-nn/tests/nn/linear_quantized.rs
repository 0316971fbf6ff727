//! Linear layers over quantised weights with a norm, a gate or a residual, against the plain forms with the decoded weight in f32
//! on the CPU.

use super::common::{assert_close, assert_fails, data, dtypes, layouts, reference, runs_fewer};
use super::linear::{added, gated, normed};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{test_device, DType, Device, Result, Tensor, Var};
use candle_nn::ops::{linear_with, linear_with_slow};
use std::sync::Arc;

const FORMATS: [GgmlDType; 14] = [
    GgmlDType::Q4_0,
    GgmlDType::Q4_1,
    GgmlDType::Q5_0,
    GgmlDType::Q5_1,
    GgmlDType::Q8_0,
    GgmlDType::Q8_1,
    GgmlDType::Q2K,
    GgmlDType::Q3K,
    GgmlDType::Q4K,
    GgmlDType::Q5K,
    GgmlDType::Q6K,
    GgmlDType::Q8K,
    GgmlDType::F16,
    GgmlDType::F32,
];

/// The float dtypes with a tolerance for sums of about the size of the input, which all devices bring to 8 bits. `linear_blocks.rs` has
/// the products in f32.
fn float_dtypes(dev: &Device) -> impl Iterator<Item = (DType, f64)> {
    let dtypes = dtypes(dev).into_iter().filter(|(d, _)| *d != DType::F64);
    dtypes.map(|(dtype, tolerance)| (dtype, tolerance.max(6e-3)))
}

/// A weight `(n, k)` under which sums stay about as large as the input: on `dev`, and what it decodes to.
fn weight(n: usize, k: usize, format: GgmlDType, dev: &Device) -> Result<(QMatMul, Tensor)> {
    let scale = 1. / (k as f64).sqrt();
    let floats = (data(&[n, k], DType::F32, &Device::Cpu)? * scale)?;
    let decoded = QTensor::quantize(&floats, format)?.dequantize(&Device::Cpu)?;
    let weight = QTensor::quantize_onto(&floats, format, dev)?;
    Ok((QMatMul::QTensor(Arc::new(weight)), decoded))
}

/// Three times the usual size, so that what a norm does shows.
fn large(xs: Tensor) -> Result<Tensor> {
    xs.affine(3., 0.)
}

/// Each of the three layers for an input `xs (.., k)` and a residual `(.., 2 n)`.
fn check_all(
    case: &str,
    [xs, alpha, residual]: [&Tensor; 3],
    (weight, decoded): &(QMatMul, Tensor),
    tolerance: f64,
) -> Result<()> {
    let [rx, ra, rr] = [reference(xs)?, reference(alpha)?, reference(residual)?];
    let got = linear_with(xs, weight, normed(alpha))?;
    let expected = linear_with_slow(&rx, decoded, normed(&ra))?;
    assert_eq!(got.dtype(), xs.dtype());
    assert_close(&format!("norm, {case}"), &got, &expected, 8. * tolerance);
    let got = linear_with(xs, weight, gated(alpha))?;
    let expected = linear_with_slow(&rx, decoded, gated(&ra))?;
    assert_close(&format!("gated, {case}"), &got, &expected, 32. * tolerance);
    let got = linear_with(xs, weight, added(residual))?;
    let expected = linear_with_slow(&rx, decoded, added(&rr))?;
    assert_eq!(got.dtype(), xs.dtype());
    assert_close(
        &format!("residual, {case}"),
        &got,
        &expected,
        24. * tolerance,
    );
    Ok(())
}

fn of_every_format(dev: &Device) -> Result<()> {
    for (i, format) in FORMATS.into_iter().enumerate() {
        // Halves of an odd size, whose rows share words of 16-bit results.
        let (n, k) = (35, 512);
        let weight = weight(2 * n, k, format, dev)?;
        for (j, (dtype, tolerance)) in float_dtypes(dev).enumerate() {
            // Each format gets one of the dtypes, in rotation.
            if runs_fewer(dev) && (i + j) % 3 != 0 {
                continue;
            }
            let alpha = data(&[k], dtype, dev)?;
            // One row, and row counts around the 8 that a kernel takes; one count per case, in rotation, because a software adapter
            // compiles a kernel for about a second.
            let rows = [1, 2, 8, 9][(i + j) % 4];
            let case = format!("{format:?} {dtype:?} {rows} rows");
            let xs = large(data(&[1, rows, k], dtype, dev)?)?;
            let residual = data(&[1, rows, 2 * n], dtype, dev)?;
            check_all(&case, [&xs, &alpha, &residual], &weight, tolerance)?;
        }
    }
    Ok(())
}

/// All layouts of all three arguments, for row counts around 4 and 8, where kernels change.
pub(super) fn of_every_layout(dev: &Device) -> Result<()> {
    let formats = [
        (GgmlDType::Q4_0, [1, 5]),
        (GgmlDType::Q5K, [4, 9]),
        (GgmlDType::Q6K, [5, 9]),
    ];
    for ((format, numbers), (dtype, tolerance)) in formats.into_iter().zip(float_dtypes(dev)) {
        let (n, k) = (32, 256);
        let weight = weight(2 * n, k, format, dev)?;
        for rows in numbers {
            let inputs = layouts(&[2, rows, k], dtype, dev)?;
            let residuals = layouts(&[2, rows, 2 * n], dtype, dev)?;
            // Offsets that are a multiple of 8 and that are not.
            let alphas = [0, 8, 3].map(|at| data(&[k + 8], dtype, dev)?.narrow(0, at, k));
            for (i, (layout, xs)) in inputs.into_iter().enumerate() {
                let alpha = alphas[i % 3].as_ref().expect("a part of a vector");
                let (other, residual) = &residuals[(i + 1) % residuals.len()];
                let case = format!("{format:?} {dtype:?} {rows} rows, {layout}, {other}");
                check_all(&case, [&large(xs)?, alpha, residual], &weight, tolerance)?;
            }
            // Parts of longer rows, which are read where they lie.
            let part = data(&[2, rows, 2 * k], dtype, dev)?.narrow(2, 16, k)?;
            let residual = data(&[2, rows, 3 * n], dtype, dev)?.narrow(2, 1, 2 * n)?;
            let alpha = data(&[k], dtype, dev)?;
            let case = format!("{format:?} {dtype:?} {rows} rows, parts");
            check_all(&case, [&part, &alpha, &residual], &weight, tolerance)?;
        }
    }
    Ok(())
}

/// Enough columns for four at a time, and an inner dimension that an adapter cuts into parts.
pub(super) fn of_large_weights(dev: &Device) -> Result<()> {
    let weights = [(4100, 64, [2, 20]), (20, 4096, [1, 20])];
    for ((n, k, rows), (dtype, tolerance)) in weights.into_iter().zip(float_dtypes(dev)) {
        let weight = weight(2 * n, k, GgmlDType::Q8_0, dev)?;
        let alpha = data(&[k], dtype, dev)?;
        for rows in rows {
            let xs = data(&[rows, k], dtype, dev)?;
            let residual = data(&[rows, 2 * n], dtype, dev)?;
            let case = format!("{dtype:?} {rows} x {k} by {n}");
            check_all(&case, [&xs, &alpha, &residual], &weight, tolerance)?;
        }
    }
    Ok(())
}

/// A weight in any form, zero rows, and arguments that do not fit.
fn other_arguments(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, alpha, residual) = (of(&[2, 64])?, of(&[64])?, of(&[2, 6])?);
    let (quantized, decoded) = weight(6, 64, GgmlDType::Q5_0, dev)?;
    let forms = [
        QMatMul::Tensor(decoded.to_device(dev)?),
        QMatMul::TensorF16(quantized.dequantize_f16()?),
    ];
    for form in forms {
        let case = format!("{form:?}");
        let weight = (form, decoded.clone());
        check_all(&case, [&xs, &alpha, &residual], &weight, 1e-3)?;
    }
    let none = of(&[2, 0, 64])?;
    let got = linear_with(&none, &quantized, normed(&alpha))?;
    assert_eq!(got.dims(), &[2, 0, 6]);
    let got = linear_with(&none, &quantized, gated(&alpha))?;
    assert_eq!(got.dims(), &[2, 0, 3]);
    let got = linear_with(&none, &quantized, added(&of(&[2, 0, 6])?))?;
    assert_eq!(got.dims(), &[2, 0, 6]);

    let result = linear_with(&of(&[2, 32])?, &quantized, normed(&alpha));
    assert_fails(result, &["rms-norm-linear", "[2, 32]", "[6, 64]"]);
    let result = linear_with(&xs, &quantized, added(&of(&[2, 5])?));
    assert_fails(result, &["linear-add", "[2, 5]"]);
    let result = linear_with(&xs, &quantized, added(&residual.to_dtype(DType::F16)?));
    assert_fails(result, &["F32", "F16"]);
    let (odd, _) = weight(5, 64, GgmlDType::Q4_0, dev)?;
    let result = linear_with(&xs, &odd, gated(&alpha));
    assert_fails(result, &["swiglu", "5 rows"]);
    Ok(())
}

/// The weight has no gradient, the layers before it do.
fn gradients_flow(dev: &Device) -> Result<()> {
    let (quantized, decoded) = weight(6, 64, GgmlDType::Q8_0, dev)?;
    let xs = Var::from_tensor(&data(&[2, 64], DType::F32, dev)?)?;
    let residual = data(&[2, 6], DType::F32, dev)?;
    let sum = linear_with(&xs, &quantized, added(&residual))?.sum_all()?;
    let gradients = sum.backward()?;
    let got = gradients.get(&xs).expect("a gradient");
    let expected = decoded.sum_keepdim(0)?.broadcast_as((2, 64))?;
    assert_close("gradient", got, &expected, 1e-5);
    Ok(())
}

test_device!(of_every_format);
test_device!(of_every_layout);
test_device!(of_large_weights);
test_device!(other_arguments);
test_device!(gradients_flow);

candle_core::with_webgpu! {
    /// Weights of which a binding holds only some rows: each part adds its residuals, and the gate is a separate kernel.
    #[test]
    fn beyond_a_binding_webgpu() -> Result<()> {
        use candle_core::webgpu_backend::Options;
        let options = Options {
            max_binding: Some(256 << 10),
            ..Options::default()
        };
        let dev = Device::WebGpu(candle_core::WebGpuDevice::with_options(0, &options)?);
        let (n, k) = (1050, 512);
        for format in [GgmlDType::Q5_0, GgmlDType::Q6K] {
            let weight = weight(2 * n, k, format, &dev)?;
            for (dtype, tolerance) in float_dtypes(&dev) {
                let alpha = data(&[k], dtype, &dev)?;
                for rows in [2, 9] {
                    let xs = data(&[rows, k], dtype, &dev)?;
                    let residual = data(&[rows, 2 * n + 1], dtype, &dev)?.narrow(1, 1, 2 * n)?;
                    let case = format!("{format:?} {dtype:?} {rows} rows");
                    check_all(&case, [&xs, &alpha, &residual], &weight, tolerance)?;
                }
            }
        }
        Ok(())
    }
}

candle_core::with_webgpu! {
    /// The weight is where the input is.
    #[test]
    fn on_two_devices_webgpu() -> Result<()> {
        let dev = Device::new_webgpu(0)?;
        let (here, _) = weight(6, 64, GgmlDType::Q4_0, &Device::Cpu)?;
        let (there, _) = weight(6, 64, GgmlDType::Q4_0, &dev)?;
        for (weight, dev) in [(here, dev), (there, Device::Cpu)] {
            let xs = data(&[2, 64], DType::F32, &dev)?;
            let result = linear_with(&xs, &weight, added(&data(&[2, 6], DType::F32, &dev)?));
            assert_fails(result, &["same device", "Cpu", "WebGpu"]);
        }
        Ok(())
    }
}
