//! Mixers whose state has a fixed size, for layers alternating with those of attention.

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::ops::sigmoid;
use candle_nn::{Activation, Init};

use super::feed_forward::linear;
use super::recurrence::{causal_conv, softplus, wide};
use super::weights::Weights;
use super::{MergedLinear, Norm, Projection, Residual};

/// A mixer before it has weights. Its weights' names start with `name`.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentSpec {
    /// Prefix of the names of its parts, within the layer.
    pub name: &'static str,
    /// Which.
    pub kind: RecurrentKind,
}

/// The mixers with a state of fixed size.
#[derive(Debug, Clone, PartialEq)]
pub enum RecurrentKind {
    /// Griffin's gated linear recurrence: [arXiv 2402.19427](https://arxiv.org/abs/2402.19427).
    Griffin {
        /// Channels of the recurrence.
        width: usize,
        /// Blocks that its gates are computed in.
        heads: usize,
        /// Tokens that its convolution sees.
        kernel: usize,
        /// The activation of the parallel branch.
        activation: Activation,
    },
    /// Attention by the second Taylor polynomial of the exponential function: [arXiv 2402.18668](https://arxiv.org/abs/2402.18668).
    Taylor {
        /// Heads.
        heads: usize,
        /// Size of queries and keys.
        features: usize,
        /// Scores are divided by the root of this.
        scale: usize,
    },
    /// A convolution with a gate, of the same paper: twice as wide as the stream.
    GatedConv {
        /// Tokens that it sees.
        kernel: usize,
    },
}

impl RecurrentSpec {
    /// Checks what the layers take for granted.
    pub(super) fn check(&self, hidden: usize) -> Result<()> {
        let (blocks, size, kernel) = match self.kind {
            RecurrentKind::Griffin {
                width,
                heads,
                kernel,
                ..
            } => (heads, width, kernel),
            RecurrentKind::Taylor { heads, .. } => (heads, hidden, 1),
            RecurrentKind::GatedConv { kernel } => (1, hidden, kernel),
        };
        if blocks == 0 || !size.is_multiple_of(blocks) {
            bail!("recurrent layer: {size} channels cannot be split into {blocks} blocks")
        }
        if kernel == 0 {
            bail!("recurrent layer: the convolution's kernel size is 0; it must be at least 1")
        }
        Ok(())
    }
}

/// The state of a sequence in a mixer.
#[derive(Debug, Clone, Default)]
pub struct RecurrentState {
    pub(super) seen: usize,
    /// The states of the convolution and of the recurrence.
    pub(super) parts: [Option<Tensor>; 2],
}

