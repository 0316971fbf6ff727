//! Work that is recorded once and launched as a whole: a launch of many kernels costs the host no more than one.

use cudarc::driver::sys::{CUgraphInstantiate_flags_enum, CUstreamCaptureMode_enum};

use super::device::CudaDevice;
use super::error::During;
use super::nccl::{AllRecordedCalls, RecordedCalls};
use crate::Result;

/// Kernels of one device, recorded by [`CudaDevice::record`].
pub struct Recording {
    graph: cudarc::driver::CudaGraph,
    device: CudaDevice,
    /// Number of kernels.
    kernels: u64,
    /// Calls of groups.
    calls: Vec<RecordedCalls>,
}

// SAFETY: `&mut self` ensures that one thread at a time launches a graph; the driver accepts any thread.
unsafe impl Send for Recording {}
// SAFETY: as above; a shared recording only returns its size.
unsafe impl Sync for Recording {}

impl CudaDevice {
    /// Records the work that `work` submits to this device. It is not executed then, but by each [`Recording::launch`]: with the same
    /// storages, offsets and sizes, on their contents at that time.
    ///
    /// Storages that `work` allocates must be dropped when it returns; copy results into storages from before. Their memory belongs to the
    /// recording. Run the same work once before, so that its kernels are compiled.
    ///
    /// # Errors
    /// Errors of `work`. An error if `work` copies from or to the host, or waits for the device, or if another recording of the same device
    /// is in progress.
    pub fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Recording> {
        if self.is_profiling() {
            crate::bail!(
                "cannot record on {} while kernels are being timed",
                self.name()
            )
        }
        let _guard = self.begin_recording()?;
        let calls = self.kept::<AllRecordedCalls>();
        calls.lock().clear();
        let before = self.launches();
        let stream = self.stream();
        stream
            .begin_capture(CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED)
            .during(|| "starting to record".into())?;
        let done = work();
        let flags = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let ended = stream.end_capture(flags);
        let calls = std::mem::take(&mut *calls.lock());
        done?;
        let Some(graph) = ended.during(|| "recording".into())? else {
            crate::bail!("nothing was recorded on {}", self.name())
        };
        Ok(Recording {
            graph,
            device: self.clone(),
            kernels: self.launches() - before,
            calls,
        })
    }
}

impl Recording {
    /// Queues the recorded work in the device's stream. If it contains calls of a group, all ranks have to launch the same.
    ///
    /// # Errors
    /// If the driver fails, or a group has ended.
    pub fn launch(&mut self) -> Result<()> {
        for calls in &self.calls {
            calls.enter()?;
        }
        self.device.count_launches(1);
        self.graph
            .launch()
            .during(|| "launching a recording".into())
    }

    /// Number of recorded kernels.
    pub fn kernels(&self) -> u64 {
        self.kernels
    }
}
