//! Products of any dtype and any strides, without matrix instructions.

use super::Product;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid, BLOCK};
use crate::cuda_backend::CudaStorage;
use crate::Result;

/// Rows and columns of a block's part of the result.
const TILE: usize = 32;

pub(super) fn run(product: &Product<'_>, dst: &CudaStorage) -> Result<()> {
    let device = dst.device();
    let dtype = dst.dtype();
    let kernel = Kernel::new(source!("matmul_plain"))
        .define("T", device.c_type(dtype, "matmul")?)
        .define("TILE", TILE)
        .define("BATCH_RANK", product.batches.rank);
    let tiles = [product.n.div_ceil(TILE), product.m.div_ceil(TILE)];
    let blocks = tiles[0] * tiles[1] * product.batches.len();
    let args = Args::new()
        .storage(product.lhs.storage)
        .storage(product.rhs.storage)
        .storage(dst)
        .value(product.batches.views)
        .value([product.m, product.n, product.k].map(|size| size as u64))
        .value(
            [
                product.lhs.row,
                product.lhs.column,
                product.rhs.row,
                product.rhs.column,
            ]
            .map(|step| step as u64),
        );
    device.launch(&kernel, Grid::of_rows(blocks, BLOCK), args)
}
