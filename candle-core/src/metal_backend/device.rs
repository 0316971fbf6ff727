//! The Metal device.

use bytemuck::TransparentWrapper;

use super::crossing::{crossing_methods, on_metal, Enter, Leave};
use super::MetalStorage;
use crate::backend::BackendDevice;
use crate::webgpu_backend::Options;
use crate::{CpuStorage, DType, DeviceLocation, Error, Result, Shape, WebGpuDevice, WithDType};

/// A Metal GPU, used through WebGPU. Clones are handles of the same device.
#[derive(Clone)]
#[repr(transparent)]
pub struct MetalDevice(WebGpuDevice);

// SAFETY: the type is `repr(transparent)` over its only field.
unsafe impl TransparentWrapper<WebGpuDevice> for MetalDevice {}

impl std::fmt::Debug for MetalDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MetalDevice({:?})", self.id())
    }
}

/// Identifies a Metal device within the process: opening an adapter twice gives two ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceId(u64);

impl MetalDevice {
    /// Opens the Metal adapter with this ordinal and these options.
    ///
    /// # Errors
    /// [`Error::NotCompiledWithMetalSupport`] on systems other than Apple's; [`Error::Metal`] if that adapter does not exist (the error
    /// lists the existing ones) or cannot open a device.
    pub fn with_options(ordinal: usize, options: &Options) -> Result<Self> {
        if !crate::webgpu_backend::has_metal() {
            return Err(Error::NotCompiledWithMetalSupport);
        }
        on_metal(WebGpuDevice::metal(ordinal, options))
    }

    /// Identifies this device within the process.
    pub fn id(&self) -> DeviceId {
        DeviceId(self.0.id())
    }

    /// The inner device, with its counters, profiles, memory limits and kernels.
    pub fn webgpu(&self) -> &WebGpuDevice {
        &self.0
    }

    /// Submits the queued work and waits until it is done.
    ///
    /// # Errors
    /// If the GPU was lost, or reports an error.
    pub fn wait_until_completed(&self) -> Result<()> {
        self.synchronize()
    }

    /// The same as [`MetalDevice::wait_until_completed`]: all kernels are in one queue.
    ///
    /// # Errors
    /// As [`MetalDevice::wait_until_completed`].
    pub fn flush_and_wait_current(&self) -> Result<()> {
        self.synchronize()
    }
}

impl Leave for WebGpuDevice {
    type Outside = MetalDevice;
    fn leave(self) -> MetalDevice {
        MetalDevice(self)
    }
}

impl BackendDevice for MetalDevice {
    type Storage = MetalStorage;

    fn new(ordinal: usize) -> Result<Self> {
        Self::with_options(ordinal, &Options::default())
    }

    device_methods! { crossing_methods, MetalStorage }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<MetalStorage> {
        // SAFETY: the caller's guarantee.
        on_metal(unsafe { self.0.alloc_uninit(shape, dtype) })
    }
}
