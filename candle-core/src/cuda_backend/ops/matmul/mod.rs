//! Matrix products: few rows by a kernel that reads the weight once (`vector.rs`), all others by cuBLASLt if it is installed and supports
//! dtype and strides (`lt.rs`), else by kernels for any of them (`plain.rs`). `plan.rs` chooses.

mod extras;
mod lt;
mod plain;
mod plan;
mod vector;

pub(in crate::cuda_backend::ops) use extras::{Addend, Extras};

use self::plan::{matrices, plan, Facts, Lt, Plan};
use super::elementwise;
use crate::backend::BackendStorage;
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Layout, Result, Shape};

/// A tensor: its storage and its layout.
type Input<'a> = crate::fused::Operand<'a, CudaStorage>;

/// One side of a product: `(.., rows, columns)`.
#[derive(Clone, Copy)]
pub(super) struct Operand<'a> {
    storage: &'a CudaStorage,
    /// Strides between rows and between columns.
    row: usize,
    column: usize,
}

/// A product of `batches` pairs of matrices, `(m, k)` by `(k, n)`, and the rest of its layer. With a gate, `n` counts the columns of the
/// result.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    lhs: Operand<'a>,
    rhs: Operand<'a>,
    /// Offsets of the matrices of each pair.
    batches: Walk<2>,
    /// Whether both operands are contiguous, in row-major order.
    contiguous: bool,
    m: usize,
    n: usize,
    k: usize,
    extras: Extras<'a>,
    /// Three f32: the factor of the product, 0 and 1.
    scales: Option<&'a CudaStorage>,
}

/// The layout without its last two dimensions.
fn batches(layout: &Layout) -> Layout {
    let rank = layout.dims().len() - 2;
    let stride = layout.stride()[..rank].to_vec();
    let shape = Shape::from(&layout.dims()[..rank]);
    Layout::new(shape, stride, layout.start_offset())
}

impl<'a> Operand<'a> {
    fn new(storage: &'a CudaStorage, layout: &Layout) -> Self {
        let [.., row, column] = layout.stride() else {
            unreachable!("the tensor's method checks the rank");
        };
        Self {
            storage,
            row: *row,
            column: *column,
        }
    }
}

impl<'a> Product<'a> {
    fn new(
        (lhs, lhs_l): Input<'a>,
        (rhs, rhs_l): Input<'a>,
        (m, n, k): (usize, usize, usize),
    ) -> Result<Self> {
        Ok(Self {
            lhs: Operand::new(lhs, lhs_l),
            rhs: Operand::new(rhs, rhs_l),
            batches: Walk::new([&batches(lhs_l), &batches(rhs_l)])?,
            contiguous: lhs_l.is_contiguous() && rhs_l.is_contiguous(),
            m,
            n,
            k,
            extras: Extras::default(),
            scales: None,
        })
    }

    /// Addresses of the first elements, the right operand's first.
    fn addresses(&self) -> [u64; 2] {
        let [lhs, rhs] = self.batches.views.offsets;
        let at = |storage: &CudaStorage, offset: u64| {
            storage.address() + offset * storage.dtype().size_in_bytes() as u64
        };
        [at(self.rhs.storage, rhs), at(self.lhs.storage, lhs)]
    }

    /// The facts for the plan of a product with a result of `result`.
    fn facts(&self, result: DType) -> Facts {
        let [rhs, lhs] = self.addresses();
        let norm = self.extras.norm.map_or(0, |(alpha, _)| alpha.address());
        Facts {
            operands: self.lhs.storage.dtype(),
            result,
            m: self.m,
            n: self.n,
            k: self.k,
            batch: self.batches.len(),
            batch_rank: self.batches.rank,
            lhs: (self.lhs.row, self.lhs.column),
            rhs: (self.rhs.row, self.rhs.column),
            aligned: [rhs, lhs, norm].iter().all(|at| at.is_multiple_of(16)),
            contiguous: self.contiguous,
            sums: self.extras.are_sums(),
        }
    }
}

