//! The parts of a transformer's linear layer other than its product.

use super::{Activation, Gate, Operand};
use crate::quantized::QTensor;

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
    /// The input's rows are replaced by their RMS norm: weights `(k)`, and epsilon.
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
