//! Handles of cuBLAS and cuBLASLt, created on first use.

use std::sync::{Arc, OnceLock};

use cudarc::cublas::CudaBlas;
use cudarc::driver::{CudaSlice, CudaStream};

use super::error::WrapErr;
use super::libraries::Library;
use super::lt::Lt;
use crate::Result;

/// The handles that a device has created so far.
#[derive(Default)]
pub(super) struct Handles {
    cublas: OnceLock<Arc<CudaBlas>>,
    lt: OnceLock<Option<Lt>>,
}

impl Handles {
    /// cuBLASLt, if it is installed; see [`Lt::new`].
    pub(super) fn lt(
        &self,
        workspace: impl FnOnce() -> Result<CudaSlice<u8>>,
    ) -> Result<Option<&Lt>> {
        if let Some(lt) = self.lt.get() {
            return Ok(lt.as_ref());
        }
        let lt = Lt::new(workspace)?;
        Ok(self.lt.get_or_init(|| lt).as_ref())
    }

    /// cuBLAS on this stream.
    ///
    /// # Errors
    /// If it is not installed, or cannot create a handle.
    pub(super) fn cublas(&self, stream: &Arc<CudaStream>) -> Result<Arc<CudaBlas>> {
        if let Some(handle) = self.cublas.get() {
            return Ok(handle.clone());
        }
        Library::Cublas.open()?;
        let handle = Arc::new(CudaBlas::new(stream.clone()).w()?);
        Ok(self.cublas.get_or_init(|| handle).clone())
    }
}
