//! Activations: one element in, one element out.

use super::{check_dtypes, in_graph};
use crate::fused_cpu::{self, with_float, Acc, Float, StridedRows};
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, Error, Layout, Result, Shape, Tensor, WithDType, D,
};

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
    let len = xs.dim(D::Minus1)?;
    if !len.is_multiple_of(2) {
        candle_core::bail!(
            "swiglu: the last dimension of {:?} is odd, it holds two halves",
            xs.shape()
        )
    }
    let gate = xs.narrow(D::Minus1, 0, len / 2)?;
    let up = xs.narrow(D::Minus1, len / 2, len / 2)?;
    silu_mul(&gate, &up)
}

/// `silu(gate) * up` in one kernel: the middle of a gated feed-forward block. Any layouts. Not in upstream's interface.
///
/// # Errors
/// The shapes or dtypes differ, or the dtype is not a float.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    check_dtypes(SiluMul::NAME, &[gate, up])?;
    if gate.shape() != up.shape() {
        return Err(Error::ShapeMismatchBinaryOp {
            lhs: gate.shape().clone(),
            rhs: up.shape().clone(),
            op: SiluMul::NAME,
        }
        .bt());
    }
    if gate.elem_count() == 0 {
        return gate.zeros_like();
    }
    if in_graph(&[gate, up]) {
        return silu_mul_slow(gate, up);
    }
    gate.apply_op2_no_bwd(up, &SiluMul)
}

/// The plain form of [`silu_mul`]: each of its two steps rounds to the dtype of the inputs.
///
/// # Errors
/// Those of [`silu_mul`].
pub fn silu_mul_slow(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.silu()? * up
}

struct SiluMul;

impl SiluMul {
    const NAME: &'static str = "silu-mul";
}

impl CustomOp2 for SiluMul {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        gate_l: &Layout,
        up: &CpuStorage,
        up_l: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let shape = gate_l.shape().clone();
        let dst = with_float!(self.name(), gate, T => {
            let gate = StridedRows::new(gate.as_slice::<T>()?, gate_l);
            let up = StridedRows::new(up.as_slice::<T>()?, up_l);
            let len = gate.len();
            let dst: Vec<T> = fused_cpu::map_rows(
                shape.elem_count() / len,
                len,
                8 * len,
                || (fused_cpu::scratch(len), fused_cpu::scratch(len), fused_cpu::scratch(len)),
                |(gates, ups, results), index, dst| {
                    let (gate, up) = (gate.get(index, gates), up.get(index, ups));
                    T::write_row(dst, results, |dst| {
                        Acc::sigmoid(gate, dst);
                        for (dst, (&gate, &up)) in dst.iter_mut().zip(gate.iter().zip(up)) {
                            *dst = gate * *dst * up;
                        }
                    });
                },
            );
            Ok(T::to_cpu_storage_owned(dst))
        })?;
        Ok((dst, shape))
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            gate: &candle_core::WebGpuStorage,
            gate_l: &Layout,
            up: &candle_core::WebGpuStorage,
            up_l: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            let dst = candle_core::webgpu_backend::ops::fused::silu_mul(gate, gate_l, up, up_l)?;
            Ok((dst, gate_l.shape().clone()))
        }
    }
}

/// `1 / (1 + exp(-x))`. Any layout.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn sigmoid(xs: &Tensor) -> Result<Tensor> {
    check_dtypes(Sigmoid::NAME, &[xs])?;
    if xs.elem_count() == 0 {
        return xs.zeros_like();
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

    candle_core::with_webgpu! {
        /// Four elementwise dispatches, in f32 so that only the last one rounds a 16-bit input.
        fn webgpu_fwd(
            &self,
            storage: &candle_core::WebGpuStorage,
            layout: &Layout,
        ) -> Result<(candle_core::WebGpuStorage, Shape)> {
            use candle_core::backend::BackendStorage;
            use candle_core::op::{Exp, Neg, Recip};
            let dtype = storage.dtype();
            let contiguous = Layout::contiguous(layout.shape());
            let exp = storage
                .to_dtype(layout, super::compute_dtype(dtype))?
                .unary_impl::<Neg>(&contiguous)?
                .unary_impl::<Exp>(&contiguous)?;
            let dst = exp
                .affine(&contiguous, 1.0, 1.0)?
                .unary_impl::<Recip>(&contiguous)?
                .to_dtype(&contiguous, dtype)?;
            Ok((dst, layout.shape().clone()))
        }
    }
}

/// `(x + 3) / 6`, clamped to 0..=1.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn hard_sigmoid(xs: &Tensor) -> Result<Tensor> {
    ((xs + 3.0)? / 6.0)?.clamp(0f32, 1f32)
}

/// `x` where it is positive, `negative_slope * x` elsewhere.
///
/// # Errors
/// `xs` is not of a float dtype.
pub fn leaky_relu(xs: &Tensor, negative_slope: f64) -> Result<Tensor> {
    let zeros = xs.zeros_like()?;
    xs.maximum(&zeros)? + (xs.minimum(&zeros)? * negative_slope)?
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
