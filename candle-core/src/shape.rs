//! Shapes, dimension indices, and the conversions that let callers write `(2, 3)`, `D::Minus1` or `(2, ())`.

use crate::inline_vec::InlineVec;
use crate::{Error, Result};

/// The size of each dimension, outermost first. A scalar has none.
#[derive(Clone, PartialEq, Eq)]
pub struct Shape(InlineVec<usize>);

/// The shape of a scalar.
pub const SCALAR: Shape = Shape(InlineVec::EMPTY);

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl<const C: usize> From<&[usize; C]> for Shape {
    fn from(dims: &[usize; C]) -> Self {
        Self::from_dims(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::from_dims(dims)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl From<()> for Shape {
    fn from(_: ()) -> Self {
        SCALAR
    }
}

impl From<usize> for Shape {
    fn from(d1: usize) -> Self {
        Self::from_dims(&[d1])
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Self(InlineVec::from(dims))
    }
}

/// `usize` once for each identifier, to write tuple types.
macro_rules! size_of_dim {
    ($_name:ident) => {
        usize
    };
}

macro_rules! shape_from_tuple {
    ($($d:ident),+) => {
        impl From<($(size_of_dim!($d),)+)> for Shape {
            fn from(($($d,)+): ($(size_of_dim!($d),)+)) -> Self {
                Self::from_dims(&[$($d),+])
            }
        }
    };
}

shape_from_tuple!(d1);
shape_from_tuple!(d1, d2);
shape_from_tuple!(d1, d2, d3);
shape_from_tuple!(d1, d2, d3, d4);
shape_from_tuple!(d1, d2, d3, d4, d5);
shape_from_tuple!(d1, d2, d3, d4, d5, d6);

/// Generates `dimsN` as a function of sizes, as a method of `Shape` and of `Tensor`, and as a conversion.
macro_rules! extract_dims {
    ($name:ident, $rank:literal, $doc:literal, $pattern:pat => $value:expr, $out:ty) => {
        #[doc = $doc]
        ///
        /// # Errors
        /// If the number of dimensions differs.
        pub fn $name(dims: &[usize]) -> Result<$out> {
            match *dims {
                $pattern => Ok($value),
                _ => Err(Error::UnexpectedNumberOfDims {
                    expected: $rank,
                    got: dims.len(),
                    shape: Shape::from(dims),
                }
                .bt()),
            }
        }

        impl Shape {
            #[doc = $doc]
            ///
            /// # Errors
            /// If the shape has another rank.
            pub fn $name(&self) -> Result<$out> {
                $name(&self.0)
            }
        }

        impl crate::Tensor {
            #[doc = $doc]
            ///
            /// # Errors
            /// If the tensor has another rank.
            pub fn $name(&self) -> Result<$out> {
                $name(self.dims())
            }
        }

        impl std::convert::TryInto<$out> for Shape {
            type Error = Error;

            fn try_into(self) -> Result<$out> {
                $name(&self.0)
            }
        }
    };
}

extract_dims!(dims0, 0, "Succeeds when there is no dimension, as for a scalar.", [] => (), ());
extract_dims!(dims1, 1, "The size of the only dimension.", [d1] => d1, usize);
extract_dims!(dims2, 2, "The sizes of both dimensions.", [d1, d2] => (d1, d2), (usize, usize));
extract_dims!(dims3, 3, "The sizes of the three dimensions.", [d1, d2, d3] => (d1, d2, d3), (usize, usize, usize));
extract_dims!(
    dims4,
    4,
    "The sizes of the four dimensions.",
    [d1, d2, d3, d4] => (d1, d2, d3, d4),
    (usize, usize, usize, usize)
);
extract_dims!(
    dims5,
    5,
    "The sizes of the five dimensions.",
    [d1, d2, d3, d4, d5] => (d1, d2, d3, d4, d5),
    (usize, usize, usize, usize, usize)
);

impl Shape {
    /// The shape with these sizes.
    pub fn from_dims(dims: &[usize]) -> Self {
        Self(InlineVec::from(dims))
    }

    /// The shape with these sizes.
    pub(crate) fn from_sizes(sizes: impl Iterator<Item = usize>) -> Self {
        Self(sizes.collect())
    }

    /// The shape with the size of an existing dimension replaced.
    pub(crate) fn with_size(mut self, dim: usize, size: usize) -> Self {
        self.0[dim] = size;
        self
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The sizes, as a vector.
    pub fn into_dims(self) -> Vec<usize> {
        self.0.into_vec()
    }

    /// The sizes.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The size of one dimension.
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn dim<D: Dim>(&self, dim: D) -> Result<usize> {
        Ok(self.0[dim.to_index(self, "dim")?])
    }

    /// Number of elements: the product of the sizes, 1 for a scalar. A product above `usize::MAX` returns `usize::MAX`, which cannot be
    /// allocated.
    pub fn elem_count(&self) -> usize {
        if self.0.contains(&0) {
            return 0;
        }
        self.0.iter().fold(1, |count, &d| count.saturating_mul(d))
    }

    /// Rejects shapes with more elements than any memory could hold, in any dtype. A view needs no memory, but its sums and copies count
    /// its elements.
    ///
    /// # Errors
    /// When the shape has too many elements; the error names `op`.
    pub(crate) fn check_elem_count(&self, op: &'static str) -> Result<()> {
        const LARGEST_DTYPE: usize = 8;
        if self.elem_count() > isize::MAX as usize / LARGEST_DTYPE {
            crate::bail!("{op}: a view of shape {self:?} has too many elements")
        }
        Ok(())
    }

    /// Number of bytes of the shape's elements, of `size_in_bytes` each.
    ///
    /// # Errors
    /// If no address space could hold them, which happens with sizes read from a damaged file.
    pub(crate) fn checked_byte_count(&self, size_in_bytes: usize) -> Result<usize> {
        match self.elem_count().checked_mul(size_in_bytes) {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(bytes),
            _ => crate::bail!(
                "a tensor of shape {self:?} with {size_in_bytes} bytes per element is too large"
            ),
        }
    }

    /// The strides of a row-major tensor of this shape, in elements.
    pub(crate) fn stride_contiguous(&self) -> InlineVec<usize> {
        let mut stride = InlineVec::repeated(1usize, self.0.len());
        for i in (1..self.0.len()).rev() {
            stride[i - 1] = stride[i].saturating_mul(self.0[i]);
        }
        stride
    }

    /// Whether `stride` is row-major. The stride of a dimension of size 0 or 1 does not matter. As in Candle, the strides of the others
    /// matter even in a shape without elements: there, those of the dimensions outside one of size 0 are 0.
    pub fn is_contiguous(&self, stride: &[usize]) -> bool {
        self.0.len() == stride.len() && is_dense(self.0.iter().zip(stride).rev())
    }

    /// Whether `stride` is column-major, with the same exceptions as [`Shape::is_contiguous`].
    pub fn is_fortran_contiguous(&self, stride: &[usize]) -> bool {
        self.0.len() == stride.len() && is_dense(self.0.iter().zip(stride))
    }

    /// Appends dimensions.
    pub fn extend(mut self, additional_dims: &[usize]) -> Self {
        self.0.extend(additional_dims.iter().copied());
        self
    }

    /// The shape that both broadcast to: aligned at the last dimension, sizes equal or 1.
    ///
    /// # Errors
    /// When a pair of sizes differs and neither is 1; the error names `op`.
    pub fn broadcast_shape_binary_op(&self, rhs: &Self, op: &'static str) -> Result<Shape> {
        match broadcast_dims(&self.0, &rhs.0) {
            Some(dims) => Ok(Shape(dims)),
            None => Err(Error::ShapeMismatchBinaryOp {
                lhs: self.clone(),
                rhs: rhs.clone(),
                op,
            }
            .bt()),
        }
    }

    /// The shapes that both sides of a matrix product broadcast to: all but the last two dimensions broadcast.
    ///
    /// # Errors
    /// When a side has fewer than two dimensions, or the dimensions do not match.
    pub(crate) fn broadcast_shape_matmul(&self, rhs: &Self) -> Result<(Shape, Shape)> {
        let mismatch = || {
            Error::ShapeMismatchBinaryOp {
                lhs: self.clone(),
                rhs: rhs.clone(),
                op: "broadcast_matmul",
            }
            .bt()
        };
        let (lhs_batch, lhs_matrix) = self.split_matrix().ok_or_else(mismatch)?;
        let (rhs_batch, rhs_matrix) = rhs.split_matrix().ok_or_else(mismatch)?;
        if lhs_matrix[1] != rhs_matrix[0] {
            return Err(mismatch());
        }
        let batch = Shape(broadcast_dims(lhs_batch, rhs_batch).ok_or_else(mismatch)?);
        Ok((batch.clone().extend(lhs_matrix), batch.extend(rhs_matrix)))
    }

    /// The batch dimensions and the last two.
    fn split_matrix(&self) -> Option<(&[usize], &[usize; 2])> {
        self.0.split_last_chunk::<2>()
    }
}

/// Whether the pairs of size and stride, innermost first, leave no gap.
fn is_dense<'a>(innermost_first: impl Iterator<Item = (&'a usize, &'a usize)>) -> bool {
    let mut expected = 1usize;
    for (&size, &stride) in innermost_first {
        if size > 1 && stride != expected {
            return false;
        }
        expected = expected.saturating_mul(size);
    }
    true
}

fn broadcast_dims(lhs: &[usize], rhs: &[usize]) -> Option<InlineVec<usize>> {
    let rank = lhs.len().max(rhs.len());
    let size = |dims: &[usize], i: usize| match (i + dims.len()).checked_sub(rank) {
        Some(i) => dims[i],
        None => 1,
    };
    (0..rank)
        .map(|i| match (size(lhs, i), size(rhs, i)) {
            (l, r) if l == r => Some(l),
            (1, r) => Some(r),
            (l, 1) => Some(l),
            _ => None,
        })
        .collect()
}

/// A type that identifies one dimension: a `usize`, or [`D`] to count from the end.
pub trait Dim {
    /// The dimension's index, which is within the shape.
    ///
    /// # Errors
    /// When the dimension is out of range; the error names `op`.
    fn to_index(&self, shape: &Shape, op: &'static str) -> Result<usize>;

    /// The index at which a dimension is to be inserted; may be one past the end.
    ///
    /// # Errors
    /// When the position is out of range; the error names `op`.
    fn to_index_plus_one(&self, shape: &Shape, op: &'static str) -> Result<usize>;
}

impl Dim for usize {
    fn to_index(&self, shape: &Shape, op: &'static str) -> Result<usize> {
        if *self < shape.rank() {
            Ok(*self)
        } else {
            Err(out_of_range(shape, *self, 1, op))
        }
    }

    fn to_index_plus_one(&self, shape: &Shape, op: &'static str) -> Result<usize> {
        if *self <= shape.rank() {
            Ok(*self)
        } else {
            Err(out_of_range(shape, *self, 1, op))
        }
    }
}

/// A dimension counted from the end: `D::Minus1` is the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum D {
    /// The last dimension.
    Minus1,
    /// The last but one.
    Minus2,
    /// The n-th from the end, from 1.
    Minus(usize),
}

impl D {
    fn distance_from_end(&self) -> usize {
        match self {
            Self::Minus1 => 1,
            Self::Minus2 => 2,
            Self::Minus(n) => *n,
        }
    }

    /// The index among `len` positions, of which the last is `Minus1`.
    fn index_among(&self, len: usize, shape: &Shape, op: &'static str) -> Result<usize> {
        match self.distance_from_end() {
            n @ 1.. if n <= len => Ok(len - n),
            n => Err(out_of_range(shape, n, -1, op)),
        }
    }
}

impl Dim for D {
    fn to_index(&self, shape: &Shape, op: &'static str) -> Result<usize> {
        self.index_among(shape.rank(), shape, op)
    }

    fn to_index_plus_one(&self, shape: &Shape, op: &'static str) -> Result<usize> {
        self.index_among(shape.rank() + 1, shape, op)
    }
}

fn out_of_range(shape: &Shape, dim: usize, sign: i32, op: &'static str) -> Error {
    Error::DimOutOfRange {
        shape: shape.clone(),
        dim: i32::try_from(dim).unwrap_or(i32::MAX) * sign,
        op,
    }
    .bt()
}

/// A type that identifies several dimensions: one [`Dim`], a tuple, an array, a slice or a vector.
pub trait Dims: Sized {
    /// The indices, not yet checked against each other.
    ///
    /// # Errors
    /// When a dimension cannot be resolved.
    fn to_indexes_internal(self, shape: &Shape, op: &'static str) -> Result<Vec<usize>>;

    /// The indices, each within the shape and none twice.
    ///
    /// # Errors
    /// When a dimension is out of range or appears twice; the error names `op`.
    fn to_indexes(self, shape: &Shape, op: &'static str) -> Result<Vec<usize>> {
        let dims = self.to_indexes_internal(shape, op)?;
        for (i, dim) in dims.iter().enumerate() {
            dim.to_index(shape, op)?;
            if dims[..i].contains(dim) {
                return Err(Error::DuplicateDimIndex {
                    shape: shape.clone(),
                    dims: dims.clone(),
                    op,
                }
                .bt());
            }
        }
        Ok(dims)
    }
}

impl Dims for Vec<usize> {
    fn to_indexes_internal(self, _: &Shape, _: &'static str) -> Result<Vec<usize>> {
        Ok(self)
    }
}

impl<const N: usize> Dims for [usize; N] {
    fn to_indexes_internal(self, _: &Shape, _: &'static str) -> Result<Vec<usize>> {
        Ok(self.to_vec())
    }
}

impl Dims for &[usize] {
    fn to_indexes_internal(self, _: &Shape, _: &'static str) -> Result<Vec<usize>> {
        Ok(self.to_vec())
    }
}

impl Dims for () {
    fn to_indexes_internal(self, _: &Shape, _: &'static str) -> Result<Vec<usize>> {
        Ok(vec![])
    }
}

impl<D: Dim + Sized> Dims for D {
    fn to_indexes_internal(self, shape: &Shape, op: &'static str) -> Result<Vec<usize>> {
        Ok(vec![self.to_index(shape, op)?])
    }
}

macro_rules! dims_from_tuple {
    ($($t:ident $d:ident),+) => {
        impl<$($t: Dim),+> Dims for ($($t,)+) {
            fn to_indexes_internal(self, shape: &Shape, op: &'static str) -> Result<Vec<usize>> {
                let ($($d,)+) = self;
                Ok(vec![$($d.to_index(shape, op)?),+])
            }
        }
    };
}

dims_from_tuple!(D d);
dims_from_tuple!(D1 d1, D2 d2);
dims_from_tuple!(D1 d1, D2 d2, D3 d3);
dims_from_tuple!(D1 d1, D2 d2, D3 d3, D4 d4);
dims_from_tuple!(D1 d1, D2 d2, D3 d3, D4 d4, D5 d5);
dims_from_tuple!(D1 d1, D2 d2, D3 d3, D4 d4, D5 d5, D6 d6);

/// A shape in which one size may be left open as `()` and is computed from the number of elements.
///
/// ```
/// use candle_core::{Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let t = Tensor::arange(0u32, 12, &Device::Cpu)?.reshape((3, ()))?;
/// assert_eq!(t.dims(), &[3, 4]);
/// # Ok(())
/// # }
/// ```
pub trait ShapeWithOneHole {
    /// The full shape for `el_count` elements.
    ///
    /// # Errors
    /// If the given sizes do not divide `el_count`.
    fn into_shape(self, el_count: usize) -> Result<Shape>;
}

impl<S: Into<Shape>> ShapeWithOneHole for S {
    fn into_shape(self, _: usize) -> Result<Shape> {
        Ok(self.into())
    }
}

/// Infers the size between `before` and `after`.
fn fill_hole(el_count: usize, before: &[usize], after: &[usize]) -> Result<Shape> {
    let dims = |hole| [before, &[hole], after].concat();
    match Shape::from(dims(1)).elem_count() {
        known if known != 0 && el_count.is_multiple_of(known) => {
            Ok(Shape::from(dims(el_count / known)))
        }
        _ => crate::bail!(
            "cannot reshape {el_count} elements to {before:?} + (open size) + {after:?}"
        ),
    }
}

macro_rules! shape_with_hole {
    ($($before:ident),*; $($after:ident),*) => {
        impl ShapeWithOneHole for ($(size_of_dim!($before),)* (), $(size_of_dim!($after),)*) {
            fn into_shape(self, el_count: usize) -> Result<Shape> {
                let ($($before,)* (), $($after,)*) = self;
                fill_hole(el_count, &[$($before),*], &[$($after),*])
            }
        }
    };
}

shape_with_hole!(;);
shape_with_hole!(; d1);
shape_with_hole!(d1;);
shape_with_hole!(; d1, d2);
shape_with_hole!(d1; d2);
shape_with_hole!(d1, d2;);
shape_with_hole!(; d1, d2, d3);
shape_with_hole!(d1; d2, d3);
shape_with_hole!(d1, d2; d3);
shape_with_hole!(d1, d2, d3;);
shape_with_hole!(; d1, d2, d3, d4);
shape_with_hole!(d1; d2, d3, d4);
shape_with_hole!(d1, d2; d3, d4);
shape_with_hole!(d1, d2, d3; d4);
shape_with_hole!(d1, d2, d3, d4;);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_of_sizes_one_do_not_matter() {
        let shape = Shape::from((1, 3, 1, 2));
        assert_eq!(*shape.stride_contiguous(), [6, 2, 2, 1]);
        assert!(shape.is_contiguous(&[100, 2, 7, 1]));
        assert!(!shape.is_contiguous(&[6, 3, 2, 1]));
        let empty = Shape::from((2, 0, 3));
        assert!(empty.is_contiguous(&empty.stride_contiguous()));
        assert!(empty.is_contiguous(&[0, 9, 1]));
        assert!(!empty.is_contiguous(&[12, 1, 4]));
        assert!(!empty.is_fortran_contiguous(&[12, 1, 4]));
        assert!(Shape::from((2, 3)).is_fortran_contiguous(&[1, 2]));
    }

    #[test]
    fn hostile_sizes_are_counted_without_overflow() {
        let shape = Shape::from((usize::MAX, 2));
        assert_eq!(shape.elem_count(), usize::MAX);
        assert!(shape.checked_byte_count(4).is_err());
        assert_eq!(Shape::from((usize::MAX, 2, 0)).elem_count(), 0);
    }

    #[test]
    fn dims_from_the_end() {
        let shape = Shape::from((2, 3, 4));
        assert_eq!(shape.dim(D::Minus1).unwrap(), 4);
        assert_eq!(shape.dim(D::Minus(3)).unwrap(), 2);
        assert!(shape.dim(D::Minus(0)).is_err());
        assert!(shape.dim(D::Minus(4)).is_err());
        assert_eq!(D::Minus1.to_index_plus_one(&shape, "test").unwrap(), 3);
        assert!((0, D::Minus(3)).to_indexes(&shape, "test").is_err());
    }

    #[test]
    fn broadcasting() {
        let shape = Shape::from((4, 1, 3));
        let out = shape
            .broadcast_shape_binary_op(&Shape::from((5, 1)), "test")
            .unwrap();
        assert_eq!(out.dims(), [4, 5, 3]);
        assert!(shape
            .broadcast_shape_binary_op(&Shape::from(2), "test")
            .is_err());
        let (l, r) = Shape::from((2, 1, 5, 6))
            .broadcast_shape_matmul(&Shape::from((3, 6, 7)))
            .unwrap();
        assert_eq!(l.dims(), [2, 3, 5, 6]);
        assert_eq!(r.dims(), [2, 3, 6, 7]);
        assert!(Shape::from((5, 6))
            .broadcast_shape_matmul(&Shape::from((5, 7)))
            .is_err());
    }
}
