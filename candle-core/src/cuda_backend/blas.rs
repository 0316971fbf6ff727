//! Handles of cuBLAS, created on first use.

use std::sync::{Arc, OnceLock};

use cudarc::cublas::CudaBlas;

use super::device::CudaDevice;
use super::error::WrapErr;
use super::libraries::Library;
use super::ops::matmul::Lt;
use crate::Result;

/// The cuBLAS handles that a device has created so far.
#[derive(Default)]
pub(super) struct Handles {
    cublas: OnceLock<Arc<CudaBlas>>,
    lt: OnceLock<Option<Lt>>,
}

impl CudaDevice {
    /// cuBLASLt, if it is installed.
    pub(super) fn lt(&self) -> Result<Option<&Lt>> {
        if let Some(lt) = self.blas().lt.get() {
            return Ok(lt.as_ref());
        }
        let lt = Lt::new(self)?;
        Ok(self.blas().lt.get_or_init(|| lt).as_ref())
    }

    /// A handle of cuBLAS on this device's stream, for programs that call it themselves.
    ///
    /// # Panics
    /// If cuBLAS is not installed or cannot create a handle; upstream's signature cannot return an error. See
    /// [`CudaDevice::try_cublas_handle`].
    pub fn cublas_handle(&self) -> Arc<CudaBlas> {
        self.try_cublas_handle().expect("a cuBLAS handle")
    }

    /// Like [`CudaDevice::cublas_handle`], but returns an error with the reason.
    pub fn try_cublas_handle(&self) -> Result<Arc<CudaBlas>> {
        if let Some(handle) = self.blas().cublas.get() {
            return Ok(handle.clone());
        }
        Library::Cublas.open()?;
        let handle = Arc::new(CudaBlas::new(self.stream().clone()).w()?);
        Ok(self.blas().cublas.get_or_init(|| handle).clone())
    }
}
