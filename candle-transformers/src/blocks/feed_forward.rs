//! What follows attention: a gated MLP ([arXiv 2002.05202](https://arxiv.org/abs/2002.05202)), a plain one, or experts.

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::{act_mul, GatedActivation};
use candle_nn::Activation;

mod xielu;

use self::xielu::Xielu;
use super::weights::{LinearSpec, Order, Weights};
use super::{ExpertsSpec, MergedLinear, Names, Norm, Projection, Residual, SparseMoe};

/// A feed-forward block before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForwardSpec {
    /// `down(activation(gate(x)) * up(x))`.
    Gated(MlpSpec),
    /// `down(activation(up(x)))`.
    Plain(PlainSpec),
    /// As [`Plain`](Self::Plain) with xIELU, [arXiv 2411.13010](https://arxiv.org/abs/2411.13010), as its activation: files have its two
    /// slopes, behind [`Names::activation`].
    Xielu(PlainSpec),
    /// Experts; each token uses some of them.
    Experts(ExpertsSpec),
}

/// A plain MLP before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct PlainSpec {
    /// Inner size.
    pub inner: usize,
    /// The activation.
    pub activation: Activation,
    /// Whether its layers have biases.
    pub bias: bool,
}

/// A gated MLP before it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct MlpSpec {
    /// Inner size.
    pub inner: usize,
    /// The activation.
    pub activation: GatedActivation,
    /// Whether its layers have biases.
    pub bias: bool,
    /// The layout of gate and up in files: separate (`None`), or as one tensor.
    pub joined: Option<Order>,
}

impl MlpSpec {
    /// Without biases, gate and up apart.
    pub fn new(inner: usize, activation: GatedActivation) -> Self {
        Self {
            inner,
            activation,
            bias: false,
            joined: None,
        }
    }

    /// Its layers have biases if `bias` says so.
    pub fn bias(self, bias: bool) -> Self {
        Self { bias, ..self }
    }

    /// Files have gate and up as one tensor.
    pub fn joined(self, order: Order) -> Self {
        Self {
            joined: Some(order),
            ..self
        }
    }
}

/// The feed-forward block of a decoder layer.
// One for each layer: a box would save nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone)]
pub enum FeedForward {
    /// One gated MLP for all tokens.
    Gated(GatedMlp),
    /// One plain MLP for all tokens.
    Plain(PlainMlp),
    /// Several experts; each token uses some of them.
    Sparse(SparseMoe),
}

impl FeedForward {
    /// Loads the block of a layer from weights named `prefix` and a suffix; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &FeedForwardSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        Ok(match spec {
            FeedForwardSpec::Gated(mlp) => {
                Self::Gated(GatedMlp::load(mlp, hidden, weights, names, prefix).await?)
            }
            FeedForwardSpec::Plain(mlp) | FeedForwardSpec::Xielu(mlp) => {
                let [up, down] = [names.up, names.down];
                let (inner, bias) = (mlp.inner, mlp.bias);
                Self::Plain(PlainMlp {
                    up: weights
                        .linear(&linear(prefix, up, hidden, inner, bias))
                        .await?,
                    down: weights
                        .linear(&linear(prefix, down, inner, hidden, bias))
                        .await?,
                    activation: match spec {
                        FeedForwardSpec::Xielu(_) => {
                            let name = format!("{prefix}.{}", names.activation);
                            PlainActivation::Xielu(Xielu::load(weights, &name).await?)
                        }
                        _ => PlainActivation::Fixed(mlp.activation),
                    },
                })
            }
            FeedForwardSpec::Experts(experts) => {
                Self::Sparse(SparseMoe::load(experts, hidden, weights, names, prefix).await?)
            }
        })
    }

    /// The input of the last layer, which is [`output`](Self::output), for the norm of the stream, or for the stream if there is no norm.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn inner(&self, xs: Residual, norm: Option<&Norm>) -> Result<(Residual, Tensor)> {
        match self {
            Self::Gated(mlp) => mlp.inner(xs, norm),
            Self::Plain(mlp) => match &mlp.activation {
                PlainActivation::Fixed(fixed) => xs.project_activated(norm, &mlp.up, *fixed),
                activation => {
                    let (xs, ys) = xs.project(norm, &mlp.up)?;
                    Ok((xs, activation.forward(&ys)?))
                }
            },
            Self::Sparse(experts) => {
                let (xs, normed) = xs.normed(norm)?;
                let ys = experts.forward(&normed)?;
                Ok((xs, ys))
            }
        }
    }

    /// The whole block, times `factor`, which comes before the last layer: nothing that has it is larger than the result or the inner
    /// vector. The last layer has no bias, or the factor is 1.
    pub(crate) fn forward_times(&self, xs: &Tensor, factor: f64) -> Result<Tensor> {
        match self {
            Self::Gated(mlp) => {
                let [gate, up] = mlp.gate_up.forward(xs)?;
                let ys = act_mul(&gate, &(up * factor)?, mlp.activation)?;
                mlp.down_proj.forward(&ys)
            }
            Self::Plain(mlp) => {
                let ys = mlp.activation.forward(&mlp.up.forward(xs)?)?;
                mlp.down.forward(&(ys * factor)?)
            }
            Self::Sparse(experts) => experts.forward(xs)? * factor,
        }
    }

    /// The block for an input of `dtype`; not of experts.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        Ok(match self {
            Self::Gated(mlp) => Self::Gated(GatedMlp {
                gate_up: mlp.gate_up.to_dtype(dtype)?,
                down_proj: mlp.down_proj.to_dtype(dtype)?,
                activation: mlp.activation,
            }),
            Self::Plain(mlp) => Self::Plain(PlainMlp {
                up: mlp.up.to_dtype(dtype)?,
                down: mlp.down.to_dtype(dtype)?,
                activation: mlp.activation.clone(),
            }),
            Self::Sparse(_) => bail!("experts are not converted to {dtype:?}"),
        })
    }

    /// The stream with the block's result added to it; `norm` as in [`inner`](Self::inner).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub(crate) fn add_to(&self, xs: Residual, norm: Option<&Norm>) -> Result<Residual> {
        let (xs, ys) = self.inner(xs, norm)?;
        match self.output() {
            Some(output) => xs.add(output, &ys),
            None => xs.plus(ys),
        }
    }

    /// The last layer, if there is one.
    pub fn output(&self) -> Option<&Projection> {
        match self {
            Self::Gated(mlp) => Some(&mlp.down_proj),
            Self::Plain(mlp) => Some(&mlp.down),
            Self::Sparse(_) => None,
        }
    }
}

