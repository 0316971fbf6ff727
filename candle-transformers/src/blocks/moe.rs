//! A sparse mixture of experts in place of one MLP, as in Mixtral: [arXiv 2401.04088](https://arxiv.org/abs/2401.04088).

use candle_core::quantized::QMatMul;
use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{silu_mul, softmax_last_dim};

use super::Projection;

/// Gated MLPs ([`super::GatedMlp`]) of which a router picks some for each token; their outputs are summed with the router's
/// weights.
#[derive(Debug, Clone)]
pub struct SparseMoe {
    router: Projection,
    gate: QMatMul,
    up: QMatMul,
    down: QMatMul,
    used: usize,
}

impl SparseMoe {
    /// A block from its weights: `router` has an output for each expert, `gate` and `up` are
    /// `(experts, intermediate_size, hidden_size)`, `down` is `(experts, hidden_size, intermediate_size)`. Each token takes the
    /// `used` experts with the largest outputs. The weights are checked when the block is applied.
    ///
    /// # Errors
    /// If `used` is 0.
    pub fn new(
        router: Projection,
        gate: QMatMul,
        up: QMatMul,
        down: QMatMul,
        used: usize,
    ) -> Result<Self> {
        if used == 0 {
            bail!("mixture of experts: 0 experts for each token, at least one is needed")
        }
        Ok(Self {
            router,
            gate,
            up,
            down,
            used,
        })
    }
}

/// From `(b, t, hidden_size)` to the same shape.
impl Module for SparseMoe {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, t, hidden_size) = xs.dims3()?;
        let tokens = xs.reshape((b * t, hidden_size))?;
        let probabilities = softmax_last_dim(&self.router.forward(&tokens)?)?;
        let (weights, experts) = probabilities.sort_last_dim(false)?;
        let weights = weights.narrow(D::Minus1, 0, self.used)?;
        let weights = weights.broadcast_div(&weights.sum_keepdim(D::Minus1)?)?;
        let experts = experts.narrow(D::Minus1, 0, self.used)?.contiguous()?;

        let tokens = tokens.unsqueeze(1)?;
        let gate = self.gate.indexed_moe_forward(&tokens, &experts)?;
        let up = self.up.indexed_moe_forward(&tokens, &experts)?;
        let ys = self
            .down
            .indexed_moe_forward(&silu_mul(&gate, &up)?, &experts)?;
        ys.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?
            .sum(1)?
            .reshape((b, t, hidden_size))
    }
}
