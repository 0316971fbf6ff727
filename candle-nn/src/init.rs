//! Initialization of new variables.

use candle_core::{DType, Device, Result, Shape, Tensor, Var};

/// The side of a layer that scales the variance.
#[derive(Clone, Copy, Debug)]
pub enum FanInOut {
    /// Inputs: keeps the variance of activations in the forward pass.
    FanIn,
    /// Outputs: keeps the variance of gradients in the backward pass.
    FanOut,
}

impl FanInOut {
    /// Number of inputs or outputs of a weight of this shape: (out, in, kernel…).
    pub fn for_shape(&self, shape: &Shape) -> usize {
        let dims = shape.dims();
        let kernel: usize = dims.iter().skip(2).product();
        match self {
            Self::FanIn if dims.len() < 2 => 1,
            Self::FanIn => dims[1] * kernel,
            Self::FanOut if dims.is_empty() => 1,
            Self::FanOut => dims[0] * kernel,
        }
    }
}

/// The two distributions a variable may be drawn from.
#[derive(Clone, Copy, Debug)]
pub enum NormalOrUniform {
    /// The normal distribution.
    Normal,
    /// The uniform distribution.
    Uniform,
}

/// The function after the layer; it determines the gain of the initialization.
#[derive(Clone, Copy, Debug)]
pub enum NonLinearity {
    /// A ReLU.
    ReLU,
    /// Nothing.
    Linear,
    /// A sigmoid.
    Sigmoid,
    /// A hyperbolic tangent.
    Tanh,
    /// A SELU.
    SELU,
    /// Something with this gain.
    ExplicitGain(f64),
}

impl NonLinearity {
    /// The factor for the standard deviation, as PyTorch recommends it.
    pub fn gain(&self) -> f64 {
        match *self {
            Self::ReLU => 2f64.sqrt(),
            Self::Tanh => 5. / 3.,
            Self::Linear | Self::Sigmoid => 1.,
            Self::SELU => 0.75,
            Self::ExplicitGain(gain) => gain,
        }
    }
}

/// The initial values of a new variable. Zeros by default.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    /// The same value everywhere.
    Const(f64),
    /// Normal.
    Randn {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        stdev: f64,
    },
    /// Uniform between two bounds.
    Uniform {
        /// The lower bound.
        lo: f64,
        /// The upper bound.
        up: f64,
    },
    /// Scaled so that the variance of activations stays the same through layers; see <https://arxiv.org/abs/1502.01852>.
    Kaiming {
        /// The distribution.
        dist: NormalOrUniform,
        /// The side that is counted.
        fan: FanInOut,
        /// The function after the layer.
        non_linearity: NonLinearity,
    },
}

/// All zeros.
pub const ZERO: Init = Init::Const(0.);

/// All ones.
pub const ONE: Init = Init::Const(1.);

/// Kaiming, uniform, over inputs, before a ReLU.
pub const DEFAULT_KAIMING_UNIFORM: Init = Init::Kaiming {
    dist: NormalOrUniform::Uniform,
    fan: FanInOut::FanIn,
    non_linearity: NonLinearity::ReLU,
};

/// Kaiming, normal, over inputs, before a ReLU.
pub const DEFAULT_KAIMING_NORMAL: Init = Init::Kaiming {
    dist: NormalOrUniform::Normal,
    fan: FanInOut::FanIn,
    non_linearity: NonLinearity::ReLU,
};

impl Default for Init {
    fn default() -> Self {
        ZERO
    }
}

impl Init {
    /// A new variable of this shape and dtype on `device`.
    ///
    /// # Errors
    /// The device cannot make a tensor of this dtype, or is out of memory.
    pub fn var<S: Into<Shape>>(&self, s: S, dtype: DType, device: &Device) -> Result<Var> {
        let shape = s.into();
        match *self {
            Self::Const(0.) => Var::zeros(shape, dtype, device),
            Self::Const(1.) => Var::ones(shape, dtype, device),
            Self::Const(value) => {
                let ones = Tensor::ones(shape, dtype, device)?;
                Var::from_tensor(&ones.affine(value, 0.)?)
            }
            Self::Uniform { lo, up } => Var::rand_f64(lo, up, shape, dtype, device),
            Self::Randn { mean, stdev } => Var::randn_f64(mean, stdev, shape, dtype, device),
            Self::Kaiming {
                dist,
                fan,
                non_linearity,
            } => {
                let stdev = non_linearity.gain() / (fan.for_shape(&shape) as f64).sqrt();
                match dist {
                    NormalOrUniform::Normal => Var::randn_f64(0., stdev, shape, dtype, device),
                    NormalOrUniform::Uniform => {
                        // The uniform distribution over ±bound has deviation bound / √3.
                        let bound = 3f64.sqrt() * stdev;
                        Var::rand_f64(-bound, bound, shape, dtype, device)
                    }
                }
            }
        }
    }
}
