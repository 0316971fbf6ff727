//! The parts of a transformer's linear layer other than its product.

use super::{Activation, Gate, Operand};
use crate::backend::BackendStorage;
use crate::quantized::QTensor;
use crate::{Error, Result};

const OP: &str = "linear";

/// The weight of a linear layer, `(n, k)`.
#[derive(Debug)]
pub enum LinearWeight<'a, S> {
    /// A dense weight of the input's dtype, with any strides.
    Dense(Operand<'a, S>),
    /// A quantised weight on the input's device, in any format.
    Quantized(&'a QTensor),
}

/// The parts of a linear layer other than its product. All tensors have the dtype of its input.
#[derive(Debug)]
pub struct LinearExtras<'a, S> {
    /// The input's rows are replaced by their RMS norm: weights `(k)`, contiguous, and epsilon.
    pub norm: Option<(Operand<'a, S>, f32)>,
    /// Added to each row of the product: `(n)`, with a gate `(2 n)`.
    pub bias: Option<Operand<'a, S>>,
    /// Reduces the gate and up projections, which the product holds concatenated, to this function of both.
    pub gate: Option<Gate>,
    /// Applied to the result after the gate.
    pub activation: Option<Activation>,
    /// `(.., n)`, added to the result.
    pub residual: Option<Operand<'a, S>>,
}

impl<S> Default for LinearExtras<'_, S> {
    fn default() -> Self {
        Self {
            norm: None,
            bias: None,
            gate: None,
            activation: None,
            residual: None,
        }
    }
}

#[cfg_attr(
    not(any(feature = "cuda", feature = "webgpu")),
    allow(dead_code, reason = "for devices with fused ops")
)]
impl<S: BackendStorage> LinearExtras<'_, S> {
    /// Columns of the result for a weight of `outputs` rows.
    pub(crate) fn columns(&self, outputs: usize) -> usize {
        match self.gate {
            Some(_) => outputs / 2,
            None => outputs,
        }
    }

    /// An error unless the extras and a weight `(outputs, k)`, dense or quantised, fit the input.
    pub(crate) fn check(
        &self,
        (x, x_l): Operand<'_, S>,
        dense: Option<&S>,
        (outputs, k): (usize, usize),
    ) -> Result<()> {
        let norm = self.norm.map(|(alpha, _)| alpha);
        let others = [norm, self.bias, self.residual].into_iter().flatten();
        for other in dense.into_iter().chain(others.map(|(storage, _)| storage)) {
            if other.dtype() != x.dtype() {
                let (lhs, rhs) = (x.dtype(), other.dtype());
                return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op: OP }.bt());
            }
        }
        let n = self.columns(outputs);
        let rows: usize = x_l.dims().iter().rev().skip(1).product();
        let alpha_fits = self.norm.is_none_or(|((_, l), _)| l.dims() == [k]);
        let bias_fits = self.bias.is_none_or(|(_, l)| l.dims() == [outputs]);
        let residual_fits = self
            .residual
            .is_none_or(|(_, l)| l.dims().last() == Some(&n) && l.shape().elem_count() == rows * n);
        let halves = self.gate.is_none() || outputs.is_multiple_of(2);
        if x_l.dims().last() != Some(&k) || !alpha_fits || !bias_fits || !residual_fits || !halves {
            crate::bail!(
                "linear: x is {:?} and the weight ({outputs}, {k}); the norm's weights must be ({k}), the bias ({outputs}), the \
                 residual ({rows}, {n}), and a gated product of an even size",
                x_l.shape()
            )
        }
        Ok(())
    }
}
