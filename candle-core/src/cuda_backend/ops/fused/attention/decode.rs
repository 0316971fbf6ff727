//! Few queries: a block processes the rows that share keys, over a part of the keys.

use super::{Call, Parts};
use crate::backend::BackendStorage;
use crate::cuda_backend::gpu::COUNTERS;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::Grid;
use crate::cuda_backend::CudaStorage;
use crate::Result;

/// Maximum number of rows that share keys; more share them better in tiles.
const MAX_ROWS: usize = 32;
/// Maximum number of elements that a thread keeps of its rows: of the queries, and again of the sums.
const MAX_KEPT: usize = 64;
const WARPS: usize = 4;
/// Minimum number of keys in a part: computing fewer takes less time than joining the parts.
const LEAST_CHUNK: usize = 64;

/// The shape of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Form {
    rows: usize,
    lanes: usize,
    /// Threads that share a key, and words of 16 bytes of it per thread.
    group: usize,
    packs: usize,
    /// Keys that a thread has in flight at once.
    ahead: usize,
}

impl Form {
    /// `None` if heads are not whole words of 16 bytes, or too many rows share keys.
    pub(super) fn choose(call: &Call<'_>) -> Option<Self> {
        let sizes = &call.sizes;
        let lanes = 16 / call.dtypes()[1].size_in_bytes();
        let wide = call.wide(1, lanes) && call.wide(2, lanes);
        if !wide || sizes.sharing() > MAX_ROWS || sizes.head_dim == 0 {
            return None;
        }
        let words = sizes.head_dim.max(sizes.v_dim).div_ceil(lanes);
        let group = words.next_power_of_two().min(32);
        let packs = words.div_ceil(group);
        let most = MAX_KEPT / (packs * lanes);
        if most == 0 {
            return None;
        }
        let rows = sizes.sharing().next_power_of_two().min(most).min(8);
        Some(Self {
            rows,
            lanes,
            group,
            packs,
            ahead: if packs > 1 { 2 } else { 4 },
        })
    }

    /// Keys per iteration of a block.
    fn turn(self) -> usize {
        WARPS * (32 / self.group) * self.ahead
    }
}

impl Call<'_> {
    pub(super) fn decode(&self, form: Form) -> Result<CudaStorage> {
        let sizes = self.sizes;
        let blocks = sizes.blocks(form.rows);
        // Eight warps of a multiprocessor do not have enough keys in flight: 32,768 keys in f16 take an H200 2.3 ms with two blocks for each,
        // 1.6 ms with four, and no less with eight.
        let busy = 4 * self.inputs[0].0.device().card().multiprocessors;
        let keys = self.span(sizes.queries);
        let splits = match blocks {
            // Enough of them, and more than the number of counters for the parts.
            COUNTERS.. => 1,
            _ => busy.div_ceil(blocks).min(keys.div_ceil(LEAST_CHUNK)),
        };
        let parts = Parts::new(keys, splits, form.turn());
        let kernel = Kernel::new(source!("attention", => "sdpa_decode"))
            .define("ROWS", form.rows)
            .define("LANES", form.lanes)
            .define("GROUP", form.group)
            .define("PACKS", form.packs)
            .define("AHEAD", form.ahead);
        // Sums of each warp, then factors of all parts.
        let sums = WARPS * (sizes.v_dim + 4);
        let shared = 4 * form.rows * sums.max(parts.splits + 1);
        let grid = Grid::of_rows(0, 32 * WARPS as u32).shared(shared as u32);
        self.run(kernel, parts, (blocks, grid), true)
    }
}
