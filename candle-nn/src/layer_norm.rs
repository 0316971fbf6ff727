//! Layer norm and RMS norm, over the last dimension.

use crate::{ops, Init, VarBuilder};
use candle_core::{Module, Result, Tensor};

/// The parameters of a [`LayerNorm`]; `1e-5.into()` sets `eps` alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerNormConfig {
    /// Added to the variance before the square root.
    pub eps: f64,
    /// Whether the mean is subtracted. Without that it is an RMS norm.
    pub remove_mean: bool,
    /// Whether there is a bias.
    pub affine: bool,
}

impl Default for LayerNormConfig {
    fn default() -> Self {
        Self {
            eps: 1e-5,
            remove_mean: true,
            affine: true,
        }
    }
}

impl From<f64> for LayerNormConfig {
    fn from(eps: f64) -> Self {
        Self {
            eps,
            ..Self::default()
        }
    }
}

/// Scales the last dimension to mean 0 and variance 1, then by `weight`, and adds `bias`; see
/// <https://arxiv.org/abs/1607.06450>.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    remove_mean: bool,
    eps: f64,
}

impl LayerNorm {
    /// A layer from its weights, each of the length of the last dimension.
    pub fn new(weight: Tensor, bias: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: Some(bias),
            remove_mean: true,
            eps,
        }
    }

    /// A layer without a bias.
    pub fn new_no_bias(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: None,
            remove_mean: true,
            eps,
        }
    }

    /// A layer that neither subtracts the mean nor adds a bias.
    pub fn rms_norm(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            bias: None,
            remove_mean: false,
            eps,
        }
    }

    /// The scale.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, added after the weight is applied.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// The value added to the variance before the square root.
    pub fn eps(&self) -> f64 {
        self.eps
    }

    /// Whether the mean is subtracted.
    pub fn remove_mean(&self) -> bool {
        self.remove_mean
    }

    /// The layer for the functions of [`ops`] that do more than it. Not in upstream's interface.
    pub fn as_op(&self) -> ops::Norm<'_> {
        ops::Norm {
            centred: self.remove_mean,
            weight: Some(&self.weight),
            bias: self.bias.as_ref(),
            eps: self.eps as f32,
        }
    }
}

/// From (…, n) to the same shape, n being the length of the weight.
impl Module for LayerNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        ops::norm(xs, self.as_op())
    }
}

/// A layer from the tensors `weight` and, if `config` asks for it, `bias` of `vb`; older checkpoints call them `gamma` and
/// `beta`. New ones start at 1 and 0.
///
/// # Errors
/// A tensor is missing or is not of shape (size).
pub fn layer_norm<C: Into<LayerNormConfig>>(
    size: usize,
    config: C,
    vb: VarBuilder,
) -> Result<LayerNorm> {
    let config = config.into();
    let bias = if config.affine {
        Some(vb.get_with_hints(size, known_as(&vb, "bias", "beta"), Init::Const(0.))?)
    } else {
        None
    };
    Ok(LayerNorm {
        weight: vb.get_with_hints(size, known_as(&vb, "weight", "gamma"), Init::Const(1.))?,
        bias,
        remove_mean: config.remove_mean,
        eps: config.eps,
    })
}

/// [`layer_norm`] without a bias.
///
/// # Errors
/// The tensor `weight` is missing or is not of shape (size).
pub fn layer_norm_no_bias(size: usize, eps: f64, vb: VarBuilder) -> Result<LayerNorm> {
    let config = LayerNormConfig {
        eps,
        affine: false,
        ..Default::default()
    };
    layer_norm(size, config, vb)
}

fn known_as(vb: &VarBuilder, name: &'static str, old_name: &'static str) -> &'static str {
    if !vb.contains_tensor(name) && vb.contains_tensor(old_name) {
        old_name
    } else {
        name
    }
}

/// Scales the last dimension to mean square 1, then by `weight`; see <https://arxiv.org/abs/1910.07467>.
#[derive(Clone, Debug)]
pub struct RmsNorm(LayerNorm);

impl RmsNorm {
    /// A layer from its weight, of the length of the last dimension.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self(LayerNorm::rms_norm(weight, eps))
    }

    /// The scale.
    pub fn weight(&self) -> &Tensor {
        self.0.weight()
    }

    /// The value added to the mean square before the square root.
    pub fn eps(&self) -> f64 {
        self.0.eps()
    }

    /// The layer as a [`LayerNorm`] that does not subtract the mean.
    pub fn into_inner(self) -> LayerNorm {
        self.0
    }

    /// The layer for the functions of [`ops`] that do more than it. Not in upstream's interface.
    pub fn as_op(&self) -> ops::Norm<'_> {
        self.0.as_op()
    }

    /// The layer as tensor ops, which have gradients. [`Module::forward`] uses this form where a gradient is needed.
    ///
    /// # Errors
    /// Those of [`ops::rms_norm`].
    pub fn forward_diff(&self, xs: &Tensor) -> Result<Tensor> {
        ops::rms_norm_slow(xs, self.weight(), self.eps() as f32)
    }

    /// `xs + residual` and its norm, in one kernel: gives (sum, normed). Not in upstream's interface.
    ///
    /// # Errors
    /// Those of [`ops::add_norm`].
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        ops::add_norm(xs, residual, self.as_op())
    }
}

/// From (…, n) to the same shape, n being the length of the weight.
impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)
    }
}

/// A layer from the tensor `weight` of `vb`. A new one starts at 1.
///
/// # Errors
/// The tensor is missing or is not of shape (size).
pub fn rms_norm(size: usize, eps: f64, vb: VarBuilder) -> Result<RmsNorm> {
    let weight = vb.get_with_hints(size, "weight", Init::Const(1.))?;
    Ok(RmsNorm::new(weight, eps))
}
