//! Matrix products.

mod plain;

use crate::backend::BackendStorage;
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{Layout, Result, Shape};

/// One side of a product: `(.., rows, columns)`.
#[derive(Clone, Copy)]
struct Operand<'a> {
    storage: &'a CudaStorage,
    /// Steps from row to row and from column to column.
    row: usize,
    column: usize,
}

/// A product of `batches` pairs of matrices, `(m, k)` by `(k, n)`.
struct Product<'a> {
    lhs: Operand<'a>,
    rhs: Operand<'a>,
    /// Where the matrices of each pair begin.
    batches: Walk<2>,
    m: usize,
    n: usize,
    k: usize,
}

/// The layout without its last two dimensions.
fn batches(layout: &Layout) -> Layout {
    let rank = layout.dims().len() - 2;
    let stride = layout.stride()[..rank].to_vec();
    Layout::new(
        Shape::from(&layout.dims()[..rank]),
        stride,
        layout.start_offset(),
    )
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

pub(in crate::cuda_backend) fn matmul(
    lhs: &CudaStorage,
    rhs: &CudaStorage,
    (b, m, n, k): (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<CudaStorage> {
    let device = lhs.device();
    let product = Product {
        lhs: Operand::new(lhs, lhs_l),
        rhs: Operand::new(rhs, rhs_l),
        batches: Walk::new([&batches(lhs_l), &batches(rhs_l)])?,
        m,
        n,
        k,
    };
    let mut dst = device.new_storage(b * m * n, lhs.dtype(), "matmul")?;
    if k == 0 {
        dst.clear()?;
    } else {
        plain::run(&product, &dst)?;
    }
    Ok(dst)
}
