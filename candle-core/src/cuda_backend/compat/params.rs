//! Kernel parameters in upstream's form.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, DeviceRepr, LaunchArgs, PushKernelArg};

use super::super::device::CudaDevice;
use crate::scalar::Scalar;
use crate::{Layout, Result};

/// An address on the card, or null.
pub enum SlicePtrOrNull<T> {
    /// Memory that only this parameter uses.
    Ptr(CudaSlice<T>),
    /// Memory shared with other parameters.
    Cached(Arc<CudaSlice<T>>),
    /// No address.
    Null,
}

impl<T: DeviceRepr> SlicePtrOrNull<T> {
    /// Appends the address to a launch's parameters.
    pub fn builder_arg<'a, 'b: 'a>(&'b self, builder: &mut LaunchArgs<'a>) {
        match self {
            Self::Ptr(slice) => builder.arg(slice),
            Self::Cached(slice) => builder.arg(slice.as_ref()),
            Self::Null => builder.arg(&0usize),
        };
    }
}

impl SlicePtrOrNull<usize> {
    /// Copies `params` to the card. Kernels of this backend receive such numbers by value instead.
    pub fn params_from_vec(dev: &CudaDevice, params: Vec<usize>) -> Result<Self> {
        Ok(Self::Ptr(dev.clone_htod(&params)?))
    }

    /// Null for a contiguous layout; otherwise its dimensions, then its strides.
    pub fn params_from_layout(dev: &CudaDevice, l: &Layout) -> Result<Self> {
        if l.is_contiguous() {
            return Ok(Self::Null);
        }
        Self::params_from_vec(dev, [l.dims(), l.stride()].concat())
    }
}

impl Scalar {
    /// Appends the number, in its own type, to a launch's parameters.
    pub fn builder_arg<'a, 'b: 'a>(&'b self, builder: &mut LaunchArgs<'a>) {
        match self {
            Self::U8(value) => builder.arg(value),
            Self::U32(value) => builder.arg(value),
            Self::I16(value) => builder.arg(value),
            Self::I32(value) => builder.arg(value),
            Self::I64(value) => builder.arg(value),
            Self::F32(value) => builder.arg(value),
            Self::F64(value) => builder.arg(value),
            Self::F16(value) => builder.arg(value),
            Self::BF16(value) => builder.arg(value),
            Self::F8E4M3(value) => builder.arg(value),
        };
    }
}

/// Appends values to a launch's parameters: `builder_arg!(builder, count, T::zero())`. The values live until the end of the block.
#[macro_export]
macro_rules! builder_arg {
    ($builder:ident, $($value:expr),* $(,)?) => {
        $(
            let __value = $value;
            $builder.arg(&__value);
        )*
    };
}
