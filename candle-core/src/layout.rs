//! The layout of a tensor's elements in its storage.

use crate::inline_vec::InlineVec;
use crate::shape::Dim;
use crate::{Error, Result, Shape, StridedBlocks, StridedIndex};

/// A shape, the stride of each dimension, and the offset of the first element; all in elements.
#[derive(Debug, PartialEq, Eq, Clone)]
pub struct Layout {
    shape: Shape,
    stride: InlineVec<usize>,
    start_offset: usize,
}

/// The relation between the elements of two layouts over the same storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutRelation {
    /// Both contain the same elements in the same order.
    Identical,
    /// No element is in both.
    Disjoint,
    /// Some elements are in both.
    Overlapping,
    /// The relation was not determined.
    Unknown,
}

impl Layout {
    /// A layout from its parts; `stride` has one entry per dimension of `shape`.
    pub fn new(shape: Shape, stride: Vec<usize>, start_offset: usize) -> Self {
        Self::from_parts(shape, InlineVec::from(stride), start_offset)
    }

    /// As [`Layout::new`].
    pub(crate) fn from_parts(shape: Shape, stride: InlineVec<usize>, start_offset: usize) -> Self {
        Self {
            shape,
            stride,
            start_offset,
        }
    }

    /// A row-major layout from offset 0.
    pub fn contiguous<S: Into<Shape>>(shape: S) -> Self {
        Self::contiguous_with_offset(shape, 0)
    }

    /// A row-major layout from `start_offset`.
    pub fn contiguous_with_offset<S: Into<Shape>>(shape: S, start_offset: usize) -> Self {
        let shape = shape.into();
        let stride = shape.stride_contiguous();
        Self::from_parts(shape, stride, start_offset)
    }

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// The size of one dimension.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn dim<D: Dim>(&self, dim: D) -> Result<usize> {
        self.shape.dim(dim)
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The strides.
    pub fn stride(&self) -> &[usize] {
        &self.stride
    }

    /// Offset of the first element.
    pub fn start_offset(&self) -> usize {
        self.start_offset
    }

    /// The range of offsets `(start, end)` when the layout is contiguous.
    pub fn contiguous_offsets(&self) -> Option<(usize, usize)> {
        self.is_contiguous().then(|| {
            (
                self.start_offset,
                self.start_offset + self.shape.elem_count(),
            )
        })
    }

    /// The layout over `shape`, with another stride in `dim`.
    #[cfg(any(feature = "cuda", feature = "webgpu"))]
    pub(crate) fn over(&self, shape: &[usize], dim: usize, stride: usize) -> Self {
        let mut strides = self.stride.clone();
        strides[dim] = stride;
        Self::from_parts(Shape::from(shape), strides, self.start_offset)
    }

    /// A vector along `dim` of `shape`, the same at all other positions.
    #[cfg(any(feature = "cuda", feature = "webgpu"))]
    pub(crate) fn along(&self, shape: &[usize], dim: usize) -> Self {
        let mut strides = vec![0; shape.len()];
        strides[dim] = self.stride[0];
        Self::new(Shape::from(shape), strides, self.start_offset)
    }

    /// The stride between rows of the last dimension, if a single stride describes all rows.
    #[cfg(any(test, feature = "cuda", feature = "webgpu"))]
    pub(crate) fn row_step(&self) -> Option<usize> {
        let (dims, strides) = (self.dims(), self.stride());
        // The stride, and the extent of all rows so far.
        let mut found: Option<(usize, usize)> = None;
        for (dim, stride) in dims.iter().zip(strides).rev().skip(1) {
            found = match found {
                found if *dim == 1 => found,
                None => Some((*stride, stride * dim)),
                Some((step, span)) if span == *stride => Some((step, span * dim)),
                Some(_) => return None,
            };
        }
        Some(found.map_or(0, |(step, _)| step))
    }

