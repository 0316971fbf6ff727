//! Products by cuBLASLt: the conditions on operands, and its description of them.

use super::Product;
use crate::backend::BackendStorage;
use crate::cuda_backend::lt::{Addresses, Lt, Problem};
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Computes the product; returns false if cuBLASLt does not support it.
pub(super) fn run(lt: &Lt, product: &Product<'_>, dst: &CudaStorage) -> Result<bool> {
    let [rhs, lhs] = product.addresses();
    let at = Addresses {
        rhs,
        lhs,
        bias: product.extras.bias.map(|bias| bias.address()),
        residual: product.extras.residual.map(|residual| residual.address()),
        scales: product.scales.map(CudaStorage::address),
        dst: dst.address(),
    };
    match problem(product, dst.dtype(), at) {
        Some(problem) => lt.run(&problem, at),
        None => Ok(false),
    }
}

/// A matrix in cuBLASLt's view: whether its memory holds the transpose, and the stride between columns of its memory. `None` if neither
/// rows nor columns are contiguous.
fn leading(
    (row, column): (usize, usize),
    (rows, columns): (usize, usize),
) -> Option<(bool, usize)> {
    // A single row or column may have any stride.
    let by_rows = (column == 1 || columns == 1) && (rows == 1 || row >= columns);
    let by_columns = (row == 1 || rows == 1) && (columns == 1 || column >= rows);
    if by_rows {
        Some((false, if rows == 1 { columns } else { row }))
    } else if by_columns {
        Some((true, if columns == 1 { rows } else { column }))
    } else {
        None
    }
}

/// cuBLASLt's description of the product; `None` if it supports dtypes, strides or sizes in no form.
fn problem(product: &Product<'_>, result: DType, at: Addresses) -> Option<Problem> {
    let operands = product.lhs.storage.dtype();
    let fits = match operands {
        DType::F16 | DType::BF16 => result == operands || result == DType::F32,
        DType::F32 | DType::F64 => result == operands,
        _ => false,
    };
    let batch = product.batches.len();
    if !fits || product.batches.rank > 1 {
        return None;
    }
    let (m, n, k) = (product.m, product.n, product.k);
    let (lhs_t, lhs_step) = leading((product.lhs.row, product.lhs.column), (m, k))?;
    let (rhs_t, rhs_step) = leading((product.rhs.row, product.rhs.column), (k, n))?;
    let step = |side: usize| match product.batches.rank {
        0 => 1,
        _ => product.batches.views.strides[side][0] as usize,
    };
    let limit = i32::MAX as usize;
    if [m, n, k, batch, lhs_step, rhs_step]
        .iter()
        .any(|size| *size > limit)
    {
        return None;
    }
    let power = |address: u64| 1 << address.trailing_zeros().min(8);
    let addends = [at.bias, at.residual].into_iter().flatten();
    let last = addends.map(power).fold(power(at.dst), u32::min);
    Some(Problem {
        operands,
        result,
        reduced: super::reduced_precision(operands),
        m: n,
        n: m,
        k,
        batch,
        transposed: [rhs_t, lhs_t],
        steps: [(rhs_step, step(1)), (lhs_step, step(0))],
        bias: at.bias.is_some(),
        residual: product.extras.residual.map(|residual| residual.row),
        scaled: at.scales.is_some(),
        alignment: [power(at.rhs), power(at.lhs), last],
    })
}

impl Product<'_> {
    /// Addresses of the first elements, the right operand's first.
    pub(super) fn addresses(&self) -> [u64; 2] {
        let [lhs, rhs] = self.batches.views.offsets;
        let at = |storage: &CudaStorage, offset: u64| {
            storage.address() + offset * storage.dtype().size_in_bytes() as u64
        };
        [at(self.rhs.storage, rhs), at(self.lhs.storage, lhs)]
    }
}

#[cfg(test)]
mod tests {
    use super::leading;

    #[test]
    fn matrices_are_seen_by_columns() {
        // Contiguous rows, with or without a gap between them.
        assert_eq!(leading((4, 1), (3, 4)), Some((false, 4)));
        assert_eq!(leading((9, 1), (3, 4)), Some((false, 9)));
        // Contiguous columns.
        assert_eq!(leading((1, 3), (3, 4)), Some((true, 3)));
        // Neither.
        assert_eq!(leading((8, 2), (3, 4)), None);
        // Rows that repeat.
        assert_eq!(leading((0, 1), (3, 4)), None);
        // One row or one column.
        assert_eq!(leading((77, 1), (1, 4)), Some((false, 4)));
        assert_eq!(leading((77, 3), (1, 4)), Some((true, 3)));
        assert_eq!(leading((2, 5), (3, 1)), Some((false, 2)));
    }
}
