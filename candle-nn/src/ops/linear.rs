//! Linear layers fused with what precedes and follows them in a transformer.
//!
//! Generating text is bound by the number of kernels a token takes. On a WebGPU device each of these is one kernel for few rows;
//! elsewhere it is its plain form, made of the fused ops for its parts.

use super::{check_dtypes, rms_norm, silu_mul};
use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{
    CpuStorage, CustomOp2, CustomOp3, DType, Error, Layout, Module, Result, Shape, Tensor, Var, D,
};

/// The weight of a linear layer, `(n, k)`: what `&Tensor`, `&Var` and `&QMatMul` turn into. Not in upstream's interface.
#[derive(Debug, Clone, Copy)]
pub enum LinearWeight<'a> {
    /// A tensor of the input's dtype, any layout.
    Dense(&'a Tensor),
    /// Of any format. It has no gradient; the gradient flows to the input.
    Quantized(&'a QMatMul),
}

impl<'a> From<&'a Tensor> for LinearWeight<'a> {
    fn from(weight: &'a Tensor) -> Self {
        Self::Dense(weight)
    }
}

impl<'a> From<&'a Var> for LinearWeight<'a> {
    fn from(weight: &'a Var) -> Self {
        Self::Dense(weight)
    }
}

impl<'a> From<&'a QMatMul> for LinearWeight<'a> {
    fn from(weight: &'a QMatMul) -> Self {
        match weight {
            QMatMul::Tensor(weight) => Self::Dense(weight),
            weight => Self::Quantized(weight),
        }
    }
}

impl<'a> LinearWeight<'a> {
    fn dims2(self) -> Result<(usize, usize)> {
        match self {
            Self::Dense(weight) => weight.dims2(),
            Self::Quantized(QMatMul::QTensor(weight)) => weight.shape().dims2(),
            Self::Quantized(QMatMul::Tensor(weight) | QMatMul::TensorF16(weight)) => weight.dims2(),
        }
    }

    /// The weight as a tensor of the input's dtype, if it is one.
    fn dense(self) -> Option<&'a Tensor> {
        match self {
            Self::Dense(weight) => Some(weight),
            Self::Quantized(_) => None,
        }
    }
}

/// [`rms_norm`]`(xs, alpha, eps) weightᵀ`. `xs` is (…, k), `alpha` (k), `weight` (n, k); the result is (…, n). Any layouts. Not in
/// upstream's interface.
///
/// # Errors
/// The shapes do not match, or the dtypes differ or are not floats.
pub fn rms_norm_linear<'a>(
    xs: &Tensor,
    alpha: &Tensor,
    eps: f32,
    weight: impl Into<LinearWeight<'a>>,
) -> Result<Tensor> {
    Linear::normed(xs, (alpha, eps), weight.into(), false)?.run()
}

/// The plain form of [`rms_norm_linear`].
///
/// # Errors
/// Those of [`rms_norm_linear`].
pub fn rms_norm_linear_slow<'a>(
    xs: &Tensor,
    alpha: &Tensor,
    eps: f32,
    weight: impl Into<LinearWeight<'a>>,
) -> Result<Tensor> {
    Linear::normed(xs, (alpha, eps), weight.into(), false)?.plain()
}

/// `silu(gate) * up`, where `gate` and `up` are the two halves of what [`rms_norm_linear`] gives: the first half of a gated
/// feed-forward block. `weight` is (2 n, k), gate first; the result is (…, n). Not in upstream's interface.
///
/// # Errors
/// Those of [`rms_norm_linear`], or the weight's rows are odd in number.
pub fn rms_norm_swiglu<'a>(
    xs: &Tensor,
    alpha: &Tensor,
    eps: f32,
    weight: impl Into<LinearWeight<'a>>,
) -> Result<Tensor> {
    Linear::normed(xs, (alpha, eps), weight.into(), true)?.run()
}

/// The plain form of [`rms_norm_swiglu`].
///
/// # Errors
/// Those of [`rms_norm_swiglu`].
pub fn rms_norm_swiglu_slow<'a>(
    xs: &Tensor,
    alpha: &Tensor,
    eps: f32,
    weight: impl Into<LinearWeight<'a>>,
) -> Result<Tensor> {
    Linear::normed(xs, (alpha, eps), weight.into(), true)?.plain()
}

