//! Linear layers fused with what precedes and follows them in a transformer.
//!
//! Generating text is bound by the number of kernels a token takes. On a WebGPU device each of these is one kernel for few rows;
//! elsewhere it is its plain form, made of the fused ops for its parts.

use super::gated::{gated, GatedActivation};
use super::{check_dtypes, rms_norm};
use crate::Activation;
use candle_core::fused::{self, Fused, Operand};
use candle_core::quantized::{QMatMul, QTensor};
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, Error, Layout, Module, Result, Shape, Tensor, Var, D,
};

/// The weight of a linear layer, `(n, k)`; converted from `&Tensor`, `&Var` and `&QMatMul`. Not in upstream's interface.
#[derive(Debug, Clone, Copy)]
pub enum LinearWeight<'a> {
    /// A tensor of the input's dtype, any layout.
    Dense(&'a Tensor),
    /// A weight of any format. It has no gradient; the gradient flows to the input.
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

/// The operations fused with a linear layer, in this order: a norm, a bias, a gate or an activation, a residual sum. Not in upstream's
/// interface.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinearExtras<'a> {
    /// The input's rows are replaced by their [`rms_norm`]: weights (k) and epsilon.
    pub norm: Option<(&'a Tensor, f32)>,
    /// Added to each row of the product: (n), with a gate (2 n).
    pub bias: Option<&'a Tensor>,
    /// The product is the concatenation of gate and up projection, reduced to `f(gate) * up`: (…, 2 n) to (…, n).
    pub gate: Option<GatedActivation>,
    /// Applied to the product, instead of a gate. [`Activation::Swiglu`] is a gate and therefore refused.
    pub activation: Option<Activation>,
    /// Added to the result, (…, n).
    pub residual: Option<&'a Tensor>,
}

impl<'a> LinearExtras<'a> {
    /// The name in errors.
    fn name(&self) -> &'static str {
        match (self.norm, self.gate, self.residual) {
            (Some(_), Some(GatedActivation::Silu), _) => "rms-norm-swiglu",
            (Some(_), Some(_), _) => "rms-norm-gated",
            (Some(_), None, _) => "rms-norm-linear",
            (None, Some(_), _) => "linear-gated",
            (None, None, Some(_)) => "linear-add",
            (None, None, None) => "linear",
        }
    }

    fn tensors(&self) -> impl Iterator<Item = &'a Tensor> {
        let norm = self.norm.map(|(alpha, _)| alpha);
        [norm, self.bias, self.residual].into_iter().flatten()
    }
}

/// `xs weightᵀ` with `extras`. `xs` is (…, k), `weight` (n, k), or with a gate (2 n, k); the result is (…, n). Any layouts. On a WebGPU
/// device one kernel for few rows (without a norm and a gate, for any number of them). Not in upstream's interface.
///
/// # Errors
/// The shapes do not match, a gate's weight has an odd number of rows, or the dtypes differ or are not floats.
pub fn linear_with<'a>(
    xs: &Tensor,
    weight: impl Into<LinearWeight<'a>>,
    extras: LinearExtras<'_>,
) -> Result<Tensor> {
    Linear::new(xs, weight.into(), extras)?.run()
}

/// The plain form of [`linear_with`].
///
/// # Errors
/// Those of [`linear_with`].
pub fn linear_with_slow<'a>(
    xs: &Tensor,
    weight: impl Into<LinearWeight<'a>>,
    extras: LinearExtras<'_>,
) -> Result<Tensor> {
    Linear::new(xs, weight.into(), extras)?.plain()
}

/// One call of a linear layer, its shapes checked.
struct Linear<'a> {
    xs: &'a Tensor,
    weight: LinearWeight<'a>,
    extras: LinearExtras<'a>,
    /// Columns of the result.
    n: usize,
}

impl<'a> Linear<'a> {
    fn new(xs: &'a Tensor, weight: LinearWeight<'a>, extras: LinearExtras<'a>) -> Result<Self> {
        let name = extras.name();
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
        if extras.activation == Some(Activation::Swiglu)
            || extras.activation.is_some() && extras.gate.is_some()
        {
            candle_core::bail!(
                "{name}: {:?} and the gate {:?} cannot both follow a product: for SwiGLU, use the gate Silu only",
                extras.activation,
                extras.gate
            )
        }
        if extras.gate.is_some() && !outputs.is_multiple_of(2) {
            candle_core::bail!("{name}: the weight has {outputs} rows; the number must be even")
        }
        let call = Self {
            xs,
            weight,
            extras,
            n: match extras.gate {
                Some(_) => outputs / 2,
                None => outputs,
            },
        };
        let fits = |tensor: Option<&Tensor>, dims: &[usize]| match tensor {
            Some(tensor) if tensor.dims() != dims => Err(mismatch(tensor.shape().clone())),
            _ => Ok(()),
        };
        fits(extras.norm.map(|(alpha, _)| alpha), &[k])?;
        fits(extras.bias, &[outputs])?;
        fits(extras.residual, &call.output())?;
        check_dtypes(name, &call.tensors())?;
        Ok(call)
    }

    /// The shape of the result.
    fn output(&self) -> Vec<usize> {
        let mut dims = self.xs.dims().to_vec();
        dims[self.xs.rank() - 1] = self.n;
        dims
    }

