//! The CPU backend.
//!
//! One file for each family of ops. All ops read through any layout with `strided_iter.rs`, which converts strided operands into runs;
//! large inputs are split over threads. `element.rs` defines what kernels require of an element type.
//!
//! The containers F4, F6E2M3, F6E3M2 and F8E8M0 can be stored and moved; ops on them fail with `UnsupportedDTypeForOp`.

mod binary;
#[cfg(any(feature = "mkl", all(feature = "accelerate", target_vendor = "apple")))]
mod blas;
mod cast;
mod contiguous_blocks;
mod conv;
mod copy;
mod copy_rows;
mod element;
mod gemm;
mod indexing;
mod map;
mod matmul;
mod nchw;
mod pool;
mod random;
mod reduce;
mod scan;
mod skinny_matmul;
mod sort;
mod storage;
mod strided_iter;
mod transpose;
mod unary;
mod upsample;

pub use map::{
    binary_map, binary_map_vec, binary_map_vec_par, unary_map, unary_map_vec, unary_map_vec_par,
    Map1, Map1Any, Map2, Map2InPlace, Map2U8,
};
pub(crate) use scan::cumsum;
pub(crate) use sort::arg_sort;
pub use storage::{CpuStorage, CpuStorageRef};

use crate::backend::{BackendDevice, BackendStorage};
use crate::conv::{
    Geometry, ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D,
};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::{DType, DeviceLocation, Error, Layout, Result, Shape, WithDType};

/// The CPU; the process shares its random generator.
#[derive(Debug, Clone)]
pub struct CpuDevice;

impl BackendStorage for CpuStorage {
    type Device = CpuDevice;

    fn try_clone(&self, _layout: &Layout) -> Result<Self> {
        Ok(self.clone())
    }

    fn dtype(&self) -> DType {
        self.dtype_impl()
    }

    fn device(&self) -> &CpuDevice {
        &CpuDevice
    }

    fn to_cpu_storage(&self) -> Result<CpuStorage> {
        Ok(self.clone())
    }

    fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self> {
        unary::affine(self, layout, mul, add)
    }

    fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self> {
        unary::powf(self, layout, exponent)
    }

    fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self> {
        unary::elu(self, layout, alpha)
    }

    fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self> {
        reduce::reduce(op, self, layout, dims)
    }

    fn cmp(&self, op: CmpOp, rhs: &Self, lhs_layout: &Layout, rhs_layout: &Layout) -> Result<Self> {
        binary::cmp(op, self, rhs, lhs_layout, rhs_layout)
    }

    fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self> {
        cast::to_dtype(self, layout, dtype)
    }

    fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self> {
        unary::unary::<B>(self, layout)
    }

    fn binary_impl<B: BinaryOpT>(
        &self,
        rhs: &Self,
        lhs_layout: &Layout,
        rhs_layout: &Layout,
    ) -> Result<Self> {
        binary::binary::<B>(self, rhs, lhs_layout, rhs_layout)
    }

    fn where_cond(
        &self,
        layout: &Layout,
        on_true: &Self,
        on_true_layout: &Layout,
        on_false: &Self,
        on_false_layout: &Layout,
    ) -> Result<Self> {
        copy::where_cond(
            (self, layout),
            (on_true, on_true_layout),
            (on_false, on_false_layout),
        )
    }

