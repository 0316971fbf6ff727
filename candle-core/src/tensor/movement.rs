//! Views, copies, concatenation and other data movement.

use super::create::alloc_uninit;
use crate::op::{BackpropOp, Op};
use crate::shape::{Dim, Dims, ShapeWithOneHole, D};
use crate::{Error, Layout, Result, Shape, Storage, StridedBlocks, Tensor};

impl Tensor {
    /// A contiguous copy of the elements, in a new storage.
    pub(super) fn copied_storage(&self) -> Result<Storage> {
        // SAFETY: the copy writes every element.
        let mut storage = unsafe { alloc_uninit(self.shape(), self.dtype(), self.device())? };
        self.storage()
            .copy_strided_src(&mut storage, 0, self.layout())?;
        Ok(storage)
    }

    /// The same elements in row-major order in another shape. One size may be left open as `()`. A contiguous tensor
    /// shares its storage with the result, any other is copied.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::arange(0u32, 6, &Device::Cpu)?;
    /// assert_eq!(t.reshape((2, 3))?.to_vec2::<u32>()?, [[0, 1, 2], [3, 4, 5]]);
    /// // One dimension may be left to the number of elements.
    /// assert_eq!(t.reshape((3, ()))?.dims(), &[3, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the shape has another number of elements.
    pub fn reshape<S: ShapeWithOneHole>(&self, s: S) -> Result<Tensor> {
        let shape = s.into_shape(self.elem_count())?;
        if shape.elem_count() != self.elem_count() {
            return Err(Error::ShapeMismatchBinaryOp {
                lhs: self.shape().clone(),
                rhs: shape,
                op: "reshape",
            }
            .bt());
        }
        let op = BackpropOp::new1(self, Op::Reshape);
        if self.is_contiguous() {
            let layout = Layout::contiguous_with_offset(shape, self.layout().start_offset());
            return Ok(self.view(layout, op));
        }
        Ok(Self::from_storage(self.copied_storage()?, shape, op, false))
    }

    /// Swaps two dimensions.
    ///
    /// # Errors
    /// If a dimension does not exist.
    pub fn transpose<D1: Dim, D2: Dim>(&self, dim1: D1, dim2: D2) -> Result<Tensor> {
        let dim1 = dim1.to_index(self.shape(), "transpose")?;
        let dim2 = dim2.to_index(self.shape(), "transpose")?;
        if dim1 == dim2 {
            return Ok(self.clone());
        }
        let op = BackpropOp::new1(self, |t| Op::Transpose(t, dim1, dim2));
        Ok(self.view(self.layout().transpose(dim1, dim2)?, op))
    }

    /// Swaps the last two dimensions.
    ///
    /// # Errors
    /// When there are fewer than two.
    pub fn t(&self) -> Result<Tensor> {
        if self.rank() < 2 {
            return Err(Error::UnexpectedNumberOfDims {
                expected: 2,
                got: self.rank(),
                shape: self.shape().clone(),
            }
            .bt());
        }
        self.transpose(D::Minus2, D::Minus1)
    }

    /// Orders the dimensions: dimension `i` of the result is the i-th in `dims`.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::zeros((2, 3, 4), DType::F32, &Device::Cpu)?;
    /// assert_eq!(t.permute((2, 0, 1))?.dims(), &[4, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When `dims` is not a permutation of all dimensions.
    pub fn permute<D: Dims>(&self, dims: D) -> Result<Tensor> {
        let dims = dims.to_indexes(self.shape(), "permute")?;
        let layout = self.layout().permute(&dims)?;
        let op = BackpropOp::new1(self, |t| Op::Permute(t, dims));
        Ok(self.view(layout, op))
    }

