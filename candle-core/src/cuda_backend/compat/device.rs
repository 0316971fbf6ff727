//! Upstream's interface to a device's parts: its stream, cuBLAS, and memory for programs with separate kernels.

use std::sync::Arc;

use cudarc::cublas::CudaBlas;
use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceRepr, HostSlice, ValidAsZeroBits,
};

use super::super::device::CudaDevice;
use super::super::error::WrapErr;
use super::super::gpu::DeviceId;
use super::super::htod_cache::CudaGraphHtodCacheGuard;
use crate::Result;

impl CudaDevice {
    /// The stream with all of this device's work.
    pub fn cuda_stream(&self) -> Arc<CudaStream> {
        self.stream().clone()
    }

    /// Does nothing: this backend has one stream and tracks no events.
    ///
    /// # Safety
    /// No requirements; upstream's is unsafe.
    pub unsafe fn disable_event_tracking(&self) {
        self.context().disable_event_tracking();
    }

    /// Whether cudarc records events for each slice; false unless a program enabled it in the context.
    pub fn is_event_tracking(&self) -> bool {
        self.context().is_event_tracking()
    }

    /// Identifies this device within the process.
    pub fn id(&self) -> DeviceId {
        self.gpu().id()
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
        self.cublas()
    }

    /// Allocates memory for `len` elements, freed in the order of the device's stream.
    ///
    /// # Safety
    /// The contents are arbitrary: every element must be written before it is read.
    pub unsafe fn alloc<T: DeviceRepr>(&self, len: usize) -> Result<CudaSlice<T>> {
        self.alloc_slice(len, "alloc")
    }

    /// Allocates memory for `len` elements, all zero.
    pub fn alloc_zeros<T: DeviceRepr + ValidAsZeroBits>(&self, len: usize) -> Result<CudaSlice<T>> {
        self.zeros_slice(len, "alloc_zeros")
    }

    /// Copies from the host.
    pub fn memcpy_htod<T, Src, Dst>(&self, src: &Src, dst: &mut Dst) -> Result<()>
    where
        T: DeviceRepr + 'static,
        Src: HostSlice<T> + ?Sized,
        Dst: DevicePtrMut<T>,
    {
        self.upload_to(src, dst, "memcpy_htod")
    }

    /// Copies to the host, and waits.
    pub fn memcpy_dtoh<T, Src, Dst>(&self, src: &Src, dst: &mut Dst) -> Result<()>
    where
        T: DeviceRepr,
        Src: DevicePtr<T>,
        Dst: HostSlice<T>,
    {
        self.download_to(src, dst, "memcpy_dtoh")
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
        self.download(src, "clone_dtoh")
    }

    /// Copies to the device.
    pub fn clone_htod<T, Src>(&self, src: &Src) -> Result<CudaSlice<T>>
    where
        T: DeviceRepr,
        Src: HostSlice<T> + ?Sized,
    {
        self.upload(src, "clone_htod")
    }

    /// Makes copies from the host (`clone_htod`, `memcpy_htod`, new tensors) by this thread suitable for a CUDA graph, during the guard's
    /// lifetime.
    ///
    /// Run the work to be captured once before, under the guard: its copies, of at most 4096 bytes, are then kept on the card. A capture
    /// records copies from there. A copy that was not kept, and any copy to the host, is an error while the stream captures. The kept
    /// copies stay until the thread ends.
    pub fn enable_cuda_graph_htod_cache(&self) -> CudaGraphHtodCacheGuard {
        CudaGraphHtodCacheGuard::new()
    }
}
