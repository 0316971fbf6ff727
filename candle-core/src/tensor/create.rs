//! Tensor creation: from data, constants, sequences, random numbers.

use crate::op::BackpropOp;
use crate::scalar::Scalar;
use crate::shape::ShapeWithOneHole;
use crate::{
    DType, Device, Error, FloatDType, Layout, NdArray, Result, Shape, Storage, Tensor, WithDType,
};

/// Uninitialised memory for a tensor of `shape`, after checking its size.
///
/// # Safety
/// Every element must be written before it is read.
pub(super) unsafe fn alloc_uninit(shape: &Shape, dtype: DType, device: &Device) -> Result<Storage> {
    shape.checked_byte_count(dtype.size_in_bytes())?;
    unsafe { device.alloc_uninit(shape, dtype) }
}

/// The number 0 of `dtype`.
pub(super) fn scalar_zero(dtype: DType) -> Result<Scalar> {
    scalar_of(dtype, Scalar::zero(dtype))
}

/// The number 1 of `dtype`.
pub(super) fn scalar_one(dtype: DType) -> Result<Scalar> {
    scalar_of(dtype, Scalar::one(dtype))
}

/// An error for dtypes without arithmetic, which have no scalars.
fn scalar_of(dtype: DType, scalar: Scalar) -> Result<Scalar> {
    if scalar.dtype() != dtype {
        return Err(Error::UnsupportedDTypeForOp(dtype, "const_set").bt());
    }
    Ok(scalar)
}

/// The value of an integer scalar.
fn as_integer(scalar: Scalar) -> Option<i128> {
    match scalar {
        Scalar::U8(v) => Some(v.into()),
        Scalar::U32(v) => Some(v.into()),
        Scalar::I16(v) => Some(v.into()),
        Scalar::I32(v) => Some(v.into()),
        Scalar::I64(v) => Some(v.into()),
        _ => None,
    }
}

impl Tensor {
    /// A tensor outside of the graph.
    fn constant(storage: Storage, shape: impl Into<Shape>) -> Self {
        Self::from_storage(storage, shape, BackpropOp::none(), false)
    }

    /// A tensor from a number, or from nested arrays, slices or vectors of numbers up to four deep.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::new(&[[0u32, 1, 2], [3, 4, 5]], &Device::Cpu)?;
    /// assert_eq!(t.dims(), &[2, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When nested vectors differ in length.
    pub fn new<A: NdArray>(array: A, device: &Device) -> Result<Self> {
        let shape = array.shape()?;
        Ok(Self::constant(device.storage(array)?, shape))
    }

    /// A tensor from a vector in row-major order. One size of the shape may be left open as `()`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], (2, 3), &Device::Cpu)?;
    /// assert_eq!(t.to_vec2::<f32>()?, [[1., 2., 3.], [4., 5., 6.]]);
    /// assert!(Tensor::from_vec(vec![1f32], (2, 3), &Device::Cpu).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the shape does not have as many elements as the vector.
    pub fn from_vec<S: ShapeWithOneHole, D: WithDType>(
        data: Vec<D>,
        shape: S,
        device: &Device,
    ) -> Result<Self> {
        let shape = shape_of_data(data.len(), shape)?;
        Ok(Self::constant(device.storage_owned(data)?, shape))
    }

    /// A tensor from a slice in row-major order. One size of the shape may be left open as `()`.
    ///
    /// # Errors
    /// When the shape does not have as many elements as the slice.
    pub fn from_slice<S: ShapeWithOneHole, D: WithDType>(
        array: &[D],
        shape: S,
        device: &Device,
    ) -> Result<Self> {
        let shape = shape_of_data(array.len(), shape)?;
        Ok(Self::constant(device.storage_from_slice(array)?, shape))
    }

    /// A vector of the items of an iterator.
    pub fn from_iter<D: WithDType>(
        iter: impl IntoIterator<Item = D>,
        device: &Device,
    ) -> Result<Self> {
        let data: Vec<D> = iter.into_iter().collect();
        let len = data.len();
        Self::from_vec(data, len, device)
    }

    /// A tensor from the little-endian bytes of its elements in row-major order.
    ///
    /// # Errors
    /// When there are fewer or more bytes than `shape` needs.
    pub fn from_raw_buffer(
        data: &[u8],
        dtype: DType,
        shape: &[usize],
        device: &Device,
    ) -> Result<Self> {
        let shape = Shape::from(shape);
        let storage = super::storage_from_bytes(data, dtype, &shape, device)?;
        Ok(Self::constant(storage, shape))
    }

    /// A tensor of zeros.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::zeros((2, 3), DType::BF16, &Device::Cpu)?;
    /// assert_eq!((t.dims(), t.dtype()), (&[2, 3][..], DType::BF16));
    /// # Ok(())
    /// # }
    /// ```
    pub fn zeros<S: Into<Shape>>(shape: S, dtype: DType, device: &Device) -> Result<Self> {
        let shape = shape.into();
        shape.checked_byte_count(dtype.size_in_bytes())?;
        Ok(Self::constant(device.zeros(&shape, dtype)?, shape))
    }