/// `xs weightᵀ + residual`: the end of a transformer's block. `xs` is (…, k), `weight` (n, k), `residual` (…, n). Any layouts. Not in
/// upstream's interface.
///
/// # Errors
/// The shapes do not match, or the dtypes differ or are not floats.
pub fn linear_add<'a>(
    xs: &Tensor,
    weight: impl Into<LinearWeight<'a>>,
    residual: &Tensor,
) -> Result<Tensor> {
    Linear::added(xs, weight.into(), residual)?.run()
}

/// The plain form of [`linear_add`].
///
/// # Errors
/// Those of [`linear_add`].
pub fn linear_add_slow<'a>(
    xs: &Tensor,
    weight: impl Into<LinearWeight<'a>>,
    residual: &Tensor,
) -> Result<Tensor> {
    Linear::added(xs, weight.into(), residual)?.plain()
}

/// One call of a linear layer, its shapes checked.
struct Linear<'a> {
    name: &'static str,
    xs: &'a Tensor,
    weight: LinearWeight<'a>,
    outputs: usize,
    norm: Option<(&'a Tensor, f32)>,
    gated: bool,
    residual: Option<&'a Tensor>,
}

impl<'a> Linear<'a> {
    fn normed(
        xs: &'a Tensor,
        norm: (&'a Tensor, f32),
        weight: LinearWeight<'a>,
        gated: bool,
    ) -> Result<Self> {
        let name = if gated {
            "rms-norm-swiglu"
        } else {
            "rms-norm-linear"
        };
        Self::new(name, xs, weight, Some(norm), gated, None)
    }

    fn added(xs: &'a Tensor, weight: LinearWeight<'a>, residual: &'a Tensor) -> Result<Self> {
        Self::new("linear-add", xs, weight, None, false, Some(residual))
    }

    fn new(
        name: &'static str,
        xs: &'a Tensor,
        weight: LinearWeight<'a>,
        norm: Option<(&'a Tensor, f32)>,
        gated: bool,
        residual: Option<&'a Tensor>,
    ) -> Result<Self> {
        let mismatch = |rhs: Shape| {
            Error::ShapeMismatchBinaryOp {
                lhs: xs.shape().clone(),
                rhs,
                op: name,
            }
            .bt()
        };
        let (outputs, k) = weight.dims2()?;
        if xs.dims().last() != Some(&k) {
            return Err(mismatch(Shape::from((outputs, k))));
        }
        if gated && !outputs.is_multiple_of(2) {
            candle_core::bail!("{name}: the weight has {outputs} rows, an even number is needed")
        }
        let call = Self {
            name,
            xs,
            weight,
            outputs,
            norm,
            gated,
            residual,
        };
        if let Some((alpha, _)) = norm.filter(|(alpha, _)| alpha.dims() != [k]) {
            return Err(mismatch(alpha.shape().clone()));
        }
        if let Some(residual) = residual.filter(|residual| residual.dims() != call.output()) {
            return Err(mismatch(residual.shape().clone()));
        }
        let others = [weight.dense(), call.beside()];
        let tensors = [Some(xs)].into_iter().chain(others).flatten();
        check_dtypes(name, &tensors.collect::<Vec<_>>())?;
        Ok(call)
    }

    /// The shape of the result.
    fn output(&self) -> Vec<usize> {
        let mut dims = self.xs.dims().to_vec();
        dims[self.xs.rank() - 1] = if self.gated {
            self.outputs / 2
        } else {
            self.outputs
        };
        dims
    }

    /// The norm's weight or the residual.
    fn beside(&self) -> Option<&'a Tensor> {
        self.norm.map(|(alpha, _)| alpha).or(self.residual)
    }

    fn plain(&self) -> Result<Tensor> {
        let normed = match self.norm {
            Some((alpha, eps)) => Some(rms_norm(self.xs, alpha, eps)?),
            None => None,
        };
        let xs = normed.as_ref().unwrap_or(self.xs);
        // One product over all rows is faster than a batch of small ones.
        let rows: usize = xs.dims().iter().rev().skip(1).product();
        let xs = xs.reshape((rows, xs.dim(D::Minus1)?))?;
        let mut ys = match self.weight {
            LinearWeight::Dense(weight) => xs.matmul(&weight.t()?)?,
            LinearWeight::Quantized(weight) => weight.forward(&xs)?,
        };
        if self.gated {
            let half = |start| ys.narrow(D::Minus1, start, self.outputs / 2);
            ys = silu_mul(&half(0)?, &half(self.outputs / 2)?)?;
        }
        let ys = ys.reshape(self.output())?;
        match self.residual {
            Some(residual) => ys + residual,
            None => Ok(ys),
        }
    }

    fn run(&self) -> Result<Tensor> {
        let fuses = self.xs.device().is_webgpu() && self.xs.dtype() != DType::F64;
        let Some(beside) = self.beside().filter(|_| fuses) else {
            return self.plain();
        };
        let tensors = [Some(self.xs), self.weight.dense(), Some(beside)];
        if super::in_graph(&tensors.into_iter().flatten().collect::<Vec<_>>()) {
            return self.plain();
        }
        let fused = Fused {
            name: self.name,
            eps: self.norm.map(|(_, eps)| eps),
            gated: self.gated,
            output: self.output(),
        };
        match self.weight {
            LinearWeight::Dense(weight) => self.xs.apply_op3_no_bwd(weight, beside, &fused),
            LinearWeight::Quantized(QMatMul::QTensor(weight)) => {
                let fused = FusedQuantized { fused, weight };
                self.xs.apply_op2_no_bwd(beside, &fused)
            }
            LinearWeight::Quantized(_) => self.plain(),
        }
    }
}

/// A linear layer of (xs, weight, norm's weight or residual). What it holds is read by the WebGPU form alone, which not every build has.
#[allow(dead_code)]
struct Fused {
    name: &'static str,
    /// Of the norm, if the last argument is its weight.
    eps: Option<f32>,
    gated: bool,
    output: Vec<usize>,
}

impl Fused {
    fn not_on_the_cpu(&self) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("{}: on the CPU this is made of other ops", self.name)
    }

