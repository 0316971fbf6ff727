//! Activations: one element in, one element out.

use super::gated::{act_mul, halves, GatedActivation};
use super::{check_dtypes, zeros_of};
use crate::fused_cpu::{self, with_float, Acc};
use candle_core::fused::{Fused, Operand};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};

/// `x * sigmoid(x)`, also known as swish.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn silu(xs: &Tensor) -> Result<Tensor> {
    xs.silu()
}

/// `silu(a) * b`, where `a` and `b` are the two halves of the last dimension.
///
/// # Errors
/// The last dimension is odd, or `xs` is a scalar or not of a float dtype.
pub fn swiglu(xs: &Tensor) -> Result<Tensor> {
    let (gate, up) = halves("swiglu", xs)?;
    act_mul(&gate, &up, GatedActivation::Silu)
}

/// `1 / (1 + exp(-x))`. Any layout.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn sigmoid(xs: &Tensor) -> Result<Tensor> {
    check_dtypes(Sigmoid::NAME, &[xs])?;
    if xs.elem_count() == 0 {
        return zeros_of(xs.shape(), xs, &[xs]);
    }
    xs.apply_op1(Sigmoid)
}

struct Sigmoid;

impl Sigmoid {
    const NAME: &'static str = "sigmoid";
}

impl CustomOp1 for Sigmoid {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let shape = layout.shape().clone();
        let dst = with_float!(self.name(), storage, T => {
            let dst = fused_cpu::map_elements::<T>(storage.as_slice()?, layout, Acc::sigmoid);
            Ok(T::to_cpu_storage_owned(dst))
        })?;
        Ok((dst, shape))
    }

    /// `res * (1 - res)`, which is finite where the exponential is not.
    fn bwd(&self, _arg: &Tensor, res: &Tensor, grad_res: &Tensor) -> Result<Option<Tensor>> {
        let slope = (res * res.affine(-1.0, 1.0)?)?;
        Ok(Some((grad_res * slope)?))
    }

    super::on_devices!(x layout);
}

impl Sigmoid {
    fn on_device<S: Fused>(&self, [x]: [Operand<'_, S>; 1]) -> Result<(S, Shape)> {
        Ok((S::sigmoid(x)?, x.1.shape().clone()))
    }
}

/// `(x + 3) / 6`, clamped to 0..=1.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn hard_sigmoid(xs: &Tensor) -> Result<Tensor> {
    hard_clamp(&((xs + 3.0)? / 6.0)?, 0., 1.)
}

/// `xs` limited to `min..=max`, with a gradient of 0 at the limits, as PyTorch's `hardtanh` has it; `clamp` has 1 there.
pub(crate) fn hard_clamp(xs: &Tensor, min: f64, max: f64) -> Result<Tensor> {
    let limited = xs.detach().clamp(min, max)?;
    if !xs.track_op() {
        return Ok(limited);
    }
    let inside = (xs.detach().gt(min)? * xs.detach().lt(max)?)?;
    inside.where_cond(xs, &limited)
}

/// `x` where it is positive, `negative_slope * x` elsewhere.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn leaky_relu(xs: &Tensor, negative_slope: f64) -> Result<Tensor> {
    let (above, below) = halves_at_zero(xs)?;
    above + (below * negative_slope)?
}

/// `xs` where it is positive, and `xs` elsewhere; each with 0 instead of the other. The gradient at 0 is that of the second.
pub(crate) fn halves_at_zero(xs: &Tensor) -> Result<(Tensor, Tensor)> {
    let (positive, zeros) = (xs.detach().gt(0.)?, xs.zeros_like()?);
    Ok((
        positive.where_cond(xs, &zeros)?,
        positive.where_cond(&zeros, xs)?,
    ))
}

/// `x * tanh(ln(1 + exp(x)))`, see <https://arxiv.org/abs/1908.08681>.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn mish(xs: &Tensor) -> Result<Tensor> {
    xs * (xs.exp()? + 1.0)?.log()?.tanh()?
}

/// `gamma * x` where `x` is positive, `gamma * alpha * (exp(x) - 1)` elsewhere, see <https://arxiv.org/abs/1706.02515>.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn selu(xs: &Tensor, alpha: f32, gamma: f32) -> Result<Tensor> {
    xs.elu(f64::from(alpha))? * f64::from(gamma)
}
