//! Selection and replacement of elements by index: by tensors of indices (u8, u32 or i64) and by ranges.

use std::ops::RangeBounds;

use crate::indexer::resolve_range;
use crate::op::{BackpropOp, Op};
use crate::shape::Dim;
use crate::{Error, Layout, Result, Storage, Tensor};

/// The effect of a scattered value on the old element.
#[derive(Clone, Copy)]
enum Scatter {
    Replace,
    Add,
}

impl Scatter {
    fn name(self) -> &'static str {
        match self {
            Self::Replace => "scatter",
            Self::Add => "scatter-add",
        }
    }

    fn run(
        self,
        dst: &mut Storage,
        dst_l: &Layout,
        (ids, ids_l): (&Storage, &Layout),
        (src, src_l): (&Storage, &Layout),
        dim: usize,
    ) -> Result<()> {
        match self {
            Self::Replace => dst.scatter_set(dst_l, ids, ids_l, src, src_l, dim),
            Self::Add => dst.scatter_add_set(dst_l, ids, ids_l, src, src_l, dim),
        }
    }
}

impl Tensor {
    /// The error for two tensors whose shapes do not match.
    fn shapes_mismatch(&self, rhs: &Self, op: &'static str) -> Error {
        Error::ShapeMismatchBinaryOp {
            lhs: self.shape().clone(),
            rhs: rhs.shape().clone(),
            op,
        }
        .bt()
    }

    /// An error unless both have the same rank and equal sizes except in `dim`.
    fn same_dims_except(&self, rhs: &Self, dim: usize, op: &'static str) -> Result<()> {
        if self.rank() == rhs.rank() && self.shape_with(dim, 0) == rhs.shape_with(dim, 0) {
            Ok(())
        } else {
            Err(self.shapes_mismatch(rhs, op))
        }
    }

