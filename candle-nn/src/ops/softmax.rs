//! Softmax over any dimension, and the fused one over the last.

use super::{check_dtypes, compute_dtype, in_graph, zeros_of};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use candle_core::fused::{Fused, Operand};
use candle_core::shape::Dim;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType, D};

/// `exp(xs) / sum(exp(xs))` along `dim`, in the dtype of `xs`. The maximum is subtracted first, so large values are fine.
///
/// # Errors
/// `dim` is out of range or has no elements.
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let xs = Tensor::new(&[[0f32, 0.], [1000., 1000.]], &Device::Cpu)?;
/// assert_eq!(candle_nn::ops::softmax(&xs, 1)?.to_vec2::<f32>()?, &[[0.5, 0.5], [0.5, 0.5]]);
/// # Ok(())
/// # }
/// ```
pub fn softmax<D: Dim>(xs: &Tensor, dim: D) -> Result<Tensor> {
    let dim = dim.to_index(xs.shape(), "softmax")?;
    let exp = shifted(xs, dim)?.exp()?;
    exp.broadcast_div(&exp.sum_keepdim(dim)?)?
        .to_dtype(xs.dtype())
}

/// `xs` less its maximum along `dim`, in f32 for 16-bit floats: a sum of many exponentials does not fit these. The maximum cancels out, so no
/// gradient goes through it.
fn shifted(xs: &Tensor, dim: usize) -> Result<Tensor> {
    let wide = xs.to_dtype(compute_dtype(xs.dtype()))?;
    wide.broadcast_sub(&wide.detach().max_keepdim(dim)?)
}

/// The logarithm of [`softmax`] along `d`, without the underflow of computing it in two steps.
///
/// # Errors
/// `d` is out of range or has no elements.
pub fn log_softmax<D: Dim>(xs: &Tensor, d: D) -> Result<Tensor> {
    let dim = d.to_index(xs.shape(), "log-softmax")?;
    let shifted = shifted(xs, dim)?;
    let log_sum = shifted.exp()?.sum_keepdim(dim)?.log()?;
    shifted.broadcast_sub(&log_sum)?.to_dtype(xs.dtype())
}

/// [`softmax`] along the last dimension in one kernel, its plain form being `softmax(xs, D::Minus1)`. Any layout.
///
/// # Errors
/// `xs` is a scalar, or not of a float dtype.
pub fn softmax_last_dim(xs: &Tensor) -> Result<Tensor> {
    D::Minus1.to_index(xs.shape(), SoftmaxLastDim::NAME)?;
    check_dtypes(SoftmaxLastDim::NAME, &[xs])?;
    if xs.elem_count() == 0 {
        return zeros_of(xs.shape(), xs, &[xs]);
    }
    if in_graph(&[xs]) {
        return softmax(xs, D::Minus1);
    }
    xs.apply_op1_no_bwd(&SoftmaxLastDim)
}

struct SoftmaxLastDim;

impl SoftmaxLastDim {
    const NAME: &'static str = "softmax-last-dim";
}

impl CustomOp1 for SoftmaxLastDim {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = layout.shape().clone();
        let dst = with_float!(self.name(), storage, T => {
            let dst = softmax_rows(&StridedRows::new(storage.as_slice::<T>()?, layout), shape.elem_count());
            Ok(T::to_cpu_storage_owned(dst))
        })?;
        Ok((dst, shape))
    }

    super::on_devices!(x layout);
}

impl SoftmaxLastDim {
    fn on_device<S: Fused>(&self, [x]: [Operand<'_, S>; 1]) -> Result<(S, Shape)> {
        Ok((S::softmax_last_dim(x)?, x.1.shape().clone()))
    }
}

fn softmax_rows<T: Float>(src: &StridedRows<'_, T>, elem_count: usize) -> Vec<T> {
    let len = src.len();
    // Three passes, one of them with exponentials.
    fused_cpu::map_rows(
        elem_count / len,
        len,
        8 * len,
        || (fused_cpu::scratch(len), fused_cpu::scratch(len)),
        |(widened, exps), index, dst| {
            let row = src.get(index, widened);
            T::write_row(dst, exps, |dst| softmax_into(row, dst));
        },
    )
}

/// Writes the softmax of `row` to `dst`.
pub(crate) fn softmax_into<A: Acc>(row: &[A], dst: &mut [A]) {
    A::exp_less(A::greatest(row), row, dst);
    let scale = A::sum(dst).recip();
    for dst in dst.iter_mut() {
        *dst *= scale;
    }
}
