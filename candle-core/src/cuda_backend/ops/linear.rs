//! The kernels of a linear layer fused with its neighbours in a transformer; `crate::fused::layer` composes the layer of them.
//!
//! For few rows all of it is one kernel. For many rows cuBLASLt's product includes bias and residual; the norm and the gate run as separate
//! kernels, which then cost little compared with the product.

use super::matmul::{self, Extras};
use super::{elementwise, quantized};
use crate::backend::BackendStorage;
use crate::cuda_backend::quantized::QCudaStorage;
use crate::cuda_backend::CudaStorage;
use crate::fused::layer::{self, Sizes};
use crate::fused::{LinearExtras, LinearWeight};
use crate::Result;

/// A tensor: its storage and its layout.
type Input<'a> = crate::fused::Operand<'a, CudaStorage>;

/// See [`Fused::linear`](crate::fused::Fused::linear).
pub(super) fn linear(
    x: Input<'_>,
    weight: LinearWeight<'_, CudaStorage>,
    extras: LinearExtras<'_, CudaStorage>,
) -> Result<CudaStorage> {
    let (weight, dims) = match weight {
        LinearWeight::Dense(weight) => (Weight::Dense(weight), weight.1.shape().dims2()?),
        LinearWeight::Quantized(weight) => (
            Weight::Blocks(weight.on_cuda(x.0.device(), "linear")?),
            weight.shape().dims2()?,
        ),
    };
    layer::linear(x, weight, dims, extras)
}

/// The form of a weight that kernels read.
#[derive(Clone, Copy)]
enum Weight<'a> {
    Dense(Input<'a>),
    Blocks(&'a QCudaStorage),
}

impl layer::Weight for Weight<'_> {
    type Storage = CudaStorage;

    fn dense(&self) -> Option<&CudaStorage> {
        match self {
            Self::Dense((weight, _)) => Some(weight),
            Self::Blocks(_) => None,
        }
    }

    fn fused(
        self,
        x: Input<'_>,
        Sizes { rows, outputs, k }: Sizes,
        extras: LinearExtras<'_, CudaStorage>,
    ) -> Result<Option<CudaStorage>> {
        let n = extras.columns(outputs);
        if rows * n * k == 0 {
            return Ok(None);
        }
        let Some(extras) = Extras::new(&extras) else {
            return Ok(None);
        };
        let (weight, weight_l) = match self {
            Self::Dense(weight) => weight,
            Self::Blocks(weight) => {
                return quantized::linear(x, (weight, 0), (rows, n, k), extras);
            }
        };
        let dst = x.0.device().new_storage(rows * n, x.0.dtype(), "linear")?;
        let rhs_l = weight_l.transpose(0, 1)?;
        let done = matmul::fused(x, (weight, &rhs_l), (rows, n, k), extras, &dst)?;
        Ok(done.then_some(dst))
    }

    fn product(self, x: Input<'_>, Sizes { rows, outputs, k }: Sizes) -> Result<CudaStorage> {
        match self {
            Self::Dense((weight, weight_l)) => {
                let rhs_l = weight_l.transpose(0, 1)?;
                matmul::product(x, (weight, &rhs_l), (1, rows, outputs, k), x.0.dtype())
            }
            Self::Blocks(weight) => quantized::matmul(x, weight, 0, (outputs, k)),
        }
    }

    fn copied((x, layout): Input<'_>) -> Result<CudaStorage> {
        elementwise::copy(x, layout)
    }

    fn mapped((x, layout): Input<'_>, function: &'static str) -> Result<CudaStorage> {
        elementwise::unary(x, layout, function)
    }
}
