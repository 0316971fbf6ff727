//! The sorting order of each row's elements: a bitonic network over keys and indexes.
//!
//! Rows that fit a block's shared memory are sorted there, several per block if they are short. Tiles of longer rows are sorted in shared
//! memory and then merged: through global memory, several steps at once, until the rest of a merge fits a tile.

use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Layout, Result};

/// Size of a block's entries in bytes.
const TILE_BYTES: usize = 32 << 10;
/// Entries of a block that sorts short rows.
const SHORT_TILE: usize = 512;
/// Maximum number of steps of a launch through global memory.
const STEPS: u32 = 3;

/// Rows of entries during sorting.
struct Network<'a> {
    src: &'a CudaStorage,
    walk: Walk<1>,
    /// `None` if everything is done in shared memory.
    entries: Option<CudaStorage>,
    dst: &'a CudaStorage,
    ascending: bool,
    rows: usize,
    n: usize,
    padded: usize,
    tile: usize,
    op: &'static str,
}

/// Whether keys need 64 bits.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::I64 | DType::F64)
}

impl Network<'_> {
    fn kernel(&self, kernel: Kernel) -> Result<Kernel> {
        let dtype = self.src.dtype();
        Ok(kernel
            .define("T", self.src.device().c_type(dtype, self.op)?)
            .define("ASCENDING", self.ascending)
            .define("WIDE", is_wide(dtype)))
    }

    /// Sorts, or merges from steps of half a tile on: all runs from `first_run` to `last_run` entries.
    fn in_tiles(&self, first_run: usize, last_run: usize) -> Result<()> {
        let load = first_run <= self.tile;
        let kernel = self
            .kernel(Kernel::new(source!("sort", => "sort_tile")))?
            .define("TILE", self.tile)
            .define("LOAD", load)
            .define("STORE", last_run < self.padded)
            .define("RANK", if load { self.walk.rank } else { 0 })
            .define("INDEX", self.walk.index());
        let args = Args::new()
            .storage(self.src)
            .value(self.walk.views)
            .storage_or_null(self.entries.as_ref())
            .storage(self.dst)
            .size(self.rows)
            .size(self.n)
            .value(self.padded.trailing_zeros())
            .size(first_run)
            .size(last_run);
        let blocks = (self.rows * self.padded).div_ceil(self.tile);
        let threads = (self.tile / 4).clamp(32, 1024) as u32;
        let device = self.src.device();
        device.launch(&kernel, Grid::of_rows(blocks, threads), args)
    }

    /// The steps of merging runs of `run` entries that are at least a tile apart.
    fn merge(&self, entries: &CudaStorage, run: usize) -> Result<()> {
        let tile = self.tile.trailing_zeros();
        // The next step's distance is 1 << (bits - 1).
        let mut bits = run.trailing_zeros();
        while bits > tile {
            let steps = (bits - tile).min(STEPS);
            bits -= steps;
            let kernel = self
                .kernel(Kernel::new(source!("sort", => "sort_step")))?
                .define("STEPS", steps);
            let threads = (self.rows * self.padded) >> steps;
            let args = Args::new()
                .storage(entries)
                .size(threads)
                .value(self.padded.trailing_zeros())
                .size(run)
                .value(bits);
            let device = self.src.device();
            device.launch(&kernel, Grid::of_threads(threads), args)?;
        }
        self.in_tiles(run, run)
    }
}

/// The indexes of each row's elements along the last dimension in ascending or descending order, as u32.
///
/// The order is total: NaN is greater than any number, the zeros are equal, and equal elements keep the order of their indexes.
pub(crate) fn arg_sort(
    src: &CudaStorage,
    layout: &Layout,
    ascending: bool,
    op: &'static str,
) -> Result<CudaStorage> {
    let device = src.device();
    device.c_type(src.dtype(), op)?;
    let len = layout.shape().elem_count();
    let n = layout.dims().last().copied().unwrap_or(1);
    if u32::try_from(n).is_err() {
        crate::bail!(
            "{op}: rows of {n} elements exceed the limit of u32 indexes, {}",
            u32::MAX
        )
    }
    let dst = device.new_storage(len, DType::U32, op)?;
    if len == 0 {
        return Ok(dst);
    }
    let rows = len / n;
    let padded = n.next_power_of_two().max(2);
    let words = if is_wide(src.dtype()) { 2 } else { 1 };
    let most = TILE_BYTES / (8 * words);
    let tile = padded.clamp(SHORT_TILE, most);
    let entries = if padded > tile {
        Some(device.new_storage(rows * padded * words, DType::I64, op)?)
    } else {
        None
    };
    let network = Network {
        src,
        walk: Walk::new([layout])?,
        entries,
        dst: &dst,
        ascending,
        rows,
        n,
        padded,
        tile,
        op,
    };
    network.in_tiles(2, padded.min(tile))?;
    if let Some(entries) = &network.entries {
        let mut run = tile * 2;
        while run <= padded {
            network.merge(entries, run)?;
            run *= 2;
        }
    }
    Ok(dst)
}
