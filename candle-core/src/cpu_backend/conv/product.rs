//! The product of the kernel matrix and the elements under its taps, divided into tasks for threads and tiles for registers.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::element::ConvElement;
use super::lanes::{tile, ConvVector, Kernels, Kind, WeightRows, SLACK};
use super::passes::Pass;
use crate::cpu::threads;

/// Multiplications below which threads cost more than they save.
const PAR_PRODUCTS: usize = 1 << 19;

/// Taps that are multiplied at a time: the elements that they read for a tile's columns stay in the L1 cache.
const TAPS: usize = 256;

/// Maximum number of panels of a task: the elements of their taps stay in the L2 cache.
const PANELS: usize = 8;

/// Number of tasks for each thread, so that slower threads can take fewer.
const TASKS: usize = 4;

/// Elements copied at a time.
const CHUNK: usize = 16;

/// Whether tiles read the source directly. For a few rows, gathering its elements into panels first costs more than it saves.
pub(super) fn is_direct(rows: usize, columns: usize) -> bool {
    rows <= 4 || rows <= 16 && columns >= 12
}

/// The product for all batches and groups.
pub(super) struct Product<'a, A: Clone> {
    pub source: &'a [A],
    /// Elements of a group in the source.
    pub group_len: usize,
    pub batches: usize,
    pub groups: usize,
    /// Output channels of a group.
    pub rows: usize,
    pub passes: Vec<Pass<'a, A>>,
    /// Whether the tiles read the source directly; it then has [`SLACK`] elements after its end.
    pub direct: bool,
}

/// A part of one group's product.
#[derive(Debug, Clone)]
pub(super) struct ConvTask {
    pass: usize,
    /// Index among the groups of all batches.
    group: usize,
    rows: [usize; 2],
    /// Columns in the order of the pass's grid.
    columns: [usize; 2],
}

/// The result; tasks write disjoint elements.
pub(super) struct ConvOutput<'a, T> {
    start: *mut T,
    len: usize,
    plane: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: the callers of `store` guarantee that no two threads write the same element.
unsafe impl<T: Send> Sync for ConvOutput<'_, T> {}

impl<'a, T> ConvOutput<'a, T> {
    /// Planes of `plane` elements.
    pub fn new(dst: &'a mut [T], plane: usize) -> Self {
        Self {
            start: dst.as_mut_ptr(),
            len: dst.len(),
            plane,
            lifetime: PhantomData,
        }
    }
}

/// A result of any type, as a destination for tasks.
pub(super) trait Store<A>: Sync {
    /// Elements of a plane.
    fn plane(&self) -> usize;

    /// Writes `sums` to elements with stride `step`.
    ///
    /// # Safety
    /// No other thread may write these elements.
    unsafe fn store(&self, at: usize, step: usize, sums: &[A]);
}

impl<T: ConvElement> Store<T::Acc> for ConvOutput<'_, T> {
    fn plane(&self) -> usize {
        self.plane
    }

    unsafe fn store(&self, at: usize, step: usize, sums: &[T::Acc]) {
        if sums.is_empty() {
            return;
        }
        assert!(at + (sums.len() - 1) * step < self.len);
        if step == 1 {
            // SAFETY: in bounds, and no other thread writes here.
            let dst = unsafe { std::slice::from_raw_parts_mut(self.start.add(at), sums.len()) };
            T::from_accs(sums, dst);
        } else {
            for (i, &sum) in sums.iter().enumerate() {
                // SAFETY: as above.
                unsafe { self.start.add(at + i * step).write(T::from_acc(sum)) };
            }
        }
    }
}

