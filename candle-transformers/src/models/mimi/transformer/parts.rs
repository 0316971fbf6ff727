//! The parts of layers other than attention.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::rms_norm;
use candle_nn::{layer_norm, Activation, LayerNorm, Linear, VarBuilder};
use tracing::{span, Level, Span};

use super::super::NormType;
use super::{linear, Config};

/// A factor for each channel.
#[derive(Debug, Clone)]
pub struct LayerScale {
    scale: Tensor,
}

impl LayerScale {
    /// Loads `scale` (`d_model`). What training begins with does not matter.
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub fn new(d_model: usize, _init: f64, vb: VarBuilder) -> Result<Self> {
        let scale = vb.get(d_model, "scale")?;
        Ok(Self { scale })
    }
}

impl Module for LayerScale {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        xs.broadcast_mul(&self.scale)
    }
}

/// A feed-forward block.
#[derive(Debug, Clone)]
pub enum Mlp {
    /// Two layers with exact GELU between them.
    NoGating {
        /// Entered around the first layer.
        span1: Span,
        /// From `d_model` to `dim_feedforward`.
        linear1: Linear,
        /// Entered around the second layer.
        span2: Span,
        /// From `dim_feedforward` to `d_model`.
        linear2: Linear,
        /// Entered around the block.
        span: Span,
    },
    /// The product of an activation of the first half and of the second half.
    Gating {
        /// From `d_model` to both halves.
        linear_in: Linear,
        /// From a half to `d_model`.
        linear_out: Linear,
        /// The activation of the first half.
        activation: Activation,
        /// Entered around the block.
        span: Span,
    },
}

impl Mlp {
    /// Loads `mlp.fc1` and `mlp.fc2`, or `gating.linear_in` and `gating.linear_out`, whose halves have two thirds of `dim_feedforward`;
    /// 11/4 of `d_model` if that is four times `d_model`.
    ///
    /// # Errors
    /// A size is 0, or a tensor is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (model, inner) = (cfg.d_model, cfg.dim_feedforward);
        if model == 0 || inner == 0 {
            bail!("mimi: d_model {model} and dim_feedforward {inner} must be at least 1")
        }
        let span = span!(Level::TRACE, "mlp");
        let Some(activation) = cfg.gating else {
            let vb = vb.pp("mlp");
            return Ok(Self::NoGating {
                span1: span!(Level::TRACE, "lin1"),
                linear1: linear(model, inner, cfg.bias_ff, vb.pp("fc1"))?,
                span2: span!(Level::TRACE, "lin2"),
                linear2: linear(inner, model, cfg.bias_ff, vb.pp("fc2"))?,
                span,
            });
        };
        let vb = vb.pp("gating");
        let half = if inner == 4 * model {
            11 * model / 4
        } else {
            2 * inner / 3
        };
        Ok(Self::Gating {
            linear_in: linear(model, 2 * half, false, vb.pp("linear_in"))?,
            linear_out: linear(half, model, false, vb.pp("linear_out"))?,
            activation,
            span,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::NoGating {
                span1,
                linear1,
                span2,
                linear2,
                span,
            } => span.in_scope(|| {
                let xs = span1.in_scope(|| linear1.forward(xs))?.gelu_erf()?;
                span2.in_scope(|| linear2.forward(&xs))
            }),
            Self::Gating {
                linear_in,
                linear_out,
                activation,
                span,
            } => span.in_scope(|| {
                let halves = linear_in.forward(xs)?.chunk(2, candle_core::D::Minus1)?;
                let gate = activation.forward(&halves[0])?;
                linear_out.forward(&(gate * &halves[1])?)
            }),
        }
    }
}

/// RMS norm.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    alpha: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Loads `alpha` (1, 1, `d_model`); `eps` is added to the mean square.
    ///
    /// # Errors
    /// It is missing or has another shape.
    pub fn new(d_model: usize, eps: f32, vb: VarBuilder) -> Result<Self> {
        let alpha = vb.get((1, 1, d_model), "alpha")?.reshape(d_model)?;
        Ok(Self { alpha, eps })
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        rms_norm(xs, &self.alpha, self.eps)
    }
}

/// The norm that a configuration asks for.
#[derive(Debug, Clone)]
pub enum Norm {
    /// With a weight and a bias.
    LayerNorm(LayerNorm),
    /// With a weight.
    RmsNorm(RmsNorm),
}

impl Norm {
    /// Loads `weight` and `bias`, or `alpha`.
    ///
    /// # Errors
    /// A tensor is missing or has another shape.
    pub fn new(d_model: usize, cfg: &Config, vb: VarBuilder) -> Result<Self> {
        match cfg.norm {
            NormType::LayerNorm => layer_norm(d_model, 1e-5, vb).map(Self::LayerNorm),
            NormType::RmsNorm => RmsNorm::new(d_model, 1e-8, vb).map(Self::RmsNorm),
        }
    }
}

impl Module for Norm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::LayerNorm(norm) => norm.forward(xs),
            Self::RmsNorm(norm) => norm.forward(xs),
        }
    }
}
