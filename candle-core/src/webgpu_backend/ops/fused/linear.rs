//! A linear layer fused with its neighbours in a transformer: RMS norm, bias, gated activation, residual sum.
//!
//! For few rows all of it is one kernel. For many rows the norm and the gate run as separate kernels, which then cost little compared with
//! the product.

use super::super::matmul::{self, Input, WeightRows};
use super::super::quantized::Format;
use super::super::{as_rows, elementwise};
use super::norm::rms_norm;
use super::{float_elem, gated};
use crate::backend::BackendStorage;
use crate::webgpu_backend::quantized::{Blocks, QWebGpuStorage};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

pub use super::super::matmul::Extras as LinearExtras;

const OP: &str = "linear";

/// The weight of a linear layer, `(n, k)`.
pub type LinearWeight<'a> = crate::fused::LinearWeight<'a, WebGpuStorage>;

/// `x weightᵀ` for `x (.., k)` of any strides and `weight (n, k)`, with `extras`; the result is contiguous, `(.., n)`, or
/// `(.., n / 2)` if it is gated.
pub fn linear(
    x: &WebGpuStorage,
    x_l: &Layout,
    weight: LinearWeight<'_>,
    extras: LinearExtras<'_>,
) -> Result<WebGpuStorage> {
    let dtype = x.dtype();
    float_elem(x.device(), dtype, OP)?;
    let (floats, floats_l);
    let (weight, (outputs, k)) = match weight {
        LinearWeight::Dense((weight, layout)) => {
            let dims = layout.shape().dims2()?;
            (Weight::Dense((weight, layout)), dims)
        }
        LinearWeight::Quantized(weight) => {
            let dims = weight.shape().dims2()?;
            let blocks = weight.on_webgpu(x.device(), OP)?;
            let weight = match blocks.blocks() {
                Blocks::Planes(format) => Weight::Blocks(blocks, format),
                Blocks::Floats(weight) => {
                    floats_l = Layout::contiguous(dims);
                    floats = if weight.dtype() == dtype {
                        weight.share()
                    } else {
                        elementwise::to_dtype(weight, &floats_l, dtype)?
                    };
                    Weight::Dense((&floats, &floats_l))
                }
            };
            (weight, dims)
        }
    };
    let dense = match weight {
        Weight::Dense((weight, _)) => Some(weight),
        Weight::Blocks(..) => None,
    };
    extras.check((x, x_l), dense, (outputs, k))?;
    let (bias, bias_l);
    let mut extras = extras;
    if let Some((storage, layout)) = extras.bias.filter(|(_, layout)| !layout.is_contiguous()) {
        (bias, bias_l) = (
            elementwise::copy(storage, layout)?,
            Layout::contiguous(outputs),
        );
        extras.bias = Some((&bias, &bias_l));
    }
    let rows: usize = x_l.dims().iter().rev().skip(1).product();
    let (x, lhs_l) = as_rows((x, x_l), (rows, k))?;
    let n = extras.columns(outputs);
    match weight.fused_product((&x, &lhs_l), (rows, n, k), extras)? {
        Some(dst) => Ok(dst),
        None => plain((&x, &lhs_l), weight, (rows, outputs, k), extras),
    }
}

/// The form of a weight that kernels read.
#[derive(Clone, Copy)]
enum Weight<'a> {
    Dense(Input<'a>),
    Blocks(&'a QWebGpuStorage, Format),
}

impl Weight<'_> {
    /// The product with `x (rows, k)` and its `extras`, or `None` if no kernel computes both. `n` counts the columns of the result.
    fn fused_product(
        self,
        (x, x_l): Input<'_>,
        (rows, n, k): (usize, usize, usize),
        extras: LinearExtras<'_>,
    ) -> Result<Option<WebGpuStorage>> {
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

    /// The product without extras, of any size.
    fn product(
        self,
        (x, x_l): Input<'_>,
        (rows, n, k): (usize, usize, usize),
    ) -> Result<WebGpuStorage> {
        match self {
            Self::Dense((weight, weight_l)) => {
                let rhs_l = weight_l.transpose(0, 1)?;
                matmul::product(x, weight, (1, rows, n, k), x_l, &rhs_l, x.dtype())
            }
            Self::Blocks(weight, _) => matmul::matmul_t(weight, 0, (rows, k, n), x, x_l),
        }
    }
}

/// The same with a kernel for each step; the residual is fused with the product if nothing is between them.
fn plain(
    (x, x_l): Input<'_>,
    weight: Weight<'_>,
    (rows, outputs, k): (usize, usize, usize),
    extras: LinearExtras<'_>,
) -> Result<WebGpuStorage> {
    let sizes = (rows, outputs, k);
    if let Some((alpha, eps)) = extras.norm {
        let normed = rms_norm((x, x_l), alpha, eps)?;
        let normed_l = Layout::contiguous((rows, k));
        let rest = LinearExtras {
            norm: None,
            ..extras
        };
        return plain((&normed, &normed_l), weight, sizes, rest);
    }
    if let Some(gate) = extras.gate {
        let product = LinearExtras {
            bias: extras.bias,
            ..LinearExtras::default()
        };
        let both = plain((x, x_l), weight, sizes, product)?;
        let n = outputs / 2;
        let both_l = Layout::contiguous((rows, outputs));
        let (gate_l, up_l) = (both_l.narrow(1, 0, n)?, both_l.narrow(1, n, n)?);
        let dst = gated((&both, &gate_l), (&both, &up_l), gate)?;
        return last(dst, &extras);
    }
    if let Some(dst) = weight.fused_product((x, x_l), sizes, extras)? {
        return Ok(dst);
    }
    let mut dst = weight.product((x, x_l), sizes)?;
    if let Some((bias, bias_l)) = extras.bias {
        let dst_l = Layout::contiguous((rows, outputs));
        let strides = vec![0, bias_l.stride()[0]];
        let bias_l = Layout::new((rows, outputs).into(), strides, bias_l.start_offset());
        dst = elementwise::binary(&dst, bias, &dst_l, &bias_l, "add")?;
    }
    last(dst, &extras)
}

/// The steps after the gate.
fn last(mut dst: WebGpuStorage, extras: &LinearExtras<'_>) -> Result<WebGpuStorage> {
    let functions = extras.activation.map_or(&[][..], |act| act.functions());
    for function in functions {
        dst = elementwise::unary(&dst, &Layout::contiguous(dst.len()), function)?;
    }
    if let Some((residual, residual_l)) = extras.residual {
        let dst_l = Layout::contiguous(residual_l.shape());
        dst = elementwise::binary(&dst, residual, &dst_l, residual_l, "add")?;
    }
    Ok(dst)
}
