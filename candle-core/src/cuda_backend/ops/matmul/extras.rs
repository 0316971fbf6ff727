//! What a product does besides: a norm of its rows before it, a gate and a sum after it. A decoding step is bound by the number of
//! its kernels, and these would be kernels of their own.

use crate::cuda_backend::CudaStorage;
use crate::fused::{Activation, Gate};
use crate::Layout;

/// A tensor: its storage and its layout.
pub type Input<'a> = (&'a CudaStorage, &'a Layout);

/// What a linear layer does besides its product. All tensors have the dtype of its input.
#[derive(Clone, Copy, Default)]
pub struct Extras<'a> {
    /// The input's rows are replaced by their RMS norm: weights `(k)`, contiguous, and epsilon.
    pub norm: Option<(Input<'a>, f32)>,
    /// Added to each row of the product: `(n)`, contiguous, with a gate `(2 n)`.
    pub bias: Option<Input<'a>>,
    /// The result is this of its argument and of what passes it, which the product has side by side.
    pub gate: Option<Gate>,
    /// Applied to the result then.
    pub activation: Option<Activation>,
    /// `(m, n)`, added to the result.
    pub residual: Option<Input<'a>>,
}
