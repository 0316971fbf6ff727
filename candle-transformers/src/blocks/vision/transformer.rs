//! Layers of vision transformers, [arXiv 2010.11929](https://arxiv.org/abs/2010.11929).

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{layer_norm, linear, linear_b, Activation, LayerNorm, Linear, VarBuilder};

use crate::blocks::encoder::{EncoderBiases, EncoderNames, EncoderSpec, MlpActivation, NormPlace};
use crate::blocks::{MergedLinear, NormSpec};

/// Sizes of a transformer's layers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VitSpec {
    pub(crate) size: usize,
    pub(crate) heads: usize,
    /// Inner size of the feed-forward block.
    pub(crate) inner: usize,
    /// Norm epsilon.
    pub(crate) eps: f64,
}

impl VitSpec {
    /// With four times the size in feed-forward blocks.
    pub(crate) fn new(size: usize, heads: usize, eps: f64) -> Self {
        Self {
            size,
            heads,
            inner: 4 * size,
            eps,
        }
    }

    /// The size of a head.
    pub(crate) fn head_dim(&self, family: &str) -> Result<usize> {
        let (size, heads) = (self.size, self.heads);
        if heads == 0 || size == 0 || size % heads != 0 {
            bail!("{family}: {heads} heads do not divide the size {size}")
        }
        Ok(size / heads)
    }
}

impl VitSpec {
    /// A layer with a norm before each block, over weights of any kind; all parts have biases.
    ///
    /// # Errors
    /// If the heads do not divide the size.
    pub(crate) fn encoder(
        &self,
        family: &str,
        activation: impl Into<VitActivation>,
        names: EncoderNames,
    ) -> Result<EncoderSpec> {
        let activation: VitActivation = activation.into();
        Ok(EncoderSpec {
            hidden: self.size,
            inner: self.inner,
            heads: self.heads,
            head_dim: self.head_dim(family)?,
            activation: activation.into(),
            bias: EncoderBiases::all(true),
            norm: NormSpec::layer(self.eps),
            place: NormPlace::Before,
            names,
        })
    }
}

/// Projections to queries, keys and values, in this order.
#[derive(Debug, Clone)]
enum Qkv {
    Joined(Linear),
    /// As [`Joined`](Self::Joined), the three of the first head before those of the next.
    ByHead(Linear),
    Apart(MergedLinear<3>),
}

/// Attention of every token to every token.
#[derive(Debug, Clone)]
pub(crate) struct VitAttention {
    qkv: Qkv,
    proj: Linear,
    heads: usize,
}

/// From (batch, tokens, n * head_dim) to (batch, n, tokens, head_dim).
pub(crate) fn heads(xs: &Tensor, n: usize) -> Result<Tensor> {
    let (b, t, size) = xs.dims3()?;
    xs.reshape((b, t, n, size / n.max(1)))?.transpose(1, 2)
}

/// Back from (batch, n, tokens, head_dim) to (batch, tokens, n * head_dim).
pub(crate) fn join_heads(xs: &Tensor) -> Result<Tensor> {
    xs.transpose(1, 2)?.flatten_from(2)
}

impl VitAttention {
    /// timm's names: `qkv` and `proj`.
    pub(crate) fn load(spec: &VitSpec, qkv_bias: bool, vb: VarBuilder) -> Result<Self> {
        let size = spec.size;
        Ok(Self::joined(
            linear_b(size, 3 * size, qkv_bias, vb.pp("qkv"))?,
            linear(size, size, vb.pp("proj"))?,
            spec.heads,
        ))
    }

    /// Attention with queries, keys and values from one layer.
    pub(crate) fn joined(qkv: Linear, proj: Linear, heads: usize) -> Self {
        Self {
            qkv: Qkv::Joined(qkv),
            proj,
            heads,
        }
    }

