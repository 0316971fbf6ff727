//! Tensors of the same shape as rows of their last dimension, and the division of rows among threads.

use super::Operand;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::Kernel;
use crate::cuda_backend::launch::Grid;
use crate::cuda_backend::views::{Views, Walk};
use crate::{Error, Layout, Result, Shape};

/// Maximum number of words of its row that a thread keeps in registers; longer rows are read again for each pass.
const MAX_KEPT: usize = 8;
/// The largest block.
const MAX_THREADS: usize = 1024;
/// Threads of a row if there are enough rows to keep all multiprocessors busy.
const MANY_ROWS_THREADS: usize = 256;
/// Maximum number of words of a row for one warp.
const WARP_WORDS: usize = 128;
/// Rows of a block whose warps process one each.
const WARP_ROWS: usize = 4;

/// `N` tensors of the same shape.
pub(super) struct Rows<const N: usize> {
    /// The rows' starts: the layouts without their last dimension.
    pub(super) starts: Views<N>,
    rank: usize,
    /// The number of rows.
    pub(super) count: usize,
    /// Elements in a row.
    pub(super) len: usize,
    /// The strides within a row.
    pub(super) steps: [usize; N],
}

impl<const N: usize> Rows<N> {
    pub(super) fn new(layouts: [&Layout; N], op: &'static str) -> Result<Self> {
        let Some((len, shape)) = layouts[0].dims().split_last() else {
            return Err(Error::Msg(format!("{op} needs a last dimension, got a scalar")).bt());
        };
        let starts = layouts.map(|layout| {
            let stride = layout.stride()[..shape.len()].to_vec();
            Layout::new(Shape::from(shape), stride, layout.start_offset())
        });
        // Adjacent rows have rank 0 for a walk only if they have one element.
        let walk = Walk::new(starts.each_ref())?;
        Ok(Self {
            starts: walk.views,
            rank: walk.rank,
            count: walk.len(),
            len: *len,
            steps: layouts.map(|layout| layout.stride()[shape.len()]),
        })
    }

    /// Number of elements that are loaded at once: 16 bytes, if the rows of these operands are contiguous and all begin at a multiple of
    /// that, and the same for the vectors.
    pub(super) fn lanes(&self, operands: &[Operand<'_>], vectors: &[Operand<'_>]) -> usize {
        let Some((first, _)) = operands.first() else {
            return 1;
        };
        let lanes = 16 / first.dtype().size_in_bytes();
        let fits = |operand: &Operand<'_>| {
            let axes = operand.1.stride().len().saturating_sub(1);
            operand.1.stride().last() == Some(&1) && super::aligned(*operand, axes, lanes)
        };
        let all = operands.iter().chain(vectors).all(fits);
        if all && self.len.is_multiple_of(lanes) {
            lanes
        } else {
            1
        }
    }

    /// Defines RANK, LANES, KEPT and WARP_ROWS, and returns the grid.
    pub(super) fn share_out(&self, kernel: Kernel, lanes: usize) -> (Kernel, Grid) {
        let words = self.len / lanes;
        let many = self.count >= 512;
        let per_row = match (words, many) {
            (..=WARP_WORDS, true) => 32,
            (_, true) => MANY_ROWS_THREADS,
            (_, false) => words.next_multiple_of(32).clamp(32, MAX_THREADS),
        };
        let per_row = if words.div_ceil(per_row) > MAX_KEPT {
            MAX_THREADS
        } else {
            per_row
        };
        let turns = words.div_ceil(per_row);
        let kept = if turns <= MAX_KEPT { turns } else { 0 };
        let warp_rows = if many && per_row == 32 { WARP_ROWS } else { 0 };
        let kernel = kernel
            .define("RANK", self.rank)
            .define("LANES", lanes)
            .define("KEPT", kept)
            .define("WARP_ROWS", warp_rows);
        let grid = match warp_rows {
            0 => Grid::of_rows(self.count, per_row as u32),
            rows => Grid::of_rows(self.count.div_ceil(rows), 32 * rows as u32),
        };
        (kernel, grid)
    }
}
