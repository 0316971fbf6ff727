//! Layouts in the kernels' form: by value.

use crate::{Layout, Result};

/// Maximum number of dimensions in a kernel, after merging.
pub(super) const MAX_RANK: usize = 8;

/// `N` operands of the same shape, in the fewest dimensions that their strides allow: `struct Views<N>` of `kernels/prelude.cu`.
///
/// Dimensions of size 1 are dropped, and neighbours that can be merged in every operand are merged, so that most layouts end up with one
/// dimension.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Views<const N: usize> {
    /// The number of elements.
    pub(super) len: u64,
    pub(super) dims: [u64; MAX_RANK],
    pub(super) strides: [[u64; MAX_RANK]; N],
    pub(super) offsets: [u64; N],
}

// SAFETY: u64 only, without padding.
unsafe impl<const N: usize> bytemuck::Zeroable for Views<N> {}
// SAFETY: as above; arrays of plain integers.
unsafe impl<const N: usize> bytemuck::Pod for Views<N> {}

/// [`Views`] and the specialisation of a kernel for them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Walk<const N: usize> {
    pub(super) views: Views<N>,
    /// Dimensions used; 0 if every operand is contiguous.
    pub(super) rank: usize,
    /// Whether offsets need 64 bits.
    wide: bool,
}

impl<const N: usize> Walk<N> {
    /// # Errors
    /// More than eight dimensions that cannot be merged.
    pub(super) fn new(layouts: [&Layout; N]) -> Result<Self> {
        let shape = layouts[0].dims();
        debug_assert!(layouts.iter().all(|l| l.dims() == shape));
        let mut views = Views {
            len: shape.iter().product::<usize>() as u64,
            dims: [1; MAX_RANK],
            strides: [[0; MAX_RANK]; N],
            offsets: layouts.map(|layout| layout.start_offset() as u64),
        };
        let mut rank = 0;
        for (axis, &size) in shape.iter().enumerate() {
            if size == 1 {
                continue;
            }
            let stride = |n: usize| layouts[n].stride()[axis] as u64;
            let size = size as u64;
            let merges = rank > 0 && (0..N).all(|n| views.strides[n][rank - 1] == stride(n) * size);
            if merges {
                views.dims[rank - 1] *= size;
            } else {
                if rank == MAX_RANK {
                    crate::bail!(
                        "a layout of shape {shape:?} has more than {MAX_RANK} dimensions that cannot be merged, the \
                         limit of CUDA kernels: call contiguous() on part of it first"
                    );
                }
                views.dims[rank] = size;
                rank += 1;
            }
            for n in 0..N {
                views.strides[n][rank - 1] = stride(n);
            }
        }
        let contiguous = match rank {
            0 => true,
            1 => views.strides.iter().all(|strides| strides[0] == 1),
            _ => false,
        };
        let last = |n: usize| {
            let steps = views.dims.iter().zip(views.strides[n]);
            views.offsets[n] + steps.map(|(size, stride)| (size - 1) * stride).sum::<u64>()
        };
        let wide = views.len > 0 && (0..N).any(|n| last(n) > u64::from(u32::MAX >> 1));
        Ok(Self {
            views,
            rank: if contiguous { 0 } else { rank },
            wide: wide || views.len > u64::from(u32::MAX >> 1),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.views.len as usize
    }

    /// Whether an operand has a single element along the last dimension, like a broadcast column.
    pub(super) fn is_same_in_runs(&self, operand: usize) -> bool {
        self.rank > 0 && self.views.strides[operand][self.rank - 1] == 0
    }

    /// Whether in every operand each group of `lanes` neighbours is contiguous, at an offset that is a multiple of `lanes` from the
    /// operand's start, or is one element.
    pub(super) fn is_in_runs_of(&self, lanes: usize) -> bool {
        let Some(last) = self.rank.checked_sub(1) else {
            return true;
        };
        let fits = |step: &u64| step.is_multiple_of(lanes as u64);
        let side_by_side =
            |strides: &[u64; MAX_RANK]| strides[last] == 1 && strides[..last].iter().all(fits);
        fits(&self.views.dims[last])
            && (0..N).all(|n| self.is_same_in_runs(n) || side_by_side(&self.views.strides[n]))
    }

    /// The integer type of offsets: `u32` if it is large enough, since its divisions cost a fraction.
    pub(super) fn index(&self) -> &'static str {
        index_type(self.wide)
    }
}

/// Whether offsets of these layouts need 64 bits.
pub(super) fn is_wide(layouts: &[&Layout]) -> bool {
    let last = |layout: &&Layout| {
        let steps = layout.dims().iter().zip(layout.stride());
        let steps = steps.map(|(size, stride)| size.saturating_sub(1) * stride);
        layout.start_offset() + steps.sum::<usize>()
    };
    layouts.iter().map(last).max() > Some((u32::MAX >> 1) as usize)
}

/// See [`Walk::index`].
pub(super) fn index_type(wide: bool) -> &'static str {
    if wide {
        "u64"
    } else {
        "u32"
    }
}

