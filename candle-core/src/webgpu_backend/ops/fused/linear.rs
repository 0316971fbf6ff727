//! A linear layer with what stands before and after it in a transformer: RMS norm, gated activation, residual sum.
//!
//! For few rows all of it is one kernel. For many rows a norm and a gate are kernels of their own, which then cost little
//! beside the product.

use super::super::{elementwise, matmul, row_step};
use super::{float_elem, rms_norm, silu_mul};
use crate::backend::BackendStorage;
use crate::webgpu_backend::WebGpuStorage;
use crate::{Error, Layout, Result};

pub use super::super::matmul::Extras as LinearExtras;

const OP: &str = "linear";

type Input<'a> = (&'a WebGpuStorage, &'a Layout);

/// `x weightᵀ` for `x (.., k)` and `weight (n, k)`, any strides, with `extras`; the result is contiguous, `(.., n)`, or
/// `(.., n / 2)` if it is gated.
pub fn linear(
    x: &WebGpuStorage,
    x_l: &Layout,
    weight: &WebGpuStorage,
    weight_l: &Layout,
    extras: LinearExtras<'_>,
) -> Result<WebGpuStorage> {
    let dtype = x.dtype();
    float_elem(x.device(), dtype, OP)?;
    let (outputs, k) = weight_l.shape().dims2()?;
    check(x, x_l, weight, (outputs, k), &extras)?;
    let rows: usize = x_l.dims().iter().rev().skip(1).product();
    let Some(step) = row_step(x_l) else {
        let x = elementwise::copy(x, x_l)?;
        let x_l = Layout::contiguous(x_l.shape());
        return linear(&x, &x_l, weight, weight_l, extras);
    };
    let last = x_l.stride().last().copied().unwrap_or(1);
    let lhs_l = Layout::new((rows, k).into(), vec![step, last], x_l.start_offset());
    let rhs_l = weight_l.transpose(0, 1)?;
    let n = if extras.gated { outputs / 2 } else { outputs };
    if rows * n == 0 || k == 0 {
        return plain((x, &lhs_l), (weight, &rhs_l), (rows, outputs, k), extras);
    }
    let problem = matmul::Problem::new((1, rows, n, k), &lhs_l, &rhs_l)?;
    match matmul::fused_product(x, weight, &problem, extras, dtype)? {
        Some(dst) => Ok(dst),
        None => plain((x, &lhs_l), (weight, &rhs_l), (rows, outputs, k), extras),
    }
}

fn check(
    x: &WebGpuStorage,
    x_l: &Layout,
    weight: &WebGpuStorage,
    (outputs, k): (usize, usize),
    extras: &LinearExtras<'_>,
) -> Result<()> {
    let norm = extras.norm.map(|((alpha, _), _)| alpha);
    let residual = extras.residual.map(|(residual, _)| residual);
    for other in [Some(weight), norm, residual].into_iter().flatten() {
        if other.dtype() != x.dtype() {
            let (lhs, rhs) = (x.dtype(), other.dtype());
            return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op: OP }.bt());
        }
    }
    let n = if extras.gated { outputs / 2 } else { outputs };
    let rows: usize = x_l.dims().iter().rev().skip(1).product();
    let alpha_fits = extras.norm.is_none_or(|((_, l), _)| l.dims() == [k]);
    let residual_fits = extras
        .residual
        .is_none_or(|(_, l)| l.dims().last() == Some(&n) && l.shape().elem_count() == rows * n);
    let halves = !extras.gated || outputs.is_multiple_of(2);
    if x_l.dims().last() != Some(&k) || !alpha_fits || !residual_fits || !halves {
        crate::bail!(
            "linear: x is {:?} and the weight ({outputs}, {k}); the norm's weights have to be ({k}), the residual \
             ({rows}, {n}), and a gated product of an even size",
            x_l.shape()
        )
    }
    Ok(())
}

/// The same in a kernel for each part; the residual comes with the product where nothing stands between them.
fn plain(
    (x, x_l): Input<'_>,
    weight: Input<'_>,
    (rows, outputs, k): (usize, usize, usize),
    extras: LinearExtras<'_>,
) -> Result<WebGpuStorage> {
    if let Some(((alpha, alpha_l), eps)) = extras.norm {
        let normed = rms_norm(x, x_l, alpha, alpha_l, eps)?;
        let normed_l = Layout::contiguous((rows, k));
        let rest = LinearExtras {
            norm: None,
            ..extras
        };
        return plain((&normed, &normed_l), weight, (rows, outputs, k), rest);
    }
    let dtype = x.dtype();
    let sizes = (1, rows, outputs, k);
    if !extras.gated && rows * outputs * k > 0 {
        let problem = matmul::Problem::new(sizes, x_l, weight.1)?;
        if let Some(dst) = matmul::fused_product(x, weight.0, &problem, extras, dtype)? {
            return Ok(dst);
        }
    }
    let mut dst = matmul::product(x, weight.0, sizes, x_l, weight.1, dtype)?;
    if extras.gated {
        let n = outputs / 2;
        let both = Layout::contiguous((rows, outputs));
        let (gate_l, up_l) = (both.narrow(1, 0, n)?, both.narrow(1, n, n)?);
        dst = silu_mul(&dst, &gate_l, &dst, &up_l)?;
    }
    if let Some((residual, residual_l)) = extras.residual {
        let dst_l = Layout::contiguous(residual_l.shape());
        dst = elementwise::binary(&dst, residual, &dst_l, residual_l, "add")?;
    }
    Ok(dst)
}
