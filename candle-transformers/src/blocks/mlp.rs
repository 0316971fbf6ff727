//! The gated MLP, SwiGLU: [arXiv 2002.05202](https://arxiv.org/abs/2002.05202).

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear_no_bias, ops::silu_mul, RmsNorm, VarBuilder};

use super::{MergedLinear, Projection, Residual};

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug, Clone)]
pub struct GatedMlp {
    gate_up: MergedLinear<2>,
    down_proj: Projection,
}

impl GatedMlp {
    /// A block from its projections. They are checked when it is applied.
    pub fn new(gate_up: MergedLinear<2>, down_proj: Projection) -> Self {
        Self { gate_up, down_proj }
    }

    /// Loads `gate_proj`, `up_proj` and `down_proj` from `vb`, without biases.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn load(hidden_size: usize, intermediate_size: usize, vb: VarBuilder) -> Result<Self> {
        let parts = [
            ("gate_proj", intermediate_size),
            ("up_proj", intermediate_size),
        ];
        let gate_up = MergedLinear::load(hidden_size, parts, &vb)?;
        let down_proj = linear_no_bias(intermediate_size, hidden_size, vb.pp("down_proj"))?;
        Ok(Self::new(gate_up, down_proj.into()))
    }

    /// The stream `xs` with this block of its norm added to it.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward_residual(&self, xs: Residual, norm: &RmsNorm) -> Result<Residual> {
        let (xs, hidden) = match self.gate_up.merged() {
            Some(gate_up) => xs.project_gated(norm, gate_up)?,
            None => {
                let (xs, normed) = xs.normed(norm)?;
                let [gate, up] = self.gate_up.forward(&normed)?;
                (xs, silu_mul(&gate, &up)?)
            }
        };
        xs.add(&self.down_proj, &hidden)
    }
}

impl Module for GatedMlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [gate, up] = self.gate_up.forward(xs)?;
        self.down_proj.forward(&silu_mul(&gate, &up)?)
    }
}