#[cfg(test)]
mod tests {
    use super::Walk;
    use crate::{Layout, Shape};

    fn layout(dims: &[usize], stride: &[usize], offset: usize) -> Layout {
        Layout::new(Shape::from(dims), stride.to_vec(), offset)
    }

    #[test]
    fn contiguous_layouts_merge_to_nothing() {
        let plain = layout(&[2, 1, 3, 4], &[12, 12, 4, 1], 5);
        let walk = Walk::new([&plain, &plain]).unwrap();
        assert_eq!((walk.rank, walk.len(), walk.views.offsets), (0, 24, [5, 5]));
        assert_eq!(walk.index(), "u32");
    }

    #[test]
    fn dimensions_merge_only_where_all_operands_agree() {
        let plain = layout(&[2, 3, 4], &[12, 4, 1], 0);
        let broadcast = layout(&[2, 3, 4], &[0, 0, 1], 0);
        let walk = Walk::new([&plain, &broadcast]).unwrap();
        assert_eq!(walk.rank, 2);
        assert_eq!(&walk.views.dims[..2], &[6, 4]);
        assert_eq!(&walk.views.strides[0][..2], &[4, 1]);
        assert_eq!(&walk.views.strides[1][..2], &[0, 1]);
        let transposed = layout(&[4, 3], &[1, 4], 0);
        assert_eq!(Walk::new([&transposed]).unwrap().rank, 2);
    }

    #[test]
    fn runs_are_as_long_as_rows_and_their_steps_allow() {
        let runs = |dims: &[usize], strides: &[&[usize]], lanes| {
            let layouts: Vec<_> = strides.iter().map(|it| layout(dims, it, 0)).collect();
            match &layouts[..] {
                [one] => Walk::new([one]).unwrap().is_in_runs_of(lanes),
                [one, two] => Walk::new([one, two]).unwrap().is_in_runs_of(lanes),
                _ => unreachable!(),
            }
        };
        // A bias for each row, and one for each column.
        assert!(runs(&[6, 16], &[&[16, 1], &[0, 1]], 8));
        assert!(!runs(&[6, 12], &[&[12, 1], &[0, 1]], 8));
        assert!(runs(&[6, 12], &[&[12, 1], &[0, 1]], 4));
        assert!(runs(&[6, 16], &[&[16, 1], &[1, 0]], 8));
        assert!(!runs(&[6, 12], &[&[12, 1], &[1, 0]], 8));
        // Rows of a wider matrix.
        assert!(runs(&[6, 16], &[&[24, 1]], 8));
        assert!(!runs(&[6, 16], &[&[20, 1]], 8));
        assert!(!runs(&[16, 6], &[&[1, 16]], 2));
        assert!(runs(&[3, 5], &[&[5, 1]], 8));
    }

    #[test]
    fn places_past_31_bits_take_64() {
        let far = layout(&[2, 3], &[1 << 31, 1], 0);
        assert_eq!(Walk::new([&far]).unwrap().index(), "u64");
        let none = layout(&[0, 3], &[3, 1], 0);
        let walk = Walk::new([&none]).unwrap();
        assert_eq!((walk.len(), walk.index()), (0, "u32"));
    }

    #[test]
    fn nine_dimensions_that_do_not_merge_are_an_error() {
        let strides: Vec<usize> = (0..9).map(|axis| 3 << axis).collect();
        let error = Walk::new([&layout(&[2; 9], &strides, 0)]).unwrap_err();
        assert!(error.to_string().contains("contiguous()"), "{error}");
    }
}
