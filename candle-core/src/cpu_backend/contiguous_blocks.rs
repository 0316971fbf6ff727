//! Strided operands as contiguous blocks, so that every op needs only a kernel for contiguous slices.
//!
//! Contiguous runs are borrowed. Others are packed into a buffer that stays in the cache, transposed operands tile by tile.

use std::ops::Range;

use super::copy_rows::copy_rows;
use super::strided_iter::StridedIter;
use super::transpose::{transpose, TILE};
use crate::Layout;

/// Elements of a block: with a few operands of four bytes it fits the L1 cache.
pub(super) const BLOCK: usize = 4096;

/// Elements of a block where whole rows are needed to make tiles: it fits the L2 cache.
const LARGE_BLOCK: usize = 1 << 16;

/// Minimum length of a run that is processed by a separate call.
pub(super) const LONG_RUN: usize = 256;

/// One operand of an elementwise op.
#[derive(Debug)]
pub(super) struct StridedOperand<'a, T> {
    vs: &'a [T],
    iter: StridedIter<1>,
}

impl<'a, T: Copy> StridedOperand<'a, T> {
    pub fn new(vs: &'a [T], layout: &Layout) -> Self {
        Self {
            vs,
            iter: StridedIter::of([layout]),
        }
    }

    pub fn len(&self) -> usize {
        self.iter.len()
    }

    /// The chunk granularity in elements: multiples of it can be copied in tiles.
    pub fn unit(&self) -> usize {
        let tiles = self.iter.run_len() * TILE;
        if self.is_transposed() && tiles <= LARGE_BLOCK {
            tiles
        } else {
            1
        }
    }

    fn is_transposed(&self) -> bool {
        let [stride] = self.iter.strides();
        stride > 1 && matches!(self.iter.rows(), Some((_, [1])))
    }

    /// Whether all slices are borrowed, without a copy.
    pub fn is_contiguous(&self) -> bool {
        self.iter.is_single_run() && self.iter.strides() == [1]
    }

    /// The elements in `range` of the row-major order, borrowed or in `buffer`.
    pub fn slice<'b>(&'b self, range: Range<usize>, buffer: &'b mut Vec<T>) -> &'b [T] {
        if self.is_contiguous() {
            let start = self.offset(0);
            return &self.vs[start + range.start..start + range.end];
        }
        if buffer.len() < range.len() {
            buffer.resize(range.len(), self.vs[self.offset(range.start)]);
        }
        let buffer = &mut buffer[..range.len()];
        self.pack(range, buffer);
        buffer
    }

    /// Calls `f` with slices that together cover `piece` of the row-major order, and the position of each.
    pub fn for_slices(&self, piece: Range<usize>, mut f: impl FnMut(Range<usize>, &[T])) {
        let long = self.iter.run_len() >= LONG_RUN || self.iter.is_single_run();
        if self.iter.strides() == [1] && long {
            return self.iter.for_runs(piece, |run, [start]| {
                let slice = &self.vs[start..start + run.len()];
                f(run, slice);
            });
        }
        let mut buffer = vec![];
        for block in blocks(piece, self.unit()) {
            f(block.clone(), self.slice(block, &mut buffer));
        }
    }

    /// The offset of the element at `index` of the row-major order.
    fn offset(&self, index: usize) -> usize {
        let mut offset = 0;
        self.iter
            .for_runs(index..index + 1, |_, [start]| offset = start);
        offset
    }

    /// Copies the elements in `range` of the row-major order to `dst`, which has the same length.
    ///
    /// Transposed operands are copied in blocks of tiles, so that a column of the source is still in the cache for the next row.
    pub fn pack(&self, range: Range<usize>, dst: &mut [T]) {
        let inner = self.iter.run_len();
        let rows = self.iter.rows();
        if matches!(rows, Some((count, [0])) if self.iter.len() == count * inner)
            && dst.len() >= 2 * inner
        {
            // One row, repeated.
            self.copy_groups(range.start..range.start + inner, &mut dst[..inner]);
            let mut done = inner;
            while done < dst.len() {
                let more = done.min(dst.len() - done);
                dst.copy_within(..more, done);
                done += more;
            }
            return;
        }
        if self.unit() == 1 {
            return self.copy_groups(range, dst);
        }
        let base = range.start;
        for block in blocks(range, self.unit()) {
            let dst = &mut dst[block.start - base..block.end - base];
            self.copy_groups(block, dst);
        }
    }

