//! What a gated feed-forward block makes of its gate and of what passes it.

/// A function of a gate and what passes it; candle-nn's `GatedActivation` says what each computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The WGSL function of `shaders/functions_*.wgsl`, without its `f_`.
    pub(super) fn function(self) -> &'static str {
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
