//! Mamba 2's state space: [arXiv 2405.21060](https://arxiv.org/abs/2405.21060). Each head keeps a matrix that decays at a speed which the
//! token sets.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::Init;

use super::feed_forward::linear;
use super::recurrence::{self, softplus, wide};
use super::recurrent::Conv;
use super::weights::Weights;
use super::{Norm, NormSpec, Projection, RecurrentState, Residual};

/// Positions of a prompt that are computed together.
const CHUNK: usize = 64;

/// The heads of a state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpaceHeads {
    /// Heads.
    pub count: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Groups of heads that read and write by the same vectors.
    pub groups: usize,
    /// Numbers that each channel keeps.
    pub state: usize,
}

impl StateSpaceHeads {
    /// The channels of all heads.
    pub fn inner(&self) -> usize {
        self.count.saturating_mul(self.head_dim)
    }

    /// The channels of the convolution.
    pub fn channels(&self) -> usize {
        let vectors = self.groups.saturating_mul(self.state);
        vectors.saturating_mul(2).saturating_add(self.inner())
    }

    /// Checks what the computation takes for granted. `family` begins the message.
    ///
    /// # Errors
    /// If a size is 0, or the groups do not divide the heads.
    pub fn check(&self, family: &str) -> Result<()> {
        let Self {
            count,
            head_dim,
            groups,
            state,
        } = *self;
        if count == 0 || head_dim == 0 || groups == 0 || state == 0 {
            bail!(
                "{family}: {count} heads of {head_dim} channels in {groups} groups keep {state} numbers a channel; each must be at least 1"
            )
        }
        if !count.is_multiple_of(groups) {
            bail!("{family}: {count} heads cannot be split into {groups} groups")
        }
        Ok(())
    }

    /// The outputs, `(b, t, inner)` in the dtype of `step`, of what the convolution made, `(b, t, channels)`. `step`, `(b, t, heads)`, is the
    /// size of each step; `rate` the logarithm of the decay for a step of size 1 and `skip` what of an input goes past the state, `(heads)`
    /// each. `kept`, `(b, heads, state, head_dim)`, becomes the state after the last position.
    pub(crate) fn scan(
        &self,
        mixed: &Tensor,
        step: &Tensor,
        [rate, skip]: [&Tensor; 2],
        kept: &mut Tensor,
        chunk: usize,
    ) -> Result<Tensor> {
        let (b, t, _) = mixed.dims3()?;
        let (heads, groups, n) = (self.count, self.groups, self.state);
        let wide = step.dtype();
        // `(b, count, t, size)`.
        let split = |start, count: usize, size| {
            let part = mixed.narrow(D::Minus1, start, count * size)?;
            let part = part.reshape((b, t, count, size))?.transpose(1, 2)?;
            part.contiguous()?.to_dtype(wide)
        };
        let each_head = |xs: Tensor| {
            let xs = xs.unsqueeze(2)?;
            let xs = xs.broadcast_as((b, groups, heads / groups, t, n))?;
            xs.reshape((b, heads, t, n))
        };
        let inner = self.inner();
        let values = split(0, heads, self.head_dim)?;
        let k = each_head(split(inner, groups, n)?)?;
        let q = each_head(split(inner + groups * n, groups, n)?)?;
        let step = step.transpose(1, 2)?.unsqueeze(3)?.contiguous()?;
        let of_head = |xs: &Tensor| xs.to_dtype(wide)?.reshape((1, heads, 1, 1));
        let linear = recurrence::Linear {
            q: &q,
            k: &k,
            v: &values.broadcast_mul(&step)?,
            decay: &step.broadcast_mul(&of_head(rate)?)?,
            own: None,
        };
        let ys = linear.run(kept, chunk)?;
        let ys = (ys + values.broadcast_mul(&of_head(skip)?)?)?;
        ys.transpose(1, 2)?.reshape((b, t, inner))
    }
}

/// A mixer before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct StateSpaceSpec {
    /// Its heads.
    pub heads: StateSpaceHeads,
    /// Kernel size of the convolution before it, in tokens.
    pub kernel: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether both projections have biases.
    pub bias: bool,
    /// The norm of the results.
    pub norm: StateSpaceNorm,
    /// Norm epsilon, added to the mean square.
    pub norm_eps: f64,
}

/// The gating and the norm of a state space's results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateSpaceNorm {
    /// An RMS norm of what the gate leaves.
    Gated,
    /// No norm, only the gate (Falcon-H1).
    None,
}

