//! Iterators over several strided operands of the same shape.

use std::iter::FusedIterator;

use crate::Layout;

/// Maximum number of dimensions of upstream's iterator. [`NdIter`] itself has no limit; the constant is for code written for upstream that
/// keeps indices in an array of this size.
pub const MAX_DIMS: usize = 8;

/// The start offsets of runs of elements in `N` operands of one shape, in row-major order.
///
/// Adjacent dimensions that are contiguous to each other in every operand are merged. The innermost remaining dimension is the run:
/// `inner_size` elements, `inner_strides` apart. The iterator walks the other dimensions and yields the storage offset of the run's first
/// element in each operand. Operands that are all contiguous are a single run.
///
/// ```
/// use candle_core::{Device, DType, NdIter, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let t = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
/// let iter = NdIter::new([t.layout(), &t.t()?.contiguous()?.t()?.layout()]);
/// assert_eq!((iter.inner_size, iter.inner_strides), (3, [1, 2]));
/// assert_eq!(iter.collect::<Vec<_>>(), [[0, 0], [3, 1]]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct NdIter<const N: usize> {
    /// Elements in a run.
    pub inner_size: usize,
    /// For each operand, the stride within a run.
    pub inner_strides: [usize; N],
    /// The outer dimensions: size, the index of the next run, and the operands' strides.
    outer: Vec<(usize, usize, [usize; N])>,
    next: [usize; N],
    remaining: usize,
}

impl<const N: usize> NdIter<N> {
    /// Iterates over `layouts`.
    ///
    /// # Panics
    /// If the layouts differ in their dimensions.
    pub fn new(layouts: [&Layout; N]) -> NdIter<N> {
        let dims = layouts.first().map_or(&[][..], |layout| layout.dims());
        for layout in layouts {
            assert_eq!(
                layout.dims(),
                dims,
                "NdIter: the layouts have different shapes"
            );
        }
        if dims.contains(&0) {
            return NdIter {
                inner_size: 0,
                inner_strides: [1; N],
                outer: vec![],
                next: [0; N],
                remaining: 0,
            };
        }
        let mut merged: Vec<(usize, [usize; N])> = Vec::with_capacity(dims.len());
        for (d, &size) in dims.iter().enumerate().filter(|(_, &size)| size != 1) {
            let strides = layouts.map(|layout| layout.stride()[d]);
            match merged.last_mut() {
                Some((last, last_strides))
                    if (0..N).all(|n| last_strides[n] == strides[n] * size) =>
                {
                    *last *= size;
                    *last_strides = strides;
                }
                _ => merged.push((size, strides)),
            }
        }
        // A single element counts as a contiguous run.
        let (inner_size, inner_strides) = merged.pop().unwrap_or((1, [1; N]));
        NdIter {
            inner_size,
            inner_strides,
            remaining: merged.iter().map(|(size, _)| size).product(),
            outer: merged.into_iter().map(|(size, s)| (size, 0, s)).collect(),
            next: layouts.map(Layout::start_offset),
        }
    }
}

impl<const N: usize> Iterator for NdIter<N> {
    type Item = [usize; N];

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.remaining = self.remaining.checked_sub(1)?;
        let offsets = self.next;
        for (size, index, strides) in self.outer.iter_mut().rev() {
            *index += 1;
            if *index < *size {
                for (next, stride) in self.next.iter_mut().zip(strides) {
                    *next += *stride;
                }
                break;
            }
            // Back to the start of the dimension; the next outer dimension advances.
            *index = 0;
            for (next, stride) in self.next.iter_mut().zip(strides) {
                *next -= (*size - 1) * *stride;
            }
        }
        Some(offsets)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<const N: usize> ExactSizeIterator for NdIter<N> {}

impl<const N: usize> FusedIterator for NdIter<N> {}
