//! The prologue and epilogue of a product, as its kernels read them: a norm of its rows before it; bias, gate, activation and residual after
//! it.

use super::Input;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::Kernel;
use crate::cuda_backend::CudaStorage;
use crate::fused::{Activation, Gate, LinearExtras};

/// A vector `(n)`, or a matrix `(m, n)` with contiguous rows.
#[derive(Clone, Copy)]
pub(in crate::cuda_backend::ops) struct Addend<'a> {
    storage: &'a CudaStorage,
    offset: usize,
    /// Stride between rows.
    pub(in crate::cuda_backend::ops) row: usize,
}

impl<'a> Addend<'a> {
    fn vector((storage, layout): Input<'a>) -> Option<Self> {
        layout.is_contiguous().then(|| Self {
            storage,
            offset: layout.start_offset(),
            row: 0,
        })
    }

    fn matrix((storage, layout): Input<'a>) -> Option<Self> {
        let last = layout.dims().len() - 1;
        let by_rows = layout.stride()[last] == 1 || layout.dims()[last] == 1;
        Some(Self {
            storage,
            offset: layout.start_offset(),
            row: layout.row_step().filter(|_| by_rows)?,
        })
    }

    pub(in crate::cuda_backend::ops) fn address(&self) -> u64 {
        let size = self.storage.dtype().size_in_bytes();
        self.storage.address() + (self.offset * size) as u64
    }
}

/// The parts of a linear layer other than its product. With a gate, the product's columns are those of the gate and of the up projection.
#[derive(Clone, Copy, Default)]
pub(in crate::cuda_backend::ops) struct Extras<'a> {
    /// Weights `(k)` of the rows' RMS norm, and epsilon.
    pub(in crate::cuda_backend::ops) norm: Option<(Addend<'a>, f32)>,
    pub(in crate::cuda_backend::ops) bias: Option<Addend<'a>>,
    pub(in crate::cuda_backend::ops) gate: Option<Gate>,
    pub(in crate::cuda_backend::ops) activation: Option<Activation>,
    pub(in crate::cuda_backend::ops) residual: Option<Addend<'a>>,
}

impl<'a> Extras<'a> {
    /// `None` if a kernel cannot read them without a copy.
    pub(in crate::cuda_backend::ops) fn new(
        extras: &LinearExtras<'a, CudaStorage>,
    ) -> Option<Self> {
        let norm = match extras.norm {
            Some((alpha, eps)) => Some((Addend::vector(alpha)?, eps)),
            None => None,
        };
        let bias = match extras.bias {
            Some(bias) => Some(Addend::vector(bias)?),
            None => None,
        };
        let residual = match extras.residual {
            Some(residual) => Some(Addend::matrix(residual)?),
            None => None,
        };
        Some(Self {
            norm,
            bias,
            gate: extras.gate,
            activation: extras.activation,
            residual,
        })
    }

    /// Whether these are sums at most, which cuBLASLt computes too.
    pub(in crate::cuda_backend::ops) fn are_sums(&self) -> bool {
        self.norm.is_none() && self.gate.is_none() && self.activation.is_none()
    }

    /// Specialises a kernel for the epilogue.
    pub(in crate::cuda_backend::ops) fn define(&self, kernel: Kernel) -> Kernel {
        kernel
            .define("BIAS", self.bias.is_some())
            .define("GATED", self.gate.is_some())
            .define("GATE", self.gate.map_or("0", gate_function))
            .define("ACTIVATES", self.activation.is_some())
            .define(
                "ACTIVATION",
                self.activation.map_or("0", activation_function),
            )
            .define("RESIDUAL", self.residual.is_some())
    }

    /// The addresses of bias and residual, and the residual's stride between rows; 0 for what is absent.
    pub(in crate::cuda_backend::ops) fn args(&self) -> (u64, u64, usize) {
        let address = |addend: Option<Addend<'_>>| addend.map_or(0, |addend| addend.address());
        let row = self.residual.map_or(0, |residual| residual.row);
        (address(self.bias), address(self.residual), row)
    }
}

/// The gate's function in `kernels/functions.cu`.
fn gate_function(gate: Gate) -> &'static str {
    match gate {
        Gate::Silu => "f_silu_mul",
        Gate::Gelu => "f_gelu_mul",
        Gate::GeluTanh => "f_gelu_tanh_mul",
        Gate::QuickGelu => "f_quick_gelu_mul",
        Gate::Relu => "f_relu_mul",
        Gate::Relu2 => "f_relu2_mul",
        Gate::Sigmoid => "f_sigmoid_mul",
        Gate::ClampedSwiglu => "f_clamped_swiglu",
    }
}

/// The activation's function in `kernels/functions.cu`.
fn activation_function(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "f_silu",
        Activation::Gelu => "f_gelu_erf",
        Activation::GeluTanh => "f_gelu",
        Activation::Relu => "f_relu",
        Activation::Relu2 => "f_relu2",
        Activation::Sigmoid => "f_sigmoid",
    }
}
