//! Splits long work into dispatches, the same on every GPU.
//!
//! Mesa's software adapters end a kernel's loops after 65,535 iterations, and a loop with four exits after a quarter of that, so no
//! invocation takes more than 60,000, and [`MOST_STEPS`] down a tree. Dispatches take some 10 ms, so that a display stays responsive and a
//! host can destroy the device between them.

use crate::FindSplitParams;

/// Invocations of a workgroup, threads of a block: `SIZE` of the kernels.
pub(crate) const GROUP: u64 = 256;
/// Turns of all loops that an invocation takes: what [`TILES`] is made for.
#[cfg(test)]
const MOST_TURNS: u64 = 60_000;
/// Steps down trees per invocation, plus one iteration per tree.
const MOST_STEPS: u64 = 12_000;
/// Bytes of scratch memory of one dispatch, about.
const SCRATCH: u64 = 64 << 20;

/// Cuts `len` into parts of at most `part`: where each starts, and its length.
pub(crate) fn parts(len: u64, part: u64) -> impl Iterator<Item = (u64, u64)> {
    let part = part.max(1);
    (0..len.div_ceil(part)).map(move |i| (i * part, part.min(len - i * part)))
}

/// Rows of a node that one dispatch splits: `SMALL` of the kernels, whose workgroups hold all rows in 8 KiB of their memory.
const SMALL_NODE: u64 = 1024;

/// Whether one dispatch splits a node.
pub(crate) fn is_small(params: FindSplitParams, work: u64) -> bool {
    let (rows, thresholds) = (u64::from(params.n_samples), u64::from(params.n_thresholds));
    (1..=SMALL_NODE).contains(&rows) && rows * thresholds <= work
}

/// Slices of the rows, as long as they are not too long.
const SLICES: u64 = 64;
/// Tiles of a slice, at most: for each, an invocation takes one iteration per row of a tile, and some more.
const TILES: u64 = 128;
/// The slices of a grid's second dimension; `split_sums.wgsl` has it too.
#[cfg(feature = "webgpu")]
pub(crate) const SLICE_FOLD: u64 = 32_768;
/// Bytes of one column's sums in one slice.
const SUM_BYTES: u64 = 12;

/// The distribution of a node's rows and thresholds over workgroups and dispatches.
pub(crate) struct Split {
    /// Tiles of [`GROUP`] rows in a slice.
    pub(crate) tiles: u64,
    pub(crate) slices: u64,
    /// Thresholds of one dispatch, which has one more column for the sums of all rows.
    pub(crate) columns: u64,
}

impl Split {
    pub(crate) fn new(rows: u64, work: u64) -> Self {
        let groups = rows.div_ceil(GROUP);
        let tiles = groups.div_ceil(SLICES).clamp(1, TILES);
        let slices = groups.div_ceil(tiles);
        let by_work = work / rows.max(1) / GROUP;
        let by_scratch = SCRATCH / (slices.max(1) * SUM_BYTES) / GROUP;
        Self {
            tiles,
            slices,
            columns: by_work.min(by_scratch).max(1) * GROUP - 1,
        }
    }
}

/// The distribution of a forest's walks over invocations and dispatches.
pub(crate) struct Walks {
    /// Trees of one invocation.
    pub(crate) block: u64,
    /// Trees of one dispatch.
    pub(crate) trees: u64,
    /// Samples of one dispatch.
    pub(crate) samples: u64,
    /// Steps of one dispatch down a tree.
    pub(crate) turns: u64,
}

impl Walks {
    /// Invocations that keep a GPU busy.
    const BUSY: u64 = 1 << 16;
    /// Blocks whose sums one invocation joins.
    const BLOCKS: u64 = 4096;
    /// Bytes of one invocation's state.
    const STATE: u64 = 8;

    pub(crate) fn new(samples: u64, trees: u64, steps: u64, work: u64) -> Self {
        let turns = steps.min(MOST_STEPS - 1);
        // A walk that does not end in one dispatch is its invocation's only one.
        let most = (MOST_STEPS / (steps + 1)).max(1);
        let block = (samples * trees / Self::BUSY).clamp(1, most);
        let per_dispatch = (Self::BLOCKS * block).min(trees);
        let blocks = per_dispatch.div_ceil(block);
        let by_work = work / (per_dispatch * turns);
        let by_state = SCRATCH / Self::STATE / blocks;
        Self {
            block,
            trees: per_dispatch,
            samples: by_work.min(by_state).clamp(1, samples),
            turns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Split, Walks, GROUP, MOST_STEPS, MOST_TURNS, TILES};

    #[test]
    fn no_invocation_takes_too_many_turns() {
        const { assert!(TILES * (GROUP + GROUP / 32 + 1) <= MOST_TURNS) };
        for samples in [1, 100, 1 << 20, 1 << 28] {
            for trees in [1, 100, 1 << 28] {
                for steps in [1, 17, 11_999, 12_000, 1 << 28] {
                    for work in [1 << 22, 1 << 30] {
                        let plan = Walks::new(samples, trees, steps, work);
                        let turns = plan.block * (plan.turns + 1);
                        assert!(turns <= MOST_STEPS, "{samples} {trees} {steps}");
                        assert!(plan.turns == steps || plan.block == 1);
                        assert!(plan.trees.div_ceil(plan.block) <= MOST_TURNS);
                        assert!(plan.trees <= trees && plan.samples <= samples);
                        assert!(plan.block > 0 && plan.samples > 0 && plan.trees > 0);
                    }
                }
            }
        }
    }

    #[test]
    fn every_row_is_in_a_slice() {
        for count in [1, 255, 256, 257, 70_000, 1 << 22, (1 << 30) - 64] {
            let split = Split::new(count, 1 << 30);
            assert!(split.slices * split.tiles * GROUP >= count, "{count}");
            assert!((split.slices - 1) * split.tiles * GROUP < count, "{count}");
            // One invocation joins them.
            assert!(
                split.slices <= MOST_TURNS && split.tiles <= TILES,
                "{count}"
            );
            assert!((split.columns + 1).is_multiple_of(GROUP));
        }
        assert_eq!(Split::new(0, 1).slices, 0);
    }
}