    fn conv1d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConv1D,
    ) -> Result<Self> {
        let geometry = Geometry::conv1d(params)?;
        conv::conv(self, layout, kernel, kernel_layout, geometry)
    }

    fn conv_transpose1d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConvTranspose1D,
    ) -> Result<Self> {
        let geometry = Geometry::conv_transpose1d(params)?;
        conv::conv(self, layout, kernel, kernel_layout, geometry)
    }

    fn conv2d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConv2D,
    ) -> Result<Self> {
        let geometry = Geometry::conv2d(params)?;
        conv::conv(self, layout, kernel, kernel_layout, geometry)
    }

    fn conv_transpose2d(
        &self,
        layout: &Layout,
        kernel: &Self,
        kernel_layout: &Layout,
        params: &ParamsConvTranspose2D,
    ) -> Result<Self> {
        let geometry = Geometry::conv_transpose2d(params)?;
        conv::conv(self, layout, kernel, kernel_layout, geometry)
    }

    fn avg_pool2d(
        &self,
        layout: &Layout,
        kernel: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Self> {
        pool::avg_pool2d(self, layout, pool::Windows { kernel, stride })
    }

    fn max_pool2d(
        &self,
        layout: &Layout,
        kernel: (usize, usize),
        stride: (usize, usize),
    ) -> Result<Self> {
        pool::max_pool2d(self, layout, pool::Windows { kernel, stride })
    }

    fn upsample_nearest1d(&self, layout: &Layout, target_size: usize) -> Result<Self> {
        upsample::nearest(self, layout, (1, target_size), "upsample_nearest1d")
    }

    fn upsample_nearest2d(
        &self,
        layout: &Layout,
        target_h: usize,
        target_w: usize,
    ) -> Result<Self> {
        upsample::nearest(self, layout, (target_h, target_w), "upsample_nearest2d")
    }

    fn upsample_bilinear2d(
        &self,
        layout: &Layout,
        target_h: usize,
        target_w: usize,
        align_corners: bool,
        scale_h: Option<f64>,
        scale_w: Option<f64>,
    ) -> Result<Self> {
        let params = upsample::Bilinear {
            target: (target_h, target_w),
            align_corners,
            scale: (scale_h, scale_w),
        };
        upsample::bilinear(self, layout, params)
    }

    fn gather(&self, layout: &Layout, ids: &Self, ids_layout: &Layout, dim: usize) -> Result<Self> {
        indexing::gather(self, layout, ids, ids_layout, dim)
    }

    fn scatter_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_layout: &Layout,
        src: &Self,
        src_layout: &Layout,
        dim: usize,
    ) -> Result<()> {
        let write = indexing::Write::Set;
        indexing::scatter(self, layout, ids, ids_layout, src, src_layout, dim, write)
    }

    fn scatter_add_set(
        &mut self,
        layout: &Layout,
        ids: &Self,
        ids_layout: &Layout,
        src: &Self,
        src_layout: &Layout,
        dim: usize,
    ) -> Result<()> {
        let write = indexing::Write::Add;
        indexing::scatter(self, layout, ids, ids_layout, src, src_layout, dim, write)
    }

    fn index_select(
        &self,
        ids: &Self,
        layout: &Layout,
        ids_layout: &Layout,
        dim: usize,
    ) -> Result<Self> {
        indexing::index_select(self, ids, layout, ids_layout, dim)
    }

    fn index_add(
        &self,
        layout: &Layout,
        ids: &Self,
        ids_layout: &Layout,
        src: &Self,
        src_layout: &Layout,
        dim: usize,
    ) -> Result<Self> {
        indexing::index_add(self, layout, ids, ids_layout, src, src_layout, dim)
    }

    fn matmul(
        &self,
        rhs: &Self,
        bmnk: (usize, usize, usize, usize),
        lhs_layout: &Layout,
        rhs_layout: &Layout,
    ) -> Result<Self> {
        matmul::matmul(self, rhs, bmnk, lhs_layout, rhs_layout)
    }

    fn copy_strided_src(
        &self,
        dst: &mut Self,
        dst_offset: usize,
        src_layout: &Layout,
    ) -> Result<()> {
        copy::copy_strided_src(self, dst, dst_offset, src_layout)
    }

    fn copy2d(
        &self,
        dst: &mut Self,
        d1: usize,
        d2: usize,
        src_stride1: usize,
        dst_stride1: usize,
        src_offset: usize,
        dst_offset: usize,
    ) -> Result<()> {
        let rows = |offset, stride| copy::Copy2dRows { offset, stride };
        let (src_rows, dst_rows) = (rows(src_offset, src_stride1), rows(dst_offset, dst_stride1));
        copy::copy2d(self, dst, d1, d2, src_rows, dst_rows)
    }

    fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()> {
        copy::const_set(self, value, layout)
    }
}

impl BackendDevice for CpuDevice {
    type Storage = CpuStorage;

    fn new(_ordinal: usize) -> Result<Self> {
        Ok(Self)
    }

    fn location(&self) -> DeviceLocation {
        DeviceLocation::Cpu
    }

    fn same_device(&self, _rhs: &Self) -> bool {
        true
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<CpuStorage> {
        use DType as D;
        macro_rules! zeros {
            ($($variant:ident),+) => {
                match dtype {
                    $(D::$variant => {
                        let zeros = vec![num_traits::Zero::zero(); shape.elem_count()];
                        Ok(CpuStorage::$variant(zeros))
                    })+
                    D::F6E2M3 | D::F6E3M2 | D::F4 | D::F8E8M0 => {
                        Err(Error::UnsupportedDTypeForOp(dtype, "zeros").bt())
                    }
                }
            };
        }
        zeros!(U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3)
    }

    /// Uninitialised memory for numbers: initialising it first would double the cost of a copy.
    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<CpuStorage> {
        use DType as D;
        let len = shape.elem_count();
        macro_rules! uninit {
            ($($variant:ident),+) => {
                match dtype {
                    $(D::$variant => {
                        let mut data = Vec::with_capacity(len);
                        // SAFETY: every bit pattern is a value of these types, and the caller writes each element
                        // before reading it.
                        #[allow(clippy::uninit_vec, reason = "this is what the method is for")]
                        unsafe {
                            data.set_len(len)
                        };
                        Ok(CpuStorage::$variant(data))
                    })+
                    D::F6E2M3 | D::F6E3M2 | D::F4 | D::F8E8M0 => {
                        Err(Error::UnsupportedDTypeForOp(dtype, "alloc").bt())
                    }
                }
            };
        }
        uninit!(U8, U32, I16, I32, I64, BF16, F16, F32, F64, F8E4M3)
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<CpuStorage> {
        Ok(T::to_cpu_storage(data))
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<CpuStorage> {
        Ok(storage.clone())
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<CpuStorage> {
        Ok(storage)
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<CpuStorage> {
        random::uniform(random::next(), shape, dtype, lo, up)
    }

    fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<CpuStorage> {
        random::normal(random::next(), shape, dtype, mean, std)
    }

    fn set_seed(&self, seed: u64) -> Result<()> {
        random::set_seed(seed);
        Ok(())
    }

    fn get_current_seed(&self) -> Result<u64> {
        Ok(random::current_seed())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}
