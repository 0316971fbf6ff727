//! Many queries: a block processes a tile of rows that share keys, and iterates over the keys in tiles (Dao et al., arXiv 2205.14135), in
//! f32 for all dtypes.

use super::{Call, Parts};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Grid, BLOCK};
use crate::cuda_backend::CudaStorage;
use crate::Result;

/// Minimum number of keys in a part.
const LEAST_CHUNK: usize = 128;
/// The largest head whose sums stay in registers.
const MAX_V_DIM: usize = 1024;

/// Rows and keys of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    rows: usize,
    keys: usize,
    shared: usize,
}

impl Tile {
    const fn of(rows: usize, keys: usize) -> Self {
        Self {
            rows,
            keys,
            shared: 0,
        }
    }

    /// Best first; the last ones need little shared memory.
    const ALL: [Self; 4] = [
        Self::of(64, 64),
        Self::of(32, 64),
        Self::of(32, 32),
        Self::of(16, 16),
    ];

    /// The kernel's layout: queries, keys or values, scores.
    fn shared(self, head_dim: usize, v_dim: usize) -> usize {
        let pitch = head_dim.div_ceil(4) | 1;
        let v_pitch = v_dim.div_ceil(4) | 1;
        16 * (self.rows * pitch + self.keys * pitch.max(v_pitch)) + 4 * self.rows * (self.keys + 4)
    }

    /// The first tile that fits and is not mostly empty, else the last that fits.
    pub(super) fn choose(call: &Call<'_>) -> Option<Self> {
        let sizes = &call.sizes;
        if sizes.v_dim > MAX_V_DIM {
            return None;
        }
        let limit = call.inputs[0].0.device().max_shared() as usize;
        // Sums of large heads use a thread's registers.
        let most_rows = if sizes.v_dim > 256 { 32 } else { 64 };
        let sized = Self::ALL.map(|tile| Self {
            shared: tile.shared(sizes.head_dim, sizes.v_dim),
            ..tile
        });
        let fitting = || {
            let fits = |tile: &&Self| tile.shared <= limit && tile.rows <= most_rows;
            sized.iter().filter(fits)
        };
        let filled = fitting().find(|tile| tile.rows < 2 * sizes.sharing());
        filled.or_else(|| fitting().next_back()).copied()
    }
}

impl Call<'_> {
    pub(super) fn tiles(&self, tile: Tile) -> Result<CudaStorage> {
        let blocks = self.sizes.blocks(tile.rows);
        let busy = self.inputs[0].0.device().card().multiprocessors;
        let keys = self.span(tile.rows.div_ceil(self.sizes.group()) + 1);
        let splits = (busy / blocks).min(keys / LEAST_CHUNK);
        let parts = Parts::new(keys, splits, tile.keys);
        let wide = (0..3).all(|input| self.wide(input, 4));
        let kernel = Kernel::new(source!("attention", => "sdpa_tiles"))
            .define("ROWS", tile.rows)
            .define("KEYS", tile.keys)
            .define("LANES", if wide { 4 } else { 1 });
        let grid = Grid::of_rows(0, BLOCK).shared(tile.shared as u32);
        self.run(kernel, parts, (blocks, grid), false)
    }
}
