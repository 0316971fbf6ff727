//! Linear layers together with what stands before and after them in a transformer.
//!
//! Generating text is bound by the number of kernels a token takes. On a WebGPU device each of these is one kernel for few rows;
//! elsewhere it is its plain form, made of the fused ops for its parts.

use super::{check_dtypes, rms_norm, silu_mul};
#[cfg(feature = "webgpu")]
use candle_core::DType;
use candle_core::{Error, Result, Tensor, D};

/// [`rms_norm`]`(xs, alpha, eps) weightᵀ`. `xs` is (…, k), `alpha` (k), `weight` (n, k); the result is (…, n). Any layouts. Not in
/// upstream's interface.
///
/// # Errors
/// The shapes do not fit together, or the dtypes differ or are not floats.
pub fn rms_norm_linear(xs: &Tensor, alpha: &Tensor, eps: f32, weight: &Tensor) -> Result<Tensor> {
    let norm = Some((alpha, eps));
    Linear::new("rms-norm-linear", xs, weight, norm, false, None)?.run()
}

/// The plain form of [`rms_norm_linear`].
///
/// # Errors
/// Those of [`rms_norm_linear`].
pub fn rms_norm_linear_slow(
    xs: &Tensor,
    alpha: &Tensor,
    eps: f32,
    weight: &Tensor,
) -> Result<Tensor> {
    let norm = Some((alpha, eps));
    Linear::new("rms-norm-linear", xs, weight, norm, false, None)?.plain()
}

/// `silu(gate) * up`, where `gate` and `up` are the two halves of what [`rms_norm_linear`] gives: the first half of a gated
/// feed-forward block. `weight` is (2 n, k), gate first; the result is (…, n). Not in upstream's interface.
///
/// # Errors
/// Those of [`rms_norm_linear`], or the weight's rows are odd in number.
pub fn rms_norm_swiglu(xs: &Tensor, alpha: &Tensor, eps: f32, weight: &Tensor) -> Result<Tensor> {
    let norm = Some((alpha, eps));
    Linear::new("rms-norm-swiglu", xs, weight, norm, true, None)?.run()
}

/// The plain form of [`rms_norm_swiglu`].
///
/// # Errors
/// Those of [`rms_norm_swiglu`].
pub fn rms_norm_swiglu_slow(
    xs: &Tensor,
    alpha: &Tensor,
    eps: f32,
    weight: &Tensor,
) -> Result<Tensor> {
    let norm = Some((alpha, eps));
    Linear::new("rms-norm-swiglu", xs, weight, norm, true, None)?.plain()
}

/// `xs weightᵀ + residual`: the end of a transformer's block. `xs` is (…, k), `weight` (n, k), `residual` (…, n). Any layouts. Not in
/// upstream's interface.
///
/// # Errors
/// The shapes do not fit together, or the dtypes differ or are not floats.
pub fn linear_add(xs: &Tensor, weight: &Tensor, residual: &Tensor) -> Result<Tensor> {
    Linear::new("linear-add", xs, weight, None, false, Some(residual))?.run()
}

/// The plain form of [`linear_add`].
///
/// # Errors
/// Those of [`linear_add`].
pub fn linear_add_slow(xs: &Tensor, weight: &Tensor, residual: &Tensor) -> Result<Tensor> {
    Linear::new("linear-add", xs, weight, None, false, Some(residual))?.plain()
}

/// One call of a linear layer, its shapes checked.
struct Linear<'a> {
    #[cfg_attr(not(feature = "webgpu"), allow(dead_code))]
    name: &'static str,
    xs: &'a Tensor,
    weight: &'a Tensor,
    norm: Option<(&'a Tensor, f32)>,
    gated: bool,
    residual: Option<&'a Tensor>,
}

