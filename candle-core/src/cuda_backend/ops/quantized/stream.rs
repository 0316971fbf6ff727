//! A few to a hundred rows times blocks, by matrix instructions on bytes. A block of threads reads its rows of the weight once for up to 64 rows
//! of x, and its warps share the columns, so that enough of the weight is in flight without partial sums in memory.

use super::activations::{Activations, Order};
use super::{c_format, decoded, Input, Product, MATMUL};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::CudaStorage;
use crate::quantized::GgmlDType;
use crate::Result;

/// The number of rows from which this kernel is faster than `vector`.
pub(super) const LEAST_ROWS: usize = 3;
/// Maximum number of rows: more are multiplied faster by a decoded weight.
pub(super) const MOST_ROWS: usize = decoded::LEAST_ROWS - 1;

/// Chunks of a warp in shared memory.
const STAGES: usize = 2;
/// Maximum number of warps of a block.
const MOST_WARPS: usize = 8;

/// How a product is divided: the definitions of `kernels/ggml_stream.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    /// Tiles of 16 rows of the weight.
    tm: usize,
    /// Tiles of 8 rows of x.
    tn: usize,
    warps: usize,
    /// Columns of a chunk.
    chunk: usize,
    /// Bytes from row to row of a chunk in shared memory.
    pitch: usize,
}

impl Tile {
    /// Columns of a chunk, a whole number of blocks, and about 150 bytes.
    fn chunk(format: GgmlDType) -> usize {
        match format {
            GgmlDType::Q8_0 | GgmlDType::Q8_1 => 128,
            _ => 256,
        }
    }

    /// The largest tile that leaves a block for each multiprocessor and fits into `max_shared` bytes; `None` where none fits.
    fn choose(
        format: GgmlDType,
        (rows, weight_rows, k): (usize, usize, usize),
        multiprocessors: usize,
        max_shared: usize,
    ) -> Option<Self> {
        let chunk = Self::chunk(format);
        let bytes = chunk / format.block_size() * format.type_size();
        // A chunk begins anywhere in a piece of 16 bytes. An odd number of pieces puts neighbouring rows into different banks.
        let pitch = (((bytes + 29) / 16) | 1) * 16;
        let tn = rows.div_ceil(8).next_power_of_two().min(8);
        let down = rows.div_ceil(8).div_ceil(tn);
        // Two tiles share the loads of x, of which there are few up to 16 rows.
        let blocks = weight_rows.div_ceil(16 * 2) * down;
        let tm = if tn > 2 && blocks >= multiprocessors * 3 / 4 {
            2
        } else {
            1
        };
        let mut tile = Self {
            tm,
            tn,
            warps: k.div_ceil(chunk).next_power_of_two().min(MOST_WARPS),
            chunk,
            pitch,
        };
        while tile.shared() > max_shared {
            match tile {
                Self { warps: 5.., .. }
                | Self {
                    tm: 1, warps: 2.., ..
                } => tile.warps /= 2,
                Self { tm: 2, .. } => tile.tm = 1,
                _ => return None,
            }
        }
        Some(tile)
    }

    /// Bytes of shared memory of a block: the chunks, and later the sums of its warps.
    fn shared(&self) -> usize {
        let rows = 16 * self.tm;
        let chunks = STAGES * rows * self.pitch;
        let sums = 8 * self.tn * (rows + 4) * size_of::<f32>();
        self.warps * chunks.max(sums)
    }
}

/// `x` times the weight of `product`, with all of its extras: `(rows, n)` in the dtype of `x`; `None` where the card has too little shared memory.
pub(super) fn run(product: &Product<'_>, x: Input<'_>) -> Result<Option<CudaStorage>> {
    let Product {
        rows, n, k, extras, ..
    } = *product;
    let device = product.weight.device();
    let dtype = x.0.dtype();
    let format = product.weight.dtype();
    let outputs_of = if extras.gate.is_some() { 2 } else { 1 };
    let size = (rows, outputs_of * n, k);
    let multiprocessors = device.card().multiprocessors;
    let Some(tile) = Tile::choose(format, size, multiprocessors, device.max_shared() as usize)
    else {
        return Ok(None);
    };
    let tiles = rows.div_ceil(8).next_multiple_of(tile.tn);
    let nibbles = matches!(format, GgmlDType::Q4_0 | GgmlDType::Q4_1);
    let x = Activations::new(x, k, extras.norm, Order::Packed { tiles, nibbles })?;
    let dst = device.new_storage(rows * n, dtype, MATMUL)?;
    let kernel = Kernel::new(source!("functions", "ggml", => "ggml_stream"))
        .define("FORMAT", c_format(format))
        .define("DST", device.c_type(dtype, MATMUL)?)
        .define("TM", tile.tm)
        .define("TN", tile.tn)
        .define("WARPS", tile.warps)
        .define("CHUNK", tile.chunk)
        .define("STAGES", STAGES)
        .define("PITCH", tile.pitch)
        .define("NIBBLES", nibbles);
    let kernel = extras.define(kernel);
    let (bias, residual, residual_row) = extras.args();
    let args = Args::new()
        .value(product.address())
        .storage(&x.codes)
        .storage(&x.scales)
        .storage(&dst)
        .value([rows, n, k, tiles].map(|size| size as u64))
        .value(bias)
        .value(residual)
        .size(residual_row);
    let outputs = 16 * tile.tm / outputs_of;
    let blocks = tiles / tile.tn * n.div_ceil(outputs);
    let grid = Grid::of_rows(blocks, 32 * tile.warps as u32).shared(tile.shared() as u32);
    device.launch(&kernel, grid, args)?;
    Ok(Some(dst))
}

#[cfg(test)]
mod tests {
    use super::{GgmlDType, Tile};

    const H100: (usize, usize) = (132, 227 << 10);

    fn tile(format: GgmlDType, size: (usize, usize, usize)) -> Tile {
        Tile::choose(format, size, H100.0, H100.1).unwrap()
    }

    #[test]
    fn tiles_leave_a_block_for_each_multiprocessor() {
        let few = tile(GgmlDType::Q4_0, (8, 4096, 4096));
        assert_eq!((few.tm, few.tn, few.warps), (1, 1, 8));
        let wide = tile(GgmlDType::Q4_0, (32, 4096, 4096));
        assert_eq!((wide.tm, wide.tn), (2, 4));
        assert_eq!(tile(GgmlDType::Q4_0, (32, 2048, 4096)).tm, 1);
        // Two chunks of columns.
        assert_eq!(tile(GgmlDType::Q6K, (8, 4096, 512)).warps, 2);
    }

    #[test]
    fn cards_with_little_shared_memory_get_fewer_warps() {
        for format in [
            GgmlDType::Q4_0,
            GgmlDType::Q8_0,
            GgmlDType::Q6K,
            GgmlDType::Q8K,
        ] {
            for rows in [3, 17, 64, 128] {
                let tile = Tile::choose(format, (rows, 32000, 4096), 40, 64 << 10).unwrap();
                assert!(tile.shared() <= 64 << 10, "{format:?} {rows} {tile:?}");
            }
        }
    }
}