    candle_core::with_webgpu! {
        fn run(
            &self,
            (xs, xs_l): Input<'_>,
            weight: fused::LinearWeight<'_>,
            beside: Input<'_>,
        ) -> Result<(WebGpuStorage, Shape)> {
            let extras = fused::LinearExtras {
                norm: self.eps.map(|eps| (beside, eps)),
                gated: self.gated,
                residual: self.eps.is_none().then_some(beside),
            };
            let dst = fused::linear(xs, xs_l, weight, extras)?;
            Ok((dst, Shape::from(self.output.clone())))
        }
    }
}

candle_core::with_webgpu! {
    use candle_core::{webgpu_backend::ops::fused, WebGpuStorage};

    type Input<'a> = (&'a WebGpuStorage, &'a Layout);
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
        self.not_on_the_cpu()
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            xs: &WebGpuStorage,
            xs_l: &Layout,
            weight: &WebGpuStorage,
            weight_l: &Layout,
            beside: &WebGpuStorage,
            beside_l: &Layout,
        ) -> Result<(WebGpuStorage, Shape)> {
            let weight = fused::LinearWeight::Dense(weight, weight_l);
            self.run((xs, xs_l), weight, (beside, beside_l))
        }
    }
}

/// The same of (xs, norm's weight or residual), with a weight that is no tensor.
#[allow(dead_code)]
struct FusedQuantized<'a> {
    fused: Fused,
    weight: &'a QTensor,
}

impl CustomOp2 for FusedQuantized<'_> {
    fn name(&self) -> &'static str {
        self.fused.name
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.fused.not_on_the_cpu()
    }

    candle_core::with_webgpu! {
        fn webgpu_fwd(
            &self,
            xs: &WebGpuStorage,
            xs_l: &Layout,
            beside: &WebGpuStorage,
            beside_l: &Layout,
        ) -> Result<(WebGpuStorage, Shape)> {
            let weight = fused::LinearWeight::Quantized(self.weight);
            self.fused.run((xs, xs_l), weight, (beside, beside_l))
        }
    }
}