    /// As [`joined`](Self::joined), of outputs that are head by head.
    pub(crate) fn by_head(qkv: Linear, proj: Linear, heads: usize) -> Self {
        Self {
            qkv: Qkv::ByHead(qkv),
            proj,
            heads,
        }
    }

    /// Attention with a layer for each of the three.
    pub(crate) fn apart(parts: [Linear; 3], proj: Linear, heads: usize) -> Result<Self> {
        Ok(Self {
            qkv: Qkv::Apart(MergedLinear::new(parts)?),
            proj,
            heads,
        })
    }

    /// From (batch, tokens, size) to the same shape. `bias` is added to the scores, (batch, heads, tokens, tokens) or what broadcasts to it.
    pub(crate) fn forward(&self, xs: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        self.forward_turned(xs, bias, |q, k| Ok((q, k)))
    }

    /// As [`forward`](Self::forward), with queries and keys (batch, heads, tokens, head_dim) transformed by `turn`.
    pub(crate) fn forward_turned(
        &self,
        xs: &Tensor,
        bias: Option<&Tensor>,
        turn: impl FnOnce(Tensor, Tensor) -> Result<(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let (joined, by_head) = match &self.qkv {
            Qkv::Joined(linear) => (linear.forward(xs)?, false),
            Qkv::ByHead(linear) => (linear.forward(xs)?, true),
            Qkv::Apart(parts) => (parts.forward_joined(xs)?, false),
        };
        let head_dim = joined.dim(D::Minus1)? / (3 * self.heads);
        let (all, dim, step) = if by_head {
            (heads(&joined, self.heads)?, 3, head_dim)
        } else {
            (heads(&joined, 3 * self.heads)?, 1, self.heads)
        };
        let part = |i| all.narrow(dim, i * step, step);
        let (q, k) = turn(part(0)?, part(1)?)?;
        let options = SdpaOptions {
            scale: 1. / (head_dim as f32).sqrt(),
            bias,
            ..Default::default()
        };
        let ys = sdpa_with(&q, &k, &part(2)?, &options)?;
        self.proj.forward(&join_heads(&ys)?)
    }
}

/// The function between the linear layers of a [`VitMlp`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum VitActivation {
    Named(Activation),
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
}

impl From<Activation> for VitActivation {
    fn from(activation: Activation) -> Self {
        Self::Named(activation)
    }
}

impl From<VitActivation> for MlpActivation {
    fn from(activation: VitActivation) -> Self {
        match activation {
            VitActivation::Named(activation) => Self::Plain(activation),
            VitActivation::QuickGelu => Self::QuickGelu,
        }
    }
}

impl Module for VitActivation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Named(activation) => activation.forward(xs),
            Self::QuickGelu => (xs * 1.702)?.silu()? / 1.702,
        }
    }
}

/// Two linear layers and an activation between them.
#[derive(Debug, Clone)]
pub(crate) struct VitMlp {
    pub(crate) up: Linear,
    pub(crate) down: Linear,
    pub(crate) activation: VitActivation,
}

impl VitMlp {
    /// timm's names, `fc1` and `fc2`, and exact GELU, as timm's and the authors' models have.
    pub(crate) fn load(spec: &VitSpec, vb: VarBuilder) -> Result<Self> {
        Self::load_with(spec, Activation::Gelu, vb)
    }

    /// As [`load`](Self::load), with another activation.
    pub(crate) fn load_with(
        spec: &VitSpec,
        activation: impl Into<VitActivation>,
        vb: VarBuilder,
    ) -> Result<Self> {
        Ok(Self {
            up: linear(spec.size, spec.inner, vb.pp("fc1"))?,
            down: linear(spec.inner, spec.size, vb.pp("fc2"))?,
            activation: activation.into(),
        })
    }
}

impl Module for VitMlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let inner = self.activation.forward(&self.up.forward(xs)?)?;
        self.down.forward(&inner)
    }
}

