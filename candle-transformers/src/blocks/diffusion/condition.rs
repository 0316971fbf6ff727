//! Blocks whose norms and residuals a condition sets, adaLN: [arXiv 2212.09748](https://arxiv.org/abs/2212.09748).

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{self, sdpa_with, SdpaOptions};
use candle_nn::RmsNorm;

use crate::blocks::vision::join_heads;
use crate::blocks::Projection;

/// Added to the variance by the norms.
pub const NORM_EPS: f64 = 1e-6;

/// The layer that makes `N` vectors of the condition: shifts, scales and gates.
#[derive(Debug, Clone)]
pub struct AdaLn<const N: usize> {
    linear: Projection,
}

impl<const N: usize> AdaLn<N> {
    /// From a layer with `N` times the size of the stream as outputs.
    pub fn new(linear: impl Into<Projection>) -> Self {
        Self {
            linear: linear.into(),
        }
    }

    /// From the condition, (batch, size) or that of all rows of a batch, (1, size), with its activation: `N` vectors (batch, 1, hidden).
    pub fn forward(&self, condition: &Tensor) -> Result<[Tensor; N]> {
        let all = self.linear.forward(condition)?.unsqueeze(1)?;
        let size = all.dim(D::Minus1)?;
        if size % N != 0 {
            bail!("a condition of size {size} cannot be split into {N} vectors")
        }
        let size = size / N;
        let parts = (0..N).map(|i| all.narrow(D::Minus1, i * size, size));
        match <[Tensor; N]>::try_from(parts.collect::<Result<Vec<_>>>()?) {
            Ok(parts) => Ok(parts),
            Err(parts) => bail!("{} vectors of a condition instead of {N}", parts.len()),
        }
    }
}

/// `xs`, (batch, seq, hidden), with mean 0 and variance 1.
pub fn plain_norm(xs: &Tensor, eps: f64) -> Result<Tensor> {
    let norm = ops::Norm {
        centred: true,
        weight: None,
        bias: None,
        eps: eps as f32,
    };
    ops::norm(xs, norm)
}

/// `(scale + 1) * norm(xs) + shift`. `xs` is (batch, seq, hidden), `shift` and `scale` are (batch, 1, hidden) or (1, 1, hidden).
pub fn modulated(xs: &Tensor, shift: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let scale = (scale + 1.)?;
    if scale.dim(0)? == 1 {
        // One condition for all rows is a layer norm's weight and bias: one kernel.
        let (weight, bias) = (scale.flatten_all()?, shift.flatten_all()?);
        return ops::norm(xs, ops::Norm::layer(&weight, &bias, NORM_EPS as f32));
    }
    plain_norm(xs, NORM_EPS)?
        .broadcast_mul(&scale)?
        .broadcast_add(shift)
}

/// `xs + gate * ys`. `xs` and `ys` are (batch, seq, hidden), `gate` is (batch, 1, hidden) or (1, 1, hidden).
pub fn plus_gated(xs: &Tensor, gate: &Tensor, ys: &Tensor) -> Result<Tensor> {
    xs + ys.broadcast_mul(gate)?
}

/// `(scale + 1) * norm(xs)`. `xs` is (batch, seq, hidden), `scale` is (batch, 1, hidden) or (1, 1, hidden).
pub fn scaled_norm(xs: &Tensor, norm: &RmsNorm, scale: &Tensor) -> Result<Tensor> {
    let scale = (scale + 1.)?;
    match one_weight(norm, &scale)? {
        Some(weight) => ops::rms_norm(xs, &weight, norm.eps() as f32),
        None => norm.forward(xs)?.broadcast_mul(&scale),
    }
}

/// `xs + gate * norm(ys)`. `xs` and `ys` are (batch, seq, hidden), `gate` is (batch, 1, hidden) or (1, 1, hidden).
pub fn plus_gated_norm(xs: &Tensor, gate: &Tensor, norm: &RmsNorm, ys: &Tensor) -> Result<Tensor> {
    match one_weight(norm, gate)? {
        Some(weight) => ops::norm_add(ys, ops::Norm::rms(&weight, norm.eps() as f32), xs),
        None => plus_gated(xs, gate, &norm.forward(ys)?),
    }
}

/// The norm's weight times `factor`, if that is one for all rows: then norm and product are one kernel.
fn one_weight(norm: &RmsNorm, factor: &Tensor) -> Result<Option<Tensor>> {
    match factor.dim(0)? {
        1 => Ok(Some((norm.weight() * factor.flatten_all()?)?)),
        _ => Ok(None),
    }
}

/// Full attention: from (batch, heads, seq, head_dim) each, of any layout, to (batch, seq, heads * head_dim). `bias` is added to the
/// scores, (batch, heads, seq, seq) or a shape that broadcasts to it.
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let options = SdpaOptions {
        scale: (1. / (q.dim(D::Minus1)? as f64).sqrt()) as f32,
        bias,
        ..SdpaOptions::default()
    };
    join_heads(&sdpa_with(q, k, v, &options)?)
}
