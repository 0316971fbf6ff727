//! Products of few rows: a warp reads a row of the weight once and multiplies it with all of them. The other parts of a transformer's
//! linear layer are fused with the product.

use super::Product;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::CudaStorage;
use crate::Result;

/// Threads of a block: few, so that blocks come and go evenly.
const THREADS: u32 = 128;
/// Minimum number of columns for two per warp: with fewer, multiprocessors would be idle.
const MANY_COLUMNS: usize = 8192;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Sizes {
    n: u64,
    k: u64,
    x_row: u64,
    weight_row: u64,
    residual_row: u64,
}

/// Computes a product for which [`plan`](super::plan::plan) chose this kernel.
pub(super) fn run(product: &Product<'_>, dst: &CudaStorage) -> Result<()> {
    let (lhs, rhs, extras) = (product.lhs, product.rhs, product.extras);
    let device = dst.device();
    let [rhs_at, lhs_at] = product.addresses();
    let norm_at = extras.norm.map_or(0, |(alpha, _)| alpha.address());
    let columns = if product.n >= MANY_COLUMNS && extras.gate.is_none() {
        2
    } else {
        1
    };
    let kernel = Kernel::new(source!("functions", => "matmul_vector"))
        .define("T", device.c_type(lhs.storage.dtype(), "matmul")?)
        .define("OUT", device.c_type(dst.dtype(), "matmul")?)
        .define("ROWS", product.m)
        .define("COLUMNS", columns)
        .define("NORM", extras.norm.is_some());
    let kernel = extras.define(kernel);
    let (bias, residual, residual_row) = extras.args();
    let args = Args::new()
        .value(lhs_at)
        .value(rhs_at)
        .storage(dst)
        .value(Sizes {
            n: product.n as u64,
            k: product.k as u64,
            x_row: lhs.row as u64,
            weight_row: rhs.column as u64,
            residual_row: residual_row as u64,
        })
        .value(norm_at)
        .value(extras.norm.map_or(0., |(_, eps)| eps))
        .value(bias)
        .value(residual);
    let warps = product.n.div_ceil(columns);
    let blocks = warps.div_ceil(THREADS as usize / 32);
    device.launch(&kernel, Grid::of_rows(blocks, THREADS), args)
}