    /// Selects one element along `dim` for each index: with `dim` 1, `out[i][j] = self[i][indexes[i][j]]`. The result has the shape of
    /// `indexes`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let ids = Tensor::new(&[[1u32], [0]], &Device::Cpu)?;
    /// assert_eq!(t.gather(&ids, 1)?.to_vec2::<f32>()?, [[2.], [3.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When ranks differ, `indexes` is larger in another dimension, or an index is out of range.
    pub fn gather<D: Dim>(&self, indexes: &Self, dim: D) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "gather")?;
        self.same_device(&[indexes], "gather")?;
        if self.rank() != indexes.rank() {
            return Err(self.shapes_mismatch(indexes, "gather"));
        }
        // Rows without indices do not enter the result.
        let mut source = self.clone();
        for (i, &len) in indexes.dims().iter().enumerate() {
            if i != dim {
                let mismatch = |_| self.shapes_mismatch(indexes, "gather");
                source = source.narrow(i, 0, len).map_err(mismatch)?;
            }
        }
        let storage =
            source
                .storage()
                .gather(source.layout(), &indexes.storage(), indexes.layout(), dim)?;
        let op = BackpropOp::new2(&source, indexes, |t, ids| Op::Gather(t, ids, dim));
        Ok(Self::from_storage(storage, indexes.shape(), op, false))
    }

    fn check_scatter(
        &self,
        indexes: &Self,
        source: &Self,
        dim: usize,
        op: &'static str,
    ) -> Result<()> {
        self.same_kind(source, op)?;
        self.same_device(&[indexes], op)?;
        if indexes.shape() != source.shape() {
            return Err(indexes.shapes_mismatch(source, op));
        }
        self.same_dims_except(source, dim, op)
    }

    /// The body of `scatter` and `scatter_add`: scatters into a copy.
    fn scattered<D: Dim>(
        &self,
        indexes: &Self,
        source: &Self,
        dim: D,
        how: Scatter,
    ) -> Result<Self> {
        let op = how.name();
        let dim = dim.to_index(self.shape(), op)?;
        self.check_scatter(indexes, source, dim, op)?;
        let mut storage = self.copied_storage()?;
        let ids = (&*indexes.storage(), indexes.layout());
        let src = (&*source.storage(), source.layout());
        how.run(
            &mut storage,
            &Layout::contiguous(self.shape()),
            ids,
            src,
            dim,
        )?;
        let op = BackpropOp::new3(self, indexes, source, |t, ids, src| match how {
            Scatter::Replace => Op::Scatter(t, ids, src, dim),
            Scatter::Add => Op::ScatterAdd(t, ids, src, dim),
        });
        Ok(Self::from_storage(storage, self.shape(), op, false))
    }

    /// The body of `scatter_set` and `scatter_add_set`: scatters into this tensor.
    fn scatter_in_place<D: Dim>(
        &self,
        indexes: &Self,
        source: &Self,
        dim: D,
        how: Scatter,
        op: &'static str,
    ) -> Result<()> {
        let dim = dim.to_index(self.shape(), op)?;
        self.check_scatter(indexes, source, dim, op)?;
        let (mut dst, [ids, src]) = self.lock_for_write([indexes, source], op)?;
        let (ids, src) = ((&*ids, indexes.layout()), (&*src, source.layout()));
        how.run(&mut dst, self.layout(), ids, src, dim)
    }

    /// A copy in which `source` replaces elements: with `dim` 1, `out[i][indexes[i][j]] = source[i][j]`. If several values have the same
    /// index, the result contains one of them.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let ids = Tensor::new(&[[2u32], [0]], &Device::Cpu)?;
    /// let source = Tensor::new(&[[5f32], [7.]], &Device::Cpu)?;
    /// assert_eq!(t.scatter(&ids, &source, 1)?.to_vec2::<f32>()?, [[0., 0., 5.], [7., 0., 0.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the shapes of `indexes` and `source` differ, those of `source` and this tensor differ in another dimension, dtypes or devices
    /// differ, or an index is out of range.
    pub fn scatter<D: Dim>(&self, indexes: &Self, source: &Self, dim: D) -> Result<Self> {
        self.scattered(indexes, source, dim, Scatter::Replace)
    }

    /// Like [`Tensor::scatter`], in place and without gradients.
    ///
    /// # Errors
    /// As for `scatter`, and when an argument shares this tensor's storage.
    pub fn scatter_set<D: Dim>(&self, indexes: &Self, source: &Self, dim: D) -> Result<()> {
        self.scatter_in_place(indexes, source, dim, Scatter::Replace, "scatter-set")
    }

    /// A copy to which `source` is added: with `dim` 1, `out[i][indexes[i][j]] += source[i][j]`.
    ///
    /// # Errors
    /// As for [`Tensor::scatter`].
    pub fn scatter_add<D: Dim>(&self, indexes: &Self, source: &Self, dim: D) -> Result<Self> {
        self.scattered(indexes, source, dim, Scatter::Add)
    }

    /// Like [`Tensor::scatter_add`], in place and without gradients.
    ///
    /// # Errors
    /// As for `scatter`, and when an argument shares this tensor's storage.
    pub fn scatter_add_set<D: Dim>(&self, indexes: &Self, source: &Self, dim: D) -> Result<()> {
        self.scatter_in_place(indexes, source, dim, Scatter::Add, "scatter-add-set")
    }

    /// A copy to which slices of `source` are added: with `dim` 0, `out[indexes[i]] += source[i]`.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?;
    /// let (ids, rows) = (Tensor::new(&[1u32, 1], &Device::Cpu)?, Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?);
    /// assert_eq!(t.index_add(&ids, &rows, 0)?.to_vec2::<f32>()?, [[0., 0.], [4., 6.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If `indexes` is not a vector with the length of `source` in `dim`, shapes differ in another dimension, dtypes or devices differ, or
    /// an index is out of range.
    pub fn index_add<D: Dim>(&self, indexes: &Self, source: &Self, dim: D) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "index-add")?;
        self.same_kind(source, "index-add")?;
        self.same_device(&[indexes], "index-add")?;
        self.same_dims_except(source, dim, "index-add")?;
        if indexes.dims1()? != source.dims()[dim] {
            return Err(indexes.shapes_mismatch(source, "index-add"));
        }
        let storage = self.storage().index_add(
            self.layout(),
            &indexes.storage(),
            indexes.layout(),
            &source.storage(),
            source.layout(),
            dim,
        )?;
        let op = BackpropOp::new3(self, indexes, source, |t, ids, src| {
            Op::IndexAdd(t, ids, src, dim)
        });
        Ok(Self::from_storage(storage, self.shape(), op, false))
    }

    /// Slices along a dimension in the order of `indexes`, a vector.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let ids = Tensor::new(&[1u32, 1, 0], &Device::Cpu)?;
    /// assert_eq!(t.index_select(&ids, 0)?.to_vec2::<f32>()?, [[3., 4.], [3., 4.], [1., 2.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If `indexes` is not a vector, or an index is out of range.
    pub fn index_select<D: Dim>(&self, indexes: &Self, dim: D) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "index-select")?;
        self.same_device(&[indexes], "index-select")?;
        let shape = self.shape_with(dim, indexes.dims1()?);
        let storage = self.storage().index_select(
            &indexes.storage(),
            self.layout(),
            indexes.layout(),
            dim,
        )?;
        let op = BackpropOp::new2(self, indexes, |t, ids| Op::IndexSelect(t, ids, dim));
        Ok(Self::from_storage(storage, shape, op, false))
    }

    /// The rows of a matrix `(vocabulary, hidden)` by index: ids of shape `(...)` give `(..., hidden)`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let table = Tensor::new(&[[1f32, 2.], [3., 4.]], &Device::Cpu)?;
    /// let ids = Tensor::new(&[[1u32], [0]], &Device::Cpu)?;
    /// assert_eq!(table.embedding(&ids)?.to_vec3::<f32>()?, [[[3., 4.]], [[1., 2.]]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If this tensor is not a matrix, or an index is out of range.
    pub fn embedding(&self, ids: &Self) -> Result<Self> {
        let (_, hidden) = self.dims2()?;
        let rows = self.index_select(&ids.flatten_all()?, 0)?;
        rows.reshape(ids.shape().clone().extend(&[hidden]))
    }

    /// The i-th part along the first dimension, without that dimension; a scalar returns itself.
    ///
    /// # Errors
    /// If the index is out of range.
    pub fn get(&self, i: usize) -> Result<Tensor> {
        match self.dims() {
            [] => Ok(self.clone()),
            [_, rest @ ..] => self.narrow(0, i, 1)?.reshape(rest),
        }
    }

    /// The part at `index` along a dimension, without that dimension.
    ///
    /// # Errors
    /// When the dimension or the index is out of range.
    pub fn get_on_dim<D: Dim>(&self, dim: D, index: usize) -> Result<Tensor> {
        let dim = dim.to_index(self.shape(), "get_on_dim")?;
        self.narrow(dim, index, 1)?.squeeze(dim)
    }

    /// Checks that `src` fits into this tensor from `start` on along `dim`.
    fn check_slice(&self, src: &Self, dim: usize, start: usize, op: &'static str) -> Result<()> {
        self.same_kind(src, op)?;
        self.same_dims_except(src, dim, op)?;
        let (len, size) = (src.dims()[dim], self.dims()[dim]);
        if start.checked_add(len).is_none_or(|end| end > size) {
            crate::bail!(
                "{op}: {len} indices from {start} on do not fit into dimension {dim} of {:?}",
                self.shape()
            )
        }
        Ok(())
    }

    /// A copy in which `src` replaces the part from `start` on along a dimension.
    ///
    /// # Errors
    /// When `src` does not fit, or dtypes or devices differ.
    pub fn slice_scatter<D: Dim>(&self, src: &Self, dim: D, start: usize) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "slice-scatter")?;
        self.check_slice(src, dim, start, "slice-scatter")?;
        if dim == 0 {
            return self.slice_scatter0(src, start);
        }
        let swapped = self
            .transpose(0, dim)?
            .slice_scatter0(&src.transpose(0, dim)?, start)?;
        swapped.transpose(0, dim)
    }

    /// A copy in which `src` replaces the part from `start` on along the first dimension.
    ///
    /// # Errors
    /// When `src` does not fit, or dtypes or devices differ.
    pub fn slice_scatter0(&self, src: &Self, start: usize) -> Result<Self> {
        0.to_index(self.shape(), "slice-scatter")?;
        self.check_slice(src, 0, start, "slice-scatter")?;
        let mut storage = self.copied_storage()?;
        src.copy_into(&mut storage, &Layout::contiguous(self.shape()), 0, start)?;
        let op = BackpropOp::new2(self, src, |t, src| Op::SliceScatter0(t, src, start));
        Ok(Self::from_storage(storage, self.shape(), op, false))
    }

    /// A copy in which `src` replaces the part selected by one range per dimension. `src` has the shape of that part.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// let src = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
    /// let t = t.slice_assign(&[1..2, 0..2], &src)?;
    /// assert_eq!(t.to_vec2::<f32>()?, [[0., 0., 0.], [1., 2., 0.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there is not one range per dimension, a range exceeds its dimension, or `src` has another shape.
    pub fn slice_assign<D: RangeBounds<usize>>(&self, ranges: &[D], src: &Tensor) -> Result<Self> {
        self.same_kind(src, "slice-assign")?;
        if ranges.len() != self.rank() || src.rank() != self.rank() {
            crate::bail!(
                "slice-assign: {} ranges and a source of shape {:?} for a tensor of shape {:?}",
                ranges.len(),
                src.shape(),
                self.shape()
            )
        }
        let mut starts = vec![];
        for (i, range) in ranges.iter().enumerate() {
            let (start, end) = resolve_range(range, self.dims()[i]);
            if start > end || end > self.dims()[i] || end - start != src.dims()[i] {
                crate::bail!(
                    "slice-assign: dimension {i} from {start} to {end} has {} indices, but the source has {}",
                    self.dims()[i],
                    src.dims()[i]
                )
            }
            starts.push(start);
        }
        self.assign_from(src, &starts, 0)
    }

    /// Replaces the part at `starts`; the dimensions before `dim` already match.
    fn assign_from(&self, src: &Self, starts: &[usize], dim: usize) -> Result<Self> {
        if self.shape() == src.shape() {
            return Ok(src.clone());
        }
        let part = self.narrow(dim, starts[dim], src.dims()[dim])?;
        let part = part.assign_from(src, starts, dim + 1)?;
        if part.shape() == self.shape() {
            return Ok(part);
        }
        self.slice_scatter(&part, dim, starts[dim])
    }

    /// Copies `src` in place to the indices from `offset` on along a dimension. Tensors that share the elements see the
    /// change; gradients do not.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let cache = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
    /// cache.slice_set(&Tensor::new(&[[5f32], [6.]], &Device::Cpu)?, 1, 2)?;
    /// assert_eq!(cache.to_vec2::<f32>()?, [[0., 0., 5.], [0., 0., 6.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If one of them is not contiguous, they share a storage, `src` does not fit, or dtypes or devices differ.
    pub fn slice_set<D: Dim>(&self, src: &Self, dim: D, offset: usize) -> Result<()> {
        let dim = dim.to_index(self.shape(), "slice-set")?;
        if !self.is_contiguous() || !src.is_contiguous() {
            return Err(Error::RequiresContiguous { op: "slice-set" }.bt());
        }
        self.check_slice(src, dim, offset, "slice-set")?;
        let (mut dst, _src) = self.lock_for_write([src], "slice-set")?;
        src.copy_into(&mut dst, self.layout(), dim, offset)
    }
}
