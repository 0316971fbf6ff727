//! Exports of upstream's CUDA module, for a build without CUDA.

use crate::absent::Never;
use crate::{Error, Result};

pub use crate::absent::{CudaDevice, CudaStorage};

/// Identifies a CUDA device within the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceId(Never);

macro_rules! reduced_precision {
    ($get:ident, $set:ident, $allow:pat_param, $dtype:literal) => {
        #[doc = concat!("Whether CUDA may multiply ", $dtype, " matrices with lower precision; false without CUDA.")]
        pub fn $get() -> bool {
            false
        }

        #[doc = concat!("Allows CUDA lower precision for ", $dtype, " matrices; nothing to do without CUDA.")]
        pub fn $set($allow: bool) {}
    };
}

reduced_precision!(
    gemm_reduced_precision_f32,
    set_gemm_reduced_precision_f32,
    _b,
    "f32"
);
reduced_precision!(
    gemm_reduced_precision_f16,
    set_gemm_reduced_precision_f16,
    _,
    "f16"
);
reduced_precision!(
    gemm_reduced_precision_bf16,
    set_gemm_reduced_precision_bf16,
    _,
    "bf16"
);

impl CudaDevice {
    /// Like [`BackendDevice::new`](crate::backend::BackendDevice::new), with a separate stream.
    pub fn new_with_stream(_: usize) -> Result<Self> {
        Err(Error::NotCompiledWithCudaSupport)
    }

    /// Identifies this device within the process.
    pub fn id(&self) -> DeviceId {
        self.never()
    }
}

impl CudaStorage {
    /// Copies to another CUDA device.
    pub fn transfer_to_device(&self, _dst: &CudaDevice) -> Result<Self> {
        self.never()
    }
}
