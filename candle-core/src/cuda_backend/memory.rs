//! Memory of a GPU: allocations in the order of the stream, and copies.

use cudarc::driver::{
    result as driver, sys, CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, HostSlice,
    ValidAsZeroBits,
};

use super::error::{CudaError, WrapErr};
use super::gpu::Gpu;
use super::pool::pool;
use crate::Result;

impl Gpu {
    /// Returns freed memory, which is kept for later tensors, to the driver. Waits for the card.
    pub(super) fn return_memory(&self) -> Result<()> {
        self.return_spares();
        self.wait()?;
        let pool = pool(self.context())?;
        // SAFETY: the pool belongs to the card, which stays open.
        unsafe { driver::mem_pool::trim_to(pool, 0) }.w()
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
                self.return_memory()?;
                alloc()
            }
            other => other,
        };
        let slice = slice.map_err(|error| {
            let (free, total) = self.context().mem_get_info().unwrap_or((0, 0));
            if out_of_memory(&error) {
                CudaError::OutOfMemory {
                    op,
                    device: self.card.name.clone(),
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

    /// Allocates memory for `len` elements, all zero.
    pub(super) fn zeros_slice<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
        op: &'static str,
    ) -> Result<CudaSlice<T>> {
        let mut slice = self.alloc_slice(len, op)?;
        self.stream().memset_zeros(&mut slice).w()?;
        Ok(slice)
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// If work is being recorded: the copy would read memory of the host when the recording runs. Or as the driver's copy.
    pub(super) fn upload_to<T, Src, Dst>(&self, src: &Src, dst: &mut Dst, op: &str) -> Result<()>
    where
        T: DeviceRepr,
        Src: HostSlice<T> + ?Sized,
        Dst: DevicePtrMut<T>,
    {
        if self.copy_kept(src, dst, op)? {
            return Ok(());
        }
        self.refuse_while_recording(op)?;
        self.stream().memcpy_htod(src, dst).w()
    }

    /// Copies from the host to new memory.
    pub(super) fn upload<T, Src>(&self, src: &Src, op: &'static str) -> Result<CudaSlice<T>>
    where
        T: DeviceRepr,
        Src: HostSlice<T> + ?Sized,
    {
        let mut slice = self.alloc_slice(src.len(), op)?;
        if src.len() > 0 {
            self.upload_to(src, &mut slice, op)?;
        }
        Ok(slice)
    }

    /// Copies to the host, and waits.
    pub(super) fn download_to<T, Src, Dst>(&self, src: &Src, dst: &mut Dst, op: &str) -> Result<()>
    where
        T: DeviceRepr,
        Src: DevicePtr<T>,
        Dst: HostSlice<T>,
    {
        self.may_read(op)?;
        self.stream().memcpy_dtoh(src, dst).w()?;
        self.stream().synchronize().w()?;
        self.faults().check_failed()
    }

    /// Copies to new memory of the host, and waits.
    pub(super) fn download<T, Src>(&self, src: &Src, op: &str) -> Result<Vec<T>>
    where
        T: DeviceRepr,
        Src: DevicePtr<T>,
    {
        self.may_read(op)?;
        let copy = self.stream().clone_dtoh(src).w()?;
        self.stream().synchronize().w()?;
        self.faults().check_failed()?;
        Ok(copy)
    }
}
