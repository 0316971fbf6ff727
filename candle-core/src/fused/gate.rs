//! Gates of gated feed-forward blocks, and activations of blocks without a gate.

/// A function of gate and up projection; candle-nn's `GatedActivation` documents each formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gate {
    /// `silu(gate) * up`.
    Silu,
    /// `gelu(gate) * up`, exact.
    Gelu,
    /// `gelu(gate) * up` in its tanh approximation.
    GeluTanh,
    /// `gate * sigmoid(1.702 gate) * up`.
    QuickGelu,
    /// `max(gate, 0) * up`.
    Relu,
    /// `max(gate, 0)^2 * up`.
    Relu2,
    /// `sigmoid(gate) * up`.
    Sigmoid,
    /// `gate * sigmoid(1.702 gate) * (up + 1)`, both limited to 7.
    ClampedSwiglu,
}

impl Gate {
    /// The function's name in the backends' kernels, without its prefix `f_`.
    #[cfg(any(feature = "cuda", feature = "webgpu"))]
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::Silu => "silu_mul",
            Self::Gelu => "gelu_mul",
            Self::GeluTanh => "gelu_tanh_mul",
            Self::QuickGelu => "quick_gelu_mul",
            Self::Relu => "relu_mul",
            Self::Relu2 => "relu2_mul",
            Self::Sigmoid => "sigmoid_mul",
            Self::ClampedSwiglu => "clamped_swiglu",
        }
    }
}

/// A function of one argument after a linear layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU, exact.
    Gelu,
    /// GELU in its tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    Relu2,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl Activation {
    /// The names of the functions in the backends' kernels that compose it, without their prefix `f_`, the first applied first.
    #[cfg(any(feature = "cuda", feature = "webgpu"))]
    pub(crate) fn functions(self) -> &'static [&'static str] {
        match self {
            Self::Silu => &["silu"],
            Self::Gelu => &["gelu_erf"],
            Self::GeluTanh => &["gelu"],
            Self::Relu => &["relu"],
            Self::Relu2 => &["relu", "sqr"],
            Self::Sigmoid => &["sigmoid"],
        }
    }
}