/// Attention and a feed-forward block, each behind a norm, multiplied with a factor of each element ([arXiv
/// 2103.17239](https://arxiv.org/abs/2103.17239)) and in a residual.
#[derive(Debug, Clone)]
pub(crate) struct VitBlock {
    norm1: LayerNorm,
    attention: VitAttention,
    norm2: LayerNorm,
    mlp: VitMlp,
    /// (size) each.
    scales: [Tensor; 2],
}

impl VitBlock {
    /// timm's names `norm1`, `attn`, `norm2` and `mlp`, and DINOv2's `ls1.gamma` and `ls2.gamma`.
    pub(crate) fn load_scaled(spec: &VitSpec, vb: VarBuilder) -> Result<Self> {
        let scale = |name| vb.pp(name).get(spec.size, "gamma");
        Ok(Self {
            norm1: layer_norm(spec.size, spec.eps, vb.pp("norm1"))?,
            attention: VitAttention::load(spec, true, vb.pp("attn"))?,
            norm2: layer_norm(spec.size, spec.eps, vb.pp("norm2"))?,
            mlp: VitMlp::load(spec, vb.pp("mlp"))?,
            scales: [scale("ls1")?, scale("ls2")?],
        })
    }

    /// From (batch, tokens, size) to the same shape; `bias` is that of [`VitAttention::forward`].
    pub(crate) fn forward_biased(&self, xs: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let ys = self.attention.forward(&self.norm1.forward(xs)?, bias)?;
        let xs = (xs + ys.broadcast_mul(&self.scales[0])?)?;
        let ys = self.mlp.forward(&self.norm2.forward(&xs)?)?;
        xs + ys.broadcast_mul(&self.scales[1])?
    }
}

impl Module for VitBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_biased(xs, None)
    }
}

/// The blocks whose results are requested, and their form.
pub(crate) struct Taken<'a> {
    /// Indices of the blocks.
    pub(crate) blocks: &'a [usize],
    /// The rows and columns, for results as images.
    pub(crate) places: Option<[usize; 2]>,
    /// Whether the class token is appended to each patch.
    pub(crate) class_token: bool,
    /// The norm of each result.
    pub(crate) norm: Option<&'a LayerNorm>,
}

/// The patches of the results of the blocks in `taken`, stacked in the order of the blocks: (taken, batch, patches, size), or as images
/// (taken, batch, size, rows, columns). `tokens` is (batch, 1 + patches, size), the class token first.
pub(crate) fn intermediate_layers<B>(
    blocks: &[B],
    tokens: Tensor,
    taken: &Taken<'_>,
    forward: impl Fn(&B, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    if let Some(i) = taken.blocks.iter().find(|i| **i >= blocks.len()) {
        bail!(
            "intermediate layers: block {i} requested, but the model has {}",
            blocks.len()
        )
    }
    if taken.blocks.is_empty() {
        bail!("intermediate layers: no block requested; at least one is required")
    }
    if taken.class_token && taken.places.is_some() {
        bail!("intermediate layers: cannot append the class token to reshaped patches; disable `reshape`")
    }
    let (mut xs, mut results) = (tokens, Vec::with_capacity(taken.blocks.len()));
    for (i, block) in blocks.iter().enumerate() {
        xs = forward(block, &xs)?;
        if !taken.blocks.contains(&i) {
            continue;
        }
        let all = match taken.norm {
            Some(norm) => norm.forward(&xs)?,
            None => xs.clone(),
        };
        let (b, t, size) = all.dims3()?;
        let patches = all.narrow(1, 1, t - 1)?;
        results.push(match taken.places {
            Some([rows, columns]) => patches.transpose(1, 2)?.reshape((b, size, rows, columns))?,
            None if taken.class_token => {
                let class = all.narrow(1, 0, 1)?.expand((b, t - 1, size))?;
                Tensor::cat(&[patches, class], 2)?
            }
            None => patches,
        });
    }
    Tensor::stack(&results, 0)
}