    /// The part from `start` to `start + len` along a dimension.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::arange(0u32, 5, &Device::Cpu)?;
    /// assert_eq!(t.narrow(0, 1, 3)?.to_vec1::<u32>()?, [1, 2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the dimension does not exist or has fewer indices.
    pub fn narrow<D: Dim>(&self, dim: D, start: usize, len: usize) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "narrow")?;
        let layout = self.layout().narrow(dim, start, len)?;
        if self.dims()[dim] == len {
            return Ok(self.clone());
        }
        let op = BackpropOp::new1(self, |t| Op::Narrow(t, dim, start, len));
        Ok(self.view(layout, op))
    }

    /// Parts of nearly equal size along a dimension. When they cannot be equal, the first ones are longer by one; when
    /// there are fewer indices than parts, there is a part for each index.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let parts = Tensor::arange(0u32, 5, &Device::Cpu)?.chunk(2, 0)?;
    /// assert_eq!(parts[0].to_vec1::<u32>()?, [0, 1, 2]);
    /// assert_eq!(parts[1].to_vec1::<u32>()?, [3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the dimension does not exist or `chunks` is 0.
    pub fn chunk<D: Dim>(&self, chunks: usize, dim: D) -> Result<Vec<Self>> {
        let dim = dim.to_index(self.shape(), "chunk")?;
        let size = self.dims()[dim];
        if chunks == 0 {
            crate::bail!("chunk: cannot split {:?} into 0 parts", self.shape())
        }
        let count = chunks.min(size);
        let (len, longer) = match count {
            0 => (0, 0),
            _ => (size / count, size % count),
        };
        let part =
            |i: usize| self.narrow(dim, i * len + i.min(longer), len + usize::from(i < longer));
        (0..count).map(part).collect()
    }

    /// Broadcasts: repeats dimensions of size 1, and new ones on the left, without copying.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let row = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(row.broadcast_as((2, 2))?.to_vec2::<f32>()?, [[1., 2.], [1., 2.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When a dimension of another size would have to change.
    pub fn broadcast_as<S: Into<Shape>>(&self, shape: S) -> Result<Self> {
        let layout = self.layout().broadcast_as(shape)?;
        Ok(self.view(layout, BackpropOp::new1(self, Op::Broadcast)))
    }

    /// The same as [`Tensor::broadcast_as`].
    pub fn expand<S: Into<Shape>>(&self, shape: S) -> Result<Self> {
        self.broadcast_as(shape)
    }

    /// Repeats the tensor in new dimensions on the left, without copying.
    pub fn broadcast_left<S: Into<Shape>>(&self, left_shape: S) -> Result<Self> {
        self.broadcast_as(left_shape.into().extend(self.dims()))
    }

    /// Removes a dimension of size 1. A dimension of another size is kept.
    ///
    /// ```
    /// use candle_core::{Device, Tensor, D};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[[1f32, 2.]], &Device::Cpu)?;
    /// assert_eq!(t.squeeze(0)?.dims(), &[2]);
    /// assert_eq!(t.unsqueeze(D::Minus1)?.dims(), &[1, 2, 1]);
    /// assert_eq!(t.flatten_all()?.dims(), &[2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn squeeze<D: Dim>(&self, dim: D) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "squeeze")?;
        if self.dims()[dim] != 1 {
            return Ok(self.clone());
        }
        let (mut dims, mut stride) = (self.dims().to_vec(), self.stride().to_vec());
        dims.remove(dim);
        stride.remove(dim);
        Ok(self.reshaped_view(dims, stride))
    }

    /// Inserts a dimension of size 1 before `dim`, which may be one past the last.
    ///
    /// # Errors
    /// When the position is out of range.
    pub fn unsqueeze<D: Dim>(&self, dim: D) -> Result<Self> {
        let dim = dim.to_index_plus_one(self.shape(), "unsqueeze")?;
        let (mut dims, mut stride) = (self.dims().to_vec(), self.stride().to_vec());
        dims.insert(dim, 1);
        stride.insert(dim, stride.get(dim).copied().unwrap_or(1));
        Ok(self.reshaped_view(dims, stride))
    }

    /// A view with another shape and with strides that give the same elements in the same order.
    fn reshaped_view(&self, dims: Vec<usize>, stride: Vec<usize>) -> Self {
        let layout = Layout::new(Shape::from(dims), stride, self.layout().start_offset());
        self.view(layout, BackpropOp::new1(self, Op::Reshape))
    }

    /// Merges the dimensions from `start_dim` to `end_dim` (inclusive) into one.
    ///
    /// # Errors
    /// When a dimension does not exist.
    pub fn flatten<D1: Dim, D2: Dim>(&self, start_dim: D1, end_dim: D2) -> Result<Tensor> {
        if self.rank() == 0 {
            return self.reshape(1);
        }
        let start = start_dim.to_index(self.shape(), "flatten")?;
        let end = end_dim.to_index(self.shape(), "flatten")?;
        if start >= end {
            return Ok(self.clone());
        }
        let (dims, flat) = (self.dims(), self.dims()[start..=end].iter().product());
        self.reshape([&dims[..start], &[flat], &dims[end + 1..]].concat())
    }

    /// Merges the dimensions up to `end_dim` (inclusive) into one.
    ///
    /// # Errors
    /// When the dimension does not exist.
    pub fn flatten_to<D: Dim>(&self, end_dim: D) -> Result<Tensor> {
        self.flatten(0, end_dim)
    }

    /// Merges the dimensions from `start_dim` on into one.
    ///
    /// # Errors
    /// When the dimension does not exist.
    pub fn flatten_from<D: Dim>(&self, start_dim: D) -> Result<Tensor> {
        self.flatten(start_dim, crate::D::Minus1)
    }

    /// Merges all dimensions into one.
    pub fn flatten_all(&self) -> Result<Tensor> {
        self.reshape(self.elem_count())
    }

    /// A contiguous (row-major) tensor with the same elements; the tensor itself if it is contiguous already.
    pub fn contiguous(&self) -> Result<Tensor> {
        if self.is_contiguous() {
            Ok(self.clone())
        } else {
            self.force_contiguous()
        }
    }

    /// A contiguous (row-major) copy.
    pub fn force_contiguous(&self) -> Result<Tensor> {
        let op = BackpropOp::new1(self, Op::Copy);
        Ok(Self::from_storage(
            self.copied_storage()?,
            self.shape(),
            op,
            false,
        ))
    }

    /// A copy that shares no elements with this tensor.
    pub fn copy(&self) -> Result<Tensor> {
        self.force_contiguous()
    }

    /// Concatenates tensors along a dimension.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let a = Tensor::new(&[[1f32], [2.]], &Device::Cpu)?;
    /// let b = Tensor::new(&[[3f32, 4.], [5., 6.]], &Device::Cpu)?;
    /// let both = Tensor::cat(&[&a, &b], 1)?;
    /// assert_eq!(both.to_vec2::<f32>()?, [[1., 3., 4.], [2., 5., 6.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When there is no tensor, a size in another dimension differs, or dtypes or devices do.
    pub fn cat<A: AsRef<Tensor>, D: Dim>(args: &[A], dim: D) -> Result<Self> {
        let first = match args {
            [] => return Err(Error::OpRequiresAtLeastOneTensor { op: "cat" }.bt()),
            [first, ..] => first.as_ref(),
        };
        let dim = dim.to_index(first.shape(), "cat")?;
        if args.len() == 1 {
            return Ok(first.clone());
        }
        let mut cat_size = 0;
        for (n, arg) in args.iter().enumerate() {
            let arg = arg.as_ref();
            first.same_kind(arg, "cat")?;
            let same_rank = arg.rank() == first.rank();
            let sizes = || first.dims().iter().zip(arg.dims()).enumerate();
            if !same_rank || sizes().any(|(i, (l, r))| i != dim && l != r) {
                return Err(Error::ShapeMismatchCat {
                    dim,
                    first_shape: first.shape().clone(),
                    n,
                    nth_shape: arg.shape().clone(),
                }
                .bt());
            }
            cat_size += arg.dims()[dim];
        }
        // If all of them are contiguous with the two dimensions swapped, they are concatenated in that order, without a transposed copy.
        let exchanged = |t: &Tensor| t.transpose(0, dim).ok().filter(Self::is_contiguous);
        let lie_exchanged = dim > 0 && !first.is_contiguous();
        let all = || args.iter().map(|arg| exchanged(arg.as_ref())).collect();
        if let Some(all) = lie_exchanged.then(all).flatten() {
            let all: Vec<Tensor> = all;
            return Self::cat(&all, 0)?.transpose(0, dim);
        }
        let shape = first.shape_with(dim, cat_size);
        // SAFETY: the arguments cover every element.
        let mut storage = unsafe { alloc_uninit(&shape, first.dtype(), first.device())? };
        let dst = Layout::contiguous(&shape);
        let mut start = 0;
        for arg in args {
            let arg = arg.as_ref();
            arg.copy_into(&mut storage, &dst, dim, start)?;
            start += arg.dims()[dim];
        }
        let op = BackpropOp::new(args, |args| Op::Cat(args, dim));
        Ok(Self::from_storage(storage, shape, op, false))
    }

    /// Copies this tensor to the indices from `start` on along `dim` of a row-major `dst`.
    pub(super) fn copy_into(
        &self,
        dst: &mut Storage,
        dst_l: &Layout,
        dim: usize,
        start: usize,
    ) -> Result<()> {
        if self.elem_count() == 0 {
            return Ok(());
        }
        let inner: usize = dst_l.dims()[dim + 1..].iter().product();
        let rows: usize = self.dims()[..dim].iter().product();
        let row_len = self.dims()[dim] * inner;
        let dst_row = dst_l.dims()[dim] * inner;
        let dst_offset = dst_l.start_offset() + start * inner;
        if rows == 1 {
            return self
                .storage()
                .copy_strided_src(dst, dst_offset, self.layout());
        }
        // Rows at a constant stride are copied directly.
        let rows_at = match self.strided_blocks() {
            StridedBlocks::SingleBlock { start_offset, .. } => Some((start_offset, row_len)),
            StridedBlocks::UniformBlocks {
                start_offset,
                block_len,
                count,
                src_stride,
            } if block_len == row_len && count == rows => Some((start_offset, src_stride)),
            _ => None,
        };
        match rows_at {
            Some((src_offset, src_row)) => self
                .storage()
                .copy2d(dst, rows, row_len, src_row, dst_row, src_offset, dst_offset),
            None => self
                .copied_storage()?
                .copy2d(dst, rows, row_len, row_len, dst_row, 0, dst_offset),
        }
    }

    /// Stacks tensors of one shape along a new dimension.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(Tensor::stack(&[&t, &t], 1)?.to_vec2::<f32>()?, [[1., 1.], [2., 2.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When there is no tensor, or shapes, dtypes or devices differ.
    pub fn stack<A: AsRef<Tensor>, D: Dim>(args: &[A], dim: D) -> Result<Self> {
        let first = match args {
            [] => return Err(Error::OpRequiresAtLeastOneTensor { op: "stack" }.bt()),
            [first, ..] => first.as_ref(),
        };
        let dim = dim.to_index_plus_one(first.shape(), "stack")?;
        for arg in args {
            first.same_shape_binary_op(arg.as_ref(), "stack")?;
        }
        if args.len() == 1 || dim == first.rank() {
            let layers = args.iter().map(|arg| arg.as_ref().unsqueeze(dim));
            return Self::cat(&layers.collect::<Result<Vec<_>>>()?, dim);
        }
        // Concatenates along an existing dimension and splits it once, instead of inserting a dimension of size 1 into
        // each tensor.
        let out = Self::cat(args, dim)?;
        let (mut dims, mut stride) = (out.dims().to_vec(), out.stride().to_vec());
        dims[dim] = first.dims()[dim];
        stride.insert(dim, stride[dim] * dims[dim]);
        dims.insert(dim, args.len());
        Ok(out.reshaped_view(dims, stride))
    }

    /// Repeats the tensor along its dimensions by the counts in the shape. Dimensions missing on the left are added; a
    /// shape with fewer dimensions applies to the first ones.
    pub fn repeat<S: Into<Shape>>(&self, shape: S) -> Result<Tensor> {
        let repeats = shape.into();
        let added = repeats.rank().saturating_sub(self.rank());
        let sizes = self.dims().iter().chain(repeats.dims()).copied();
        // Checked first: a copy for the first dimensions is useless if the rest does not fit.
        Shape::from_sizes(sizes).check_elem_count("repeat")?;
        let mut out = self.reshape([&vec![1; added], self.dims()].concat())?;
        for (dim, &count) in repeats.dims().iter().enumerate() {
            if count == 1 {
                continue;
            }
            let mut dims = out.dims().to_vec();
            dims.insert(dim, count);
            let repeated = out.unsqueeze(dim)?.broadcast_as(dims.as_slice())?;
            let both = dims.remove(dim).checked_mul(dims[dim]);
            dims[dim] = match both {
                Some(size) => size,
                None => crate::bail!("repeat: {count} times {:?} is too large", out.shape()),
            };
            out = repeated.reshape(dims)?;
        }
        Ok(out)
    }

    /// Adds zeros before and after along a dimension.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[1f32, 2.], &Device::Cpu)?;
    /// assert_eq!(t.pad_with_zeros(0, 1, 2)?.to_vec1::<f32>()?, [0., 1., 2., 0., 0.]);
    /// assert_eq!(t.pad_with_same(0, 1, 2)?.to_vec1::<f32>()?, [1., 1., 2., 2., 2.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn pad_with_zeros<D: Dim>(&self, dim: D, left: usize, right: usize) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "pad_with_zeros")?;
        let zeros = |len| Self::zeros(self.shape_with(dim, len), self.dtype(), self.device());
        Self::cat(&[zeros(left)?, self.clone(), zeros(right)?], dim)
    }

    /// Repeats the first element before and the last one after along a dimension.
    ///
    /// # Errors
    /// When the dimension is out of range, or it has size 0 and the padding is not 0.
    pub fn pad_with_same<D: Dim>(&self, dim: D, left: usize, right: usize) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "pad_with_same")?;
        if left == 0 && right == 0 {
            return Ok(self.clone());
        }
        let Some(last) = self.dims()[dim].checked_sub(1) else {
            crate::bail!(
                "pad_with_same: dimension {dim} of {:?} has no element to repeat",
                self.shape()
            )
        };
        let edge = |i, len| {
            self.narrow(dim, i, 1)?
                .broadcast_as(self.shape_with(dim, len))
        };
        Self::cat(&[edge(0, left)?, self.clone(), edge(last, right)?], dim)
    }

    /// The shape with another size in one dimension.
    pub(super) fn shape_with(&self, dim: usize, size: usize) -> Shape {
        self.shape().clone().with_size(dim, size)
    }

    /// Rotates the elements by `shift` along a dimension; those shifted out at one end re-enter at the other.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::arange(0u32, 4, &Device::Cpu)?;
    /// assert_eq!(t.roll(1, 0)?.to_vec1::<u32>()?, [3, 0, 1, 2]);
    /// assert_eq!(t.flip(&[0])?.to_vec1::<u32>()?, [3, 2, 1, 0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the dimension is out of range.
    pub fn roll<D>(&self, shift: i32, dim: D) -> Result<Self>
    where
        D: Dim + Clone,
    {
        let dim = dim.to_index(self.shape(), "roll")?;
        let size = self.dims()[dim];
        if size == 0 {
            return Ok(self.clone());
        }
        let shift = (shift as i64).rem_euclid(size as i64) as usize;
        if shift == 0 {
            return Ok(self.clone());
        }
        let kept = size - shift;
        Self::cat(
            &[self.narrow(dim, kept, shift)?, self.narrow(dim, 0, kept)?],
            dim,
        )
    }

    /// Reverses the order along dimensions.
    ///
    /// # Errors
    /// When a dimension is out of range.
    pub fn flip(&self, dims: &[usize]) -> Result<Tensor> {
        let dims = dims.to_indexes(self.shape(), "flip")?;
        let mut out = self.clone();
        for dim in dims {
            let size = u32::try_from(self.dims()[dim])?;
            let backwards = Self::from_iter((0..size).rev(), self.device())?;
            out = out.index_select(&backwards, dim)?;
        }
        Ok(out)
    }

    /// Sliding windows of `size` elements along a dimension, with stride `step`. The dimension becomes the number of
    /// windows, and a last dimension with the index within a window is appended.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::arange(0u32, 5, &Device::Cpu)?.unfold(0, 3, 1)?;
    /// assert_eq!(t.to_vec2::<u32>()?, [[0, 1, 2], [1, 2, 3], [2, 3, 4]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the dimension does not exist or is shorter than a window, or `step` is 0.
    pub fn unfold<D: Dim>(&self, dim: D, size: usize, step: usize) -> Result<Self> {
        let dim = dim.to_index(self.shape(), "unfold")?;
        let len = self.dims()[dim];
        if size > len || step == 0 {
            crate::bail!(
                "unfold: windows of {size} by steps of {step} over dimension {dim} of {:?}: the size must not exceed the dimension, the step must not be 0",
                self.shape()
            )
        }
        let count = (len - size) / step + 1;
        if self.track_op() {
            // Windows overlap; their gradients add up if they are parts of a stack.
            let mut window_last: Vec<usize> = (0..self.rank()).filter(|&i| i != dim).collect();
            window_last.push(dim);
            let windows = (0..count).map(|i| {
                self.narrow(dim, i * step, size)?
                    .permute(window_last.as_slice())
            });
            return Self::stack(&windows.collect::<Result<Vec<_>>>()?, dim);
        }
        let (mut dims, mut stride) = (self.dims().to_vec(), self.stride().to_vec());
        dims[dim] = count;
        dims.push(size);
        stride.push(stride[dim]);
        // The distance does not matter for a single window.
        stride[dim] = stride[dim].saturating_mul(step);
        let shape = Shape::from(dims);
        shape.check_elem_count("unfold")?;
        let layout = Layout::new(shape, stride, self.layout().start_offset());
        Ok(self.view(layout, BackpropOp::none()))
    }
}
