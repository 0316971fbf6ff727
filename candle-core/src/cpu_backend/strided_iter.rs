//! Iteration over strided operands in row-major order, run by run, and parallel filling of results.

use std::mem::MaybeUninit;
use std::ops::Range;

use crate::cpu::threads;
use crate::inline_vec::InlineVec;
use crate::Layout;

/// Minimum work, in elements read, for several threads: waking one takes some microseconds.
pub(super) const PAR_MIN: usize = 1 << 16;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Results larger than this, in bytes, are peeled to cache-line alignment.
const ALIGNED_FROM: usize = 1 << 15;

/// `N` operands of the same shape, visited in row-major order. Dimensions that are contiguous to each other in every operand are merged, so
/// contiguous operands are a single run.
#[derive(Debug)]
pub(super) struct StridedIter<const N: usize> {
    /// Merged dimensions except the innermost.
    outer: InlineVec<(usize, [usize; N])>,
    inner: usize,
    inner_strides: [usize; N],
    offsets: [usize; N],
    len: usize,
}

impl<const N: usize> StridedIter<N> {
    /// Operands given by their strides and start offsets.
    pub fn new(dims: &[usize], strides: [&[usize]; N], offsets: [usize; N]) -> Self {
        let mut outer = InlineVec::new((0, [0; N]));
        let mut last: Option<(usize, [usize; N])> = None;
        for (d, &dim) in dims.iter().enumerate().filter(|(_, &dim)| dim != 1) {
            let strides = strides.map(|s| s[d]);
            match &mut last {
                Some((inner, inner_strides))
                    if (0..N).all(|n| inner_strides[n] == strides[n] * dim) =>
                {
                    *inner *= dim;
                    *inner_strides = strides;
                }
                last => outer.extend(last.replace((dim, strides))),
            }
        }
        // A single element counts as a contiguous run.
        let (inner, inner_strides) = last.unwrap_or((1, [1; N]));
        Self {
            outer,
            inner,
            inner_strides,
            offsets,
            len: dims.iter().product(),
        }
    }

