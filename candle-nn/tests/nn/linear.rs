//! Linear layers with a norm, a gate or a residual, against their plain forms in f32 on the CPU.

use super::common::{assert_close, assert_fails, data, dtypes, layouts, reference, Cases};
use candle_core::{test_device, DType, Device, Result, Tensor};
use candle_nn::ops::{linear_with, linear_with_slow, GatedActivation, LinearExtras};

/// With an RMS norm of the input.
pub(super) fn normed(alpha: &Tensor) -> LinearExtras<'_> {
    LinearExtras {
        norm: Some((alpha, 1e-5)),
        ..LinearExtras::default()
    }
}

/// With an RMS norm of the input and a SwiGLU of the product.
pub(super) fn gated(alpha: &Tensor) -> LinearExtras<'_> {
    LinearExtras {
        gate: Some(GatedActivation::Silu),
        ..normed(alpha)
    }
}

/// With a residual sum.
pub(super) fn added(residual: &Tensor) -> LinearExtras<'_> {
    LinearExtras {
        residual: Some(residual),
        ..LinearExtras::default()
    }
}

/// (n, k) of the weight: odd, within a word, around a workgroup's tile.
const WEIGHTS: [[usize; 2]; 6] = [[2, 1], [6, 8], [5, 33], [64, 64], [10, 520], [66, 1040]];

/// A weight under which sums stay about as large as the input.
fn weight(dims: &[usize], dtype: DType, dev: &Device) -> Result<Tensor> {
    let scale = 1. / (dims[1] as f64).sqrt();
    (data(dims, DType::F32, dev)? * scale)?.to_dtype(dtype)
}

pub(super) fn with_norm(dev: &Device) -> Result<()> {
    let mut taken = Cases::new(dev, 5);
    for (dtype, tolerance) in dtypes(dev) {
        for [n, k] in WEIGHTS {
            // Row counts around 4 and 8, where kernels change.
            for rows in [1, 2, 4, 5, 9, 65] {
                let alpha = data(&[k], dtype, dev)?;
                let w = weight(&[2 * n, k], dtype, dev)?;
                for (layout, xs) in layouts(&[1, rows, k], dtype, dev)? {
                    if !taken.takes_next() {
                        continue;
                    }
                    let case = format!("{dtype:?} {rows} x {k} by {n}, {layout}");
                    let [rx, ra, rw] = [reference(&xs)?, reference(&alpha)?, reference(&w)?];
                    let got = linear_with(&xs, &w, normed(&alpha))?;
                    let expected = linear_with_slow(&rx, &rw, normed(&ra))?;
                    assert_eq!(got.dtype(), dtype);
                    // Up to three roundings: the norm's and the product's, of numbers up to ten times the result.
                    assert_close(&case, &got, &expected, 8. * tolerance);
                    let got = linear_with(&xs, &w, gated(&alpha))?;
                    let expected = linear_with_slow(&rx, &rw, gated(&ra))?;
                    assert_close(&format!("gated {case}"), &got, &expected, 32. * tolerance);
                }
            }
        }
    }
    Ok(())
}

pub(super) fn with_residual(dev: &Device) -> Result<()> {
    let mut taken = Cases::new(dev, 5);
    for (dtype, tolerance) in dtypes(dev) {
        for [n, k] in WEIGHTS {
            for dims in [[1, 1], [1, 8], [3, 3], [2, 33]] {
                let w = weight(&[n, k], dtype, dev)?;
                let xs = data(&[dims[0], dims[1], k], dtype, dev)?;
                for (layout, residual) in layouts(&[dims[0], dims[1], n], dtype, dev)? {
                    if !taken.takes_next() {
                        continue;
                    }
                    let case = format!("{dtype:?} {dims:?} x {k} by {n}, {layout}");
                    let got = linear_with(&xs, &w, added(&residual))?;
                    let [rx, rw, rr] = [reference(&xs)?, reference(&w)?, reference(&residual)?];
                    let expected = linear_with_slow(&rx, &rw, added(&rr))?;
                    assert_eq!(got.dtype(), dtype);
                    assert_close(&case, &got, &expected, 8. * tolerance);
                }
            }
        }
    }
    Ok(())
}

/// Enough products in a row that an adapter splits the inner dimension.
pub(super) fn long_inner_dimension(dev: &Device) -> Result<()> {
    for (dtype, tolerance) in dtypes(dev) {
        for (rows, n, k) in [(9, 18, 2048), (33, 7, 3000), (20, 66, 1100)] {
            let w = weight(&[n, k], dtype, dev)?;
            let xs = data(&[rows, k], dtype, dev)?;
            let residual = data(&[rows, n], dtype, dev)?;
            let got = linear_with(&xs, &w, added(&residual))?;
            let [rx, rw, rr] = [reference(&xs)?, reference(&w)?, reference(&residual)?];
            let expected = linear_with_slow(&rx, &rw, added(&rr))?;
            assert_close(&format!("{dtype:?} {k}"), &got, &expected, 8. * tolerance);
            let got = xs.matmul(&w.t()?)?;
            let expected = rx.matmul(&rw.t()?)?;
            assert_close(&format!("{dtype:?} {k}"), &got, &expected, 8. * tolerance);
        }
    }
    Ok(())
}

fn of_nothing(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (alpha, w) = (of(&[4])?, of(&[6, 4])?);
    let none = of(&[2, 0, 4])?;
    assert_eq!(linear_with(&none, &w, normed(&alpha))?.dims(), &[2, 0, 6]);
    assert_eq!(linear_with(&none, &w, gated(&alpha))?.dims(), &[2, 0, 3]);
    let residual = of(&[2, 0, 6])?;
    assert_eq!(linear_with(&none, &w, added(&residual))?.dims(), &[2, 0, 6]);
    Ok(())
}

fn wrong_shapes(dev: &Device) -> Result<()> {
    let of = |dims: &[usize]| data(dims, DType::F32, dev);
    let (xs, alpha, w) = (of(&[2, 4])?, of(&[4])?, of(&[5, 4])?);
    let result = linear_with(&xs, &w, normed(&of(&[5])?));
    assert_fails(result, &["rms-norm-linear", "[2, 4]", "[5]"]);
    let result = linear_with(&xs, &of(&[5, 3])?, normed(&alpha));
    assert_fails(result, &["rms-norm-linear", "[5, 3]"]);
    assert_fails(linear_with(&xs, &w, gated(&alpha)), &["swiglu", "5 rows"]);
    let result = linear_with(&xs, &w, added(&of(&[2, 4])?));
    assert_fails(result, &["linear-add", "[2, 4]"]);
    let half = w.to_dtype(DType::F16)?;
    assert_fails(
        linear_with(&xs, &half, added(&of(&[2, 5])?)),
        &["F32", "F16"],
    );
    Ok(())
}

fn gradients_flow(dev: &Device) -> Result<()> {
    let w = candle_core::Var::from_tensor(&data(&[3, 4], DType::F32, dev)?)?;
    let (xs, alpha) = (
        data(&[2, 4], DType::F32, dev)?,
        data(&[4], DType::F32, dev)?,
    );
    let fused = linear_with(&xs, &w, normed(&alpha))?;
    let gradients = fused.sum_all()?.backward()?;
    assert!(gradients.get(&w).is_some());
    Ok(())
}

test_device!(with_norm);
test_device!(with_residual);
test_device!(long_inner_dimension);
test_device!(of_nothing);
test_device!(wrong_shapes);
test_device!(gradients_flow);
