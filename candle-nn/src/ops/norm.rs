//! RMS norm and layer norm over the last dimension.

use super::{check_dtypes, compute_dtype, in_graph};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use candle_core::{
    CpuStorage, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Tensor, WithDType, D,
};
use num_traits::Float as _;

/// `xs / sqrt(mean(xs²) + eps) * alpha`, the mean being over the last dimension, in one kernel; see
/// <https://arxiv.org/abs/1910.07467>. `xs` is (…, n), `alpha` is (n); any layouts.
///
/// # Errors
/// `alpha` is not of shape (n), the dtypes differ, or the dtype is not a float.
pub fn rms_norm(xs: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    check_weight(RmsNorm::NAME, xs, alpha)?;
    check_dtypes(RmsNorm::NAME, &[xs, alpha])?;
    if xs.elem_count() == 0 {
        return xs.zeros_like();
    }
    if in_graph(&[xs, alpha]) {
        return rms_norm_slow(xs, alpha, eps);
    }
    xs.apply_op2_no_bwd(alpha, &RmsNorm { eps })
}

/// The plain form of [`rms_norm`]: 16-bit inputs are normalised in f32, rounded, and then scaled.
///
/// # Errors
/// Those of [`rms_norm`].
pub fn rms_norm_slow(x: &Tensor, alpha: &Tensor, eps: f32) -> Result<Tensor> {
    check_weight(RmsNorm::NAME, x, alpha)?;
    let wide = x.to_dtype(compute_dtype(x.dtype()))?;
    normed(&wide, f64::from(eps))?
        .to_dtype(x.dtype())?
        .broadcast_mul(alpha)
}

/// `xs + residual` and the [`rms_norm`] of that sum, in one kernel: as between two blocks of a transformer. Both inputs
/// are (…, n) of one shape, `alpha` is (n); any layouts. Gives (sum, normed). Not in upstream's interface.
///
/// # Errors
/// The inputs' shapes differ, or those of [`rms_norm`].
pub fn add_rms_norm(
    xs: &Tensor,
    residual: &Tensor,
    alpha: &Tensor,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    check_weight(AddRmsNorm::NAME, xs, alpha)?;
    check_dtypes(AddRmsNorm::NAME, &[xs, residual, alpha])?;
    if xs.shape() != residual.shape() {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: xs.shape().clone(),
            rhs: residual.shape().clone(),
            op: AddRmsNorm::NAME,
        }
        .bt());
    }
    if xs.elem_count() == 0 || in_graph(&[xs, residual, alpha]) {
        return add_rms_norm_slow(xs, residual, alpha, eps);
    }
    let both = xs.apply_op3_no_bwd(residual, alpha, &AddRmsNorm { eps })?;
    Ok((both.get(0)?, both.get(1)?))
}

/// The plain form of [`add_rms_norm`].
///
/// # Errors
/// Those of [`add_rms_norm`].
pub fn add_rms_norm_slow(
    x: &Tensor,
    residual: &Tensor,
    alpha: &Tensor,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    let sum = (x + residual)?;
    let normed = rms_norm(&sum, alpha, eps)?;
    Ok((sum, normed))
}

/// `(xs - mean(xs)) / sqrt(var(xs) + eps) * alpha + beta`, over the last dimension and with the biased variance, in one
/// kernel; see <https://arxiv.org/abs/1607.06450>. `xs` is (…, n), `alpha` and `beta` are (n); any layouts.
///
/// # Errors
/// `alpha` or `beta` is not of shape (n), the dtypes differ, or the dtype is not a float.
pub fn layer_norm(xs: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    check_weight(LayerNorm::NAME, xs, alpha)?;
    check_weight(LayerNorm::NAME, xs, beta)?;
    check_dtypes(LayerNorm::NAME, &[xs, alpha, beta])?;
    if xs.elem_count() == 0 {
        return xs.zeros_like();
    }
    if in_graph(&[xs, alpha, beta]) {
        return layer_norm_slow(xs, alpha, beta, eps);
    }
    xs.apply_op3_no_bwd(alpha, beta, &LayerNorm { eps })
}

