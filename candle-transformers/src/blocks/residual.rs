//! The residual stream of a transformer, with the norms and sums between its blocks in as few kernels as there can be.

use candle_core::{Module, Result, Tensor};
use candle_nn::ops::{GatedActivation, LinearExtras};
use candle_nn::Activation;

use super::{Norm, Projection};

/// The residual stream between two blocks.
///
/// A linear layer at the end of a block adds to the stream as part of its product ([`Residual::add`]), and one at the start of a
/// block normalises the stream as part of its product ([`Residual::project`]). Any other output stays pending, and is added when the
/// next block normalises the sum, which takes one kernel instead of two.
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

    /// As [`plus`](Self::plus), of what may be on another device or of another dtype than the stream.
    pub(super) fn plus_moved(self, delta: &Tensor) -> Result<Self> {
        let delta = delta
            .to_device(self.sum.device())?
            .to_dtype(self.sum.dtype())?;
        self.plus(delta)
    }

    /// The stream with `linear(ys)` added to it.
    ///
    /// # Errors
    /// If the layer does not fit `ys` or the stream.
    pub fn add(self, linear: &Projection, ys: &Tensor) -> Result<Self> {
        if self.pending.is_some() {
            return self.plus(linear.forward(ys)?);
        }
        let extras = LinearExtras {
            residual: Some(&self.sum),
            ..LinearExtras::default()
        };
        linear.forward_with(ys, extras).map(Self::new)
    }

    /// The stream with `norm` of `ys` added to it.
    ///
    /// # Errors
    /// If the norm does not fit `ys` or the stream.
    pub fn add_normed(self, norm: &Norm, ys: &Tensor) -> Result<Self> {
        match self.pending {
            Some(_) => {
                let normed = norm.forward(ys)?;
                self.plus(normed)
            }
            None => norm.forward_then_add(ys, &self.sum).map(Self::new),
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
        self.project_with(norm, linear, LinearExtras::default())
    }

    /// As [`project`](Self::project), through an activation.
    ///
    /// # Errors
    /// If the norm or the layer does not fit the stream.
    pub fn project_activated(
        self,
        norm: Option<&Norm>,
        linear: &Projection,
        activation: Activation,
    ) -> Result<(Self, Tensor)> {
        let extras = LinearExtras {
            activation: Some(activation),
            ..LinearExtras::default()
        };
        self.project_with(norm, linear, extras)
    }

    /// As [`project`](Self::project), then multiplies the first half, through the activation, by the second.
    ///
    /// # Errors
    /// If the norm or the layer does not fit the stream.
    pub fn project_gated(
        self,
        norm: Option<&Norm>,
        gate_up: &Projection,
        activation: GatedActivation,
    ) -> Result<(Self, Tensor)> {
        let extras = LinearExtras {
            gate: Some(activation),
            ..LinearExtras::default()
        };
        self.project_with(norm, gate_up, extras)
    }

    fn project_with(
        self,
        norm: Option<&Norm>,
        linear: &Projection,
        extras: LinearExtras<'_>,
    ) -> Result<(Self, Tensor)> {
        if let (None, Some(Norm::Rms(norm))) = (&self.pending, norm) {
            let extras = LinearExtras {
                norm: Some((norm.weight(), norm.eps() as f32)),
                ..extras
            };
            let ys = linear.forward_with(&self.sum, extras)?;
            return Ok((self, ys));
        }
        let (xs, normed) = self.normed(norm)?;
        let ys = linear.forward_with(&normed, extras)?;
        Ok((xs, ys))
    }

    /// The stream where nothing is pending.
    pub(crate) fn into_sum(self) -> Tensor {
        self.sum
    }

    /// The tokens of these numbers, `(n)` in u32, counted row by row: `(1, n, hidden_size)`.
    ///
    /// # Errors
    /// If there is one that is not in the stream.
    pub fn of_tokens(&self, tokens: &Tensor) -> Result<Self> {
        let take = |xs: &Tensor| xs.flatten(0, 1)?.index_select(tokens, 0)?.unsqueeze(0);
        Ok(Self {
            sum: take(&self.sum)?,
            pending: self.pending.as_ref().map(take).transpose()?,
        })
    }

    /// The last position of the sequence alone: `(b, 1, hidden_size)`.
    ///
    /// # Errors
    /// If there are no positions.
    pub fn last_position(&self) -> Result<Self> {
        self.last_positions(1)
    }

    /// The last `count` positions.
    pub(super) fn last_positions(&self, count: usize) -> Result<Self> {
        let first = self.sum.dim(1)?.saturating_sub(count);
        let take = |xs: &Tensor| xs.narrow(1, first, count);
        Ok(Self {
            sum: take(&self.sum)?,
            pending: self.pending.as_ref().map(take).transpose()?,
        })
    }
}
