//! Many rows times blocks, by matrix instructions on bytes.

use super::activations::Activations;
use super::{c_format, Product, MATMUL};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Threads of a block.
const THREADS: u32 = 128;

/// Columns of x that are in shared memory at once.
const DEPTH: usize = 128;
/// The most parts that columns are cut in.
const MAX_SPLITS: usize = 8;

/// Rows of x and of the weight that a block multiplies, its warps along the rows of x, and the parts that columns are cut in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    m: usize,
    n: usize,
    warps_m: usize,
    splits: usize,
}

impl Tile {
    /// As large as leaves two tiles for each multiprocessor; where there are fewer of the smallest, more blocks by cutting the columns, each
    /// part at least four times what is in shared memory.
    fn choose((rows, n, k): (usize, usize, usize), multiprocessors: usize) -> Self {
        let (m, warps_m) = match rows {
            ..=16 => (16, 1),
            17..=32 => (32, 1),
            _ => (64, 2),
        };
        let wanted = 2 * multiprocessors;
        let tiles = |width: usize| rows.div_ceil(m) * n.div_ceil(width);
        let n = if tiles(64) >= wanted { 64 } else { 32 };
        let splits = (2 * wanted / tiles(n)).min(k / (4 * DEPTH));
        Self {
            m,
            n,
            warps_m,
            splits: splits.clamp(1, MAX_SPLITS),
        }
    }
}

/// The result `(rows, n)` in `dtype`.
pub(super) fn run(product: &Product<'_>, x: &Activations, dtype: DType) -> Result<CudaStorage> {
    let Product {
        rows, n, k, extras, ..
    } = *product;
    let device = product.weight.device();
    let dst = device.new_storage(rows * n, dtype, MATMUL)?;
    let tile = Tile::choose((rows, n, k), device.card().multiprocessors);
    let splits = tile.splits;
    let parts = match splits {
        1 => None,
        _ => Some(device.new_storage(splits * rows * n, DType::F32, MATMUL)?),
    };
    let (bias, residual, residual_row) = extras.args();
    let (has_bias, has_residual) = (extras.bias.is_some(), extras.residual.is_some());
    let out = parts.as_ref().unwrap_or(&dst);
    let whole = parts.is_none();
    let kernel = Kernel::new(source!("ggml", => "ggml_tiles"))
        .define("FORMAT", c_format(product.weight.dtype()))
        .define("DST", device.c_type(out.dtype(), MATMUL)?)
        .define("BM", tile.m)
        .define("BN", tile.n)
        .define("WARPS_M", tile.warps_m)
        .define("BIAS", has_bias && whole)
        .define("RESIDUAL", has_residual && whole)
        .define("SPLITS", splits);
    let args = Args::new()
        .value(product.address())
        .storage(&x.codes)
        .storage(&x.scales)
        .storage(out)
        .value([rows, n, k].map(|size| size as u64))
        .value(bias)
        .value(residual)
        .size(residual_row);
    let blocks = splits * rows.div_ceil(tile.m) * n.div_ceil(tile.n);
    device.launch(&kernel, Grid::of_rows(blocks, THREADS), args)?;
    let Some(parts) = parts else {
        return Ok(dst);
    };
    let kernel = Kernel::new(source!("ggml_join"))
        .define("DST", device.c_type(dtype, MATMUL)?)
        .define("SPLITS", splits)
        .define("BIAS", has_bias)
        .define("RESIDUAL", has_residual);
    let args = Args::new()
        .storage(&parts)
        .storage(&dst)
        .size(rows * n)
        .size(n)
        .value(bias)
        .value(residual)
        .size(residual_row);
    device.launch(&kernel, Grid::of_threads(rows * n), args)?;
    Ok(dst)
}

#[cfg(test)]
mod tests {
    use super::Tile;

    #[test]
    fn few_tiles_are_cut_along_the_columns() {
        let tile = |size| Tile::choose(size, 132);
        // 128 tiles of 32 rows, four parts of 1024 columns.
        let few = tile((9, 4096, 4096));
        assert_eq!((few.m, few.n, few.splits), (16, 32, 4));
        // Too few columns to be cut.
        assert_eq!(tile((9, 4096, 512)).splits, 1);
        let many = tile((512, 4096, 4096));
        assert_eq!((many.m, many.n, many.splits), (64, 64, 1));
    }
}
