//! Products by cuBLASLt.

use super::plan::Matrices;
use super::Product;
use crate::backend::BackendStorage;
use crate::cuda_backend::lt::{Addresses, Lt, Problem};
use crate::cuda_backend::precision::gemm_reduced_precision_f32;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Computes the product of `matrices`, which are its operands; returns false if cuBLASLt has no algorithm for it.
pub(super) fn run(
    lt: &Lt,
    product: &Product<'_>,
    Matrices { lhs, rhs }: Matrices,
    dst: &CudaStorage,
) -> Result<bool> {
    let operands = product.lhs.storage.dtype();
    let [rhs_at, lhs_at] = product.addresses();
    let at = Addresses {
        rhs: rhs_at,
        lhs: lhs_at,
        bias: product.extras.bias.map(|bias| bias.address()),
        residual: product.extras.residual.map(|residual| residual.address()),
        scales: product.scales.map(CudaStorage::address),
        dst: dst.address(),
    };
    let step = |side: usize| match product.batches.rank {
        0 => 1,
        _ => product.batches.views.strides[side][0] as usize,
    };
    let power = |address: u64| 1 << address.trailing_zeros().min(8);
    let addends = [at.bias, at.residual].into_iter().flatten();
    let last = addends.map(power).fold(power(at.dst), u32::min);
    let problem = Problem {
        operands,
        result: dst.dtype(),
        reduced: operands == DType::F32 && gemm_reduced_precision_f32(),
        m: product.n,
        n: product.m,
        k: product.k,
        batch: product.batches.len(),
        transposed: [rhs.transposed, lhs.transposed],
        steps: [(rhs.step, step(1)), (lhs.step, step(0))],
        bias: at.bias.is_some(),
        residual: product.extras.residual.map(|residual| residual.row),
        scaled: at.scales.is_some(),
        alignment: [power(at.rhs), power(at.lhs), last],
    };
    lt.run(&problem, at)
}
