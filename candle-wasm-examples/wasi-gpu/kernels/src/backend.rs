//! What a device has to do for a guest.

use std::future::Future;
use std::pin::Pin;

use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseParams, FindSplitParams,
    MatmulParams, ReduceParams, Result,
};

bitflags::bitflags! {
    /// The purpose of a buffer: a hint, see [`GpuBackend::buffer_create`].
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

/// Bytes in transit from the device. It does not borrow the backend; dropping it cancels the read.
pub type PendingRead = Pin<Box<dyn Future<Output = Result<Vec<u8>>> + Send>>;

/// One guest's memory and kernels on one device.
///
/// Calls take effect in the order in which they are made; a device may do the work later. What then goes wrong is returned by the next
/// read, and by every call once the device is lost. No argument makes a method panic. A backend's buffers are zero when they are made, and
/// none of them is seen by another backend.
///
/// What a kernel finds wrong with a buffer's contents is returned once: on the CPU by its own call, on a GPU by the first read that is
/// begun later, of any buffer. If that read is dropped unfinished, so is the fault. Where several things are wrong, which of them is
/// named is up to the device.
///
/// Sizes are minima: larger buffers are fine, and what a kernel has no use for stays. Outputs must not be inputs, but for elementwise
/// functions. All else is [`InvalidParams`](crate::GpuError::InvalidParams), which says what was needed and what was there.
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

    /// Overlapping ranges of one buffer are copied as if through a temporary one.
    fn buffer_copy(
        &self,
        src: BufferId,
        src_offset: u64,
        dst: BufferId,
        dst_offset: u64,
        size: u64,
    ) -> Result<()>;

    /// The name is invalid from here on, also while the device still works on the contents.
    fn buffer_destroy(&self, buffer: BufferId) -> Result<()>;

    /// Ends this backend: every call from now on is [`GpuError::DeviceUnavailable`](crate::GpuError::DeviceUnavailable). A kernel that is
    /// under way in another thread is given up at the next of its parts, some 10 ms on a GPU and 100 ms on the CPU.
    fn stop(&self);

    /// Waits for all that was called before. It cannot fail: the next read says what went wrong.
    fn sync(&self);

    /// Draws `n_samples` u32 below `max_index`, with replacement. A number depends on its index and on the seed alone, so every device
    /// draws the same.
    ///
    /// # Errors
    /// [`InvalidParams`](crate::GpuError::InvalidParams) if `max_index` is 0, also without samples.
    fn kernel_bootstrap_sample(
        &self,
        params: BootstrapParams,
        output_indices: BufferId,
    ) -> Result<()>;

    /// For each threshold `t`, the squared error of a node that is split there: of the rows with `x <= t` about their mean label, plus
    /// that of the others, NaN among them; not divided by their number. Infinity if a side has no rows.
    ///
    /// `data` is `(rows, n_features)` f32, row-major, and `labels` `(rows)` f32: as many rows as both have. `indices` are `n_samples`
    /// u32, the node's rows, which may occur more than once. `thresholds` and `output_scores` are `n_thresholds` f32. A score is right to
    /// 1e-5 of the node's own squared error, and the same bits at every call.
    ///
    /// # Errors
    /// [`InvalidParams`](crate::GpuError::InvalidParams) if there are no features or not this one, or for more than 2⁴⁶ comparisons.
    /// [`KernelError`](crate::GpuError::KernelError) for an index that is not a row: scores are then arbitrary.
    fn kernel_find_split(
        &self,
        params: FindSplitParams,
        data: BufferId,
        labels: BufferId,
        indices: BufferId,
        thresholds: BufferId,
        output_scores: BufferId,
    ) -> Result<()>;

    /// Means of the rows of `tree_predictions`, `(n_samples, n_trees)` f32, to `n_samples` f32.
    ///
    /// # Errors
    /// [`InvalidParams`](crate::GpuError::InvalidParams) if `n_trees` is 0.
    fn kernel_average(
        &self,
        params: AverageParams,
        tree_predictions: BufferId,
        output: BufferId,
    ) -> Result<()>;

    /// C = alpha · op(A) · op(B) + beta · C in f32, which is not shortened on the way. With beta 0, C is not read; with k 0, the product
    /// is 0. An alpha of 0 is a factor like others: 0 times NaN is NaN.
    fn kernel_matmul(
        &self,
        params: MatmulParams,
        a: BufferId,
        b: BufferId,
        c: BufferId,
    ) -> Result<()>;

    /// A function of each of `n_elements` f32. `input_b` is for Add and Mul; others do not look at it. Inputs and output may be one buffer.
    ///
    /// What IEEE 754 says of square roots below 0, of the logarithm of 0 and of overflow. Relu of NaN is 0, as in Candle.
    ///
    /// # Errors
    /// [`InvalidParams`](crate::GpuError::InvalidParams) if Add or Mul have no `input_b`.
    fn kernel_elementwise(
        &self,
        params: ElementwiseParams,
        input_a: BufferId,
        input_b: Option<BufferId>,
        output: BufferId,
    ) -> Result<()>;

    /// `n_elements` f32 to one. NaN among them gives NaN, whatever the op.
    ///
    /// # Errors
    /// [`InvalidParams`](crate::GpuError::InvalidParams) if `n_elements` is 0.
    fn kernel_reduce(&self, params: ReduceParams, input: BufferId, output: BufferId) -> Result<()>;

    /// The mean of what a sample's walks come to in each tree, to `batch_size` f32.
    ///
    /// `samples` is `(batch_size, n_features)` f32, `tree_offsets` the node at which each of `n_trees` trees starts, u32. A node has 16
    /// bytes, little-endian: the feature, u32, or 0xffffffff for a leaf; the threshold or the leaf's value, f32; the left and the right
    /// child, u32, counted from the tree's first node. A sample goes left where `x <= threshold`, and right with NaN.
    ///
    /// # Errors
    /// [`InvalidParams`](crate::GpuError::InvalidParams) if `n_trees` is 0, or for more than 2⁴⁶ steps: `batch_size · n_trees` times
    /// `max_depth`, or times the number of nodes where that is less. [`KernelError`](crate::GpuError::KernelError) if a walk takes more
    /// than `max_depth` steps, or comes to a child, a feature or a first node that is not there: its sample's output is then NaN, and
    /// others are right.
    fn kernel_batch_predict(
        &self,
        params: BatchPredictParams,
        samples: BufferId,
        tree_nodes: BufferId,
        tree_offsets: BufferId,
        output: BufferId,
    ) -> Result<()>;
}
