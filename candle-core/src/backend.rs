//! The traits of a backend: a storage that computes and a device that creates storages.
//!
//! Layouts give shape, strides and start offset, all in elements. An op reads its inputs through any layout (transposed,
//! narrowed, broadcast with stride 0, empty) and returns a fresh contiguous storage in row-major order of its output's shape,
//! unless it says that it writes in place.

use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::{CpuStorage, DType, DeviceLocation, Layout, Result, Shape, WithDType};

/// A block of elements of one dtype on one device, and the ops over it.
#[allow(clippy::too_many_arguments)]
pub trait BackendStorage: Sized {
    /// The device that holds storages of this kind.
    type Device: BackendDevice;

    /// A new storage with the same elements. `layout` selects the elements that matter; it is valid for the copy too.
    fn try_clone(&self, layout: &Layout) -> Result<Self>;

    /// The elements' dtype.
    fn dtype(&self) -> DType;

    /// The device that holds the elements.
    fn device(&self) -> &Self::Device;

    /// Copies all elements to the host and waits for them.
    fn to_cpu_storage(&self) -> Result<CpuStorage>;

    /// `x * mul + add`.
    fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self>;

    /// `x ^ exponent`.
    fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self>;

    /// `x` where positive, else `alpha * (exp(x) - 1)`.
    fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self>;

    /// Reduces over the dimensions `dims`; `ArgMin` and `ArgMax` take one dimension and give u32 indexes.
    fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self>;

    /// Elementwise comparison of two storages of the same shape and dtype; u8 results, 0 or 1.
    fn cmp(&self, op: CmpOp, rhs: &Self, lhs_layout: &Layout, rhs_layout: &Layout) -> Result<Self>;

    /// Converts to `dtype` as Rust's `as` does: saturating, NaN to 0 for integers.
    fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self>;

    /// Elementwise function of one argument.
    fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self>;

    /// Elementwise function of two arguments of the same shape and dtype.
    fn binary_impl<B: BinaryOpT>(
        &self,
        rhs: &Self,
        lhs_layout: &Layout,
        rhs_layout: &Layout,
    ) -> Result<Self>;

    /// `on_true` where `self` (u8, u32 or i64) is not 0, else `on_false`; all of the same shape.
    fn where_cond(
        &self,
        layout: &Layout,
        on_true: &Self,
        on_true_layout: &Layout,
        on_false: &Self,
        on_false_layout: &Layout,
    ) -> Result<Self>;