impl StateSpaceSpec {
    /// Checks what the layers take for granted.
    pub(super) fn check(&self) -> Result<()> {
        if self.kernel == 0 {
            bail!("state space: the convolution's kernel size is 0; it must be at least 1")
        }
        self.heads.check("state space")
    }
}

/// A mixer whose heads each keep a matrix.
#[derive(Debug, Clone)]
pub struct StateSpace {
    /// To the gate of the results, to what goes through the convolution, and to the size of each head's step.
    input: Projection,
    conv: Conv,
    /// The logarithm of the decay for a step of size 1, `(heads)`.
    rate: Tensor,
    /// The factor of the value that bypasses the state, `(heads)`.
    skip: Tensor,
    /// Added to the step's size, `(heads)`.
    step_bias: Tensor,
    norm: Option<Norm>,
    output: Projection,
    heads: StateSpaceHeads,
}

impl StateSpace {
    /// Loads `{prefix}.mamba.*` of a layer; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &StateSpaceSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<Self> {
        let (heads, prefix) = (spec.heads, format!("{prefix}.mamba"));
        let (inner, channels) = (heads.inner(), heads.channels());
        let projected = inner + channels + heads.count;
        let input = linear(&prefix, "in_proj", hidden, projected, spec.bias);
        let output = linear(&prefix, "out_proj", inner, hidden, spec.bias);
        let conv = format!("{prefix}.conv1d");
        // Sums over a sequence are too coarse in 16 bits, and so are these.
        let wide = wide(weights.dtype());
        let mut vector = async |name: &str| {
            let name = format!("{prefix}.{name}");
            weights
                .dense_as(wide, &name, &[heads.count], Init::Const(0.))
                .await
        };
        let rate = vector("A_log").await?.exp()?.neg()?;
        let (skip, step_bias) = (vector("D").await?, vector("dt_bias").await?);
        let norm = NormSpec::rms(spec.norm_eps);
        Ok(Self {
            input: weights.linear(&input).await?,
            conv: Conv::load(weights, &conv, channels, spec.kernel, spec.conv_bias).await?,
            rate,
            skip,
            step_bias,
            norm: match spec.norm {
                StateSpaceNorm::Gated => {
                    Some(weights.norm(&format!("{prefix}.norm"), inner, norm).await?)
                }
                StateSpaceNorm::None => None,
            },
            output: weights.linear(&output).await?,
            heads,
        })
    }

    /// The projection back to the stream, which comes after [`inner`](Self::inner).
    pub fn output(&self) -> &Projection {
        &self.output
    }

    /// The input of the projection back, `(b, t, inner)`, for the norm of the stream, `(b, t, hidden_size)`, or without one the stream. Without a state
    /// the positions are the whole sequence.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn inner(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
        state: Option<&mut RecurrentState>,
    ) -> Result<(Residual, Tensor)> {
        let mut fresh = RecurrentState::default();
        let state = state.unwrap_or(&mut fresh);
        let (xs, projected) = xs.project(norm, &self.input)?;
        let (b, t, _) = projected.dims3()?;
        let (inner, channels) = (self.heads.inner(), self.heads.channels());
        let part = |start, len| projected.narrow(D::Minus1, start, len);
        let (gate, through) = (part(0, inner)?, part(inner, channels)?);
        let step = part(inner + channels, self.heads.count)?;

        let mixed = self.conv.forward(&through, &mut state.parts[0])?.silu()?;
        let wide = self.rate.dtype();
        let step = softplus(&step.to_dtype(wide)?.broadcast_add(&self.step_bias)?)?;
        let mut kept = match state.parts[1].take() {
            Some(kept) => kept,
            None => {
                let heads = self.heads;
                let shape = (b, heads.count, heads.state, heads.head_dim);
                Tensor::zeros(shape, wide, projected.device())?
            }
        };
        let both = [&self.rate, &self.skip];
        let ys = self.heads.scan(&mixed, &step, both, &mut kept, CHUNK)?;
        state.parts[1] = Some(kept);
        state.seen += t;

        let ys = (ys * gate.to_dtype(wide)?.silu()?)?;
        let ys = ys.to_dtype(projected.dtype())?;
        let ys = match &self.norm {
            Some(norm) => norm.forward(&ys)?,
            None => ys,
        };
        Ok((xs, ys))
    }
}