    /// Zeros of this tensor's shape, dtype and device.
    pub fn zeros_like(&self) -> Result<Self> {
        Self::zeros(self.shape(), self.dtype(), self.device())
    }

    /// A tensor of ones.
    pub fn ones<S: Into<Shape>>(shape: S, dtype: DType, device: &Device) -> Result<Self> {
        Self::repeated(scalar_one(dtype)?, shape.into(), device)
    }

    /// Ones of this tensor's shape, dtype and device.
    pub fn ones_like(&self) -> Result<Self> {
        Self::ones(self.shape(), self.dtype(), self.device())
    }

    /// A tensor filled with one value.
    pub fn full<D: WithDType, S: Into<Shape>>(value: D, shape: S, device: &Device) -> Result<Self> {
        Self::repeated(value.to_scalar(), shape.into(), device)
    }

    pub(super) fn repeated(value: Scalar, shape: Shape, device: &Device) -> Result<Self> {
        // SAFETY: the next line writes every element.
        let mut storage = unsafe { alloc_uninit(&shape, value.dtype(), device)? };
        storage.const_set(value, &Layout::contiguous(&shape))?;
        Ok(Self::constant(storage, shape))
    }

    /// A tensor with uninitialised elements.
    ///
    /// # Safety
    /// Every element must be written before it is read.
    pub unsafe fn empty<S: Into<Shape>>(shape: S, dtype: DType, device: &Device) -> Result<Self> {
        let shape = shape.into();
        let storage = unsafe { alloc_uninit(&shape, dtype, device)? };
        Ok(Self::constant(storage, shape))
    }

    /// A tensor with uninitialised elements, of this tensor's shape, dtype and device.
    ///
    /// # Safety
    /// Every element must be written before it is read.
    pub unsafe fn empty_like(&self) -> Result<Self> {
        unsafe { Self::empty(self.shape(), self.dtype(), self.device()) }
    }