impl<A: Kernels> Product<'_, A> {
    /// Writes all outputs of a pass. The CPU must support `kind`.
    pub fn run(&self, target: &dyn Store<A>, kind: Kind<A>) {
        self.check_bounds();
        let threads = threads::count();
        let groups = self.batches * self.groups;
        let work = self.passes.iter().fold(0usize, |work, pass| {
            let [h, w] = pass.grid;
            let products = [self.rows, pass.taps.len(), h, w, groups];
            work.saturating_add(products.iter().fold(1, |n: usize, &v| n.saturating_mul(v)))
        });
        let threads = if work < PAR_PRODUCTS { 1 } else { threads };
        let tasks = self.tasks(threads, kind);
        let next = AtomicUsize::new(0);
        // One runner for each thread, which allocates its buffers once.
        let worker = |_: usize| {
            let mut runner = ConvTaskRunner::new(self, target);
            while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                // SAFETY: `Kernels::kinds` lists only kernels that the CPU can run.
                unsafe { (kind.run)(&mut runner, task) };
            }
        };
        threads::for_each(threads.min(tasks.len()), &worker);
    }

    /// Checks once that no tap reads outside of the source, and that there is a weight for each.
    fn check_bounds(&self) {
        let last_group = (self.batches * self.groups - 1) * self.group_len;
        for pass in &self.passes {
            let last_tap = pass.taps.iter().max().copied().unwrap_or(0);
            let last =
                last_group + last_tap + (pass.grid[0] - 1) * pass.source_row + (pass.grid[1] - 1);
            let slack = if self.direct { SLACK } else { 0 };
            assert!(last + slack < self.source.len());
            assert!(pass.weights.len() >= self.groups * self.rows * pass.taps.len());
        }
    }

    /// Divides the product into tasks: by batch and group, by columns, and by rows if that gives too few.
    fn tasks(&self, threads: usize, kind: Kind<A>) -> Vec<ConvTask> {
        let (tile_rows, tile_columns) = (kind.rows, kind.columns);
        let groups = self.batches * self.groups;
        let wanted = if threads == 1 { 1 } else { TASKS * threads };
        let mut tasks = vec![];
        for (i, pass) in self.passes.iter().enumerate() {
            let columns = pass.grid[0] * pass.grid[1];
            let panels = columns.div_ceil(tile_columns);
            let wanted = wanted.div_ceil(groups * self.passes.len());
            let step = (panels / wanted).clamp(1, PANELS) * tile_columns;
            let row_parts = wanted.div_ceil(columns.div_ceil(step));
            // Rows share the gathered elements, so they are divided last and not into tiny parts.
            let row_step = self.rows.div_ceil(row_parts).max(4 * tile_rows);
            let row_step = row_step.next_multiple_of(tile_rows);
            for group in 0..groups {
                for column in (0..columns).step_by(step) {
                    for row in (0..self.rows).step_by(row_step) {
                        tasks.push(ConvTask {
                            pass: i,
                            group,
                            rows: [row, self.rows.min(row + row_step)],
                            columns: [column, columns.min(column + step)],
                        });
                    }
                }
            }
        }
        tasks
    }
}

/// Columns that are contiguous in the source.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// The first column's index in the panel.
    column: usize,
    len: usize,
    /// Its offset in the source, relative to a tap's start.
    source: usize,
    /// Its offset in the output plane.
    target: usize,
}

/// Runs tasks on one thread.
pub(super) struct ConvTaskRunner<'a, A: Clone> {
    product: &'a Product<'a, A>,
    target: &'a dyn Store<A>,
    /// For each panel and tap, the elements of the panel's columns.
    panels: Vec<A>,
    /// For each panel and row, the sums of the panel's columns.
    sums: Vec<A>,
}

impl<'a, A: Kernels> ConvTaskRunner<'a, A> {
    fn new(product: &'a Product<'a, A>, target: &'a dyn Store<A>) -> Self {
        Self {
            product,
            target,
            panels: vec![],
            sums: vec![],
        }
    }

    /// # Safety
    /// The CPU must have the instructions of `V`.
    #[inline(always)]
    pub unsafe fn run<V: ConvVector<A>, const M: usize, const N: usize>(
        &mut self,
        task: &ConvTask,
    ) {
        unsafe {
            match self.product.direct {
                // A row shorter than a vector leaves the other vectors of a tile idle.
                true if self.product.passes[task.pass].grid[1] <= V::LEN => {
                    self.direct::<V, M, 1>(task)
                }
                true => self.direct::<V, M, N>(task),
                false => self.packed::<V, M, N>(task),
            }
        }
    }

