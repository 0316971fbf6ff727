//! Many rows times blocks, by matrix instructions on bytes.

use super::activations::Activations;
use super::{c_format, Product, MATMUL};
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Threads of a block.
const THREADS: u32 = 128;

/// Rows of x and of the weight that a block multiplies, and its warps along the rows of x.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    m: usize,
    n: usize,
    warps_m: usize,
}

impl Tile {
    /// As large as leaves two tiles for each multiprocessor.
    fn choose(rows: usize, n: usize, multiprocessors: usize) -> Self {
        let (m, warps_m) = match rows {
            ..=16 => (16, 1),
            ..=32 => (32, 1),
            _ => (64, 2),
        };
        let tiles = |width: usize| rows.div_ceil(m) * n.div_ceil(width);
        let n = if tiles(64) >= 2 * multiprocessors {
            64
        } else {
            32
        };
        Self { m, n, warps_m }
    }
}

/// The result `(rows, n)` in `dtype`.
pub(super) fn run(product: &Product<'_>, x: &Activations, dtype: DType) -> Result<CudaStorage> {
    let Product { rows, n, k, .. } = *product;
    let device = product.weight.device();
    let dst = device.new_storage(rows * n, dtype, MATMUL)?;
    let tile = Tile::choose(rows, n, device.card().multiprocessors);
    let kernel = Kernel::new(source!("ggml", => "ggml_tiles"))
        .define("FORMAT", c_format(product.weight.dtype()))
        .define("DST", device.c_type(dtype, MATMUL)?)
        .define("BM", tile.m)
        .define("BN", tile.n)
        .define("WARPS_M", tile.warps_m)
        .define("BIAS", product.extras.bias.is_some())
        .define("RESIDUAL", product.extras.residual.is_some());
    let (bias, residual, residual_row) = product.extras.args();
    let args = Args::new()
        .value(product.address())
        .storage(&x.codes)
        .storage(&x.scales)
        .storage(&dst)
        .value([rows, n, k].map(|size| size as u64))
        .value(bias)
        .value(residual)
        .size(residual_row);
    let blocks = rows.div_ceil(tile.m) * n.div_ceil(tile.n);
    device.launch(&kernel, Grid::of_rows(blocks, THREADS), args)?;
    Ok(dst)
}