    /// All that is a tensor, the input first.
    fn tensors(&self) -> Vec<&'a Tensor> {
        let operands = [Some(self.xs), self.weight.dense()].into_iter().flatten();
        operands.chain(self.extras.tensors()).collect()
    }

    fn plain(&self) -> Result<Tensor> {
        let normed = match self.extras.norm {
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
        if let Some(bias) = self.extras.bias {
            ys = ys.broadcast_add(bias)?;
        }
        if let Some(act) = self.extras.gate {
            ys = gated(&ys, act)?;
        }
        if let Some(act) = self.extras.activation {
            ys = act.forward(&ys)?;
        }
        let ys = ys.reshape(self.output())?;
        match self.extras.residual {
            Some(residual) => ys + residual,
            None => Ok(ys),
        }
    }

    fn run(&self) -> Result<Tensor> {
        let has_extras = self.extras.gate.is_some()
            || self.extras.activation.is_some()
            || self.extras.tensors().next().is_some();
        let fuses =
            super::has_fused(self.xs.device()) && self.xs.dtype() != DType::F64 && has_extras;
        if !fuses || super::in_graph(&self.tensors()) {
            return self.plain();
        }
        if let Some(act) = self.extras.activation.filter(|act| kernel(*act).is_none()) {
            let product = LinearExtras {
                activation: None,
                residual: None,
                ..self.extras
            };
            let ys = act.forward(&Self::new(self.xs, self.weight, product)?.run()?)?;
            return match self.extras.residual {
                Some(residual) => ys + residual,
                None => Ok(ys),
            };
        }
        let fused = FusedLinear {
            extras: self.extras,
            output: self.output(),
        };
        match self.weight {
            LinearWeight::Dense(weight) => self.xs.apply_op2_no_bwd(weight, &fused),
            LinearWeight::Quantized(QMatMul::QTensor(weight)) => {
                self.xs.apply_op1_no_bwd(&FusedQuantized { fused, weight })
            }
            LinearWeight::Quantized(_) => self.plain(),
        }
    }
}

/// As the devices' kernels name it; `None` for those without one.
pub(super) fn kernel(act: Activation) -> Option<fused::Activation> {
    match act {
        Activation::Silu | Activation::Swish => Some(fused::Activation::Silu),
        Activation::Gelu => Some(fused::Activation::Gelu),
        Activation::NewGelu | Activation::GeluPytorchTanh => Some(fused::Activation::GeluTanh),
        Activation::Relu => Some(fused::Activation::Relu),
        Activation::Relu2 => Some(fused::Activation::Relu2),
        Activation::Sigmoid => Some(fused::Activation::Sigmoid),
        _ => None,
    }
}

/// A linear layer of (xs, weight).
struct FusedLinear<'a> {
    extras: LinearExtras<'a>,
    output: Vec<usize>,
}

impl FusedLinear<'_> {
    fn not_on_the_cpu(&self) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!(
            "{}: the CPU composes this from other ops",
            self.extras.name()
        )
    }

    fn run<S: Fused>(
        &self,
        xs: Operand<'_, S>,
        weight: fused::LinearWeight<'_, S>,
    ) -> Result<(S, Shape)> {
        let name = self.extras.name();
        let norm = self.extras.norm.map(|(alpha, _)| alpha);
        let held = [norm, self.extras.bias, self.extras.residual]
            .map(|tensor| tensor.map(Tensor::storage_and_layout));
        let mut others = [None; 3];
        let names = ["norm's weight", "bias", "residual"];
        for ((other, held), what) in others.iter_mut().zip(&held).zip(names) {
            if let Some((storage, layout)) = held {
                *other = Some((super::same_backend::<S>(storage, name, what)?, *layout));
            }
        }
        let [norm, bias, residual] = others;
        let extras = fused::LinearExtras {
            norm: norm.zip(self.extras.norm.map(|(_, eps)| eps)),
            bias,
            gate: self.extras.gate.map(GatedActivation::kernel),
            activation: self.extras.activation.and_then(kernel),
            residual,
        };
        let dst = S::linear(xs, weight, extras)?;
        Ok((dst, Shape::from(self.output.clone())))
    }

    fn on_device<S: Fused>(&self, [xs, weight]: [Operand<'_, S>; 2]) -> Result<(S, Shape)> {
        self.run(xs, fused::LinearWeight::Dense(weight))
    }
}

impl CustomOp2 for FusedLinear<'_> {
    fn name(&self) -> &'static str {
        self.extras.name()
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.not_on_the_cpu()
    }

    super::on_devices!(xs xs_l, weight weight_l);
}

/// The same op on (xs), with a quantized weight, which is not a tensor.
struct FusedQuantized<'a> {
    fused: FusedLinear<'a>,
    weight: &'a QTensor,
}

impl FusedQuantized<'_> {
    fn on_device<S: Fused>(&self, [xs]: [Operand<'_, S>; 1]) -> Result<(S, Shape)> {
        self.fused
            .run(xs, fused::LinearWeight::Quantized(self.weight))
    }
}

impl CustomOp1 for FusedQuantized<'_> {
    fn name(&self) -> &'static str {
        self.fused.extras.name()
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.fused.not_on_the_cpu()
    }

    super::on_devices!(xs xs_l);
}