impl RecurrentState {
    /// Number of positions added since the last reset.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// A mixer with a state of fixed size.
#[derive(Debug, Clone)]
pub struct Recurrent {
    kind: Kind,
    output: Projection,
}

#[derive(Debug, Clone)]
enum Kind {
    Griffin {
        branches: MergedLinear<2>,
        activation: Activation,
        conv: Conv,
        lru: Lru,
    },
    Taylor {
        qkv: MergedLinear<3>,
        heads: usize,
        scale: f64,
    },
    GatedConv {
        input: Projection,
        conv: Conv,
    },
}

impl Recurrent {
    /// Loads the block of a layer from weights named `prefix` and a suffix; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &RecurrentSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        prefix: &str,
    ) -> Result<Self> {
        let prefix = format!("{prefix}.{}", spec.name);
        let part = |name, in_dim, out_dim, bias| linear(&prefix, name, in_dim, out_dim, bias);
        Ok(match spec.kind {
            RecurrentKind::Griffin {
                width,
                heads,
                kernel,
                activation,
            } => {
                let branches = ["linear_y", "linear_x"].map(|name| part(name, hidden, width, true));
                let conv = format!("{prefix}.conv_1d");
                Self {
                    kind: Kind::Griffin {
                        branches: weights.merged(branches).await?,
                        activation,
                        conv: Conv::load(weights, &conv, width, kernel, true).await?,
                        lru: Lru::load(weights, &format!("{prefix}.rg_lru"), width, heads).await?,
                    },
                    output: weights
                        .linear(&part("linear_out", width, hidden, true))
                        .await?,
                }
            }
            RecurrentKind::Taylor {
                heads,
                features,
                scale,
            } => {
                let dim = heads.saturating_mul(features);
                let qkv = [("proj_q", dim), ("proj_k", dim), ("proj_v", hidden)];
                let qkv = qkv.map(|(name, out_dim)| part(name, hidden, out_dim, false));
                Self {
                    kind: Kind::Taylor {
                        qkv: weights.merged(qkv).await?,
                        heads,
                        scale: (scale as f64).sqrt(),
                    },
                    output: weights
                        .linear(&part("out_proj", hidden, hidden, false))
                        .await?,
                }
            }
            RecurrentKind::GatedConv { kernel } => {
                let width = hidden.saturating_mul(2);
                let input = part("in_proj", hidden, width.saturating_mul(2), true);
                let conv = format!("{prefix}.conv.conv");
                Self {
                    kind: Kind::GatedConv {
                        input: weights.linear(&input).await?,
                        conv: Conv::load(weights, &conv, width, kernel, false).await?,
                    },
                    output: weights
                        .linear(&part("out_proj", width, hidden, true))
                        .await?,
                }
            }
        })
    }

    /// The projection that comes after [`inner`](Self::inner).
    pub fn output(&self) -> &Projection {
        &self.output
    }

    /// The input of the last projection, for the norm of the stream, or for the stream if there is no norm. Without a state the positions
    /// are the whole sequence.
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
        let (xs, normed) = xs.normed(norm)?;
        let ys = match &self.kind {
            Kind::Griffin {
                branches,
                activation,
                conv,
                lru,
            } => {
                let [beside, through] = branches.forward(&normed)?;
                let through = conv.forward(&through, &mut state.parts[0])?;
                let through = lru.forward(&through, state.seen == 0, &mut state.parts[1])?;
                (through * activation.forward(&beside.contiguous()?)?)?
            }
            Kind::Taylor { qkv, heads, scale } => {
                let qkv = qkv.forward(&normed)?;
                taylor(qkv, *heads, *scale, &mut state.parts[1])?
            }
            Kind::GatedConv { input, conv } => {
                let both = input.forward(&normed)?;
                let width = both.dim(D::Minus1)? / 2;
                let through = both.narrow(D::Minus1, 0, width)?;
                let through = conv.forward(&through, &mut state.parts[0])?;
                (through.silu()? * both.narrow(D::Minus1, width, width)?)?
            }
        };
        state.seen += normed.dim(1)?;
        Ok((xs, ys))
    }
}

