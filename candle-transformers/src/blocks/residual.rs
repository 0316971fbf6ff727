//! The residual stream of a transformer, with the norms and sums between its blocks in as few kernels as there can be.

use candle_core::quantized::QMatMul;
use candle_core::{Module, Result, Tensor};
use candle_nn::ops::{self, LinearWeight};
use candle_nn::RmsNorm;

use super::Projection;

/// The residual stream between two blocks.
///
/// A linear layer without bias at the end of a block adds to the stream as part of its product ([`Residual::add`]), and
/// one at the start of a block normalises the stream as part of its product ([`Residual::project`]). The output of any
/// other layer stays pending, and is added when the next block normalises the sum, which takes one kernel instead of
/// two.
#[derive(Debug, Clone)]
pub struct Residual {
    sum: Tensor,
    pending: Option<Tensor>,
}

impl Residual {
    /// A stream that starts with `xs`.
    pub fn new(xs: Tensor) -> Self {
        Self {
            sum: xs,
            pending: None,
        }
    }

    /// The stream with `delta` added to it; nothing may be pending from before.
    pub(super) fn plus(self, delta: Tensor) -> Self {
        debug_assert!(self.pending.is_none(), "a block norms before it adds");
        Self {
            sum: self.sum,
            pending: Some(delta),
        }
    }

    /// The stream with `linear(ys)` added to it.
    ///
    /// # Errors
    /// If the layer does not fit `ys` or the stream.
    pub fn add(self, linear: &Projection, ys: &Tensor) -> Result<Self> {
        match product(linear).filter(|_| self.pending.is_none()) {
            Some(weight) => Ok(Self::new(ops::linear_add(ys, weight, &self.sum)?)),
            None => Ok(self.plus(linear.forward(ys)?)),
        }
    }

    /// The stream with nothing pending, and its norm.
    ///
    /// # Errors
    /// If what is pending, or the norm, does not fit the stream.
    pub fn normed(self, norm: &RmsNorm) -> Result<(Self, Tensor)> {
        let (sum, normed) = match self.pending {
            Some(delta) => norm.forward_add(&delta, &self.sum)?,
            None => {
                let normed = norm.forward(&self.sum)?;
                (self.sum, normed)
            }
        };
        Ok((Self::new(sum), normed))
    }

    /// The stream with nothing pending, and `linear` of its norm.
    ///
    /// # Errors
    /// If the norm or the layer does not fit the stream.
    pub fn project(self, norm: &RmsNorm, linear: &Projection) -> Result<(Self, Tensor)> {
        if let Some(weight) = product(linear).filter(|_| self.pending.is_none()) {
            let eps = norm.eps() as f32;
            let ys = ops::rms_norm_linear(&self.sum, norm.weight(), eps, weight)?;
            return Ok((self, ys));
        }
        let (xs, normed) = self.normed(norm)?;
        let ys = linear.forward(&normed)?;
        Ok((xs, ys))
    }

    /// As [`project`](Self::project), of which the first half, through silu, is multiplied with the second.
    ///
    /// # Errors
    /// If the norm or the layer does not fit the stream.
    pub fn project_gated(self, norm: &RmsNorm, gate_up: &Projection) -> Result<(Self, Tensor)> {
        if let Some(weight) = product(gate_up).filter(|_| self.pending.is_none()) {
            let eps = norm.eps() as f32;
            let ys = ops::rms_norm_swiglu(&self.sum, norm.weight(), eps, weight)?;
            return Ok((self, ys));
        }
        let (xs, both) = self.project(norm, gate_up)?;
        Ok((xs, ops::swiglu(&both)?))
    }

    /// Position `index` of the sequence alone: `(b, 1, hidden_size)`.
    ///
    /// # Errors
    /// If the position is out of range.
    pub fn position(&self, index: usize) -> Result<Self> {
        let take = |xs: &Tensor| xs.narrow(1, index, 1);
        Ok(Self {
            sum: take(&self.sum)?,
            pending: self.pending.as_ref().map(take).transpose()?,
        })
    }
}

/// The weight of a layer that is nothing but a product.
fn product(linear: &Projection) -> Option<LinearWeight<'_>> {
    match linear {
        Projection::Dense(linear) if linear.bias().is_none() => Some(linear.weight().into()),
        Projection::Quantized {
            weight: weight @ QMatMul::QTensor(_),
            bias: None,
        } => Some(weight.into()),
        _ => None,
    }
}
