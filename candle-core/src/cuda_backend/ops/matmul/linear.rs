//! A linear layer fused with its neighbours in a transformer: RMS norm, bias, gated activation, residual sum.
//!
//! For few rows all of it is one kernel. For many rows cuBLASLt's product includes bias and residual; the norm and the gate run as separate
//! kernels, which then cost little compared with the product.

use super::super::elementwise;
use super::super::quantized;
use super::vector::{self, Around};
use super::{run_known, Addend, Input, Product};
use crate::backend::BackendStorage;
use crate::cuda_backend::quantized::QCudaStorage;
use crate::cuda_backend::CudaStorage;
use crate::fused::{Fused, LinearExtras, LinearWeight, Norm};
use crate::{Layout, Result};

type Extras<'a> = LinearExtras<'a, CudaStorage>;

/// See [`Fused::linear`].
pub(in crate::cuda_backend) fn linear(
    x: Input<'_>,
    weight: LinearWeight<'_, CudaStorage>,
    extras: Extras<'_>,
) -> Result<CudaStorage> {
    let (weight, dims) = match weight {
        LinearWeight::Dense(weight) => (Weight::Dense(weight), weight.1.shape().dims2()?),
        LinearWeight::Quantized(weight) => (
            Weight::Blocks(weight.on_cuda(x.0.device(), "linear")?),
            weight.shape().dims2()?,
        ),
    };
    let (outputs, k) = dims;
    let dense = match weight {
        Weight::Dense((weight, _)) => Some(weight),
        Weight::Blocks(_) => None,
    };
    extras.check(x, dense, dims)?;
    let rows: usize = x.1.dims().iter().rev().skip(1).product();
    let copied;
    let x_l = match x.1.row_step() {
        Some(step) => {
            let column = x.1.stride().last().copied().unwrap_or(1);
            Layout::new((rows, k).into(), vec![step, column], x.1.start_offset())
        }
        None => Layout::contiguous((rows, k)),
    };
    let x = match x.1.row_step() {
        Some(_) => x.0,
        None => {
            copied = elementwise::copy(x.0, x.1)?;
            &copied
        }
    };
    Layer {
        weight,
        rows,
        outputs,
        k,
    }
    .run((x, &x_l), extras)
}

/// The form of a weight that kernels read.
#[derive(Clone, Copy)]
enum Weight<'a> {
    Dense(Input<'a>),
    Blocks(&'a QCudaStorage),
}

#[derive(Clone, Copy)]
struct Layer<'a> {
    weight: Weight<'a>,
    rows: usize,
    /// Rows of the weight.
    outputs: usize,
    k: usize,
}