/// A causal convolution of each channel.
#[derive(Debug, Clone)]
pub(super) struct Conv {
    /// `(channels, kernel)`.
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Conv {
    pub(super) async fn load(
        weights: &mut Weights<'_>,
        name: &str,
        channels: usize,
        kernel: usize,
        bias: bool,
    ) -> Result<Self> {
        let init = Init::Const(0.);
        let weight = format!("{name}.weight");
        // GGUF files leave out the dimension of size 1.
        let flat = weights
            .shape(&weight)
            .is_some_and(|shape| shape.rank() == 2);
        let weight = if flat {
            weights.dense(&weight, &[channels, kernel], init).await?
        } else {
            let shape = [channels, 1, kernel];
            weights.dense(&weight, &shape, init).await?.squeeze(1)?
        };
        let bias = if bias {
            let name = format!("{name}.bias");
            Some(weights.dense(&name, &[channels], init).await?)
        } else {
            None
        };
        Ok(Self { weight, bias })
    }

    /// From `(b, t, channels)` to the same shape.
    pub(super) fn forward(&self, xs: &Tensor, state: &mut Option<Tensor>) -> Result<Tensor> {
        let (b, _, channels) = xs.dims3()?;
        let xs = xs.transpose(1, 2)?.contiguous()?;
        let before = match state.take() {
            Some(before) => before,
            None => {
                let kernel = self.weight.dim(1)?;
                Tensor::zeros((b, channels, kernel - 1), xs.dtype(), xs.device())?
            }
        };
        let (ys, after) = causal_conv(&xs, &before, &self.weight, self.bias.as_ref())?;
        *state = Some(after);
        ys.transpose(1, 2)?.contiguous()
    }
}

/// `h = a h + sqrt(1 - a^2) i x` for each channel, where the token gives `a` and `i`.
#[derive(Debug, Clone)]
struct Lru {
    /// `ln a` where its gate is open, `(width)`.
    rate: Tensor,
    /// The gates of the inputs and of the recurrence: `(heads, size, size)` and `(heads, 1, size)`.
    gates: [(Tensor, Tensor); 2],
}

impl Lru {
    async fn load(
        weights: &mut Weights<'_>,
        name: &str,
        width: usize,
        heads: usize,
    ) -> Result<Self> {
        let init = Init::Const(0.);
        let size = width / heads.max(1);
        let mut gates = Vec::with_capacity(2);
        for gate in ["input_gate", "recurrent_gate"] {
            let weight = format!("{name}.{gate}_weight");
            let bias = format!("{name}.{gate}_bias");
            let weight = weights.dense(&weight, &[heads, size, size], init).await?;
            let bias = weights.dense(&bias, &[heads, size], init).await?;
            gates.push((weight, bias.unsqueeze(1)?));
        }
        let Ok(gates) = <[_; 2]>::try_from(gates) else {
            bail!("{name}: expected two gates")
        };
        let param = format!("{name}.recurrent_param");
        let param = weights.dense(&param, &[width], init).await?;
        let param = param.to_dtype(wide(param.dtype()))?;
        Ok(Self {
            rate: (softplus(&param)? * -8.)?,
            gates,
        })
    }

