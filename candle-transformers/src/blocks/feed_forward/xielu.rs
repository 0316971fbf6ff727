//! xIELU, whose slopes files have: [arXiv 2411.13010](https://arxiv.org/abs/2411.13010).

use candle_core::{Result, Tensor};
use candle_nn::Init;

use super::super::recurrence::{softplus, wide};
use super::super::weights::Weights;

/// The slope of both sides at 0, where files do not say it.
const BETA: f32 = 0.5;
/// The upper end of the exponential's argument, for numbers that are not positive.
const EPS: f64 = -1e-6;

/// `p x² + s x` of positive numbers, `n (e^x - 1 - x) + s x` of others.
#[derive(Debug, Clone)]
pub(super) struct Xielu {
    /// `p`, one number.
    positive: Tensor,
    /// `n`, one number.
    negative: Tensor,
    /// The slope at 0, one number.
    slope: Tensor,
}

impl Xielu {
    /// Loads `{name}.alpha_p` and `{name}.alpha_n`, of a form that keeps both positive, and `{name}.beta` if it is there.
    pub(super) async fn load(weights: &mut Weights<'_>, name: &str) -> Result<Self> {
        let wide = wide(weights.dtype());
        let mut slope = async |part: &str| {
            let name = format!("{name}.{part}");
            let alpha = weights.dense_as(wide, &name, &[1], Init::Const(0.)).await?;
            softplus(&alpha)
        };
        let (positive, negative) = (slope("alpha_p").await?, slope("alpha_n").await?);
        let name = format!("{name}.beta");
        let slope = if weights.has(&name) && !weights.makes_tensors() {
            weights.dense_as(wide, &name, &[], Init::Const(0.5)).await?
        } else {
            Tensor::new(BETA, weights.device())?.to_dtype(wide)?
        };
        let negative = negative.broadcast_add(&slope)?;
        Ok(Self {
            positive,
            negative,
            slope,
        })
    }

    /// Computed in f32: near 0 the exponential cancels.
    pub(super) fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let dtype = xs.dtype();
        let xs = xs.to_dtype(self.positive.dtype())?;
        let above = xs.relu()?.sqr()?.broadcast_mul(&self.positive)?;
        let below = xs.minimum(EPS)?;
        // What `e^x - 1 - x` has of positive numbers is the constant of `EPS`, which the mask takes out.
        let curve = ((below.exp()? - 1.)? - &xs)?.broadcast_mul(&self.negative)?;
        let curve = xs.gt(0.)?.where_cond(&above, &curve)?;
        (curve + xs.broadcast_mul(&self.slope)?)?.to_dtype(dtype)
    }
}