pub(in crate::cuda_backend) fn matmul(
    lhs: &CudaStorage,
    rhs: &CudaStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<CudaStorage> {
    product((lhs, lhs_l), (rhs, rhs_l), bmnk, lhs.dtype())
}

/// Like [`matmul`], with a result of `dtype`: the operands' own, or f32 for 16-bit floats.
pub(in crate::cuda_backend) fn product(
    lhs: Input<'_>,
    rhs: Input<'_>,
    (b, m, n, k): (usize, usize, usize, usize),
    dtype: DType,
) -> Result<CudaStorage> {
    let device = lhs.0.device();
    let mut dst = device.new_storage(b * m * n, dtype, "matmul")?;
    if k == 0 {
        dst.clear()?;
    } else if b * m * n > 0 {
        let product = Product::new(lhs, rhs, (m, n, k))?;
        match run_known(&product, &dst)? {
            None => {}
            Some(Plan::Copies) => {
                let (lhs_s, lhs_l) = in_rows(lhs)?;
                let (rhs_s, rhs_l) = in_rows(rhs)?;
                let product = Product::new((&lhs_s, &lhs_l), (&rhs_s, &rhs_l), (m, n, k))?;
                if run_known(&product, &dst)?.is_some() {
                    plain::run(&product, &dst)?;
                }
            }
            Some(_) => plain::run(&product, &dst)?,
        }
    }
    Ok(dst)
}

/// An operand in row-major order.
fn in_rows((storage, layout): Input<'_>) -> Result<(elementwise::Ordered<'_>, Layout)> {
    let (storage, offset) = elementwise::in_order(storage, layout)?;
    let layout = Layout::contiguous_with_offset(layout.shape(), offset);
    Ok((storage, layout))
}

/// `x (rows, k)` times a contiguous weight `(n, k)` transposed, times the first of `scales`, plus the sums of `extras`: by cuBLASLt, to
/// `dst`, of the operands' dtype or f32. Returns whether cuBLASLt supports it.
pub(super) fn by_lt(
    x: Input<'_>,
    weight: &CudaStorage,
    sizes: (usize, usize, usize),
    extras: Extras<'_>,
    scales: Option<&CudaStorage>,
    dst: &CudaStorage,
) -> Result<bool> {
    let (_, n, k) = sizes;
    let weight_l = Layout::contiguous((n, k)).transpose(0, 1)?;
    let mut product = Product::new(x, (weight, &weight_l), sizes)?;
    (product.extras, product.scales) = (extras, scales);
    let matrices = matrices(&product.facts(dst.dtype()));
    match (dst.device().lt()?, matrices) {
        (Some(lt), Some(matrices)) => lt::run(lt, &product, matrices, dst),
        _ => Ok(false),
    }
}

/// The product with `extras`, to `dst`, if one kernel computes all of it; returns whether one does.
pub(super) fn fused(
    lhs: Input<'_>,
    rhs: Input<'_>,
    sizes: (usize, usize, usize),
    extras: Extras<'_>,
    dst: &CudaStorage,
) -> Result<bool> {
    let product = Product {
        extras,
        ..Product::new(lhs, rhs, sizes)?
    };
    Ok(run_known(&product, dst)?.is_none())
}

/// Computes the product by its plan and returns `None`, or returns the part of the plan that needs copies or has no extras.
fn run_known(product: &Product<'_>, dst: &CudaStorage) -> Result<Option<Plan>> {
    let facts = product.facts(dst.dtype());
    let device = dst.device();
    let installed = || {
        Ok(match device.lt()? {
            Some(_) => Lt::Installed,
            None => Lt::Missing,
        })
    };
    match plan(&facts, installed)? {
        Plan::Vector => {
            vector::run(product, dst)?;
            Ok(None)
        }
        Plan::Lt(matrices) => match device.lt()? {
            Some(lt) if lt::run(lt, product, matrices, dst)? => Ok(None),
            _ => plan(&facts, || Ok(Lt::Refuses)).map(Some),
        },
        rest => Ok(Some(rest)),
    }
}
