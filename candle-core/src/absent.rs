//! Backends that this build does not have.
//!
//! Each is a pair of types without values. The dispatch can name them, but no code behind them can run: the constructors return the "not
//! compiled with" error, and every method is a match over no cases.

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
            /// Called by methods outside of this module, which cannot see that the type has no value.
            #[allow(dead_code)]
            pub(crate) fn never(&self) -> ! {
                match self.0 {}
            }
        }

        impl $storage {
            /// Called by methods outside of this module, which cannot see that the type has no value.
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

            device_methods! { absent_methods, $storage }

            unsafe fn alloc_uninit(&self, _shape: &Shape, _dtype: DType) -> Result<$storage> {
                match self.0 {}
            }
        }

        impl BackendStorage for $storage {
            type Device = $device;

            fn device(&self) -> &$device {
                match self.0 {}
            }

            storage_methods! { absent_methods }
        }
    };
}

absent_backend!("CUDA", CudaDevice, CudaStorage, NotCompiledWithCudaSupport);
#[cfg(not(feature = "metal"))]
absent_backend!(
    "Metal",
    MetalDevice,
    MetalStorage,
    NotCompiledWithMetalSupport
);