    /// The tiles read the source directly.
    ///
    /// # Safety
    /// The CPU must have the instructions of `V`.
    #[inline(always)]
    unsafe fn direct<V: ConvVector<A>, const M: usize, const N: usize>(&mut self, task: &ConvTask) {
        let pass = &self.product.passes[task.pass];
        let width = N * V::LEN;
        let [from, to] = task.rows;
        self.sums.resize(M * width, A::ZERO);
        let source = &self.product.source[task.group * self.product.group_len..];
        for run in runs(pass, task.columns) {
            for start in (0..run.len).step_by(width) {
                let valid = width.min(run.len - start);
                let piece = Run {
                    column: 0,
                    len: valid,
                    source: run.source + start,
                    target: run.target + start * pass.target_steps[1],
                };
                let mut row = from;
                while row < to {
                    // SAFETY: `Product::check_bounds` has checked the source with its slack and the weights.
                    let done = unsafe {
                        let source = source.as_ptr().add(piece.source);
                        let weights = self.weights(task, row, 0);
                        let k = pass.taps.len();
                        let at = |p: usize| *pass.taps.get_unchecked(p);
                        let sums = self.sums.as_mut_ptr();
                        rows_of_tiles::<A, V, M, N>(to - row, weights, source, at, k, sums, true)
                    };
                    for i in 0..done {
                        let sums = &self.sums[i * width..][..width];
                        self.store(task, row + i, &[piece], sums);
                    }
                    row += done;
                }
            }
        }
    }

    /// The tiles read elements that were gathered into panels.
    ///
    /// # Safety
    /// The CPU must have the instructions of `V`.
    #[inline(always)]
    unsafe fn packed<V: ConvVector<A>, const M: usize, const N: usize>(&mut self, task: &ConvTask) {
        let pass = &self.product.passes[task.pass];
        let width = N * V::LEN;
        let [from, to] = task.rows;
        let [start, end] = task.columns;
        let panels: Vec<Vec<Run>> = (start..end)
            .step_by(width)
            .map(|start| runs(pass, [start, end.min(start + width)]).collect())
            .collect();
        let taps = pass.taps.len();
        let blocks = taps.div_ceil(TAPS);
        let block = taps.div_ceil(blocks);
        let rows = to - from;
        let sums = if blocks == 1 { M } else { panels.len() * rows };
        self.sums.resize(self.sums.len().max(sums * width), A::ZERO);
        let len = panels.len() * block * width + CHUNK;
        self.panels.resize(self.panels.len().max(len), A::ZERO);
        for first_tap in (0..taps).step_by(block) {
            let k = block.min(taps - first_tap);
            self.pack(task, &panels, first_tap..first_tap + k, width);
            for (i, runs) in panels.iter().enumerate() {
                let mut row = from;
                while row < to {
                    let at = if blocks == 1 {
                        0
                    } else {
                        (i * rows + row - from) * width
                    };
                    let left = to - row;
                    // SAFETY: the panels hold `k` taps, and the sums `left` rows, at most `M`; `Product::check_bounds` has checked the
                    // weights.
                    let done = unsafe {
                        let weights = self.weights(task, row, first_tap);
                        let source = self.panels.as_ptr().add(i * k * width);
                        let sums = self.sums.as_mut_ptr().add(at);
                        let first = first_tap == 0;
                        let packed = |p: usize| p * width;
                        rows_of_tiles::<A, V, M, N>(left, weights, source, packed, k, sums, first)
                    };
                    if first_tap + k == taps {
                        for r in 0..done {
                            let sums = &self.sums[at + r * width..][..width];
                            self.store(task, row + r, runs, sums);
                        }
                    }
                    row += done;
                }
            }
        }
    }

