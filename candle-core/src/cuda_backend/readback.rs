//! Copies to the host: small results through memory that the card writes while the host continues, large ones directly.

use cudarc::driver::{result as driver, sys::CUevent_flags, CudaEvent};

use super::device::CudaDevice;
use super::error::{During, WrapErr};
use super::pinned::{Pinned, STAGED};
use super::storage::{host_storage, CudaStorage};
use crate::backend::BackendStorage;
use crate::{CpuStorage, DType, Result};

/// A copy of a storage to the host, in flight.
pub struct PendingRead {
    device: CudaDevice,
    dtype: DType,
    len: usize,
    /// `None` once the result was taken.
    staged: Option<(Pinned, CudaEvent)>,
    /// The result of an immediate read.
    ready: Option<CpuStorage>,
}

impl CudaStorage {
    /// Copies the elements to the host and waits.
    pub(super) fn read(&self) -> Result<CpuStorage> {
        let copy = self.download()?;
        self.device.faults().check()?;
        Ok(copy)
    }

    /// Starts copying the elements to the host. Up to 1 MiB is copied without waiting; for more, this call waits.
    pub fn begin_read(&self) -> Result<PendingRead> {
        let device = self.device.clone();
        device.refuse_while_recording("a copy to the host")?;
        let (dtype, len) = (self.dtype(), self.len());
        let bytes = len * dtype.size_in_bytes();
        if bytes > STAGED || bytes == 0 {
            return Ok(PendingRead {
                ready: Some(self.read()?),
                staged: None,
                device,
                dtype,
                len,
            });
        }
        let pinned = device.staging().take(device.context())?;
        device.context().bind_to_thread().w()?;
        let stream = device.stream();
        // SAFETY: the staging memory belongs to this read until the event has passed, and is long enough.
        unsafe {
            let host = std::slice::from_raw_parts_mut(pinned.host(), bytes);
            driver::memcpy_dtoh_async(host, self.address(), stream.cu_stream()).w()?;
        }
        let flags = Some(CUevent_flags::CU_EVENT_DISABLE_TIMING);
        let arrived = stream.record_event(flags).w()?;
        Ok(PendingRead {
            ready: None,
            staged: Some((pinned, arrived)),
            device,
            dtype,
            len,
        })
    }
}

impl PendingRead {
    /// Whether [`wait`](Self::wait) returns at once, with the elements or with an error.
    pub fn is_ready(&self) -> bool {
        match &self.staged {
            Some((_, arrived)) => arrived.try_is_complete().unwrap_or(true),
            None => true,
        }
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// The device failed, or a kernel found an index out of range since the last check.
    pub fn wait(mut self) -> Result<CpuStorage> {
        if let Some(ready) = self.ready.take() {
            return Ok(ready);
        }
        let Some((pinned, arrived)) = self.staged.take() else {
            unreachable!("a read is ready or staged until it is taken");
        };
        arrived
            .synchronize()
            .during(|| "waiting for a result".into())?;
        let bytes = self.len * self.dtype.size_in_bytes();
        // SAFETY: the copy into the memory has ended.
        let bytes = unsafe { std::slice::from_raw_parts(pinned.host(), bytes) };
        let storage = host_storage(self.dtype, bytes);
        self.device.staging().give_back(pinned);
        self.device.faults().check()?;
        Ok(storage)
    }
}

impl Drop for PendingRead {
    fn drop(&mut self) {
        if let Some((pinned, arrived)) = self.staged.take() {
            // The card may still be writing there; memory of a failed read is not reused.
            if arrived.synchronize().is_ok() {
                self.device.staging().give_back(pinned);
            } else {
                std::mem::forget(pinned);
            }
        }
    }
}