    /// From `(b, t, width)` to the same shape. At the `first` position of a sequence the input counts in full.
    fn forward(&self, xs: &Tensor, first: bool, state: &mut Option<Tensor>) -> Result<Tensor> {
        let (b, t, width) = xs.dims3()?;
        let heads = self.gates[0].0.dim(0)?;
        let by_head = xs.reshape((b * t, heads, width / heads))?;
        let by_head = by_head.transpose(0, 1)?.contiguous()?;
        let wide = wide(xs.dtype());
        let gate = |(weight, bias): &(Tensor, Tensor)| {
            let gate = by_head.matmul(weight)?.broadcast_add(bias)?;
            let gate = gate.transpose(0, 1)?.contiguous()?.to_dtype(wide)?;
            sigmoid(&gate.reshape((b, t, width))?)
        };
        let [input, recurrent] = &self.gates;
        let log = gate(recurrent)?.broadcast_mul(&self.rate)?;
        let share = (1. - (&log * 2.)?.exp()?)?.sqrt()?;
        let share = match (first, t) {
            (false, _) => share,
            (true, 1) => share.ones_like()?,
            (true, _) => {
                let one = Tensor::ones((b, 1, width), wide, xs.device())?;
                Tensor::cat(&[&one, &share.narrow(1, 1, t - 1)?], 1)?
            }
        };
        let added = ((xs.to_dtype(wide)? * gate(input)?)? * share)?;
        let ys = scan(added, log.exp()?, state.as_ref())?;
        *state = Some(ys.narrow(1, t - 1, 1)?.contiguous()?);
        ys.to_dtype(xs.dtype())
    }
}

/// `h = a h + x` along dimension 1 of `(b, t, c)`, from `before`, `(b, 1, c)`: in about log2(t) steps, each of which doubles the number of
/// positions that a sum covers.
fn scan(mut xs: Tensor, mut a: Tensor, before: Option<&Tensor>) -> Result<Tensor> {
    let t = xs.dim(1)?;
    let mut reach = 1;
    while reach < t {
        let far = t - reach;
        let (head, tail) = (xs.narrow(1, 0, reach)?, xs.narrow(1, reach, far)?);
        let left = a.narrow(1, reach, far)?;
        let tail = (tail + (&left * xs.narrow(1, 0, far)?)?)?;
        let next = Tensor::cat(&[&head, &tail], 1)?;
        let left = (left * a.narrow(1, 0, far)?)?;
        a = Tensor::cat(&[&a.narrow(1, 0, reach)?, &left], 1)?;
        xs = next;
        reach *= 2;
    }
    match before {
        Some(before) => xs + a.broadcast_mul(before)?,
        None => Ok(xs),
    }
}

/// From queries, keys and values, `(b, t, ..)`, to what the heads give, `(b, t, hidden)`. The state is `(b, heads, 1 + n + n^2, size + 1)`: the last
/// column sums keys alone.
fn taylor(
    qkv: [Tensor; 3],
    heads: usize,
    scale: f64,
    state: &mut Option<Tensor>,
) -> Result<Tensor> {
    let (b, t, hidden) = qkv[2].dims3()?;
    let (dtype, size) = (qkv[2].dtype(), hidden / heads);
    let wide = wide(dtype);
    let by_head = |xs: &Tensor| {
        let xs = xs.reshape((b, t, heads, ()))?.transpose(1, 2)?;
        xs.contiguous()?.to_dtype(wide)
    };
    let [q, k, v] = [by_head(&qkv[0])?, by_head(&qkv[1])?, by_head(&qkv[2])?];
    let one = Tensor::ones((b, heads, t, 1), wide, v.device())?;
    let v = Tensor::cat(&[&v, &one], D::Minus1)?;
    let scores = (q.matmul(&k.transpose(2, 3)?.contiguous()?)? / scale)?;
    let scores = ((scores.sqr()? * 0.5)? + scores)?;
    let visible = lower_triangle(t, wide, v.device())?;
    let mut ys = (scores + 1.)?.broadcast_mul(&visible)?.matmul(&v)?;
    if let Some(state) = &*state {
        ys = (ys + features(&q, scale)?.matmul(state)?)?;
    }
    let added = features(&k, scale)?.transpose(2, 3)?.contiguous()?;
    let added = added.matmul(&v)?;
    *state = Some(match state.take() {
        Some(state) => (state + added)?,
        None => added,
    });
    let sums = (ys.narrow(D::Minus1, size, 1)? + 1e-12)?;
    let ys = ys.narrow(D::Minus1, 0, size)?.broadcast_div(&sums)?;
    ys.transpose(1, 2)?.reshape((b, t, hidden))?.to_dtype(dtype)
}

/// Features whose product is `1 + s + s^2 / 2` for the scaled score `s`: `(.., n)` becomes `(.., 1 + n + n^2)`.
fn features(xs: &Tensor, scale: f64) -> Result<Tensor> {
    let xs = (xs / scale.sqrt())?;
    let one = xs.narrow(D::Minus1, 0, 1)?.ones_like()?;
    let squares = xs
        .unsqueeze(D::Minus1)?
        .broadcast_mul(&xs.unsqueeze(D::Minus2)?)?;
    let squares = (squares.flatten_from(D::Minus2)? * std::f64::consts::FRAC_1_SQRT_2)?;
    Tensor::cat(&[one, xs, squares], D::Minus1)
}

fn lower_triangle(t: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let visible = |at: usize| f32::from(u8::from(at % t <= at / t));
    let visible: Vec<f32> = (0..t * t).map(visible).collect();
    Tensor::from_vec(visible, (t, t), device)?.to_dtype(dtype)
}
