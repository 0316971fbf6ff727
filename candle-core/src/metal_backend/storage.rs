//! The Metal storage.

use bytemuck::TransparentWrapper;

use super::crossing::{crossing_methods, on_metal, renamed, Enter, Leave};
use super::MetalDevice;
use crate::backend::BackendStorage;
use crate::conv::{ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D, ParamsConvTranspose2D};
use crate::op::{BinaryOpT, CmpOp, ReduceOp, UnaryOpT};
use crate::scalar::Scalar;
use crate::watch::{Switches, Watched};
use crate::{webgpu_backend, CpuStorage, DType, Error, Layout, Result, WebGpuStorage};

/// Elements of one dtype on a Metal GPU.
#[derive(Debug)]
pub struct MetalStorage(WebGpuStorage);

impl MetalStorage {
    /// The inner storage, for kernels in WGSL.
    pub fn webgpu(&self) -> &WebGpuStorage {
        &self.0
    }

    /// Like [`MetalStorage::webgpu`], for ops that write in place.
    pub fn webgpu_mut(&mut self) -> &mut WebGpuStorage {
        &mut self.0
    }

    /// Starts copying the elements to the host, without waiting.
    pub(crate) fn begin_read(&self) -> Result<PendingRead> {
        Ok(PendingRead(on_metal(self.0.begin_read())?))
    }
}

/// Wraps the result of a kernel on the device of [`MetalStorage::webgpu`].
impl From<WebGpuStorage> for MetalStorage {
    fn from(storage: WebGpuStorage) -> Self {
        Self(storage)
    }
}

impl BackendStorage for MetalStorage {
    type Device = MetalDevice;

    fn device(&self) -> &MetalDevice {
        MetalDevice::wrap_ref(self.0.device())
    }

    storage_methods! { crossing_methods }
}

/// The switches and the log are those of the WebGPU backend.
impl Watched for MetalStorage {
    const NAME: &'static str = WebGpuStorage::NAME;

    fn switches(&self) -> Switches {
        self.0.switches()
    }

    fn device_name(&self) -> &str {
        self.0.device_name()
    }

    fn failure(text: String) -> Error {
        renamed(WebGpuStorage::failure(text))
    }
}

/// A copy of a storage to the host, in flight.
pub(crate) struct PendingRead(webgpu_backend::PendingRead);

impl PendingRead {
    /// Waits on this thread.
    pub(crate) fn wait(self) -> Result<CpuStorage> {
        on_metal(self.0.wait())
    }

    /// Waits without blocking the thread.
    pub(crate) async fn finish(self) -> Result<CpuStorage> {
        on_metal(self.0.finish().await)
    }
}

impl Leave for webgpu_backend::PendingRead {
    type Outside = Self;
    fn leave(self) -> Self {
        self
    }
}
