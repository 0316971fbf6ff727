//! The card's memory: allocations in the order of the stream, and copies.

use cudarc::driver::{
    result as driver, sys, CudaContext, CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, HostSlice,
    ValidAsZeroBits,
};

use super::device::CudaDevice;
use super::error::{CudaError, WrapErr};
use crate::backend::BackendDevice;
use crate::Result;

impl CudaDevice {
    /// Returns freed memory, which is kept for later tensors, to the driver. Waits for the card.
    pub fn trim(&self) -> Result<()> {
        self.synchronize()?;
        let pool = pool(self.context())?;
        // SAFETY: the pool belongs to the card, which stays open.
        unsafe { driver::mem_pool::trim_to(pool, 0) }.w()
    }

    /// Free bytes of the card's memory, considering other programs too. Memory of freed tensors counts as free: it is returned to the
    /// driver first, which waits for the card.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn free_memory(&self) -> Result<u64> {
        self.trim()?;
        let (free, _) = self.context().mem_get_info().w()?;
        Ok(free as u64)
    }

    /// Allocates memory for `len` elements, with arbitrary contents.
    pub(super) fn alloc_slice<T: DeviceRepr>(
        &self,
        len: usize,
        op: &'static str,
    ) -> Result<CudaSlice<T>> {
        // SAFETY: the callers write every element before it is read.
        let alloc = || unsafe { self.stream().alloc::<T>(len.max(1)) };
        let out_of_memory = |error: &cudarc::driver::DriverError| {
            error.0 == sys::cudaError_enum::CUDA_ERROR_OUT_OF_MEMORY
        };
        let slice = match alloc() {
            // Freeing cached blocks may be enough.
            Err(error) if out_of_memory(&error) => {
                self.trim()?;
                alloc()
            }
            other => other,
        };
        let slice = slice.map_err(|error| {
            let (free, total) = self.context().mem_get_info().unwrap_or((0, 0));
            if out_of_memory(&error) {
                CudaError::OutOfMemory {
                    op,
                    device: self.name().to_string(),
                    bytes: len.saturating_mul(std::mem::size_of::<T>()),
                    free,
                    total,
                }
            } else {
                error.into()
            }
        })?;
        if len > 0 {
            return Ok(slice);
        }
        // The driver rejects an allocation of 0 bytes.
        let address = slice.leak();
        // SAFETY: the address was just released by a slice of the same stream.
        Ok(unsafe { self.stream().upgrade_device_ptr(address, 0) })
    }
}

/// Upstream's interface for programs with separate kernels, which allocate memory for them.
impl CudaDevice {
    /// Allocates memory for `len` elements, freed in the order of the device's stream.
    ///
    /// # Safety
    /// The contents are arbitrary: every element must be written before it is read.
    pub unsafe fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        self.alloc_slice(len, "alloc")
    }

    /// Allocates memory for `len` elements, all zero.
    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> Result<CudaSlice<T>> {
        let mut slice = self.alloc_slice(len, "alloc_zeros")?;
        self.stream().memset_zeros(&mut slice).w()?;
        Ok(slice)
    }

    /// Copies from the host.
    pub fn memcpy_htod<T, Src, Dst>(&self, src: &Src, dst: &mut Dst) -> Result<()>
    where
        T: DeviceRepr + 'static,
        Src: HostSlice<T> + ?Sized,
        Dst: DevicePtrMut<T>,
    {
        if self.copy_kept(src, dst, "memcpy_htod")? {
            return Ok(());
        }
        self.stream().memcpy_htod(src, dst).w()
    }

    /// Copies to the host, and waits.
    pub fn memcpy_dtoh<T, Src, Dst>(&self, src: &Src, dst: &mut Dst) -> Result<()>
    where
        T: DeviceRepr,
        Src: DevicePtr<T>,
        Dst: HostSlice<T>,
    {
        self.may_read("memcpy_dtoh")?;
        self.stream().memcpy_dtoh(src, dst).w()?;
        self.stream().synchronize().w()?;
        self.faults().check_failed()
    }

    /// Copies on the device.
    pub fn memcpy_dtod<T, Src, Dst>(&self, src: &Src, dst: &mut Dst) -> Result<()>
    where
        Src: DevicePtr<T>,
        Dst: DevicePtrMut<T>,
    {
        self.stream().memcpy_dtod(src, dst).w()
    }

    /// Copies to the host, and waits.
    pub fn clone_dtoh<T: DeviceRepr, Src: DevicePtr<T>>(&self, src: &Src) -> Result<Vec<T>> {
        self.may_read("clone_dtoh")?;
        let copy = self.stream().clone_dtoh(src).w()?;
        self.stream().synchronize().w()?;
        self.faults().check_failed()?;
        Ok(copy)
    }

    /// Copies to the device.
    pub fn clone_htod<T, Src>(&self, src: &Src) -> Result<CudaSlice<T>>
    where
        T: DeviceRepr,
        Src: HostSlice<T> + ?Sized,
    {
        let mut slice = self.alloc_slice(src.len(), "clone_htod")?;
        if src.len() > 0 && !self.copy_kept(src, &mut slice, "clone_htod")? {
            self.stream().memcpy_htod(src, &mut slice).w()?;
        }
        Ok(slice)
    }
}

/// The pool of all allocations.
pub(super) fn pool(context: &CudaContext) -> Result<sys::CUmemoryPool> {
    // SAFETY: the device is open.
    unsafe { driver::device::get_default_mem_pool(context.cu_device()) }.w()
}

/// Makes the driver's pool keep freed memory: by default it is returned whenever the host waits, and has to be allocated again.
pub(super) fn keep_freed_memory(context: &CudaContext) -> Result<()> {
    if !context.has_async_alloc() {
        return Ok(());
    }
    use sys::CUmemPool_attribute_enum::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut all = u64::MAX;
    let pool = pool(context)?;
    // SAFETY: the pool belongs to the card; the attribute is a u64.
    unsafe {
        driver::mem_pool::set_attribute(
            pool,
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            (&raw mut all).cast(),
        )
    }
    .w()
}
