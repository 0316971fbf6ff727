//! What a device has to do, after everything was checked.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseParams, FindSplitParams,
    GpuError, MatmulParams, ReduceParams, Result,
};

/// Whether a guest is to end. Long kernels look at it between their parts.
#[derive(Debug, Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            Err(GpuError::DeviceUnavailable)
        } else {
            Ok(())
        }
    }
}

/// A device's description: [`DeviceInfo`](crate::DeviceInfo) without the guest's quota.
pub(crate) struct Description {
    pub(crate) name: String,
    pub(crate) backend: String,
    pub(crate) is_hardware: bool,
    pub(crate) compute_capability: String,
}

/// Bytes in transit to the host.
pub(crate) trait Pending: Send + 'static {
    /// Waits on this thread.
    fn wait(self) -> Result<Vec<u8>>;

    /// Waits without blocking the thread.
    fn arrive(self) -> impl Future<Output = Result<Vec<u8>>> + Send;
}

/// An input of an elementwise kernel.
pub(crate) enum Operand<'a, B> {
    /// The output itself.
    Output,
    Other(&'a B),
}

pub(crate) struct SplitInputs<'a, B> {
    pub(crate) data: &'a B,
    pub(crate) labels: &'a B,
    pub(crate) indices: &'a B,
    pub(crate) thresholds: &'a B,
    /// Rows of `data` that have a label; indices are below it.
    pub(crate) rows: u32,
}

pub(crate) struct Forest<'a, B> {
    pub(crate) samples: &'a B,
    pub(crate) nodes: &'a B,
    pub(crate) offsets: &'a B,
    /// Number of nodes that fit in the buffer.
    pub(crate) node_count: u32,
    /// As many steps as a walk may take: no more than there are nodes, since a longer one goes in a circle.
    pub(crate) depth: u32,
}

/// A device that runs valid calls: ranges and sizes are inside the buffers, counts are not zero, the output is not an input. A kernel only
/// has to check the contents of buffers.
///
/// A buffer is a sequence of little-endian words of 32 bits; the last one may be longer than what the guest asked for.
pub(crate) trait Runtime: Send + Sync + 'static {
    type Buffer: Send + Sync;
    type Pending: Pending;

    fn describe(&self) -> Description;

    fn stop(&self) -> &Stop;

    /// The most bytes that a buffer can have.
    fn max_buffer(&self) -> u64;

    /// [`GpuError::DeviceUnavailable`](crate::GpuError::DeviceUnavailable) once the device is lost.
    fn check(&self) -> Result<()>;

    /// A buffer of zeros.
    fn create(&self, bytes: u64) -> Result<Self::Buffer>;

    fn write(&self, dst: &mut Self::Buffer, offset: u64, data: &[u8]) -> Result<()>;

    /// Starts reading what the buffer holds now. Takes the fault that a kernel found, if there is one.
    fn begin_read(&self, src: &Self::Buffer, offset: u64, size: u32) -> Result<Self::Pending>;

    fn copy(
        &self,
        src: &Self::Buffer,
        src_offset: u64,
        dst: &mut Self::Buffer,
        dst_offset: u64,
        size: u64,
    ) -> Result<()>;

    /// Ranges may overlap.
    fn copy_within(
        &self,
        buffer: &mut Self::Buffer,
        src_offset: u64,
        dst_offset: u64,
        size: u64,
    ) -> Result<()>;

    fn sync(&self);

    fn bootstrap_sample(&self, params: BootstrapParams, output: &mut Self::Buffer) -> Result<()>;

    fn find_split(
        &self,
        params: FindSplitParams,
        inputs: SplitInputs<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<()>;

    fn average(
        &self,
        params: AverageParams,
        predictions: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<()>;

    /// `k` may be 0.
    fn matmul(
        &self,
        params: MatmulParams,
        a: &Self::Buffer,
        b: &Self::Buffer,
        c: &mut Self::Buffer,
    ) -> Result<()>;

    /// `b` is there for the ops of two operands, and not for others.
    fn elementwise(
        &self,
        params: ElementwiseParams,
        a: Operand<'_, Self::Buffer>,
        b: Option<Operand<'_, Self::Buffer>>,
        output: &mut Self::Buffer,
    ) -> Result<()>;

    fn reduce(
        &self,
        params: ReduceParams,
        input: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<()>;

    fn batch_predict(
        &self,
        params: BatchPredictParams,
        forest: Forest<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<()>;
}
