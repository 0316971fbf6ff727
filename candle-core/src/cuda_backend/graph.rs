//! Work that is recorded once and launched as a whole: a launch of many kernels costs the host as much as one.

use cudarc::driver::sys::{CUgraphInstantiate_flags_enum, CUstreamCaptureMode_enum};

use super::device::CudaDevice;
use super::error::During;
use super::nccl::RecordedCalls;
use crate::Result;

/// Kernels of one device, recorded by [`CudaDevice::record`].
pub struct Recording {
    graph: cudarc::driver::CudaGraph,
    device: CudaDevice,
    /// Kernels in it.
    kernels: u64,
    /// Calls of groups in it.
    calls: Vec<RecordedCalls>,
}

// SAFETY: a graph is launched by one thread at a time, which `&mut self` sees to; the driver does not care which.
unsafe impl Send for Recording {}
// SAFETY: as above; a shared recording only tells its size.
unsafe impl Sync for Recording {}

impl CudaDevice {
    /// Records what `work` asks of this device, which does not happen then but with each [`Recording::launch`]: with the same
    /// storages, at the same places and sizes, over what is in them at that time.
    ///
    /// Storages that `work` makes must be gone when it returns, but for results that it copies into storages from before. Their memory is
    /// the recording's own. Run the same work once before, so that its kernels are compiled.
    ///
    /// # Errors
    /// Those of `work`; work that copies from or to the host, or waits for the device; another recording on the same device.
    pub fn record(&self, work: impl FnOnce() -> Result<()>) -> Result<Recording> {
        if self.is_profiling() {
            crate::bail!(
                "cannot record on {} while kernels are being timed",
                self.name()
            )
        }
        let _guard = self.begin_recording()?;
        let before = self.stats().launches;
        let stream = self.stream();
        stream
            .begin_capture(CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED)
            .during(|| "starting to record".into())?;
        let done = work();
        let flags = CUgraphInstantiate_flags_enum::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let ended = stream.end_capture(flags);
        let calls = std::mem::take(&mut *self.recorded_calls().lock());
        done?;
        let Some(graph) = ended.during(|| "recording".into())? else {
            crate::bail!("nothing was recorded on {}", self.name())
        };
        Ok(Recording {
            graph,
            device: self.clone(),
            kernels: self.stats().launches - before,
            calls,
        })
    }
}

impl Recording {
    /// Puts the recorded work into the device's stream. Where it has calls of a group, all ranks have to launch the same.
    ///
    /// # Errors
    /// The driver refuses; a group has ended.
    pub fn launch(&mut self) -> Result<()> {
        for calls in &self.calls {
            calls.enter()?;
        }
        self.device.count_launches(1);
        self.graph
            .launch()
            .during(|| "launching a recording".into())
    }

    /// Kernels in it.
    pub fn kernels(&self) -> u64 {
        self.kernels
    }
}
