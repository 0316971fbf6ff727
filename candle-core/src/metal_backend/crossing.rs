//! Conversion of arguments to the WebGPU backend's types, and of results and errors back to the Metal backend's.

use super::{MetalDevice, MetalError, MetalStorage};
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::op::{CmpOp, ReduceOp};
use crate::scalar::Scalar;
use crate::{CpuStorage, DType, DeviceLocation, Error, Layout, Result, Shape};
use crate::{WebGpuDevice, WebGpuStorage};

/// An argument, converted to the WebGPU backend's type.
pub(super) trait Enter {
    type Inside;
    fn enter(self) -> Self::Inside;
}

/// A result, converted to the Metal backend's type.
pub(crate) trait Leave {
    type Outside;
    fn leave(self) -> Self::Outside;
}

/// Converts the result of an op's WebGPU form to that of its Metal form.
pub(crate) fn on_metal<T: Leave>(result: Result<T>) -> Result<T::Outside> {
    result.leave()
}

impl<'a> Enter for &'a MetalStorage {
    type Inside = &'a WebGpuStorage;
    fn enter(self) -> Self::Inside {
        self.webgpu()
    }
}

impl<'a> Enter for &'a mut MetalStorage {
    type Inside = &'a mut WebGpuStorage;
    fn enter(self) -> Self::Inside {
        self.webgpu_mut()
    }
}

impl<'a> Enter for &'a MetalDevice {
    type Inside = &'a WebGpuDevice;
    fn enter(self) -> Self::Inside {
        self.webgpu()
    }
}

impl Leave for WebGpuStorage {
    type Outside = MetalStorage;
    fn leave(self) -> MetalStorage {
        self.into()
    }
}

impl<T: Leave> Leave for (T, Shape) {
    type Outside = (T::Outside, Shape);
    fn leave(self) -> Self::Outside {
        (self.0.leave(), self.1)
    }
}

impl<T: Leave> Leave for Result<T> {
    type Outside = Result<T::Outside>;
    fn leave(self) -> Self::Outside {
        match self {
            Ok(value) => Ok(value.leave()),
            Err(error) => Err(renamed(error)),
        }
    }
}

/// Converts the error: programs written for Metal match on `Error::Metal`.
pub(super) fn renamed(error: Error) -> Error {
    match error {
        Error::WebGpu(message) => Error::Metal(MetalError::Message(message)),
        Error::Context { inner, context } => Error::Context {
            inner: Box::new(renamed(*inner)),
            context,
        },
        Error::WithPath { inner, path } => Error::WithPath {
            inner: Box::new(renamed(*inner)),
            path,
        },
        Error::WithBacktrace { inner, backtrace } => Error::WithBacktrace {
            inner: Box::new(renamed(*inner)),
            backtrace,
        },
        other => other,
    }
}

/// Types that are the same in both backends.
macro_rules! same {
    ($trait:ident::$name:ident -> $to:ident: $([$($generics:tt)*] $ty:ty),+ $(,)?) => {$(
        impl<$($generics)*> $trait for $ty {
            type $to = Self;
            fn $name(self) -> Self {
                self
            }
        }
    )+};
}

same! { Enter::enter -> Inside:
    ['a] &'a Layout, ['a] &'a Shape, ['a, T] &'a [T], ['a] &'a CpuStorage, [] CpuStorage,
    ['a] &'a ParamsConv1D, ['a] &'a ParamsConv2D, ['a] &'a ParamsConvTranspose1D, ['a] &'a ParamsConvTranspose2D,
    [] DType, [] ReduceOp, [] CmpOp, [] Scalar, [] bool, [] usize, [] u64, [] f64, [] Option<f64>,
    [] (usize, usize), [] (usize, usize, usize, usize),
}

same! { Leave::leave -> Outside: [] (), [] bool, [] u64, [] DType, [] CpuStorage, [] DeviceLocation, [] Vec<u8> }

/// Methods that forward to the WebGPU backend; their list is in `backend_methods.rs`.
macro_rules! crossing_methods {
    () => {};
    (fn $name:ident $(<$g:ident: $bound:ident>)? (&mut $this:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty; $($rest:tt)*) => {
        fn $name $(<$g: $bound>)? (&mut $this $(, $arg: $ty)*) -> $ret {
            $this.0.$name $(::<$g>)? ($(Enter::enter($arg)),*).leave()
        }
        crossing_methods! { $($rest)* }
    };
    (fn $name:ident $(<$g:ident: $bound:ident>)? (&$this:ident $(, $arg:ident: $ty:ty)*) -> $ret:ty; $($rest:tt)*) => {
        fn $name $(<$g: $bound>)? (&$this $(, $arg: $ty)*) -> $ret {
            $this.0.$name $(::<$g>)? ($(Enter::enter($arg)),*).leave()
        }
        crossing_methods! { $($rest)* }
    };
}
pub(super) use crossing_methods;