    /// Operands given by layouts of the same shape.
    pub fn of(layouts: [&Layout; N]) -> Self {
        Self::new(
            layouts[0].dims(),
            layouts.map(Layout::stride),
            layouts.map(Layout::start_offset),
        )
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The operands' strides within a run.
    pub fn strides(&self) -> [usize; N] {
        self.inner_strides
    }

    /// The length of a run: the innermost dimension, after merging.
    pub fn run_len(&self) -> usize {
        self.inner
    }

    /// The dimension outside the innermost: its number of runs, and the operands' strides from run to run.
    pub fn rows(&self) -> Option<(usize, [usize; N])> {
        self.outer.last().copied()
    }

    /// Whether the elements are a single run.
    pub fn is_single_run(&self) -> bool {
        self.outer.is_empty()
    }

    /// Calls `f` for runs that together cover `range` of the row-major order, with each run's position in that order and the operands'
    /// offsets at its start.
    pub fn for_runs(&self, range: Range<usize>, mut f: impl FnMut(Range<usize>, [usize; N])) {
        let (_, steps) = self.rows().unwrap_or((1, [0; N]));
        self.for_groups(range, |group, mut start| {
            if group.len() <= self.inner {
                return f(group, start);
            }
            // A separate loop: computing a position costs more than a short copy.
            for at in group.step_by(self.inner) {
                f(at..at + self.inner, start);
                start = std::array::from_fn(|n| start[n] + steps[n]);
            }
        });
    }

    /// Like [`StridedIter::for_runs`], with consecutive runs of the next dimension in one call: `f` receives several whole runs or a part
    /// of one.
    pub fn for_groups(&self, range: Range<usize>, mut f: impl FnMut(Range<usize>, [usize; N])) {
        if range.is_empty() {
            return;
        }
        if self.is_single_run() {
            let start = range.start;
            let at = |n: usize| self.offsets[n] + start * self.inner_strides[n];
            return f(range, std::array::from_fn(at));
        }
        let mut place = self.place(range.start);
        let mut at = range.start;
        let (rows, steps) = self.outer[self.outer.len() - 1];
        loop {
            let mut row = place.index[self.outer.len() - 1];
            let mut run = place.run;
            if place.column > 0 {
                let end = range.end.min(at + self.inner - place.column);
                let start = |n: usize| run[n] + place.column * self.inner_strides[n];
                f(at..end, std::array::from_fn(start));
                at = end;
                row += 1;
                run = std::array::from_fn(|n| run[n] + steps[n]);
            }
            let whole = (rows - row).min((range.end - at) / self.inner);
            if whole > 0 {
                let end = at + whole * self.inner;
                f(at..end, run);
                at = end;
                row += whole;
                run = std::array::from_fn(|n| run[n] + whole * steps[n]);
            }
            if at < range.end && row < rows {
                f(at..range.end, run);
                return;
            }
            if at == range.end {
                return;
            }
            self.to_next_rows(&mut place);
        }
    }

    // Not part of `for_groups`, which is monomorphised for each closure.

    /// The position of the element at `at` in the row-major order.
    #[inline(never)]
    fn place(&self, at: usize) -> Position<N> {
        let mut row = at / self.inner;
        let mut run = self.offsets;
        let mut index = InlineVec::repeated(0, self.outer.len());
        for (i, (dim, strides)) in index.iter_mut().zip(&self.outer).rev() {
            *i = row % dim;
            row /= dim;
            for (run, stride) in run.iter_mut().zip(strides) {
                *run += *i * stride;
            }
        }
        Position {
            index,
            run,
            column: at % self.inner,
        }
    }

    /// Advances to the next position at which an index other than the last changes; the last index restarts at 0.
    #[inline(never)]
    fn to_next_rows(&self, place: &mut Position<N>) {
        place.column = 0;
        let outer = self.outer.iter().zip(place.index.iter_mut()).rev();
        for (d, ((dim, strides), i)) in outer.enumerate() {
            let is_last = d == 0;
            if !is_last && *i + 1 < *dim {
                *i += 1;
                for (run, stride) in place.run.iter_mut().zip(strides) {
                    *run += stride;
                }
                return;
            }
            for (run, stride) in place.run.iter_mut().zip(strides) {
                *run -= *i * stride;
            }
            *i = 0;
        }
    }
}

/// A position of the iteration.
struct Position<const N: usize> {
    /// The index in each outer dimension.
    index: InlineVec<usize>,
    /// The operands' offsets at the start of the run.
    run: [usize; N],
    /// The index within the run.
    column: usize,
}

/// Calls `f` to fill `dst`, in chunks on several threads if that is faster: `f` receives a chunk's position in `dst` and the chunk. `cost`
/// is the work per element, in elements read.
pub(super) fn fill_par<U: Send>(
    dst: &mut [U],
    cost: usize,
    f: impl Fn(Range<usize>, &mut [U]) + Sync,
) {
    fill_par_by(dst, 1, cost.max(1), &f)
}

/// Fills a chunk of a result, given its position.
pub(super) type Fill<'a, U> = &'a (dyn Fn(Range<usize>, &mut [U]) + Sync + 'a);

/// Like [`fill_par`], in chunks that are multiples of `unit` except the last. With a `cost` of 0 there is one chunk.
///
/// (`f` is not a type parameter: that would be monomorphised for each op and dtype, and an indirect call per chunk costs nothing.)
pub(super) fn fill_par_by<U: Send>(dst: &mut [U], unit: usize, cost: usize, f: Fill<U>) {
    if dst.is_empty() {
        return;
    }
    let threads = match dst.len().saturating_mul(cost) {
        0..PAR_MIN => 1,
        _ => threads::count(),
    };
    if threads == 1 {
        return f(0..dst.len(), dst);
    }
    // Four chunks per thread balance the load between slower and faster threads, unless that makes the chunks tiny.
    let piece = dst.len().div_ceil(4 * threads).max(PAR_MIN / 2 / cost + 1);
    let piece = piece.next_multiple_of(unit);
    if piece >= dst.len() {
        return f(0..dst.len(), dst);
    }
    threads::chunks_mut(dst, piece, |i, dst| {
        let start = i * piece;
        f(start..start + dst.len(), dst);
    });
}

/// A vector of `len` elements, filled by `f` as in [`fill_par_by`]. The memory is not initialised first, which would be half of the work of
/// a simple op.
///
/// # Safety
/// `f` writes every element of the slices that it receives before reading it. `U` is a number: any bits are a value of it.
pub(super) unsafe fn filled<U: Copy + Send>(
    len: usize,
    unit: usize,
    cost: usize,
    f: Fill<U>,
) -> Vec<U> {
    let mut dst = Vec::<U>::with_capacity(len);
    let spare = &mut dst.spare_capacity_mut()[..len];
    fill_par_by(spare, unit, cost, &|piece, dst| {
        // SAFETY: by this function's contract no unwritten element is read.
        let dst = unsafe { &mut *(dst as *mut [MaybeUninit<U>] as *mut [U]) };
        // A first chunk up to the next cache line: from there on no vector store crosses two lines.
        let large = unit == 1 && size_of_val(dst) >= ALIGNED_FROM;
        match dst.as_ptr().align_offset(LINE) {
            head if large && head < dst.len() => {
                let (first, rest) = dst.split_at_mut(head);
                let middle = piece.start + head;
                f(piece.start..middle, first);
                f(middle..piece.end, rest);
            }
            _ => f(piece, dst),
        }
    });
    // SAFETY: the chunks cover all elements, and `f` has written each.
    unsafe { dst.set_len(len) };
    dst
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offsets(iter: &StridedIter<1>, range: Range<usize>) -> Vec<usize> {
        let [stride] = iter.strides();
        let mut out = vec![];
        iter.for_runs(range, |run, [start]| {
            out.extend((0..run.len()).map(|i| start + i * stride));
        });
        out
    }

    #[test]
    fn any_range_of_a_permuted_shape() {
        // A (4, 3, 2) block read as (2, 4, 3), with an offset.
        let iter = StridedIter::new(&[2, 4, 3], [&[1, 6, 2]], [5]);
        let all: Vec<usize> = (0..2)
            .flat_map(|i| (0..4).flat_map(move |j| (0..3).map(move |k| 5 + i + 6 * j + 2 * k)))
            .collect();
        for start in 0..=24 {
            for end in start..=24 {
                assert_eq!(offsets(&iter, start..end), all[start..end]);
            }
        }
    }

    #[test]
    fn merges_what_it_can() {
        assert!(StridedIter::new(&[2, 1, 3], [&[3, 7, 1]], [0]).is_single_run());
        assert!(StridedIter::new(&[2, 3], [&[0, 0]], [0]).is_single_run());
        assert!(!StridedIter::new(&[2, 3], [&[0, 1]], [0]).is_single_run());
        assert_eq!(offsets(&StridedIter::new(&[], [&[]], [4]), 0..1), [4]);
        assert_eq!(StridedIter::new(&[2, 0], [&[0, 1]], [0]).len(), 0);
    }
}
