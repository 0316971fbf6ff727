//! The residual stream of a transformer, with the norms and sums between its blocks in as few kernels as there can be.

use candle_core::quantized::QMatMul;
use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{self, LinearWeight};
use candle_nn::Activation;

use super::{Norm, Projection};

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

    /// The stream with `delta` added to it.
    ///
    /// # Errors
    /// If something is pending that does not fit `delta`.
    pub fn plus(self, delta: Tensor) -> Result<Self> {
        let pending = match self.pending {
            Some(pending) => (pending + delta)?,
            None => delta,
        };
        Ok(Self {
            sum: self.sum,
            pending: Some(pending),
        })
    }

    /// The stream with `linear(ys)` added to it.
    ///
    /// # Errors
    /// If the layer does not fit `ys` or the stream.
    pub fn add(self, linear: &Projection, ys: &Tensor) -> Result<Self> {
        match product(linear).filter(|_| self.pending.is_none()) {
            Some(weight) => Ok(Self::new(ops::linear_add(ys, weight, &self.sum)?)),
            None => self.plus(linear.forward(ys)?),
        }
    }

    /// The stream with nothing pending, and its norm, or without one itself.
    ///
    /// # Errors
    /// If what is pending, or the norm, does not fit the stream.
    pub fn normed(self, norm: Option<&Norm>) -> Result<(Self, Tensor)> {
        let (sum, normed) = match (self.pending, norm) {
            (Some(delta), Some(norm)) => norm.forward_add(&delta, &self.sum)?,
            (None, Some(norm)) => {
                let normed = norm.forward(&self.sum)?;
                (self.sum, normed)
            }
            (pending, None) => {
                let sum = match pending {
                    Some(delta) => (self.sum + delta)?,
                    None => self.sum,
                };
                (sum.clone(), sum)
            }
        };
        Ok((Self::new(sum), normed))
    }

    /// The stream with nothing pending, and `linear` of its norm.
    ///
    /// # Errors
    /// If the norm or the layer does not fit the stream.
    pub fn project(self, norm: Option<&Norm>, linear: &Projection) -> Result<(Self, Tensor)> {
        if let (None, Some(Norm::Rms(norm)), Some(weight)) = (&self.pending, norm, product(linear))
        {
            let eps = norm.eps() as f32;
            let ys = ops::rms_norm_linear(&self.sum, norm.weight(), eps, weight)?;
            return Ok((self, ys));
        }
        let (xs, normed) = self.normed(norm)?;
        let ys = linear.forward(&normed)?;
        Ok((xs, ys))
    }

    /// As [`project`](Self::project), of which the first half, through the activation, is multiplied with the second.
    ///
    /// # Errors
    /// If the norm or the layer does not fit the stream.
    pub fn project_gated(
        self,
        norm: Option<&Norm>,
        gate_up: &Projection,
        activation: Activation,
    ) -> Result<(Self, Tensor)> {
        if let (None, Some(Norm::Rms(norm)), Some(weight), Activation::Silu | Activation::Swish) =
            (&self.pending, norm, product(gate_up), activation)
        {
            let eps = norm.eps() as f32;
            let ys = ops::rms_norm_swiglu(&self.sum, norm.weight(), eps, weight)?;
            return Ok((self, ys));
        }
        let (xs, both) = self.project(norm, gate_up)?;
        Ok((xs, gated(activation, &both)?))
    }

    /// The last position of the sequence alone: `(b, 1, hidden_size)`.
    ///
    /// # Errors
    /// If there are no positions.
    pub fn last_position(&self) -> Result<Self> {
        let last = self.sum.dim(1)?.saturating_sub(1);
        let take = |xs: &Tensor| xs.narrow(1, last, 1);
        Ok(Self {
            sum: take(&self.sum)?,
            pending: self.pending.as_ref().map(take).transpose()?,
        })
    }
}

/// The first half of the last dimension, through the activation, times the second.
fn gated(activation: Activation, both: &Tensor) -> Result<Tensor> {
    if let Activation::Silu | Activation::Swish = activation {
        return ops::swiglu(both);
    }
    let halves = both.chunk(2, D::Minus1)?;
    let [gate, up] = halves.as_slice() else {
        bail!("{both:?} cannot be halved")
    };
    activation.forward(gate)? * up
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