/// The plain form of [`layer_norm`]: 16-bit inputs are normalised in f32, rounded, and then scaled and shifted.
///
/// # Errors
/// Those of [`layer_norm`].
pub fn layer_norm_slow(x: &Tensor, alpha: &Tensor, beta: &Tensor, eps: f32) -> Result<Tensor> {
    check_weight(LayerNorm::NAME, x, alpha)?;
    check_weight(LayerNorm::NAME, x, beta)?;
    let wide = x.to_dtype(compute_dtype(x.dtype()))?;
    normed(&centred(&wide)?, f64::from(eps))?
        .to_dtype(x.dtype())?
        .broadcast_mul(alpha)?
        .broadcast_add(beta)
}

/// `x` less its mean over the last dimension.
pub(crate) fn centred(x: &Tensor) -> Result<Tensor> {
    let mean = (x.sum_keepdim(D::Minus1)? / x.dim(D::Minus1)? as f64)?;
    x.broadcast_sub(&mean)
}

/// `x` divided by the root of its mean square over the last dimension.
pub(crate) fn normed(x: &Tensor, eps: f64) -> Result<Tensor> {
    let mean_square = (x.sqr()?.sum_keepdim(D::Minus1)? / x.dim(D::Minus1)? as f64)?;
    x.broadcast_div(&(mean_square + eps)?.sqrt()?)
}

fn check_weight(op: &'static str, xs: &Tensor, weight: &Tensor) -> Result<()> {
    match (xs.dims().last(), weight.dims()) {
        (Some(n), [len]) if n == len => Ok(()),
        _ => Err(Error::ShapeMismatchBinaryOp {
            lhs: xs.shape().clone(),
            rhs: weight.shape().clone(),
            op,
        }
        .bt()),
    }
}

struct RmsNorm {
    eps: f32,
}

impl RmsNorm {
    const NAME: &'static str = "rms-norm";
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        alpha: &CpuStorage,
        alpha_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = x_l.shape().clone();
        let dst = with_float!(self.name(), x, T => {
            let x = StridedRows::new(x.as_slice::<T>()?, x_l);
            let alpha = StridedRows::new(alpha.as_slice::<T>()?, alpha_l);
            Ok(T::to_cpu_storage_owned(norm_rows(&x, shape.elem_count(), false, self.eps, &alpha, None)))
        })?;
        Ok((dst, shape))
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            x: &candle_core::WebGpuStorage,
            x_l: &Layout,
            alpha: &candle_core::WebGpuStorage,
            alpha_l: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            use candle_core::webgpu_backend::ops::fused;
            let dst = fused::rms_norm(x, x_l, alpha, alpha_l, self.eps)?;
            Ok((dst, x_l.shape().clone()))
        }
    }
}

struct AddRmsNorm {
    eps: f32,
}

impl AddRmsNorm {
    const NAME: &'static str = "add-rms-norm";

    /// Two tensors of the input's shape, one after the other.
    fn shape(x_l: &Layout) -> Shape {
        Shape::from([&[2], x_l.dims()].concat())
    }
}

impl CustomOp3 for AddRmsNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        residual: &CpuStorage,
        residual_l: &Layout,
        alpha: &CpuStorage,
        alpha_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let dst = with_float!(self.name(), x, T => {
            let x = StridedRows::new(x.as_slice::<T>()?, x_l);
            let residual = StridedRows::new(residual.as_slice::<T>()?, residual_l);
            let alpha = StridedRows::new(alpha.as_slice::<T>()?, alpha_l);
            let (n, count) = (x.len(), x_l.shape().elem_count());
            let scratch = || (fused_cpu::scratch(n), fused_cpu::scratch(n));
            let mut sums = fused_cpu::map_rows(count / n, n, n, scratch, |(xs, rs), index, dst| {
                let pairs = x.get(index, xs).iter().zip(residual.get(index, rs));
                for (dst, (&x, &r)) in dst.iter_mut().zip(pairs) {
                    *dst = T::narrow(x + r);
                }
            });
            let sum_l = Layout::contiguous(x_l.shape());
            let rows = StridedRows::new(&sums, &sum_l);
            let normed = norm_rows(&rows, count, false, self.eps, &alpha, None);
            sums.extend_from_slice(&normed);
            Ok(T::to_cpu_storage_owned(sums))
        })?;
        Ok((dst, Self::shape(x_l)))
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            x: &candle_core::WebGpuStorage,
            x_l: &Layout,
            residual: &candle_core::WebGpuStorage,
            residual_l: &Layout,
            alpha: &candle_core::WebGpuStorage,
            alpha_l: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            use candle_core::webgpu_backend::ops::fused;
            let dst = fused::add_rms_norm(x, x_l, residual, residual_l, alpha, alpha_l, self.eps)?;
            Ok((dst, Self::shape(x_l)))
        }
    }
}

