//! The input, padded and reordered for the product.

use std::borrow::Cow;

use super::super::strided_iter::PAR_MIN;
use super::element::ConvElement;
use super::lanes::SLACK;
use super::NchwSlice;
use crate::cpu::threads;

/// One dimension of the copied input, in elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis {
    /// Zeros before the first element.
    pub before: usize,
    /// Number of elements including the zeros before and after, up to the furthest element that a tap reads.
    pub padded: usize,
    /// Elements with this stride are contiguous in the copy: the stride along the width, else 1.
    pub stride: usize,
}

impl Axis {
    /// The number of such sequences (phases).
    fn phases(&self) -> usize {
        self.stride.min(self.padded)
    }

    /// Elements in the longest phase.
    fn phase_len(&self) -> usize {
        self.padded.div_ceil(self.stride)
    }

    /// Elements in the copy.
    pub fn len(&self) -> usize {
        self.phases().saturating_mul(self.phase_len())
    }

    /// The offset in the copy of element `i`, counted from the start of the padding.
    pub fn at(&self, i: usize) -> usize {
        i % self.stride * self.phase_len() + i / self.stride
    }
}

/// The input, `(batch, channels, rows, columns)`.
#[derive(Debug)]
pub(super) struct ConvInput<'a, A: Clone> {
    pub data: Cow<'a, [A]>,
    /// Elements of a channel.
    pub plane: usize,
    /// Elements of a row.
    pub row: usize,
}

impl<'a, A: super::lanes::Kernels> ConvInput<'a, A> {
    /// Copies `inp`, or borrows it if it is already in this form. With `slack`, [`SLACK`](super::lanes::SLACK) elements
    /// follow the last one.
    pub fn new<T: ConvElement<Acc = A>>(
        inp: NchwSlice<'a, T>,
        axes: [Axis; 2],
        slack: bool,
    ) -> Self {
        let (vs, planes) = inp;
        let [b, c, h, w] = planes.dims;
        let as_is =
            |axis: &Axis, size: usize| axis.before == 0 && axis.stride == 1 && axis.padded <= size;
        if planes.is_contiguous() && !slack && as_is(&axes[0], h) && as_is(&axes[1], w) {
            if let Some(vs) = T::as_acc(vs) {
                return Self {
                    data: Cow::Borrowed(&vs[planes.start(0)..][..b * c * h * w]),
                    plane: h * w,
                    row: w,
                };
            }
        }
        let (rows, row) = (axes[0].len(), axes[1].len());
        let plane = rows * row;
        let slack = if slack { SLACK } else { 0 };
        let mut data = vec![A::default(); b * c * plane + slack];
        let copies = &mut data[..b * c * plane];
        let copy = |i: usize, dst: &mut [A]| {
            for y in 0..h.min(rows.saturating_sub(axes[0].before)) {
                let src = planes.start(i) + y * planes.strides[2];
                let dst = &mut dst[(axes[0].before + y) * row..][..row];
                copy_row(&vs[src..], planes.strides[3], w, dst, axes[1]);
            }
        };
        if copies.len() < PAR_MIN {
            let planes = copies.chunks_mut(plane).enumerate();
            planes.for_each(|(i, dst)| copy(i, dst));
        } else {
            threads::chunks_mut(copies, plane, copy);
        }
        Self {
            data: Cow::Owned(data),
            plane,
            row,
        }
    }
}

/// Copies a row of `size` elements with stride `step`.
fn copy_row<T: ConvElement>(src: &[T], step: usize, size: usize, dst: &mut [T::Acc], axis: Axis) {
    if axis.stride == 1 && step == 1 {
        let len = size.min(axis.padded.saturating_sub(axis.before));
        return T::to_accs(&src[..len], &mut dst[axis.before..][..len]);
    }
    for (phase, dst) in dst.chunks_mut(axis.phase_len()).enumerate() {
        // The first element of this phase that is not padding.
        let skipped = axis.before.saturating_sub(phase).div_ceil(axis.stride);
        let Some(dst) = dst.get_mut(skipped..) else {
            continue;
        };
        let first = phase + skipped * axis.stride - axis.before;
        let count = size.saturating_sub(first).div_ceil(axis.stride);
        for (i, dst) in dst.iter_mut().take(count).enumerate() {
            *dst = src[(first + i * axis.stride) * step].to_acc();
        }
    }
}
