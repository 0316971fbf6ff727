//! Errors that kernels detect in their data: an index out of range, an integer divided by zero.
//!
//! A kernel writes the first fault to host memory that the card can access; the host reads it whenever it waits for the card.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{result as driver, sys, CudaContext};

use super::error::WrapErr;
pub(super) use crate::fault_codes::{code, DIVISION_BY_ZERO, EXPERT_ROWS};
use crate::{fault_codes, Result};

/// `struct Fault` of `kernels/prelude.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Fault {
    /// 0 for none.
    code: u32,
    unused: u32,
    index: u64,
    size: u64,
}

pub(super) struct Faults {
    /// The context of the memory, which it must outlive.
    context: Arc<CudaContext>,
    host: *mut Fault,
    address: u64,
    /// See [`Faults::fail`].
    failed: OnceLock<String>,
}

// SAFETY: the memory is only accessed by volatile reads and writes; the card's writes precede the host's wait for it.
unsafe impl Send for Faults {}
// SAFETY: as above.
unsafe impl Sync for Faults {}

impl Faults {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self> {
        context.bind_to_thread().w()?;
        let mut address = 0;
        // SAFETY: memory for one fault, which the card accesses at `address`.
        let host = unsafe {
            let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
            let host = driver::malloc_host(std::mem::size_of::<Fault>(), flags).w()?;
            sys::cuMemHostGetDevicePointer_v2(&mut address, host, 0)
                .result()
                .w()?;
            let host = host.cast::<Fault>();
            host.write_volatile(NO_FAULT);
            host
        };
        Ok(Self {
            context: context.clone(),
            host,
            address,
            failed: OnceLock::new(),
        })
    }

    /// The address that kernels write to.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Marks the device as failed because of `reason`: its memory may not hold the right results. The mark stays, since it is unknown which
    /// results are affected. A newly opened device is not marked.
    pub(super) fn fail(&self, reason: String) {
        // The first reason is the cause.
        let _ = self.failed.set(reason);
    }

    /// An error after [`Faults::fail`].
    pub(super) fn check_failed(&self) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some(reason) => crate::bail!("{reason}"),
        }
    }

    /// The first fault of the work that the host has waited for, as an error; it is then cleared. A reason given to [`Faults::fail`] takes
    /// precedence.
    pub(super) fn check(&self) -> Result<()> {
        self.check_failed()?;
        // SAFETY: the memory lives as long as `self`.
        let fault = unsafe { self.host.read_volatile() };
        if fault.code == 0 {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { self.host.write_volatile(NO_FAULT) };
        let (index, size) = (fault.index as usize, fault.size as usize);
        Err(fault_codes::error(fault.code, index, size, "a cuda device"))
    }
}

const NO_FAULT: Fault = Fault {
    code: 0,
    unused: 0,
    index: 0,
    size: 0,
};

impl Drop for Faults {
    fn drop(&mut self) {
        let bound = self.context.bind_to_thread();
        // SAFETY: allocated by `malloc_host`, freed once; the stream's work ends before its memory is freed.
        let freed = bound.and_then(|()| unsafe { driver::free_host(self.host.cast()) });
        if let Err(err) = freed {
            tracing::warn!(?err, "cannot free the memory for faults");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{CudaDevice, Device, Result, Tensor};

    #[test]
    fn cuda_a_failed_device_returns_errors_until_it_is_opened_again() -> Result<()> {
        let open = || CudaDevice::new_with_stream(0);
        let card = open()?;
        let device = Device::Cuda(card.clone());
        let xs = Tensor::new(&[1f32, 2.], &device)?;
        // Read through staging memory, and directly.
        let large = Tensor::zeros(1 << 19, crate::DType::F32, &device)?;
        let pending = match &*xs.storage_and_layout().0 {
            crate::Storage::Cuda(storage) => storage.begin_read()?,
            _ => unreachable!("the device is a card"),
        };
        card.faults().fail("rank 1 has left".into());
        card.faults().fail("a consequence".into());
        for _ in 0..2 {
            let errors = [
                xs.to_vec1::<f32>().unwrap_err(),
                large.to_vec1::<f32>().unwrap_err(),
                xs.to_device(&Device::Cpu).unwrap_err(),
                device.synchronize().unwrap_err(),
            ];
            for err in errors {
                let err = err.to_string();
                assert!(err.contains("rank 1 has left"), "{err}");
            }
        }
        assert!(pending.wait().is_err());
        let xs = Tensor::new(&[1f32, 2.], &Device::Cuda(open()?))?;
        assert_eq!(xs.to_vec1::<f32>()?, [1., 2.]);
        Ok(())
    }
}
