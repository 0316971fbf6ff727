//! A linear layer with its neighbours, composed of the kernels that a device has.

use super::{Activation, Fused, LinearExtras, Norm, Operand};
use crate::backend::BackendStorage;
use crate::op::Add;
use crate::{Error, Layout, Result};

const OP: &str = "linear";

impl<S: BackendStorage> LinearExtras<'_, S> {
    /// Columns of the result for a weight of `outputs` rows.
    pub(crate) fn columns(&self, outputs: usize) -> usize {
        match self.gate {
            Some(_) => outputs / 2,
            None => outputs,
        }
    }

    /// An error unless the extras and a weight `(outputs, k)`, dense or quantised, fit the input.
    fn check(
        &self,
        (x, x_l): Operand<'_, S>,
        dense: Option<&S>,
        (outputs, k): (usize, usize),
    ) -> Result<()> {
        let norm = self.norm.map(|(alpha, _)| alpha);
        let others = [norm, self.bias, self.residual].into_iter().flatten();
        for other in dense.into_iter().chain(others.map(|(storage, _)| storage)) {
            if other.dtype() != x.dtype() {
                let (lhs, rhs) = (x.dtype(), other.dtype());
                return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op: OP }.bt());
            }
        }
        let n = self.columns(outputs);
        let rows: usize = x_l.dims().iter().rev().skip(1).product();
        let alpha_fits = self.norm.is_none_or(|((_, l), _)| l.dims() == [k]);
        let bias_fits = self.bias.is_none_or(|(_, l)| l.dims() == [outputs]);
        let residual_fits = self
            .residual
            .is_none_or(|(_, l)| l.dims().last() == Some(&n) && l.shape().elem_count() == rows * n);
        let halves = self.gate.is_none() || outputs.is_multiple_of(2);
        if x_l.dims().last() != Some(&k) || !alpha_fits || !bias_fits || !residual_fits || !halves {
            crate::bail!(
                "linear: x is {:?} and the weight ({outputs}, {k}); the norm's weights must be ({k}), the bias ({outputs}), the \
                 residual ({rows}, {n}), and a gated product of an even size",
                x_l.shape()
            )
        }
        Ok(())
    }
}

/// The sizes of a linear layer's product.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) rows: usize,
    /// Rows of the weight.
    pub(crate) outputs: usize,
    pub(crate) k: usize,
}

/// A weight in the form that a device's kernels read, and these kernels.
pub(crate) trait Weight: Copy {
    type Storage: Fused;

    /// The weight's storage, unless it is quantised.
    fn dense(&self) -> Option<&Self::Storage>;

    /// `x (rows, k)` through the layer in one kernel; `None` if there is none for these sizes and all of `extras`. Weights of norms and
    /// biases are contiguous.
    fn fused(
        self,
        x: Operand<'_, Self::Storage>,
        sizes: Sizes,
        extras: LinearExtras<'_, Self::Storage>,
    ) -> Result<Option<Self::Storage>>;

