//! The kernels of a linear layer fused with its neighbours in a transformer; `crate::fused::layer` composes the layer of them.
//!
//! For few rows all of it is one kernel. For many rows the norm and the gate run as separate kernels, which then cost little compared with
//! the product.

use super::super::elementwise;
use super::super::matmul::{self, Input, WeightRows};
use super::super::quantized::Format;
use super::float_elem;
use crate::backend::BackendStorage;
use crate::fused::layer::{self, Sizes};
use crate::webgpu_backend::quantized::{Blocks, QWebGpuStorage};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

pub use super::super::matmul::Extras as LinearExtras;

const OP: &str = "linear";

/// The weight of a linear layer, `(n, k)`.
pub type LinearWeight<'a> = crate::fused::LinearWeight<'a, WebGpuStorage>;

/// See [`Fused::linear`](crate::fused::Fused::linear).
pub fn linear(
    x: Input<'_>,
    weight: LinearWeight<'_>,
    extras: LinearExtras<'_>,
) -> Result<WebGpuStorage> {
    let (device, dtype) = (x.0.device(), x.0.dtype());
    float_elem(device, dtype, OP)?;
    let weight = match weight {
        LinearWeight::Dense(weight) => {
            let dims = weight.1.shape().dims2()?;
            return layer::linear(x, Weight::Dense(weight), dims, extras);
        }
        LinearWeight::Quantized(weight) => weight,
    };
    let dims = weight.shape().dims2()?;
    let blocks = weight.on_webgpu(device, OP)?;
    let floats = match blocks.blocks() {
        Blocks::Planes(format) => {
            return layer::linear(x, Weight::Blocks(blocks, format), dims, extras);
        }
        Blocks::Floats(floats) => floats,
    };
    let floats_l = Layout::contiguous(dims);
    let floats = if floats.dtype() == dtype {
        floats.share()
    } else {
        elementwise::to_dtype(floats, &floats_l, dtype)?
    };
    layer::linear(x, Weight::Dense((&floats, &floats_l)), dims, extras)
}

/// The form of a weight that kernels read.
#[derive(Clone, Copy)]
enum Weight<'a> {
    Dense(Input<'a>),
    Blocks(&'a QWebGpuStorage, Format),
}

impl layer::Weight for Weight<'_> {
    type Storage = WebGpuStorage;

    fn dense(&self) -> Option<&WebGpuStorage> {
        match self {
            Self::Dense((weight, _)) => Some(weight),
            Self::Blocks(..) => None,
        }
    }

    fn fused(
        self,
        (x, x_l): Input<'_>,
        Sizes { rows, outputs, k }: Sizes,
        extras: LinearExtras<'_>,
    ) -> Result<Option<WebGpuStorage>> {
        let n = extras.columns(outputs);
        if rows * n * k == 0 {
            return Ok(None);
        }
        match self {
            Self::Dense((weight, weight_l)) => {
                let rhs_l = weight_l.transpose(0, 1)?;
                let problem = matmul::Problem::new((1, rows, n, k), x_l, &rhs_l)?;
                matmul::fused_product(x, weight, &problem, extras, x.dtype())
            }
            Self::Blocks(weight, format) => {
                let rhs = WeightRows {
                    weight,
                    format,
                    first: 0,
                };
                matmul::fused_blocks((x, x_l), rhs, (rows, k, n), extras)
            }
        }
    }

    fn product(
        self,
        (x, x_l): Input<'_>,
        Sizes { rows, outputs, k }: Sizes,
    ) -> Result<WebGpuStorage> {
        match self {
            Self::Dense((weight, weight_l)) => {
                let rhs_l = weight_l.transpose(0, 1)?;
                matmul::product(x, weight, (1, rows, outputs, k), x_l, &rhs_l, x.dtype())
            }
            Self::Blocks(weight, _) => matmul::matmul_t(weight, 0, (rows, k, outputs), x, x_l),
        }
    }

    fn copied((x, layout): Input<'_>) -> Result<WebGpuStorage> {
        elementwise::copy(x, layout)
    }

    fn mapped((x, layout): Input<'_>, function: &'static str) -> Result<WebGpuStorage> {
        elementwise::unary(x, layout, function)
    }
}
