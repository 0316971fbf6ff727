//! Convolutions as products of tiles whose elements are located while they are loaded.

use super::pack::{Packed, Unpacked, COPY};
use super::passes::{along, AxisPass};
use super::Conv;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid, BLOCK, MAX_GRID_YZ};
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Maximum number of passes along one axis: each is a launch.
const MOST_SHARES: usize = 8;
/// Number of multiplications for which one launch of the direct form is as fast as packing the operands.
const FEW_PRODUCTS: usize = 1 << 21;
/// Maximum number of bytes of packed images at a time.
const MAX_PACKED: usize = 512 << 20;
/// Copies of a row of a tile, and its bytes with the extra copy that keeps rows in different banks.
const CHUNKS: usize = 4;
const ROW_BYTES: usize = (CHUNKS + 1) * COPY;
/// Maximum number of parts of a sum.
const MOST_SPLITS: usize = 16;
/// Minimum number of steps of a part.
const FEWEST_STEPS: usize = 8;

/// The passes along both axes, if tiles suit this convolution.
pub(super) fn plan(conv: &Conv<'_>) -> Option<[Vec<AxisPass>; 2]> {
    let g = &conv.g;
    let (c_in, c_out) = g.group_channels();
    let products = [g.b, g.c_out, conv.output_len(), c_in, conv.taps()];
    let products = products
        .iter()
        .fold(1usize, |all, n| all.saturating_mul(*n));
    let columns = g.b.saturating_mul(conv.output_len());
    let sum = c_in.saturating_add(COPY).saturating_mul(conv.taps());
    let most = (1 << 30) / 2;
    let fits =
        columns < most && sum < most && c_out < most && g.groups <= MAX_GRID_YZ / MOST_SPLITS;
    // A group of one channel has nothing to multiply as a matrix, in one direction or the other.
    if c_in == 1 || (c_out == 1 && g.groups > 1) || products < FEW_PRODUCTS || !fits {
        return None;
    }
    Some([along(g, 0, MOST_SHARES)?, along(g, 1, MOST_SHARES)?])
}

/// The parameters of a block's part of the result.
#[derive(Debug, Clone, Copy)]
struct Tile {
    /// The function of matrix instructions, if the card has one for the dtype.
    matrix: Option<&'static str>,
    rows: usize,
    columns: usize,
    /// Warps that share the rows.
    warps: usize,
    stages: usize,
    splits: usize,
}

impl Tile {
    fn new(dst: &CudaStorage, (m, n): (usize, usize), others: usize, sum_bytes: usize) -> Self {
        let device = dst.device();
        let matrix = match dst.dtype() {
            DType::F16 => Some("mma_m16n8k16_f16"),
            DType::BF16 if device.card().capability >= (8, 0) => Some("mma_m16n8k16_bf16"),
            _ => None,
        };
        let cores = device.card().multiprocessors;
        let blocks = |rows: usize, columns| m.div_ceil(rows) * n.div_ceil(columns) * others;
        let narrow = dst.dtype().size_in_bytes() <= 4;
        let (rows, columns, warps) = match matrix {
            _ if m <= 16 => (16, 128, 1),
            _ if narrow && m > 64 && blocks(128, 128) >= cores => (128, 128, 2),
            Some(_) if blocks(64, 128) >= cores => (64, 128, 2),
            _ => (64, 64, 2),
        };
        let steps = sum_bytes.div_ceil(CHUNKS * COPY);
        let busy = (2 * cores / blocks(rows, columns).max(1)).min(steps / FEWEST_STEPS);
        // A power of two: each number of parts is another kernel to compile.
        let splits = 1 << busy.clamp(1, MOST_SPLITS).ilog2();
        Self {
            matrix,
            rows,
            columns,
            warps,
            stages: if rows + columns > 192 { 3 } else { 4 },
            splits,
        }
    }

    fn shared(&self) -> usize {
        self.stages * (self.rows + self.columns) * ROW_BYTES
    }

    /// Number of rows of results of `size` bytes that fit the memory of the tiles.
    fn part_rows(&self, size: usize) -> usize {
        let row = self.columns * size + COPY;
        let mut rows = self.rows;
        while rows * row > self.shared() {
            rows /= 2;
        }
        rows
    }
}

/// The accumulator type, and a dtype of its size.
fn sums(dtype: DType) -> (&'static str, DType) {
    match dtype {
        DType::F64 => ("f64", DType::F64),
        DType::I64 => ("u64", DType::I64),
        DType::U8 | DType::U32 | DType::I16 | DType::I32 => ("u32", DType::U32),
        _ => ("f32", DType::F32),
    }
}

pub(super) fn run(conv: &Conv<'_>, passes: &[Vec<AxisPass>; 2], dst: &CudaStorage) -> Result<()> {
    let g = &conv.g;
    let (c_in, c_out) = g.group_channels();
    let w = &conv.weights;
    let weights = Unpacked {
        storage: conv.kernel,
        offset: w.offset,
        dims: [g.groups, c_out, c_in, g.kernel[0], g.kernel[1]],
        strides: [w.group, w.out, w.channel, w.row, w.column],
    };
    let weights = weights.pack(g.op)?;
    let size = dst.dtype().size_in_bytes();
    let image = g.groups * weights.channels * g.input[0] * g.input[1] * size;
    let images = (MAX_PACKED / image.max(1)).clamp(1, g.b);
    let [batch, channel, row, column] = conv.planes.strides;
    for first in (0..g.b).step_by(images) {
        let count = images.min(g.b - first);
        let input = Unpacked {
            storage: conv.input,
            offset: conv.planes.offset + first * batch,
            dims: [count, g.groups, c_in, g.input[0], g.input[1]],
            strides: [batch, c_in * channel, channel, row, column],
        };
        let piece = Piece {
            conv,
            weights: &weights,
            input: input.pack(g.op)?,
            first,
            count,
        };
        piece.run(passes, dst)?;
    }
    Ok(())
}