    /// `x (rows, k)` times the transposed weight, of any size.
    fn product(self, x: Operand<'_, Self::Storage>, sizes: Sizes) -> Result<Self::Storage>;

    /// A contiguous copy.
    fn copied(x: Operand<'_, Self::Storage>) -> Result<Self::Storage>;

    /// The function of a kernel, `f_` and this name, of each element.
    fn mapped(x: Operand<'_, Self::Storage>, function: &'static str) -> Result<Self::Storage>;
}

/// [`Fused::linear`] for `x` of any strides and a weight of `outputs` rows and `k` columns: one kernel, or a separate kernel for each part
/// that the product's kernels do not support.
pub(crate) fn linear<W: Weight>(
    (x, x_l): Operand<'_, W::Storage>,
    weight: W,
    (outputs, k): (usize, usize),
    extras: LinearExtras<'_, W::Storage>,
) -> Result<W::Storage> {
    extras.check((x, x_l), weight.dense(), (outputs, k))?;
    let (alpha, alpha_l, bias, bias_l);
    let mut extras = extras;
    if let Some((operand, eps)) = extras.norm.filter(|(alpha, _)| !alpha.1.is_contiguous()) {
        (alpha, alpha_l) = (W::copied(operand)?, Layout::contiguous(k));
        extras.norm = Some(((&alpha, &alpha_l), eps));
    }
    if let Some(operand) = extras.bias.filter(|bias| !bias.1.is_contiguous()) {
        (bias, bias_l) = (W::copied(operand)?, Layout::contiguous(outputs));
        extras.bias = Some((&bias, &bias_l));
    }
    let rows: usize = x_l.dims().iter().rev().skip(1).product();
    let sizes = Sizes { rows, outputs, k };
    // A view of the rows, if they have a single stride.
    if let Some(step) = x_l.row_step() {
        let last = x_l.stride().last().copied().unwrap_or(1);
        let x_l = Layout::new((rows, k).into(), vec![step, last], x_l.start_offset());
        return run((x, &x_l), weight, sizes, extras);
    }
    let copy = W::copied((x, x_l))?;
    run(
        (&copy, &Layout::contiguous((rows, k))),
        weight,
        sizes,
        extras,
    )
}

/// `x (rows, k)` through the layer.
fn run<W: Weight>(
    x: Operand<'_, W::Storage>,
    weight: W,
    sizes: Sizes,
    extras: LinearExtras<'_, W::Storage>,
) -> Result<W::Storage> {
    if let Some(dst) = weight.fused(x, sizes, extras)? {
        return Ok(dst);
    }
    let Sizes { rows, outputs, k } = sizes;
    if let Some((alpha, eps)) = extras.norm {
        if extras.gate.is_some() {
            let product = LinearExtras {
                gate: None,
                activation: None,
                residual: None,
                ..extras
            };
            if let Some(dst) = weight.fused(x, sizes, product)? {
                return after_product::<W>(dst, sizes, extras);
            }
        }
        let norm = Norm {
            op: "rms-norm",
            centred: false,
            weight: Some(alpha),
            bias: None,
            eps,
            beside: None,
        };
        let normed = W::Storage::norm(x, norm)?;
        let rest = LinearExtras {
            norm: None,
            ..extras
        };
        return run(
            (&normed, &Layout::contiguous((rows, k))),
            weight,
            sizes,
            rest,
        );
    }
    let dst_l = Layout::contiguous((rows, outputs));
    let LinearExtras {
        bias,
        gate,
        activation,
        residual,
        ..
    } = extras;
    if gate.is_none() && activation.is_none() && residual.is_none() {
        let dst = weight.product(x, sizes)?;
        let Some((bias, bias_l)) = bias else {
            return Ok(dst);
        };
        return dst.binary_impl::<Add>(bias, &dst_l, &bias_l.broadcast_as((rows, outputs))?);
    }
    let product = LinearExtras {
        bias,
        ..LinearExtras::default()
    };
    let dst = run(x, weight, sizes, product)?;
    after_product::<W>(dst, sizes, extras)
}

/// The gate, the activation and the residual of `extras` after a product, which has the bias.
fn after_product<W: Weight>(
    mut dst: W::Storage,
    Sizes { rows, outputs, .. }: Sizes,
    extras: LinearExtras<'_, W::Storage>,
) -> Result<W::Storage> {
    let LinearExtras {
        gate,
        activation,
        residual,
        ..
    } = extras;
    let dst_l = Layout::contiguous((rows, outputs));
    if let Some(gate) = gate {
        let half = outputs / 2;
        let (gate_l, up_l) = (dst_l.narrow(1, 0, half)?, dst_l.narrow(1, half, half)?);
        dst = W::Storage::gated((&dst, &gate_l), (&dst, &up_l), gate)?;
    }
    let result_l = Layout::contiguous((rows, extras.columns(outputs)));
    for function in activation.map_or(&[][..], Activation::functions) {
        dst = W::mapped((&dst, &result_l), function)?;
    }
    match residual {
        Some((residual, residual_l)) => {
            let dst_l = Layout::contiguous(residual_l.shape());
            dst.binary_impl::<Add>(residual, &dst_l, residual_l)
        }
        None => Ok(dst),
    }
}