    /// Gathers the elements of panels of `width` columns for some of the taps.
    #[inline(always)]
    fn pack(
        &mut self,
        task: &ConvTask,
        panels: &[Vec<Run>],
        taps: std::ops::Range<usize>,
        width: usize,
    ) {
        let taps = &self.product.passes[task.pass].taps[taps];
        let source = &self.product.source[task.group * self.product.group_len..];
        for (i, runs) in panels.iter().enumerate() {
            let panel = &mut self.panels[i * taps.len() * width..];
            for (p, tap) in taps.iter().enumerate() {
                // Whole chunks are copied; the excess is overwritten by the next copy.
                let panel = &mut panel[p * width..];
                for run in runs {
                    let (src, dst) = (&source[tap + run.source..], &mut panel[run.column..]);
                    copy_chunks(src, dst, run.len);
                }
            }
        }
    }

    /// The weights of a row of the group, from a tap on.
    fn weights(&self, task: &ConvTask, row: usize, tap: usize) -> WeightRows<A> {
        let pass = &self.product.passes[task.pass];
        let stride = pass.taps.len();
        let group = task.group % self.product.groups;
        let weights = &pass.weights[(group * self.product.rows + row) * stride + tap..];
        WeightRows {
            start: weights.as_ptr(),
            stride,
        }
    }

    /// Writes the sums of the columns in `runs`.
    fn store(&self, task: &ConvTask, row: usize, runs: &[Run], sums: &[A]) {
        let pass = &self.product.passes[task.pass];
        let plane = self.target.plane();
        let at = (task.group * self.product.rows + row) * plane;
        let step = pass.target_steps[1];
        let whole_rows = step == 1 && pass.target_steps[0] == pass.grid[1];
        // SAFETY: tasks differ in group, row, column or pass, and passes in their outputs.
        unsafe {
            if let (true, [first, .., last]) = (whole_rows, runs) {
                let sums = &sums[..last.column + last.len];
                return self.target.store(at + first.target, 1, sums);
            }
            for run in runs {
                let sums = &sums[run.column..][..run.len];
                self.target.store(at + run.target, step, sums);
            }
        }
    }
}

/// The columns of a range as runs.
fn runs<A: Clone>(pass: &Pass<A>, [start, end]: [usize; 2]) -> impl Iterator<Item = Run> {
    let width = pass.grid[1];
    let source_row = pass.source_row;
    let (target_start, [row_step, step]) = (pass.target_start, pass.target_steps);
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (y, x) = (at / width, at % width);
        let run = Run {
            column: at - start,
            len: (width - x).min(end - at),
            source: y * source_row + x,
            target: target_start + y * row_step + x * step,
        };
        at += run.len;
        Some(run)
    })
}

/// Copies `len` elements, rounded up to whole chunks.
#[inline(always)]
fn copy_chunks<A: Copy>(src: &[A], dst: &mut [A], len: usize) {
    for at in (0..len).step_by(CHUNK) {
        match (
            src[at..].first_chunk::<CHUNK>(),
            dst[at..].first_chunk_mut::<CHUNK>(),
        ) {
            (Some(src), Some(dst)) => *dst = *src,
            _ => dst[at..len].copy_from_slice(&src[at..len]),
        }
    }
}

/// Computes one tile of at most `M` of the `left` rows; returns their number.
///
/// # Safety
/// As for [`tile`], with that number of rows.
#[inline(always)]
unsafe fn rows_of_tiles<A: Kernels, V: ConvVector<A>, const M: usize, const N: usize>(
    left: usize,
    weights: WeightRows<A>,
    source: *const A,
    at: impl Fn(usize) -> usize,
    k: usize,
    sums: *mut A,
    first: bool,
) -> usize {
    let first = first.then_some(A::ZERO);
    macro_rules! tile_of {
        ($rows:expr) => {{
            unsafe { tile::<A, V, { $rows }, N>(weights, source, at, k, sums, first) };
            $rows
        }};
    }
    match left {
        left if left >= M => {
            unsafe { tile::<A, V, M, N>(weights, source, at, k, sums, first) };
            M
        }
        4.. => tile_of!(4),
        2.. => tile_of!(2),
        _ => tile_of!(1),
    }
}