/// A linear layer of this name behind the layer's.
pub(crate) fn linear(
    prefix: &str,
    name: &str,
    in_dim: usize,
    out_dim: usize,
    bias: bool,
) -> LinearSpec {
    LinearSpec {
        name: format!("{prefix}.{name}"),
        in_dim,
        out_dim,
        bias,
    }
}

/// `down(activation(up(x)))`.
#[derive(Debug, Clone)]
pub struct PlainMlp {
    up: Projection,
    down: Projection,
    activation: PlainActivation,
}

/// The activation between the layers of a plain MLP.
#[derive(Debug, Clone)]
enum PlainActivation {
    Fixed(Activation),
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    Xielu(Xielu),
}

impl PlainActivation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Fixed(fixed) => fixed.forward(xs),
            Self::QuickGelu => (xs * 1.702)?.silu()? / 1.702,
            Self::Xielu(xielu) => xielu.forward(xs),
        }
    }
}

/// From (.., hidden) to the same shape.
impl Module for PlainMlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.activation.forward(&self.up.forward(xs)?)?;
        self.down.forward(&ys)
    }
}

impl PlainMlp {
    /// A block from its layers. They are checked when it is applied.
    pub fn new(up: Projection, down: Projection, activation: Activation) -> Self {
        Self {
            up,
            down,
            activation: PlainActivation::Fixed(activation),
        }
    }

    /// As [`new`](Self::new), with `x * sigmoid(1.702 x)` as its activation.
    pub(crate) fn quick_gelu(up: Projection, down: Projection) -> Self {
        Self {
            up,
            down,
            activation: PlainActivation::QuickGelu,
        }
    }
}

/// `down(activation(gate(x)) * up(x))`.
#[derive(Debug, Clone)]
pub struct GatedMlp {
    gate_up: MergedLinear<2>,
    down_proj: Projection,
    activation: GatedActivation,
}

impl GatedMlp {
    /// A block from its layers. They are checked when it is applied.
    pub fn new(
        gate_up: MergedLinear<2>,
        down_proj: Projection,
        activation: GatedActivation,
    ) -> Self {
        Self {
            gate_up,
            down_proj,
            activation,
        }
    }

    pub(super) async fn load(
        spec: &MlpSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        let (inner, bias) = (spec.inner, spec.bias);
        let gate_up = match spec.joined {
            None => {
                let gate = linear(prefix, names.gate, hidden, inner, bias);
                let up = linear(prefix, names.up, hidden, inner, bias);
                weights.merged([gate, up]).await?
            }
            Some(order) => {
                let both = linear(prefix, names.gate_up, hidden, 2 * inner, bias);
                weights.joined(&both, [inner, inner], order).await?
            }
        };
        let down = linear(prefix, names.down, inner, hidden, bias);
        Ok(Self::new(
            gate_up,
            weights.linear(&down).await?,
            spec.activation,
        ))
    }

    fn inner(&self, xs: Residual, norm: Option<&Norm>) -> Result<(Residual, Tensor)> {
        match self.gate_up.merged() {
            Some(gate_up) => xs.project_gated(norm, gate_up, self.activation),
            None => {
                let (xs, normed) = xs.normed(norm)?;
                let [gate, up] = self.gate_up.forward(&normed)?;
                Ok((xs, act_mul(&gate, &up, self.activation)?))
            }
        }
    }
}

impl Module for GatedMlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [gate, up] = self.gate_up.forward(xs)?;
        self.down_proj
            .forward(&act_mul(&gate, &up, self.activation)?)
    }
}
