//! Backends that this build does not have.
//!
//! Each is a pair of types without values, so the dispatch can name them while nothing behind them can run: the constructors
//! return the "not compiled with" error, and every method is a match over no cases.

use crate::backend::{BackendDevice, BackendStorage};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::{CpuStorage, DType, DeviceLocation, Error, Layout, Result, Shape, WithDType};

/// A type without values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Never {}

/// Methods that can never be called: their `self` has no value.
macro_rules! absent_methods {
    () => {};
    (fn $name:ident $(<$g:ident: $bound:ident>)? (&mut $this:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty; $($rest:tt)*) => {
        #[allow(unused_variables, clippy::too_many_arguments)]
        fn $name $(<$g: $bound>)? (&mut $this $(, $arg: $ty)*) -> $ret {
            match $this.0 {}
        }
        absent_methods! { $($rest)* }
    };
    (fn $name:ident $(<$g:ident: $bound:ident>)? (&$this:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty; $($rest:tt)*) => {
        #[allow(unused_variables, clippy::too_many_arguments)]
        fn $name $(<$g: $bound>)? (&$this $(, $arg: $ty)*) -> $ret {
            match $this.0 {}
        }
        absent_methods! { $($rest)* }
    };
}

macro_rules! absent_backend {
    ($name:literal, $device:ident, $storage:ident, $error:ident) => {
        #[doc = concat!("A ", $name, " device; this build has none, so there is no value of this type.")]
        #[derive(Debug, Clone)]
        pub struct $device(Never);

        #[doc = concat!("A storage on a ", $name, " device; there is no value of this type.")]
        #[derive(Debug)]
        pub struct $storage(Never);

        impl $device {
            /// Called by methods outside of this module, which do not see that there is no value.
            #[allow(dead_code)]
            pub(crate) fn never(&self) -> ! {
                match self.0 {}
            }
        }

        impl $storage {
            /// As for the device.
            #[allow(dead_code)]
            pub(crate) fn never(&self) -> ! {
                match self.0 {}
            }
        }

        impl BackendDevice for $device {
            type Storage = $storage;

            fn new(_ordinal: usize) -> Result<Self> {
                Err(Error::$error)
            }

            absent_methods! {
                fn location(&self) -> DeviceLocation;
                fn same_device(&self, rhs: &Self) -> bool;
                fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<$storage>;
                fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<$storage>;
                fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<$storage>;
                fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<$storage>;
                fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<$storage>;
                fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<$storage>;
                fn set_seed(&self, seed: u64) -> Result<()>;
                fn get_current_seed(&self) -> Result<u64>;
                fn synchronize(&self) -> Result<()>;
            }

            unsafe fn alloc_uninit(&self, _shape: &Shape, _dtype: DType) -> Result<$storage> {
                match self.0 {}
            }
        }

        impl BackendStorage for $storage {
            type Device = $device;

            absent_methods! {
                fn try_clone(&self, layout: &Layout) -> Result<Self>;
                fn dtype(&self) -> DType;
                fn device(&self) -> &$device;
                fn to_cpu_storage(&self) -> Result<CpuStorage>;
                fn affine(&self, layout: &Layout, mul: f64, add: f64) -> Result<Self>;
                fn powf(&self, layout: &Layout, exponent: f64) -> Result<Self>;
                fn elu(&self, layout: &Layout, alpha: f64) -> Result<Self>;
                fn reduce_op(&self, op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self>;
                fn cmp(&self, op: CmpOp, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self>;
                fn to_dtype(&self, layout: &Layout, dtype: DType) -> Result<Self>;
                fn unary_impl<B: UnaryOpT>(&self, layout: &Layout) -> Result<Self>;
                fn binary_impl<B: BinaryOpT>(&self, rhs: &Self, lhs_l: &Layout, rhs_l: &Layout) -> Result<Self>;
                fn where_cond(&self, l: &Layout, t: &Self, t_l: &Layout, f: &Self, f_l: &Layout) -> Result<Self>;
                fn conv1d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConv1D) -> Result<Self>;
                fn conv_transpose1d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConvTranspose1D) -> Result<Self>;
                fn conv2d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConv2D) -> Result<Self>;
                fn conv_transpose2d(&self, l: &Layout, kernel: &Self, kernel_l: &Layout, params: &ParamsConvTranspose2D) -> Result<Self>;
                fn avg_pool2d(&self, l: &Layout, kernel_size: (usize, usize), stride: (usize, usize)) -> Result<Self>;
                fn max_pool2d(&self, l: &Layout, kernel_size: (usize, usize), stride: (usize, usize)) -> Result<Self>;
                fn upsample_nearest1d(&self, l: &Layout, target_size: usize) -> Result<Self>;
                fn upsample_nearest2d(&self, l: &Layout, target_h: usize, target_w: usize) -> Result<Self>;
                fn upsample_bilinear2d(&self, l: &Layout, target_h: usize, target_w: usize, align_corners: bool, scale_h: Option<f64>, scale_w: Option<f64>) -> Result<Self>;
                fn gather(&self, l: &Layout, ids: &Self, ids_l: &Layout, dim: usize) -> Result<Self>;
                fn scatter_set(&mut self, l: &Layout, ids: &Self, ids_l: &Layout, src: &Self, src_l: &Layout, dim: usize) -> Result<()>;
                fn scatter_add_set(&mut self, l: &Layout, ids: &Self, ids_l: &Layout, src: &Self, src_l: &Layout, dim: usize) -> Result<()>;
                fn index_select(&self, ids: &Self, l: &Layout, ids_l: &Layout, dim: usize) -> Result<Self>;
                fn index_add(&self, l: &Layout, ids: &Self, ids_l: &Layout, src: &Self, src_l: &Layout, dim: usize) -> Result<Self>;
                fn matmul(&self, rhs: &Self, bmnk: (usize, usize, usize, usize), lhs_l: &Layout, rhs_l: &Layout) -> Result<Self>;
                fn copy_strided_src(&self, dst: &mut Self, dst_offset: usize, src_l: &Layout) -> Result<()>;
                fn copy2d(&self, dst: &mut Self, d1: usize, d2: usize, src_stride1: usize, dst_stride1: usize, src_offset: usize, dst_offset: usize) -> Result<()>;
                fn const_set(&mut self, value: Scalar, layout: &Layout) -> Result<()>;
            }
        }
    };
}

absent_backend!("CUDA", CudaDevice, CudaStorage, NotCompiledWithCudaSupport);
absent_backend!(
    "Metal",
    MetalDevice,
    MetalStorage,
    NotCompiledWithMetalSupport
);
