//! Iterators over a layout: by element, or by contiguous run.

use crate::Layout;

/// The storage offset of each element, in row-major order.
#[derive(Debug)]
pub struct StridedIndex<'a> {
    dims: &'a [usize],
    stride: &'a [usize],
    multi_index: Vec<usize>,
    next_offset: usize,
    remaining: usize,
}

impl<'a> StridedIndex<'a> {
    /// Iterates over `dims` with `stride` from `start_offset`.
    pub(crate) fn new(dims: &'a [usize], stride: &'a [usize], start_offset: usize) -> Self {
        Self {
            dims,
            stride,
            multi_index: vec![0; dims.len()],
            next_offset: start_offset,
            remaining: crate::Shape::from(dims).elem_count(),
        }
    }

    /// Iterates over a layout.
    pub(crate) fn from_layout(layout: &'a Layout) -> Self {
        Self::new(layout.dims(), layout.stride(), layout.start_offset())
    }
}

impl Iterator for StridedIndex<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        self.remaining = self.remaining.checked_sub(1)?;
        let offset = self.next_offset;
        for ((index, &size), &stride) in self
            .multi_index
            .iter_mut()
            .zip(self.dims)
            .zip(self.stride)
            .rev()
        {
            *index += 1;
            if *index < size {
                self.next_offset += stride;
                break;
            }
            // Back to the start of the dimension; the next outer dimension advances.
            self.next_offset -= (size - 1) * stride;
            *index = 0;
        }
        Some(offset)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl ExactSizeIterator for StridedIndex<'_> {}

/// A layout as contiguous runs, in row-major order.
#[derive(Debug)]
pub enum StridedBlocks<'a> {
    /// The layout is contiguous.
    SingleBlock {
        /// Offset of the first element.
        start_offset: usize,
        /// Number of elements.
        len: usize,
    },
    /// Runs of equal length at equal distances, as in a matrix whose rows are padded or repeated.
    UniformBlocks {
        /// Offset of the first run.
        start_offset: usize,
        /// Elements in a run.
        block_len: usize,
        /// Number of runs.
        count: usize,
        /// Distance between the starts of two runs; 0 if one run is repeated.
        src_stride: usize,
    },
    /// Runs of equal length.
    MultipleBlocks {
        /// The offset of each run.
        block_start_index: StridedIndex<'a>,
        /// Elements in a run.
        block_len: usize,
    },
}

impl<'a> StridedBlocks<'a> {
    /// The longest runs of `layout`.
    pub(crate) fn from_layout(layout: &'a Layout) -> Self {
        let start_offset = layout.start_offset();
        let (dims, stride) = (layout.dims(), layout.stride());
        if layout.is_contiguous() {
            return Self::SingleBlock {
                start_offset,
                len: layout.shape().elem_count(),
            };
        }
        let mut block_len = 1;
        let mut outer_rank = dims.len();
        while outer_rank > 0 && (dims[outer_rank - 1] == 1 || stride[outer_rank - 1] == block_len) {
            outer_rank -= 1;
            block_len *= dims[outer_rank];
        }
        let (dims, stride) = (&dims[..outer_rank], &stride[..outer_rank]);
        match single_stride(dims, stride) {
            Some((count, src_stride)) => Self::UniformBlocks {
                start_offset,
                block_len,
                count,
                src_stride,
            },
            None => Self::MultipleBlocks {
                block_start_index: StridedIndex::new(dims, stride, start_offset),
                block_len,
            },
        }
    }
}

/// Merges the dimensions into one, if a single stride covers them all: size and stride.
fn single_stride(dims: &[usize], stride: &[usize]) -> Option<(usize, usize)> {
    let mut merged: Option<(usize, usize)> = None;
    for (&size, &stride) in dims.iter().zip(stride).rev().filter(|(&size, _)| size != 1) {
        merged = match merged {
            None => Some((size, stride)),
            Some((count, inner)) if inner.checked_mul(count) == Some(stride) => {
                Some((count * size, inner))
            }
            Some(_) => return None,
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn layout(dims: &[usize], stride: &[usize], start: usize) -> Layout {
        Layout::new(Shape::from(dims), stride.to_vec(), start)
    }

    #[test]
    fn indices_in_row_major_order() {
        let transposed = layout(&[3, 2], &[1, 3], 5);
        let index = StridedIndex::from_layout(&transposed);
        assert_eq!(index.len(), 6);
        assert_eq!(index.collect::<Vec<_>>(), [5, 8, 6, 9, 7, 10]);
        assert_eq!(
            StridedIndex::from_layout(&layout(&[], &[], 4)).collect::<Vec<_>>(),
            [4]
        );
        assert_eq!(
            StridedIndex::from_layout(&layout(&[2, 0], &[1, 1], 4)).next(),
            None
        );
        assert_eq!(
            StridedIndex::from_layout(&layout(&[2, 2], &[0, 1], 0)).collect::<Vec<_>>(),
            [0, 1, 0, 1]
        );
    }

    #[test]
    fn blocks_are_as_long_as_possible() {
        let contiguous = layout(&[2, 3], &[3, 1], 1);
        assert!(matches!(
            StridedBlocks::from_layout(&contiguous),
            StridedBlocks::SingleBlock {
                start_offset: 1,
                len: 6
            }
        ));
        let padded_rows = layout(&[2, 4, 3], &[20, 5, 1], 1);
        assert!(matches!(
            StridedBlocks::from_layout(&padded_rows),
            StridedBlocks::UniformBlocks {
                start_offset: 1,
                block_len: 3,
                count: 8,
                src_stride: 5
            }
        ));
        let repeated = layout(&[4, 3], &[0, 1], 0);
        assert!(matches!(
            StridedBlocks::from_layout(&repeated),
            StridedBlocks::UniformBlocks {
                block_len: 3,
                count: 4,
                src_stride: 0,
                ..
            }
        ));
        let heads = layout(&[2, 3, 4], &[4, 8, 1], 0);
        match StridedBlocks::from_layout(&heads) {
            StridedBlocks::MultipleBlocks {
                block_start_index,
                block_len: 4,
            } => {
                assert_eq!(block_start_index.collect::<Vec<_>>(), [0, 8, 16, 4, 12, 20])
            }
            other => panic!("{other:?}"),
        }
    }
}