    fn copy_groups(&self, range: Range<usize>, dst: &mut [T]) {
        let [stride] = self.iter.strides();
        let (_, [step]) = self.iter.rows().unwrap_or((1, [0]));
        let inner = self.iter.run_len();
        let base = range.start;
        self.iter.for_groups(range, |group, [start]| {
            let (src, dst) = (
                &self.vs[start..],
                &mut dst[group.start - base..group.end - base],
            );
            let len = inner.min(dst.len());
            let in_tiles = self.is_transposed() && dst.len() > inner;
            let rows = dst.chunks_mut(len).enumerate();
            match stride {
                0 => rows.for_each(|(row, dst)| dst.fill(src[row * step])),
                1 => copy_rows(src, step, dst, len, len),
                _ if in_tiles => transpose(src, stride, dst, inner),
                _ => rows.for_each(|(row, dst)| {
                    let src = src[row * step..].iter().step_by(stride);
                    for (dst, &v) in dst.iter_mut().zip(src) {
                        *dst = v;
                    }
                }),
            }
        });
    }
}

/// Blocks that together cover `piece`, in multiples of `unit` except the last.
pub(super) fn blocks(piece: Range<usize>, unit: usize) -> impl Iterator<Item = Range<usize>> {
    let block = (BLOCK / unit).max(1) * unit;
    let starts = piece.clone().step_by(block);
    starts.map(move |start| start..piece.end.min(start + block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    /// Compares every range of a layout with the elements read singly.
    fn check(dims: &[usize], strides: &[usize], offset: usize) {
        check_as(dims, strides, offset, |i| i as u32);
        // Tiles are transposed in three ways, by element size.
        check_as(dims, strides, offset, |i| (i % 251) as u8);
        check_as(dims, strides, offset, |i| i as u16);
        check_as(dims, strides, offset, |i| i as u64);
    }

    fn check_as<T: Copy + PartialEq + std::fmt::Debug>(
        dims: &[usize],
        strides: &[usize],
        offset: usize,
        element: fn(usize) -> T,
    ) {
        let layout = Layout::new(Shape::from(dims), strides.to_vec(), offset);
        let extent: usize = dims.iter().zip(strides).map(|(d, s)| (d - 1) * s).sum();
        let vs: Vec<T> = (0..offset + extent + 1).map(element).collect();
        let operand = StridedOperand::new(&vs, &layout);
        let expected: Vec<T> = layout.strided_index().map(|i| vs[i]).collect();
        let len = expected.len();
        let step = (len / 23).max(1);
        for start in (0..len).step_by(step) {
            for end in (start + 1..=len).step_by(step) {
                let mut out = vec![element(usize::MAX); end - start];
                operand.pack(start..end, &mut out);
                assert_eq!(out, expected[start..end], "{layout:?} {start}..{end}");
                let mut out = vec![];
                operand.for_slices(start..end, |range, xs| {
                    assert_eq!(range.start, start + out.len());
                    out.extend_from_slice(xs);
                });
                assert_eq!(out, expected[start..end], "{layout:?} {start}..{end}");
            }
        }
    }

    #[test]
    fn layouts_of_all_kinds() {
        for size in [1, 2, 7, 8, 9, 17] {
            // Transposed, in a batch, with an offset.
            check(&[size, 19], &[1, size], 0);
            check(&[2, 33, size], &[33 * size, 1, 33], 3);
            // Broadcast rows and columns, narrowed, a step within rows.
            check(&[size, 5], &[0, 1], 2);
            check(&[5, size], &[3, 0], 0);
            check(&[3, size, 4], &[0, 0, 1], 0);
            check(&[3, size], &[size + 3, 1], 1);
            check(&[4, size], &[3 * size, 3], 0);
            // All dimensions reversed.
            check(&[3, 4, size], &[1, 3, 12], 0);
        }
        check(&[70, 80], &[1, 70], 0);
        check(&[], &[], 4);
    }
}