    /// Whether the elements are contiguous in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.shape.is_contiguous(&self.stride)
    }

    /// Whether the elements are contiguous in column-major order.
    pub fn is_fortran_contiguous(&self) -> bool {
        self.shape.is_fortran_contiguous(&self.stride)
    }

    /// Whether there is no dimension.
    pub fn is_scalar(&self) -> bool {
        self.shape.rank() == 0
    }

    /// Whether one stored element is repeated over a shape with dimensions.
    pub fn is_scalar_broadcast(&self) -> bool {
        !self.is_scalar() && self.names_one_element()
    }

    /// Whether all elements are the same stored element: a scalar, a single element, or a repeated one.
    pub fn is_scalar_like(&self) -> bool {
        self.names_one_element()
    }

    fn names_one_element(&self) -> bool {
        self.dims()
            .iter()
            .zip(&self.stride)
            .all(|(&size, &stride)| size == 1 || (size > 1 && stride == 0))
    }

    /// Keeps the indices from `start` to `start + len` of dimension `dim`.
    ///
    /// # Errors
    /// When the dimension does not exist or has fewer indices.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let size = self.dims()[dim.to_index(&self.shape, "narrow")?];
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(Error::NarrowInvalidArgs {
                shape: self.shape.clone(),
                dim,
                start,
                len,
                msg: "start + length is past the dimension's end",
            }
            .bt());
        }
        let shape = self.shape.clone().with_size(dim, len);
        // Without elements the offset could be past the end of the storage.
        let skipped = match shape.elem_count() {
            0 => 0,
            _ => self.stride[dim] * start,
        };
        Ok(Self::from_parts(
            shape,
            self.stride.clone(),
            self.start_offset + skipped,
        ))
    }

    /// Swaps two dimensions.
    ///
    /// # Errors
    /// When one does not exist.
    pub fn transpose(&self, dim1: usize, dim2: usize) -> Result<Self> {
        let dim1 = dim1.to_index(&self.shape, "transpose")?;
        let dim2 = dim2.to_index(&self.shape, "transpose")?;
        let (size1, size2) = (self.dims()[dim1], self.dims()[dim2]);
        let shape = self.shape.clone();
        let mut stride = self.stride.clone();
        stride.swap(dim1, dim2);
        Ok(Self::from_parts(
            shape.with_size(dim1, size2).with_size(dim2, size1),
            stride,
            self.start_offset,
        ))
    }

    /// Permutes the dimensions: dimension `i` of the result is dimension `idxs[i]` of this layout.
    ///
    /// # Errors
    /// When `idxs` is not a permutation of all dimensions.
    pub fn permute(&self, idxs: &[usize]) -> Result<Self> {
        let is_permutation =
            idxs.len() == self.shape.rank() && (0..idxs.len()).all(|i| idxs.contains(&i));
        if !is_permutation {
            crate::bail!(
                "permute: {idxs:?} is not a permutation of the dimensions of {:?}",
                self.shape
            )
        }
        let dims: Vec<usize> = idxs.iter().map(|&i| self.dims()[i]).collect();
        let stride = idxs.iter().map(|&i| self.stride[i]).collect();
        Ok(Self::from_parts(
            Shape::from(dims),
            stride,
            self.start_offset,
        ))
    }

    /// Broadcasts: repeats dimensions of size 1, and new ones on the left, to reach `shape`. Their stride is 0.
    ///
    /// # Errors
    /// If a dimension of another size would have to change, or the shape has too many elements.
    pub fn broadcast_as<S: Into<Shape>>(&self, shape: S) -> Result<Self> {
        let shape = shape.into();
        let incompatible = || {
            Error::BroadcastIncompatibleShapes {
                src_shape: self.shape.clone(),
                dst_shape: shape.clone(),
            }
            .bt()
        };
        let added = shape
            .rank()
            .checked_sub(self.shape.rank())
            .ok_or_else(incompatible)?;
        shape.check_elem_count("broadcast_as")?;
        let mut stride = InlineVec::repeated(0, added);
        for ((&dst, &src), &src_stride) in shape.dims()[added..]
            .iter()
            .zip(self.dims())
            .zip(&self.stride)
        {
            stride.push(match src {
                src if src == dst => src_stride,
                1 => 0,
                _ => return Err(incompatible()),
            })
        }
        Ok(Self::from_parts(shape, stride, self.start_offset))
    }

    /// The storage offset of each element, in row-major order.
    pub fn strided_index(&self) -> StridedIndex<'_> {
        StridedIndex::from_layout(self)
    }

    /// The layout as contiguous runs of elements.
    pub fn strided_blocks(&self) -> StridedBlocks<'_> {
        StridedBlocks::from_layout(self)
    }

    /// Whether two indices may refer to the same stored element, as after a broadcast. `false` is certain; unusual layouts without such
    /// elements may also return `true`.
    pub fn has_internal_overlap(&self) -> bool {
        if self.shape.elem_count() == 0 {
            return false;
        }
        let mut steps: Vec<(usize, usize)> = self.steps().collect();
        steps.sort_unstable();
        // From the smallest, each stride has to exceed the extent of the smaller ones.
        let mut reach = 0usize;
        for (stride, size) in steps {
            if stride <= reach {
                return true;
            }
            reach = reach.saturating_add(stride.saturating_mul(size - 1));
        }
        false
    }

    /// Returns the relation between the elements of this layout and of `other`, over the same storage.
    pub fn relation(&self, other: &Self) -> LayoutRelation {
        let (Some(last), Some(other_last)) = (self.last_offset(), other.last_offset()) else {
            return LayoutRelation::Disjoint;
        };
        if self.start_offset == other.start_offset
            && self.shape == other.shape
            && self.steps().eq(other.steps())
        {
            return LayoutRelation::Identical;
        }
        if last < other.start_offset || other_last < self.start_offset {
            return LayoutRelation::Disjoint;
        }
        // Offsets of a layout are its start plus multiples of the greatest common divisor of its strides.
        let divisor = self
            .steps()
            .chain(other.steps())
            .fold(0, |d, (stride, _)| gcd(d, stride));
        let distance = self.start_offset.abs_diff(other.start_offset);
        if divisor > 1 && !distance.is_multiple_of(divisor) {
            return LayoutRelation::Disjoint;
        }
        let shares_an_end = [self.start_offset, last]
            .iter()
            .any(|offset| [other.start_offset, other_last].contains(offset));
        if shares_an_end || self.is_contiguous() && other.is_contiguous() {
            return LayoutRelation::Overlapping;
        }
        LayoutRelation::Unknown
    }

    /// Stride and size of the dimensions in which there is more than one index.
    fn steps(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let steps = self.stride.iter().copied().zip(self.dims().iter().copied());
        steps.filter(|&(_, size)| size > 1)
    }

    /// The greatest offset of an element; `None` when there is no element.
    fn last_offset(&self) -> Option<usize> {
        if self.shape.elem_count() == 0 {
            return None;
        }
        let reach = self.steps().fold(0usize, |reach, (stride, size)| {
            reach.saturating_add(stride.saturating_mul(size - 1))
        });
        Some(self.start_offset.saturating_add(reach))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 {
        a
    } else {
        gcd(b, a % b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views() {
        let layout = Layout::contiguous((2, 3, 4));
        let view = layout.narrow(1, 1, 2).unwrap().transpose(0, 2).unwrap();
        assert_eq!(view.dims(), [4, 2, 2]);
        assert_eq!(view.stride(), [1, 4, 12]);
        assert_eq!(view.start_offset(), 4);
        assert!(layout.narrow(1, 2, 2).is_err());
        assert!(layout.narrow(1, 2, usize::MAX).is_err());
        assert!(layout.permute(&[0, 1, 1]).is_err());
        let repeated = Layout::contiguous((3, 1)).broadcast_as((2, 3, 5)).unwrap();
        assert_eq!(repeated.stride(), [0, 1, 0]);
        assert!(Layout::contiguous(3).broadcast_as((3, 2)).is_err());
        assert!(Layout::contiguous((3, 2)).broadcast_as(2).is_err());
    }

    #[test]
    fn overlap_within_a_layout() {
        assert!(!Layout::contiguous((2, 3)).has_internal_overlap());
        assert!(!Layout::contiguous((2, 3))
            .transpose(0, 1)
            .unwrap()
            .has_internal_overlap());
        assert!(Layout::contiguous((1, 3))
            .broadcast_as((2, 3))
            .unwrap()
            .has_internal_overlap());
        assert!(Layout::new(Shape::from((3, 4)), vec![2, 1], 0).has_internal_overlap());
    }

    #[test]
    fn rows_have_a_step_where_they_are_evenly_spread() {
        for (dims, stride, expected) in [
            (&[2, 3, 4][..], &[12, 4, 1][..], Some(4)),
            (&[1, 1, 4], &[9, 9, 1], Some(0)),
            (&[2, 1, 4], &[7, 9, 1], Some(7)),
            (&[2, 3, 4], &[30, 10, 2], Some(10)),
            (&[2, 3, 4], &[4, 8, 1], None),
            (&[4], &[1], Some(0)),
        ] {
            assert_eq!(
                Layout::new(Shape::from(dims), stride.to_vec(), 3).row_step(),
                expected,
                "{dims:?} {stride:?}"
            );
        }
    }

    #[test]
    fn relations() {
        let whole = Layout::contiguous((4, 4));
        let row = |i| whole.narrow(0, i, 1).unwrap();
        let column = |i| whole.narrow(1, i, 1).unwrap();
        assert_eq!(whole.relation(&whole), LayoutRelation::Identical);
        assert_eq!(row(0).relation(&row(1)), LayoutRelation::Disjoint);
        assert_eq!(column(0).relation(&column(1)), LayoutRelation::Disjoint);
        assert_eq!(whole.relation(&row(2)), LayoutRelation::Overlapping);
        assert_eq!(column(1).relation(&row(0)), LayoutRelation::Unknown);
        assert_eq!(
            whole.relation(&whole.narrow(0, 0, 0).unwrap()),
            LayoutRelation::Disjoint
        );
    }

    #[test]
    fn scalars() {
        let scalar = Layout::contiguous(());
        assert!(scalar.is_scalar() && scalar.is_scalar_like() && !scalar.is_scalar_broadcast());
        let repeated = scalar.broadcast_as((2, 3)).unwrap();
        assert!(repeated.is_scalar_broadcast() && repeated.is_scalar_like());
        assert!(!Layout::contiguous((2, 3)).is_scalar_like());
    }
}