impl Layer<'_> {
    /// `x (rows, k)` through the layer: in one kernel, or with a separate kernel for each part that the product's kernels do not support.
    fn run(self, x: Input<'_>, extras: Extras<'_>) -> Result<CudaStorage> {
        if let Some(dst) = self.fused(x, &extras)? {
            return Ok(dst);
        }
        if let Some((weight, eps)) = extras.norm {
            let norm = Norm {
                op: "rms-norm",
                centred: false,
                weight: Some(weight),
                bias: None,
                eps,
                beside: None,
            };
            let normed = CudaStorage::norm(x, norm)?;
            let rest = Extras {
                norm: None,
                ..extras
            };
            return self.run((&normed, &Layout::contiguous((self.rows, self.k))), rest);
        }
        let contiguous = Layout::contiguous((self.rows, self.outputs));
        if let Some(gate) = extras.gate {
            let both = self.run(
                x,
                Extras {
                    bias: extras.bias,
                    ..Extras::default()
                },
            )?;
            let n = self.outputs / 2;
            let (gate_l, up_l) = (contiguous.narrow(1, 0, n)?, contiguous.narrow(1, n, n)?);
            let dst = CudaStorage::gated((&both, &gate_l), (&both, &up_l), gate)?;
            return after(dst, &extras);
        }
        if extras.activation.is_some() {
            let dst = self.run(
                x,
                Extras {
                    bias: extras.bias,
                    ..Extras::default()
                },
            )?;
            return after(dst, &extras);
        }
        let mut dst = self.product(x)?;
        if let Some((bias, bias_l)) = extras.bias {
            let bias_l = bias_l.broadcast_as((self.rows, self.outputs))?;
            dst = elementwise::binary(&dst, bias, &contiguous, &bias_l, "add")?;
        }
        after(dst, &extras)
    }

    /// The product without extras.
    fn product(self, (x, x_l): Input<'_>) -> Result<CudaStorage> {
        match self.weight {
            Weight::Dense((weight, weight_l)) => {
                let rhs_l = weight_l.transpose(0, 1)?;
                let bmnk = (1, self.rows, self.outputs, self.k);
                super::product((x, x_l), (weight, &rhs_l), bmnk, x.dtype())
            }
            Weight::Blocks(weight) => {
                quantized::matmul((x, x_l), weight, 0, (self.outputs, self.k))
            }
        }
    }

    /// The layer in one kernel, or `None` if there is none for it.
    fn fused(self, x: Input<'_>, extras: &Extras<'_>) -> Result<Option<CudaStorage>> {
        let n = extras.columns(self.outputs);
        if self.rows * n * self.k == 0 {
            return Ok(None);
        }
        let Some(addends) = Addends::new(extras) else {
            return Ok(None);
        };
        let around = Around {
            norm: addends.norm,
            gate: extras.gate,
            activation: extras.activation,
        };
        let (weight, weight_l) = match self.weight {
            Weight::Dense(weight) => weight,
            Weight::Blocks(weight) => {
                let (bias, residual) = (addends.bias, addends.residual);
                let extras = quantized::Extras {
                    around,
                    bias,
                    residual,
                };
                return quantized::linear(x, (weight, 0), (self.rows, n, self.k), extras);
            }
        };
        let dst =
            x.0.device()
                .new_storage(self.rows * n, x.0.dtype(), "linear")?;
        let rhs_l = weight_l.transpose(0, 1)?;
        let mut product = Product::new(x, (weight, &rhs_l), (self.rows, n, self.k))?;
        (product.bias, product.residual) = (addends.bias, addends.residual);
        let few = vector::few_rows(&product, around, &dst)?;
        let plain = extras.norm.is_none() && extras.gate.is_none() && extras.activation.is_none();
        Ok((few || (plain && run_known(&product, &dst)?)).then_some(dst))
    }
}

/// Operands of the fused kernels in addition to the product's.
struct Addends<'a> {
    norm: Option<(Addend<'a>, f32)>,
    bias: Option<Addend<'a>>,
    residual: Option<Addend<'a>>,
}

impl<'a> Addends<'a> {
    /// `None` if a kernel cannot read them without a copy.
    fn new(extras: &Extras<'a>) -> Option<Self> {
        let vector = |(storage, layout): Input<'a>| {
            layout.is_contiguous().then(|| Addend {
                storage,
                offset: layout.start_offset(),
                row: 0,
            })
        };
        let matrix = |(storage, layout): Input<'a>| {
            let last = layout.dims().len() - 1;
            let by_rows = layout.stride()[last] == 1 || layout.dims()[last] == 1;
            let row = layout.row_step().filter(|_| by_rows)?;
            let offset = layout.start_offset();
            Some(Addend {
                storage,
                offset,
                row,
            })
        };
        let norm = extras.norm.map(|(alpha, eps)| Some((vector(alpha)?, eps)));
        Some(Self {
            norm: readable(norm)?,
            bias: readable(extras.bias.map(vector))?,
            residual: readable(extras.residual.map(matrix))?,
        })
    }
}

/// `None` if the addend is present but unreadable by this kernel.
fn readable<T>(addend: Option<Option<T>>) -> Option<Option<T>> {
    match addend {
        None => Some(None),
        Some(addend) => addend.map(Some),
    }
}

/// The steps after the gate.
fn after(mut dst: CudaStorage, extras: &Extras<'_>) -> Result<CudaStorage> {
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
