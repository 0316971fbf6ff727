//! What a device has to do for a guest.

use std::future::Future;
use std::pin::Pin;

use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseParams, FindSplitParams,
    MatmulParams, ReduceParams, Result,
};

bitflags::bitflags! {
    /// What a buffer is meant for: a hint, see [`GpuBackend::buffer_create`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BufferUsage: u32 {
        const MAP_READ = 1;
        const MAP_WRITE = 1 << 1;
        const COPY_SRC = 1 << 2;
        const COPY_DST = 1 << 3;
        const UNIFORM = 1 << 4;
        const STORAGE = 1 << 5;
    }
}

/// Names a buffer of one backend. Never 0; not given out twice.
pub type BufferId = u32;

/// The interface's `device-info`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub name: String,
    /// `cuda`, `metal`, `vulkan`, `dx12`, `webgpu` (a browser's) or `cpu`.
    pub backend: String,
    /// Bytes that this backend's buffers may have together. Never 0.
    pub total_memory: u64,
    /// Whether it is more than a processor.
    pub is_hardware: bool,
    /// CUDA's, such as `9.0`; empty elsewhere.
    pub compute_capability: String,
}

/// Bytes on their way from the device. It borrows nothing of the backend; dropped, it is forgotten.
pub type PendingRead = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + Send>>;

/// One guest's memory and kernels on one device.
///
/// Calls take effect in the order in which they are made; a device may do the work later. What then goes wrong is returned by the next
/// read, and by every call once the device is lost. No argument makes a method panic. A backend's buffers are zero when they are made, and
/// none of them is seen by another backend.
pub trait GpuBackend: Send + Sync {
    fn get_device_info(&self) -> DeviceInfo;

    /// A buffer of `size` bytes, all zero. `usage` is a hint: every buffer can be read, written, copied and given to kernels.
    fn buffer_create(&self, size: u64, usage: BufferUsage) -> Result<BufferId>;

    /// Any offset and length, in bytes, inside the buffer.
    fn buffer_write(&self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()>;

    /// Waits for all that was called before.
    fn buffer_read(&self, buffer: BufferId, offset: u64, size: u32) -> Result<Vec<u8>>;

    /// As [`buffer_read`](Self::buffer_read), of the contents as they are at this call; the future does not block its thread. Refuses at
    /// once what is known to be wrong.
    fn begin_read(&self, buffer: BufferId, offset: u64, size: u32) -> Result<PendingRead>;

    /// Overlapping ranges of one buffer are copied as if by way of a third.
    fn buffer_copy(
        &self,
        src: BufferId,
        src_offset: u64,
        dst: BufferId,
        dst_offset: u64,
        size: u64,
    ) -> Result<()>;

    fn buffer_destroy(&self, buffer: BufferId) -> Result<()>;

    /// Waits for all that was called before. It cannot fail: the next read says what went wrong.
    fn sync(&self);

    fn kernel_bootstrap_sample(
        &self,
        params: BootstrapParams,
        output_indices: BufferId,
    ) -> Result<()>;

    fn kernel_find_split(
        &self,
        params: FindSplitParams,
        data: BufferId,
        labels: BufferId,
        indices: BufferId,
        thresholds: BufferId,
        output_scores: BufferId,
    ) -> Result<()>;

    fn kernel_average(
        &self,
        params: AverageParams,
        tree_predictions: BufferId,
        output: BufferId,
    ) -> Result<()>;

    fn kernel_matmul(
        &self,
        params: MatmulParams,
        a: BufferId,
        b: BufferId,
        c: BufferId,
    ) -> Result<()>;

    fn kernel_elementwise(
        &self,
        params: ElementwiseParams,
        input_a: BufferId,
        input_b: Option<BufferId>,
        output: BufferId,
    ) -> Result<()>;

    fn kernel_reduce(&self, params: ReduceParams, input: BufferId, output: BufferId) -> Result<()>;

    fn kernel_batch_predict(
        &self,
        params: BatchPredictParams,
        samples: BufferId,
        tree_nodes: BufferId,
        tree_offsets: BufferId,
        output: BufferId,
    ) -> Result<()>;
}