    /// The numbers from `start` up to but excluding `end`.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::arange(2i64, 5, &Device::Cpu)?;
    /// assert_eq!(t.to_vec1::<i64>()?, [2, 3, 4]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn arange<D: WithDType>(start: D, end: D, device: &Device) -> Result<Self> {
        Self::arange_step(start, end, D::one(), device)
    }

    /// The numbers `start + i * step` from `start` up to but excluding `end`: `ceil((end - start) / step)` of them. A negative step counts
    /// down. Floats are computed in f64 and rounded once.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::arange_step(1f32, 0., -0.25, &Device::Cpu)?;
    /// assert_eq!(t.to_vec1::<f32>()?, [1., 0.75, 0.5, 0.25]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the step is 0, when a number is NaN, or when there are too many numbers.
    pub fn arange_step<D: WithDType>(start: D, end: D, step: D, device: &Device) -> Result<Self> {
        let zero = D::zero();
        if step.partial_cmp(&zero).is_none_or(|order| order.is_eq()) {
            crate::bail!("arange needs a step other than 0, got {step}")
        }
        let integer = |x: D| as_integer(x.to_scalar());
        let most = isize::MAX as usize / size_of::<D>().max(1);
        let (count, exact) = match (integer(start), integer(end), integer(step)) {
            (Some(start), Some(end), Some(step)) => {
                // Rounded up for either sign of the step.
                let (range, step) = ((end - start) * step.signum(), step.abs());
                (usize::try_from((range + step - 1).max(0) / step).ok(), true)
            }
            _ => {
                let count = ((end.to_f64() - start.to_f64()) / step.to_f64()).ceil();
                if count.is_nan() {
                    crate::bail!("arange from {start} to {end} by {step} has no number of elements")
                }
                // The conversion saturates.
                (Some(count.max(0.) as usize), false)
            }
        };
        let Some(count) = count.filter(|count| *count <= most) else {
            crate::bail!("arange from {start} to {end} by {step} has too many elements")
        };
        let mut data = Vec::new();
        if data.try_reserve_exact(count).is_err() {
            crate::bail!("arange from {start} to {end} by {step}: no memory for {count} elements")
        }
        let mut current = start;
        for i in 0..count {
            // Sums of integers are exact. Nothing is added to the last one, which may be the greatest of its dtype.
            if exact && i > 0 {
                current += step;
            } else if !exact {
                current = D::from_f64(start.to_f64() + i as f64 * step.to_f64());
            }
            data.push(current);
        }
        let len = data.len();
        Self::from_vec(data, len, device)
    }

    /// Uniform random numbers in `[lo, up)`.
    pub fn rand<S: Into<Shape>, T: FloatDType>(
        lo: T,
        up: T,
        s: S,
        device: &Device,
    ) -> Result<Self> {
        Self::rand_f64(lo.to_f64(), up.to_f64(), s, T::DTYPE, device)
    }

    /// Uniform random numbers of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// When the dtype is an integer type.
    pub fn rand_like(&self, lo: f64, up: f64) -> Result<Self> {
        Self::rand_f64(lo, up, self.shape(), self.dtype(), self.device())
    }

    pub(crate) fn rand_f64<S: Into<Shape>>(
        lo: f64,
        up: f64,
        s: S,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = s.into();
        shape.checked_byte_count(dtype.size_in_bytes())?;
        let storage = device.rand_uniform_f64(lo, up, &shape, dtype)?;
        Ok(Self::constant(storage, shape))
    }

    /// Normally distributed random numbers.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// Device::Cpu.set_seed(7)?;
    /// let t = Tensor::randn(0f32, 1., (2, 3), &Device::Cpu)?;
    /// Device::Cpu.set_seed(7)?;
    /// let again = Tensor::randn(0f32, 1., (2, 3), &Device::Cpu)?;
    /// assert_eq!(t.to_vec2::<f32>()?, again.to_vec2::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn randn<S: Into<Shape>, T: FloatDType>(
        mean: T,
        std: T,
        s: S,
        device: &Device,
    ) -> Result<Self> {
        Self::randn_f64(mean.to_f64(), std.to_f64(), s, T::DTYPE, device)
    }

    /// Normally distributed random numbers of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// When the dtype is an integer type.
    pub fn randn_like(&self, mean: f64, stdev: f64) -> Result<Self> {
        Self::randn_f64(mean, stdev, self.shape(), self.dtype(), self.device())
    }

    pub(crate) fn randn_f64<S: Into<Shape>>(
        mean: f64,
        std: f64,
        s: S,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = s.into();
        shape.checked_byte_count(dtype.size_in_bytes())?;
        let storage = device.rand_normal_f64(mean, std, &shape, dtype)?;
        Ok(Self::constant(storage, shape))
    }

    /// The identity matrix `(n, n)`.
    pub fn eye(n: usize, dtype: DType, device: &Device) -> Result<Self> {
        let (row, column) = row_and_column(n, device)?;
        row.broadcast_eq(&column)?.to_dtype(dtype)
    }

    /// The matrix `(n, n)` with ones on the diagonal and below, zeros above.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let t = Tensor::tril2(3, DType::U8, &Device::Cpu)?;
    /// assert_eq!(t.to_vec2::<u8>()?, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn tril2(n: usize, dtype: DType, device: &Device) -> Result<Self> {
        let (row, column) = row_and_column(n, device)?;
        row.broadcast_ge(&column)?.to_dtype(dtype)
    }

    /// The matrix `(n, n)` with ones on the diagonal and above, zeros below.
    pub fn triu2(n: usize, dtype: DType, device: &Device) -> Result<Self> {
        let (row, column) = row_and_column(n, device)?;
        row.broadcast_le(&column)?.to_dtype(dtype)
    }

    /// Coordinates of a grid from one vector per axis, all with the grid's shape. With `xy_indexing` the axes of the
    /// grid are in the reverse order: for two vectors, columns before rows.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let (x, y) = (Tensor::new(&[1f32, 2.], &Device::Cpu)?, Tensor::new(&[5f32, 6.], &Device::Cpu)?);
    /// let grid = Tensor::meshgrid(&[x, y], false)?;
    /// assert_eq!(grid[0].to_vec2::<f32>()?, [[1., 1.], [2., 2.]]);
    /// assert_eq!(grid[1].to_vec2::<f32>()?, [[5., 6.], [5., 6.]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If there are fewer than two vectors, or an argument is not a vector.
    pub fn meshgrid<A: AsRef<Tensor>>(args: &[A], xy_indexing: bool) -> Result<Vec<Self>> {
        if args.len() < 2 {
            return Err(Error::OpRequiresAtLeastTwoTensors { op: "meshgrid" }.bt());
        }
        let last = args.len() - 1;
        let axis = |i: usize| if xy_indexing { last - i } else { i };
        let mut grid = vec![0; args.len()];
        for (i, arg) in args.iter().enumerate() {
            grid[axis(i)] = arg.as_ref().dims1()?;
        }
        let coordinates = args.iter().enumerate().map(|(i, arg)| {
            let mut dims = vec![1; grid.len()];
            dims[axis(i)] = grid[axis(i)];
            arg.as_ref().reshape(dims)?.broadcast_as(grid.as_slice())
        });
        coordinates.collect()
    }
}

/// The requested shape, if it has `len` elements.
fn shape_of_data<S: ShapeWithOneHole>(len: usize, shape: S) -> Result<Shape> {
    let shape = shape.into_shape(len)?;
    if shape.elem_count() != len {
        return Err(Error::ShapeMismatch {
            buffer_size: len,
            shape,
        }
        .bt());
    }
    Ok(shape)
}

/// The row index `(n, 1)` and the column index `(1, n)` of a square matrix.
fn row_and_column(n: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let index = Tensor::arange(0, u32::try_from(n)?, device)?;
    Ok((index.reshape((n, 1))?, index.reshape((1, n))?))
}
