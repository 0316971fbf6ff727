//! A backend in memory that keeps buffers, notes what kernels were asked for, and fails when told to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use candle_wasi_gpu::{
    AverageParams, BatchPredictParams, BootstrapParams, BufferId, BufferUsage, DeviceInfo,
    ElementwiseParams, FindSplitParams, GpuBackend, GpuError, MatmulParams, PendingRead,
    ReduceParams, Result,
};

/// Kernels with one of these as their output fail: see [`fail`].
pub const FAILING: [BufferId; 5] = [901, 902, 903, 904, 905];
/// A reduction of this buffer takes until [`Device::release`].
pub const ENDLESS: BufferId = 906;
/// A read of this buffer never comes.
pub const SILENT: BufferId = 907;
/// The text of a failing kernel: longer than the host lets through, of characters of two bytes.
pub fn long_text() -> String {
    "ü".repeat(100_000)
}

/// The test's handle to a backend.
#[derive(Clone, Default)]
pub struct Device(Arc<Inner>);

#[derive(Default)]
struct Inner {
    calls: Mutex<Vec<String>>,
    buffers: Mutex<HashMap<BufferId, Vec<u8>>>,
    last: Mutex<BufferId>,
    released: AtomicBool,
    lost: AtomicBool,
}

/// The backend itself: the device, and by which name it goes.
struct Fake {
    device: Device,
    name: &'static str,
}

impl Device {
    /// A backend that calls itself `name`, by which the host decides how to wait for it.
    pub fn backend(&self, name: &'static str) -> Box<dyn GpuBackend> {
        Box::new(Fake {
            device: self.clone(),
            name,
        })
    }

    /// The calls since the last time.
    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.0.calls.lock().unwrap())
    }

    /// Ends kernels that would not.
    pub fn release(&self) {
        self.0.released.store(true, Ordering::Relaxed);
    }

    /// From here on the device is lost.
    pub fn lose(&self) {
        self.0.lost.store(true, Ordering::Relaxed);
    }

    pub fn buffers(&self) -> usize {
        self.0.buffers.lock().unwrap().len()
    }
}

impl Fake {
    fn note(&self, call: String) -> Result<()> {
        self.device.0.calls.lock().unwrap().push(call);
        if self.device.0.lost.load(Ordering::Relaxed) {
            Err(GpuError::DeviceUnavailable)
        } else {
            Ok(())
        }
    }

    fn kernel(&self, call: String, output: BufferId) -> Result<()> {
        self.note(call)?;
        match output {
            901 => Err(GpuError::OutOfMemory),
            902 => Err(GpuError::InvalidBuffer),
            903 => Err(GpuError::KernelError(long_text())),
            904 => Err(GpuError::DeviceUnavailable),
            905 => Err(GpuError::InvalidParams("n is 0\nand 日".into())),
            _ => Ok(()),
        }
    }

    fn with<T>(
        &self,
        buffer: BufferId,
        offset: u64,
        size: u64,
        act: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let mut buffers = self.device.0.buffers.lock().unwrap();
        let bytes = buffers.get_mut(&buffer).ok_or(GpuError::InvalidBuffer)?;
        let end = offset
            .checked_add(size)
            .filter(|end| *end <= bytes.len() as u64);
        match end {
            Some(end) => Ok(act(&mut bytes[offset as usize..end as usize])),
            None => Err(GpuError::InvalidParams("out of range".into())),
        }
    }
}

impl GpuBackend for Fake {
    fn get_device_info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "Fäke".into(),
            backend: self.name.into(),
            total_memory: u64::MAX,
            is_hardware: true,
            compute_capability: "9.0".into(),
        }
    }

    fn buffer_create(&self, size: u64, usage: BufferUsage) -> Result<BufferId> {
        self.note(format!("create {size} {:06b}", usage.bits()))?;
        if size > 1 << 26 {
            return Err(GpuError::OutOfMemory);
        }
        let mut last = self.device.0.last.lock().unwrap();
        *last += 1;
        let bytes = vec![0; size as usize];
        self.device.0.buffers.lock().unwrap().insert(*last, bytes);
        Ok(*last)
    }

    fn buffer_write(&self, buffer: BufferId, offset: u64, data: &[u8]) -> Result<()> {
        self.note(format!("write {buffer} {offset} {}", data.len()))?;
        let size = data.len() as u64;
        self.with(buffer, offset, size, |bytes| bytes.copy_from_slice(data))
    }

    fn buffer_read(&self, buffer: BufferId, offset: u64, size: u32) -> Result<Vec<u8>> {
        self.note(format!("read {buffer} {offset} {size}"))?;
        self.with(buffer, offset, size.into(), |bytes| bytes.to_vec())
    }

    fn begin_read(&self, buffer: BufferId, offset: u64, size: u32) -> Result<PendingRead> {
        if buffer == SILENT {
            return Ok(Box::pin(std::future::pending()));
        }
        let bytes = self.buffer_read(buffer, offset, size)?;
        Ok(Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(bytes)
        }))
    }

    fn buffer_copy(
        &self,
        src: BufferId,
        src_offset: u64,
        dst: BufferId,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        self.note(format!("copy {src} {src_offset} {dst} {dst_offset} {size}"))?;
        let bytes = self.with(src, src_offset, size, |bytes| bytes.to_vec())?;
        self.with(dst, dst_offset, size, |to| to.copy_from_slice(&bytes))
    }

    fn buffer_destroy(&self, buffer: BufferId) -> Result<()> {
        self.note(format!("destroy {buffer}"))?;
        let gone = self.device.0.buffers.lock().unwrap().remove(&buffer);
        gone.map(|_| ()).ok_or(GpuError::InvalidBuffer)
    }

    fn stop(&self) {}

    fn sync(&self) {
        let _ = self.note("sync".into());
    }

    fn kernel_bootstrap_sample(&self, params: BootstrapParams, output: BufferId) -> Result<()> {
        self.kernel(format!("{params:?} {output}"), output)
    }

    fn kernel_find_split(
        &self,
        params: FindSplitParams,
        data: BufferId,
        labels: BufferId,
        indices: BufferId,
        thresholds: BufferId,
        output: BufferId,
    ) -> Result<()> {
        let call = format!("{params:?} {data} {labels} {indices} {thresholds} {output}");
        self.kernel(call, output)
    }

    fn kernel_average(
        &self,
        params: AverageParams,
        predictions: BufferId,
        output: BufferId,
    ) -> Result<()> {
        self.kernel(format!("{params:?} {predictions} {output}"), output)
    }

    fn kernel_matmul(
        &self,
        params: MatmulParams,
        a: BufferId,
        b: BufferId,
        c: BufferId,
    ) -> Result<()> {
        self.kernel(format!("{params:?} {a} {b} {c}"), c)
    }

    fn kernel_elementwise(
        &self,
        params: ElementwiseParams,
        a: BufferId,
        b: Option<BufferId>,
        output: BufferId,
    ) -> Result<()> {
        self.kernel(format!("{params:?} {a} {b:?} {output}"), output)
    }

    fn kernel_reduce(&self, params: ReduceParams, input: BufferId, output: BufferId) -> Result<()> {
        while input == ENDLESS && !self.device.0.released.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kernel(format!("{params:?} {input} {output}"), output)
    }

    fn kernel_batch_predict(
        &self,
        params: BatchPredictParams,
        samples: BufferId,
        nodes: BufferId,
        offsets: BufferId,
        output: BufferId,
    ) -> Result<()> {
        let call = format!("{params:?} {samples} {nodes} {offsets} {output}");
        self.kernel(call, output)
    }
}
