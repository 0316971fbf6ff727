//! Dropout and the identity layer.

use candle_core::{Module, ModuleT, Result, Tensor};

/// Zeroes each element with probability `drop_p` and scales the others by `1 / (1 - drop_p)`, which keeps the mean.
///
/// # Errors
/// `drop_p` is outside of `0 <= drop_p < 1`.
pub fn dropout(xs: &Tensor, drop_p: f32) -> Result<Tensor> {
    if !(0. ..1.).contains(&drop_p) {
        candle_core::bail!(
            "dropout: the probability is {drop_p}; it must be at least 0 and below 1"
        )
    }
    let keep = Tensor::rand(0f32, 1f32, xs.shape(), xs.device())?.ge(drop_p)?;
    let scale = 1.0 / (1.0 - f64::from(drop_p));
    xs * (keep.to_dtype(xs.dtype())? * scale)?
}

/// A layer that applies [`dropout`] while training and nothing otherwise.
#[derive(Clone, Debug)]
pub struct Dropout {
    drop_p: f32,
}

impl Dropout {
    /// A layer that drops each element with probability `drop_p`, checked when it is applied.
    pub fn new(drop_p: f32) -> Dropout {
        Self { drop_p }
    }

    /// Applies the layer.
    ///
    /// # Errors
    /// While training, those of [`dropout`].
    pub fn forward(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            dropout(xs, self.drop_p)
        } else {
            Ok(xs.clone())
        }
    }
}

impl ModuleT for Dropout {
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        self.forward(xs, train)
    }
}

/// The layer that returns its input.
#[derive(Clone, Debug, Default)]
pub struct Identity;

impl Identity {
    /// The layer that returns its input.
    pub fn new() -> Identity {
        Self
    }
}

impl Module for Identity {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Ok(xs.clone())
    }
}
