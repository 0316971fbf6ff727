//! `t.i(...)`: one index, range or list of indices per dimension.

use std::ops::{
    Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive,
};

use crate::{Device, Error, Result, Tensor};

/// First index and end of a range within a dimension of `size`; not yet checked against it.
pub(crate) fn resolve_range(range: &impl RangeBounds<usize>, size: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => size,
    };
    (start, end)
}

/// A selection along one dimension.
#[derive(Debug)]
pub enum TensorIndexer {
    /// One index; removes the dimension.
    Select(usize),
    /// A range of indices.
    Narrow(Bound<usize>, Bound<usize>),
    /// The indices in a vector of them.
    IndexSelect(Tensor),
    /// The indices could not be converted to a tensor.
    Err(Error),
}

impl From<usize> for TensorIndexer {
    fn from(index: usize) -> Self {
        Self::Select(index)
    }
}

impl From<&[u32]> for TensorIndexer {
    fn from(index: &[u32]) -> Self {
        match Tensor::new(index, &Device::Cpu) {
            Ok(tensor) => Self::IndexSelect(tensor),
            Err(err) => Self::Err(err),
        }
    }
}

impl From<Vec<u32>> for TensorIndexer {
    fn from(index: Vec<u32>) -> Self {
        Self::from(index.as_slice())
    }
}

impl From<&Tensor> for TensorIndexer {
    fn from(tensor: &Tensor) -> Self {
        Self::IndexSelect(tensor.clone())
    }
}

/// Ranges of `usize`. With the standard trait itself, type inference would be ambiguous for other index types.
pub trait RB: RangeBounds<usize> {}

impl RB for Range<usize> {}
impl RB for RangeFrom<usize> {}
impl RB for RangeFull {}
impl RB for RangeInclusive<usize> {}
impl RB for RangeTo<usize> {}
impl RB for RangeToInclusive<usize> {}

impl<T: RB> From<T> for TensorIndexer {
    fn from(range: T) -> Self {
        Self::Narrow(range.start_bound().cloned(), range.end_bound().cloned())
    }
}

impl Tensor {
    /// Applies one indexer per dimension, from the first on. Dimensions without one stay as they are.
    fn index(&self, indexers: &[TensorIndexer]) -> Result<Self> {
        if indexers.len() > self.rank() {
            crate::bail!(
                "{} indices for a tensor of shape {:?}",
                indexers.len(),
                self.shape()
            )
        }
        let mut out = self.clone();
        let mut dim = 0;
        for indexer in indexers {
            match indexer {
                TensorIndexer::Select(index) => {
                    out = out.get_on_dim(dim, *index)?;
                    continue;
                }
                TensorIndexer::Narrow(start, end) => {
                    let (start, end) = resolve_range(&(*start, *end), out.dims()[dim]);
                    out = out.narrow(dim, start, end.saturating_sub(start))?;
                }
                TensorIndexer::IndexSelect(indices) => {
                    if indices.rank() != 1 {
                        crate::bail!("indices must be a vector, got shape {:?}", indices.shape())
                    }
                    out = out.index_select(&indices.to_device(out.device())?, dim)?;
                }
                TensorIndexer::Err(err) => crate::bail!("bad indices: {err}"),
            }
            dim += 1;
        }
        Ok(out)
    }
}

/// Indexing by one value or a tuple of them, one per dimension: numbers, ranges, slices of `u32` or tensors.
///
/// ```
/// use candle_core::{Device, IndexOp, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let t = Tensor::arange(0u32, 12, &Device::Cpu)?.reshape((3, 4))?;
/// assert_eq!(t.i(1)?.to_vec1::<u32>()?, [4, 5, 6, 7]);
/// assert_eq!(t.i((.., 2))?.to_vec1::<u32>()?, [2, 6, 10]);
/// assert_eq!(t.i((1.., ..2))?.to_vec2::<u32>()?, [[4, 5], [8, 9]]);
/// assert_eq!(t.i((0, &[3u32, 0][..]))?.to_vec1::<u32>()?, [3, 0]);
/// # Ok(())
/// # }
/// ```
pub trait IndexOp<T> {
    /// The part at `index`. Numbers and ranges return views, lists of indices copies.
    ///
    /// # Errors
    /// If an index is out of range, or there are more indexers than dimensions.
    fn i(&self, index: T) -> std::result::Result<Tensor, Error>;
}

impl<T> IndexOp<T> for Tensor
where
    T: Into<TensorIndexer>,
{
    fn i(&self, index: T) -> std::result::Result<Tensor, Error> {
        self.index(&[index.into()])
    }
}

macro_rules! index_by_tuple {
    ($($t:ident $i:ident),+) => {
        impl<$($t),+> IndexOp<($($t,)+)> for Tensor
        where
            $($t: Into<TensorIndexer>),+
        {
            fn i(&self, ($($i,)+): ($($t,)+)) -> std::result::Result<Tensor, Error> {
                self.index(&[$($i.into()),+])
            }
        }
    };
}

index_by_tuple!(A a);
index_by_tuple!(A a, B b);
index_by_tuple!(A a, B b, C c);
index_by_tuple!(A a, B b, C c, D d);
index_by_tuple!(A a, B b, C c, D d, E e);
index_by_tuple!(A a, B b, C c, D d, E e, F f);
index_by_tuple!(A a, B b, C c, D d, E e, F f, G g);