/// Some of the images.
struct Piece<'a> {
    conv: &'a Conv<'a>,
    weights: &'a Packed<'a>,
    input: Packed<'a>,
    first: usize,
    count: usize,
}

impl Piece<'_> {
    fn run(&self, [down, across]: &[Vec<AxisPass>; 2], dst: &CudaStorage) -> Result<()> {
        let g = &self.conv.g;
        let device = dst.device();
        let size = dst.dtype().size_in_bytes();
        let (_, c_out) = g.group_channels();
        let shares = down.len() * across.len();
        let columns = self.count * down[0].count * across[0].count;
        let sum = down[0].taps * across[0].taps * self.weights.channels * size;
        let tile = Tile::new(dst, (c_out, columns), g.groups * shares, sum);
        let first = self.first * g.c_out * self.conv.output_len();
        let len = self.count * g.c_out * self.conv.output_len();
        if tile.splits == 1 {
            for y in down {
                for x in across {
                    self.pass(y, x, tile, (dst, first, 0))?;
                }
            }
            return Ok(());
        }
        let (ty, wide) = sums(dst.dtype());
        let parts = device.new_storage(len * tile.splits, wide, g.op)?;
        for y in down {
            for x in across {
                self.pass(y, x, tile, (&parts, 0, len))?;
            }
        }
        let kernel = Kernel::new(source!("conv_join"))
            .define("T", device.c_type(dst.dtype(), g.op)?)
            .define("P", ty)
            .define("SPLITS", tile.splits);
        let args = Args::new()
            .storage(&parts)
            .storage(dst)
            .size(first)
            .size(len);
        device.launch(&kernel, Grid::of_threads(len), args)
    }

    /// One pass, to `dst` from element `first` on; parts of sums have a stride of `split` elements.
    fn pass(
        &self,
        y: &AxisPass,
        x: &AxisPass,
        tile: Tile,
        (dst, first, split): (&CudaStorage, usize, usize),
    ) -> Result<()> {
        let g = &self.conv.g;
        let device = dst.device();
        let (_, c_out) = g.group_channels();
        let area = self.conv.output_len();
        let (input, weights) = (&self.input, self.weights);
        let n = self.count * y.count * x.count;
        let size = dst.dtype().size_in_bytes();
        let mut vec = if x.apart * y.apart == 1 {
            COPY / size
        } else {
            1
        };
        while !area.is_multiple_of(vec) {
            vec /= 2;
        }
        let mut kernel = Kernel::new(source!("conv_tile"))
            .define("T", device.c_type(self.conv.input.dtype(), g.op)?)
            .define("BM", tile.rows)
            .define("BN", tile.columns)
            .define("WARPS_M", tile.warps)
            .define("STAGES", tile.stages)
            .define("T_H", y.taps)
            .define("T_W", x.taps)
            .define("SPLITS", tile.splits)
            .define("VEC", vec)
            .define("PART_ROWS", tile.part_rows(size));
        if let Some(function) = tile.matrix {
            kernel = kernel.define("MATRIX", function);
        }
        let places = [
            input.offset,
            input.outer,
            input.inner,
            input.row,
            input.column,
            weights.offset + y.first_tap * weights.row + x.first_tap * weights.column,
            weights.outer,
            weights.inner,
            y.tap_step * weights.row,
            x.tap_step * weights.column,
            first + y.first * g.output[1] + x.first,
            g.c_out * area,
            c_out * area,
            area,
            g.output[1],
            split,
        ];
        let axis = |pass: &AxisPass, d: usize| {
            [
                pass.count as i32,
                g.input[d] as i32,
                pass.step as i32,
                pass.reach as i32,
                pass.base as i32,
                pass.apart as i32,
            ]
        };
        let parameters = Parameters {
            places: places.map(|n| n as u64),
            sizes: [n, c_out, weights.channels, g.groups].map(|n| n as u32),
            axes: [axis(y, 0), axis(x, 1)],
        };
        let tiles = c_out.div_ceil(tile.rows) * n.div_ceil(tile.columns);
        let grid = Grid::new([tiles as u32, (g.groups * tile.splits) as u32, 1], BLOCK);
        let args = Args::new()
            .storage(&input.storage)
            .storage(&weights.storage)
            .storage(dst)
            .value(parameters);
        device.launch(&kernel, grid.shared(tile.shared() as u32), args)
    }
}

/// `struct Conv` of `kernels/conv_tile.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    places: [u64; 16],
    sizes: [u32; 4],
    axes: [[i32; 6]; 2],
}

// SAFETY: integers only; the sizes of the parts leave no padding.
unsafe impl bytemuck::Zeroable for Parameters {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Parameters {}