struct LayerNorm {
    eps: f32,
}

impl LayerNorm {
    const NAME: &'static str = "layer-norm";
}

impl CustomOp3 for LayerNorm {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_l: &Layout,
        alpha: &CpuStorage,
        alpha_l: &Layout,
        beta: &CpuStorage,
        beta_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = x_l.shape().clone();
        let dst = with_float!(self.name(), x, T => {
            let x = StridedRows::new(x.as_slice::<T>()?, x_l);
            let alpha = StridedRows::new(alpha.as_slice::<T>()?, alpha_l);
            let beta = StridedRows::new(beta.as_slice::<T>()?, beta_l);
            let dst = norm_rows(&x, shape.elem_count(), true, self.eps, &alpha, Some(&beta));
            Ok(T::to_cpu_storage_owned(dst))
        })?;
        Ok((dst, shape))
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            x: &candle_core::WebGpuStorage,
            x_l: &Layout,
            alpha: &candle_core::WebGpuStorage,
            alpha_l: &Layout,
            beta: &candle_core::WebGpuStorage,
            beta_l: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            use candle_core::webgpu_backend::ops::fused;
            let dst = fused::layer_norm(x, x_l, alpha, alpha_l, beta, beta_l, self.eps)?;
            Ok((dst, x_l.shape().clone()))
        }
    }
}

/// Both norms on the CPU: `centre` first subtracts the mean, `beta` is added last.
fn norm_rows<T: Float>(
    x: &StridedRows<'_, T>,
    elem_count: usize,
    centre: bool,
    eps: f32,
    alpha: &StridedRows<'_, T>,
    beta: Option<&StridedRows<'_, T>>,
) -> Vec<T> {
    let n = x.len();
    let len = T::Acc::from_f64(n as f64);
    let eps = T::Acc::from_f64(f64::from(eps));
    let (mut alphas, mut betas) = (fused_cpu::scratch(n), fused_cpu::scratch(n));
    let alpha = alpha.get(0, &mut alphas);
    let beta = beta.map(|beta| beta.get(0, &mut betas));
    fused_cpu::map_rows(
        elem_count / n,
        n,
        4 * n,
        || {
            (
                fused_cpu::scratch(n),
                fused_cpu::scratch(n),
                fused_cpu::scratch(n),
            )
        },
        |(widened, centred, results), index, dst| {
            let mut row = x.get(index, widened);
            if centre {
                let mean = Acc::sum(row) / len;
                for (dst, &x) in centred.iter_mut().zip(row) {
                    *dst = x - mean;
                }
                row = centred;
            }
            let scale = (Acc::dot(row, row) / len + eps).sqrt().recip();
            T::write_row(dst, results, |dst| match beta {
                None => {
                    for ((dst, &x), &alpha) in dst.iter_mut().zip(row).zip(alpha) {
                        *dst = x * scale * alpha;
                    }
                }
                Some(beta) => {
                    let weights = alpha.iter().zip(beta);
                    for ((dst, &x), (&alpha, &beta)) in dst.iter_mut().zip(row).zip(weights) {
                        *dst = x * scale * alpha + beta;
                    }
                }
            });
        },
    )
}