    /// 1D convolution; input `(batch, channels, length)`.
    fn conv1d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConv1D,
    ) -> Result<Self>;

    /// Transposed 1D convolution.
    fn conv_transpose1d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConvTranspose1D,
    ) -> Result<Self>;

    /// 2D convolution; input `(batch, channels, height, width)`.
    fn conv2d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConv2D,
    ) -> Result<Self>;

    /// Transposed 2D convolution.
    fn conv_transpose2d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConvTranspose2D,
    ) -> Result<Self>;

    /// Average pooling; `kernel_size` and `stride` are `(height, width)`.
    fn avg_pool2d(
        &self,
        layout: &Layout,
        kernel_size: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Self>;

    /// Maximum pooling; `kernel_size` and `stride` are `(height, width)`.
    fn max_pool2d(
        &self,
        layout: &Layout,
        kernel_size: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Self>;

    /// Nearest-neighbour resampling of the last dimension to `target_size`.
    fn upsample_nearest1d(&self, layout: &Layout, target_size: usize) -> Result<Self>;

    /// Nearest-neighbour resampling of the last two dimensions.
    fn upsample_nearest2d(&self, layout: &Layout, target_h: usize, target_w: usize)
        -> Result<Self>;

    /// Bilinear resampling of the last two dimensions.
    fn upsample_bilinear2d(
        &self,
        layout: &Layout,
        target_h: usize,
        target_w: usize,
        align_corners: bool,
        scale_h: Option<f64>,
        scale_w: Option<f64>,
    ) -> Result<Self>;

    /// `dst[.., i, ..] = self[.., ids[.., i, ..], ..]` along `dim`.
    fn gather(&self, layout: &Layout, ids: &Self, ids_layout: &Layout, dim: usize) -> Result<Self>;

    /// `self[.., ids[.., i, ..], ..] = src[.., i, ..]` along `dim`, in place.
    fn scatter_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_layout: &Layout,
        src: &Self,
        src_layout: &Layout,
        dim: usize,
    ) -> Result<()>;

    /// `self[.., ids[.., i, ..], ..] += src[.., i, ..]` along `dim`, in place.
    fn scatter_add_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_layout: &Layout,
        src: &Self,
        src_layout: &Layout,
        dim: usize,
    ) -> Result<()>;

    /// Takes the slices of `self` along `dim` that the 1D `ids` name.
    fn index_select(
        &self,
        ids: &Self,
        layout: &Layout,
        ids_layout: &Layout,
        dim: usize,
    ) -> Result<Self>;

    /// A copy of `self` with slice `i` of `src` added to slice `ids[i]` along `dim`.
    fn index_add(
        &self,
        layout: &Layout,
        ids: &Self,
        ids_layout: &Layout,
        src: &Self,
        src_layout: &Layout,
        dim: usize,
    ) -> Result<Self>;

    /// Batched matrix product; `bmnk` are the batch count, rows and columns of the result, and the inner dimension. The last
    /// two dimensions of the layouts are `(m, k)` and `(k, n)`, the ones before them multiply to `b`.
    fn matmul(
        &self,
        rhs: &Self,
        bmnk: (usize, usize, usize, usize),
        lhs_layout: &Layout,
        rhs_layout: &Layout,
    ) -> Result<Self>;

    /// Copies the elements that `src_layout` covers to `dst[dst_offset..]`, contiguously.
    fn copy_strided_src(
        &self,
        dst: &mut Self,
        dst_offset: usize,
        src_layout: &Layout,
    ) -> Result<()>;

    /// Copies `d1` rows of `d2` elements each; row `i` goes from `src_offset + i * src_stride1` to
    /// `dst_offset + i * dst_stride1`.
    fn copy2d(
        &self,
        dst: &mut Self,
        d1: usize,
        d2: usize,
        src_stride1: usize,
        dst_stride1: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Result<()>;

    /// Sets every element that `layout` covers to `value`.
    fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()>;
}

/// A device: allocates storages.
pub trait BackendDevice: Sized + std::fmt::Debug + Clone {
    /// The kind of storage on this device.
    type Storage: BackendStorage;

    /// Opens the device with this ordinal.
    fn new(ordinal: usize) -> Result<Self>;

    /// Kind and ordinal.
    fn location(&self) -> DeviceLocation;

    /// Whether both are handles of the same device.
    fn same_device(&self, rhs: &Self) -> bool;

    /// A storage of zeros.
    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<Self::Storage>;

    /// A storage with arbitrary contents.
    ///
    /// # Safety
    /// Every element must be written before it is read.
    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<Self::Storage>;

    /// Copies a slice to the device.
    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<Self::Storage>;

    /// Copies a host storage to the device.
    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<Self::Storage>;

    /// Moves a host storage to the device.
    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<Self::Storage>;

    /// Uniform random numbers in `[lo, up)`.
    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<Self::Storage>;

    /// Normally distributed random numbers.
    fn rand_normal(
        &self,
        shape: &Shape,
        dtype: DType,
        mean: f64,
        std: f64,
    ) -> Result<Self::Storage>;

    /// Seeds the device's random generator.
    fn set_seed(&self, seed: u64) -> Result<()>;

    /// The most recently set seed.
    fn get_current_seed(&self) -> Result<u64>;

    /// Waits until all work given to the device is done.
    fn synchronize(&self) -> Result<()>;
}
