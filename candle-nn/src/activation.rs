//! Activations by name, as model configurations give them, and the learned PReLU.

use crate::{ops, Init, VarBuilder};
use candle_core::{Module, Result, Tensor};

/// An activation function. Its name in a configuration file is the variant's in lower case, plus those of Hugging Face.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `x * Φ(x)`, with the exact distribution function Φ of the normal distribution.
    #[default]
    Gelu,
    /// [`Activation::Gelu`] in its tanh approximation.
    #[serde(alias = "gelu_new")]
    NewGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    Relu2,
    /// `x` clamped to 0..=6.
    Relu6,
    /// `x * sigmoid(x)`.
    Silu,
    /// [`ops::sigmoid`].
    Sigmoid,
    /// [`ops::hard_sigmoid`].
    HardSigmoid,
    /// [`ops::swiglu`]: the last dimension is halved.
    Swiglu,
    /// Another name for [`Activation::Silu`].
    Swish,
    /// [`ops::mish`].
    Mish,
    /// `x * hard_sigmoid(x)`.
    HardSwish,
    /// `x` where it is positive, `alpha * (exp(x) - 1)` elsewhere.
    Elu(f64),
    /// [`ops::leaky_relu`] with its slope.
    LeakyRelu(f64),
    /// Another name for [`Activation::NewGelu`].
    #[serde(alias = "gelu_pytorch_tanh", alias = "gelu_fast")]
    GeluPytorchTanh,
}

impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match *self {
            Self::Gelu => xs.gelu_erf(),
            Self::NewGelu | Self::GeluPytorchTanh => xs.gelu(),
            Self::Relu => xs.relu(),
            Self::Relu2 => xs.relu()?.sqr(),
            Self::Relu6 => ops::hard_clamp(xs, 0., 6.),
            Self::Silu | Self::Swish => xs.silu(),
            Self::Sigmoid => ops::sigmoid(xs),
            Self::HardSigmoid => ops::hard_sigmoid(xs),
            Self::Swiglu => ops::swiglu(xs),
            Self::Mish => ops::mish(xs),
            Self::HardSwish => xs * ops::hard_sigmoid(xs)?,
            Self::Elu(alpha) => xs.elu(alpha),
            Self::LeakyRelu(slope) => ops::leaky_relu(xs, slope),
        }
    }
}

/// `x` where it is positive, `weight * x` elsewhere, with one weight or one a channel; see <https://arxiv.org/abs/1502.01852>.
#[derive(Clone, Debug)]
pub struct PReLU {
    weight: Tensor,
    is_scalar: bool,
}

impl PReLU {
    /// A layer from its weight: a single element if `is_scalar`, otherwise one for each channel.
    pub fn new(weight: Tensor, is_scalar: bool) -> Self {
        Self { weight, is_scalar }
    }

    /// The slopes for negative elements.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Whether one weight serves all channels.
    pub fn is_scalar(&self) -> bool {
        self.is_scalar
    }
}

/// From (batch, channels, …) to the same shape.
impl Module for PReLU {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let weight = if self.is_scalar {
            self.weight.reshape(())?
        } else if xs.rank() < 2 || xs.shape() == self.weight.shape() {
            self.weight.clone()
        } else {
            let (channels, weights) = (xs.dim(1)?, self.weight.elem_count());
            if channels != weights {
                candle_core::bail!(
                    "prelu: the input {:?} has {channels} channels, but the layer has {weights} weights",
                    xs.shape()
                )
            }
            let mut dims = vec![1; xs.rank()];
            dims[1] = channels;
            self.weight.reshape(dims)?
        };
        let (above, below) = ops::halves_at_zero(xs)?;
        above + below.broadcast_mul(&weight)?
    }
}

/// A layer from the tensor `weight` of `vs`, with one weight for each of `num_channels`, or one for all. A new one starts at
/// 0.25.
///
/// # Errors
/// The tensor is missing or has another shape.
pub fn prelu(num_channels: Option<usize>, vs: VarBuilder) -> Result<PReLU> {
    let weight = vs.get_with_hints(num_channels.unwrap_or(1), "weight", Init::Const(0.25))?;
    Ok(PReLU::new(weight, num_channels.is_none()))
}
