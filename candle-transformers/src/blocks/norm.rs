//! Norms of the last dimension, as a model's configuration names them.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{ops, LayerNorm, RmsNorm};

/// A norm before it has weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// Which.
    pub kind: NormKind,
    /// Norm epsilon, added to the mean square or the variance.
    pub eps: f64,
}

/// The norms that decoders have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Mean square 1, times a weight: [arXiv 1910.07467](https://arxiv.org/abs/1910.07467).
    Rms,
    /// As [`Rms`](Self::Rms), with files that have the weight less 1 (Gemma).
    RmsPlusOne,
    /// Mean 0 and variance 1, times a weight, plus a bias: [arXiv 1607.06450](https://arxiv.org/abs/1607.06450).
    Layer,
    /// As [`Layer`](Self::Layer), with files that have the weight less 1 (Nemotron).
    LayerPlusOne,
    /// As [`Layer`](Self::Layer), without the bias.
    LayerNoBias,
    /// As [`Layer`](Self::Layer), with neither (OLMo).
    LayerBare,
}

impl NormSpec {
    /// [`NormKind::Rms`].
    pub const fn rms(eps: f64) -> Self {
        Self {
            kind: NormKind::Rms,
            eps,
        }
    }

    /// [`NormKind::RmsPlusOne`].
    pub const fn rms_plus_one(eps: f64) -> Self {
        Self {
            kind: NormKind::RmsPlusOne,
            eps,
        }
    }

    /// [`NormKind::Layer`].
    pub const fn layer(eps: f64) -> Self {
        Self {
            kind: NormKind::Layer,
            eps,
        }
    }

    /// [`NormKind::LayerPlusOne`].
    pub const fn layer_plus_one(eps: f64) -> Self {
        Self {
            kind: NormKind::LayerPlusOne,
            eps,
        }
    }

    /// [`NormKind::LayerNoBias`].
    pub const fn layer_no_bias(eps: f64) -> Self {
        Self {
            kind: NormKind::LayerNoBias,
            eps,
        }
    }

    /// [`NormKind::LayerBare`].
    pub const fn layer_bare(eps: f64) -> Self {
        Self {
            kind: NormKind::LayerBare,
            eps,
        }
    }

    /// The same without a bias.
    pub(crate) fn without_bias(self) -> Self {
        match self.kind {
            NormKind::Layer => Self {
                kind: NormKind::LayerNoBias,
                ..self
            },
            _ => self,
        }
    }

    /// Whether it has no mean.
    pub(super) fn is_rms(self) -> bool {
        matches!(self.kind, NormKind::Rms | NormKind::RmsPlusOne)
    }

    /// Whether files have a weight for it.
    pub(super) fn has_weight(self) -> bool {
        self.kind != NormKind::LayerBare
    }

    /// Whether files have a bias for it.
    pub(super) fn has_bias(self) -> bool {
        matches!(self.kind, NormKind::Layer | NormKind::LayerPlusOne)
    }

    /// The norm of vectors of the size of `weight`, with what files have.
    pub(super) fn with(self, weight: Tensor, bias: Option<Tensor>) -> Result<Norm> {
        let weight = match self.kind {
            NormKind::RmsPlusOne | NormKind::LayerPlusOne => {
                // In f32: near 1, 16 bits would lose what the file has of the weight.
                let dtype = weight.dtype();
                (weight.to_dtype(DType::F32)? + 1.)?.to_dtype(dtype)?
            }
            _ => weight,
        };
        Ok(match (self.is_rms(), bias) {
            (true, _) => Norm::Rms(RmsNorm::new(weight, self.eps)),
            (false, Some(bias)) => Norm::Layer(LayerNorm::new(weight, bias, self.eps)),
            (false, None) => Norm::Layer(LayerNorm::new_no_bias(weight, self.eps)),
        })
    }
}

/// A norm of the last dimension.
#[derive(Debug, Clone)]
pub enum Norm {
    /// Without a mean.
    Rms(RmsNorm),
    /// With one.
    Layer(LayerNorm),
}

impl From<RmsNorm> for Norm {
    fn from(norm: RmsNorm) -> Self {
        Self::Rms(norm)
    }
}

impl From<LayerNorm> for Norm {
    fn from(norm: LayerNorm) -> Self {
        Self::Layer(norm)
    }
}

impl Norm {
    fn as_op(&self) -> ops::Norm<'_> {
        match self {
            Self::Rms(norm) => norm.as_op(),
            Self::Layer(norm) => norm.as_op(),
        }
    }

    /// The norm with weights of `dtype`.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        Ok(match self {
            Self::Rms(norm) => Self::Rms(RmsNorm::new(norm.weight().to_dtype(dtype)?, norm.eps())),
            Self::Layer(norm) => {
                let weight = norm.weight().to_dtype(dtype)?;
                Self::Layer(match norm.bias() {
                    Some(bias) => LayerNorm::new(weight, bias.to_dtype(dtype)?, norm.eps()),
                    None => LayerNorm::new_no_bias(weight, norm.eps()),
                })
            }
        })
    }

    /// `xs + residual` and its norm, in one kernel.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward_add(&self, xs: &Tensor, residual: &Tensor) -> Result<(Tensor, Tensor)> {
        ops::add_norm(xs, residual, self.as_op())
    }

    /// `residual` and the norm of `xs` in one sum, in one kernel.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward_then_add(&self, xs: &Tensor, residual: &Tensor) -> Result<Tensor> {
        ops::norm_add(xs, self.as_op(), residual)
    }
}

/// From `(.., n)` to the same shape.
impl Module for Norm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(norm) => norm.forward(xs),
            Self::Layer(norm) => norm.forward(xs),
        }
    }
}