impl<'a> Linear<'a> {
    fn new(
        name: &'static str,
        xs: &'a Tensor,
        weight: &'a Tensor,
        norm: Option<(&'a Tensor, f32)>,
        gated: bool,
        residual: Option<&'a Tensor>,
    ) -> Result<Self> {
        let mismatch = |rhs: &Tensor| {
            Error::ShapeMismatchBinaryOp {
                lhs: xs.shape().clone(),
                rhs: rhs.shape().clone(),
                op: name,
            }
            .bt()
        };
        let (outputs, k) = weight.dims2()?;
        if xs.dims().last() != Some(&k) {
            return Err(mismatch(weight));
        }
        if gated && !outputs.is_multiple_of(2) {
            candle_core::bail!("{name}: the weight has {outputs} rows, an even number is needed")
        }
        let call = Self {
            name,
            xs,
            weight,
            norm,
            gated,
            residual,
        };
        if let Some((alpha, _)) = norm.filter(|(alpha, _)| alpha.dims() != [k]) {
            return Err(mismatch(alpha));
        }
        if let Some(residual) = residual.filter(|residual| residual.dims() != call.output()) {
            return Err(mismatch(residual));
        }
        let third = norm.map(|(alpha, _)| alpha).or(residual);
        check_dtypes(name, &[&[xs, weight][..], third.as_slice()].concat())?;
        Ok(call)
    }

    /// The shape of the result.
    fn output(&self) -> Vec<usize> {
        let mut dims = self.xs.dims().to_vec();
        let outputs = self.weight.dims()[0];
        dims[self.xs.rank() - 1] = if self.gated { outputs / 2 } else { outputs };
        dims
    }

    fn plain(&self) -> Result<Tensor> {
        let normed = match self.norm {
            Some((alpha, eps)) => Some(rms_norm(self.xs, alpha, eps)?),
            None => None,
        };
        let xs = normed.as_ref().unwrap_or(self.xs);
        let (outputs, k) = self.weight.dims2()?;
        // One product over all rows is faster than a batch of small ones.
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        let mut ys = xs.reshape((rows, k))?.matmul(&self.weight.t()?)?;
        if self.gated {
            let half = |start| ys.narrow(D::Minus1, start, outputs / 2);
            ys = silu_mul(&half(0)?, &half(outputs / 2)?)?;
        }
        let ys = ys.reshape(self.output())?;
        match self.residual {
            Some(residual) => ys + residual,
            None => Ok(ys),
        }
    }

    #[cfg(not(feature = "webgpu"))]
    fn run(&self) -> Result<Tensor> {
        self.plain()
    }

    #[cfg(feature = "webgpu")]
    fn run(&self) -> Result<Tensor> {
        let third = self.norm.map(|(alpha, _)| alpha).or(self.residual);
        let fuses = self.xs.device().is_webgpu() && self.xs.dtype() != DType::F64;
        let Some(third) = third.filter(|_| fuses) else {
            return self.plain();
        };
        if super::in_graph(&[self.xs, self.weight, third]) {
            return self.plain();
        }
        let fused = webgpu::Fused {
            name: self.name,
            eps: self.norm.map(|(_, eps)| eps),
            gated: self.gated,
            output: self.output(),
        };
        self.xs.apply_op3_no_bwd(self.weight, third, &fused)
    }
}

#[cfg(feature = "webgpu")]
mod webgpu {
    use candle_core::webgpu_backend::ops::fused::{linear, LinearExtras};
    use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, WebGpuStorage};

    /// A linear layer of (xs, weight, norm's weight or residual).
    pub(super) struct Fused {
        pub(super) name: &'static str,
        /// Of the norm, if the third argument is its weight.
        pub(super) eps: Option<f32>,
        pub(super) gated: bool,
        pub(super) output: Vec<usize>,
    }

    impl CustomOp3 for Fused {
        fn name(&self) -> &'static str {
            self.name
        }

        fn cpu_fwd(
            &self,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<(CpuStorage, Shape)> {
            candle_core::bail!("{}: on the CPU this is made of other ops", self.name)
        }

        fn webgpu_fwd(
            &self,
            xs: &WebGpuStorage,
            xs_l: &Layout,
            weight: &WebGpuStorage,
            weight_l: &Layout,
            third: &WebGpuStorage,
            third_l: &Layout,
        ) -> Result<(WebGpuStorage, Shape)> {
            let third = (third, third_l);
            let extras = LinearExtras {
                norm: self.eps.map(|eps| (third, eps)),
                gated: self.gated,
                residual: self.eps.is_none().then_some(third),
            };
            let dst = linear(xs, xs_l, weight, weight_l, extras)?;
            Ok((dst, Shape::from(self.output.clone())))
        }
    }
}
