//! Devices of WebGPU, and of Metal through it: kernels in WGSL in this folder; matrix products, elementwise functions and sums of rows are
//! Candle's.
//!
//! A buffer is a storage of u32 words that one binding reaches. A kernel that finds a fault writes it to the status, four words on
//! the device; the next read copies them behind its data and clears them.
//!
//! Long work is cut into dispatches as `plan.rs` says.

mod forest;
mod math;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::scalar::Scalar;
use candle_core::webgpu_backend::{PendingRead, WgslKernel};
use candle_core::{CpuStorage, DType, Layout, Shape, WebGpuDevice, WebGpuStorage};
use parking_lot::Mutex;

use crate::fault::Fault;
use crate::plan::GROUP;
use crate::runtime::{Description, Forest, Operand, Pending, Runtime, SplitInputs, Stop};
use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseParams, FindSplitParams,
    GpuError, MatmulParams, ReduceParams, Result,
};

/// Workgroups in a dimension, on every adapter.
const MOST_GROUPS: u64 = 65_535;
/// Bytes per chunk of a read; each chunk takes the same amount again while in transit.
const PIECE: u64 = 64 << 20;
/// Words of the status.
const STATUS_WORDS: usize = Fault::BYTES / 4;
/// Characters of a device's message that a guest gets.
const MESSAGE: usize = 500;

pub(crate) struct WebGpu {
    device: WebGpuDevice,
    status: Mutex<Status>,
    stop: Stop,
    pace: Mutex<Pace>,
}

/// Dispatches of the usual length that may wait in the queue: what a guest that has to end leaves to be done.
const DISPATCHES_AHEAD: u64 = 8;
/// Time between two looks whether the device has come to a mark.
const LOOK: Duration = Duration::from_micros(100);

/// How far the host is ahead of the device; see [`WebGpu::pace`].
#[derive(Default)]
struct Pace {
    /// Work queued since the mark.
    queued: u64,
    /// A read that ends when the device has done what was queued before it.
    mark: Option<Mark>,
}

type Mark = Pin<Box<dyn Future<Output = candle_core::Result<CpuStorage>> + Send>>;

struct Status {
    words: WebGpuStorage,
    /// Whether a kernel may have written to it since it was read.
    used: bool,
}

/// A kernel's text, with what it needs before it.
macro_rules! kernel {
    ($name:literal $(, $before:literal)*) => {
        $crate::webgpu::Source {
            name: $name,
            text: concat!(
                include_str!("common.wgsl"),
                $(include_str!(concat!($before, ".wgsl")),)*
                include_str!(concat!($name, ".wgsl"))
            ),
        }
    };
}
use kernel;

struct Source {
    name: &'static str,
    text: &'static str,
}

const COPY: Source = kernel!("copy", "put");
const WRITE: Source = kernel!("write", "put");

/// Bytes that a kernel takes as parameters: 60 of the 64 words.
const SHORT_WRITE: usize = 60 * 4;

/// A grid with a workgroup for each `GROUP` invocations. Kernels find their index by `flat`.
fn grid(invocations: u64) -> [u32; 3] {
    let groups = invocations.div_ceil(GROUP).max(1);
    let y = groups.div_ceil(MOST_GROUPS);
    [groups.div_ceil(y) as u32, y as u32, 1]
}

/// The layout of all of a storage.
fn all(storage: &WebGpuStorage) -> Layout {
    Layout::contiguous(storage.len())
}

impl WebGpu {
    pub(crate) fn new(device: WebGpuDevice) -> Result<Self> {
        let words = device.zeros_impl(&Shape::from(STATUS_WORDS), DType::U32);
        let words = words.map_err(|err| error_of(&device, &err))?;
        Ok(Self {
            status: Mutex::new(Status { words, used: false }),
            device,
            stop: Stop::default(),
            pace: Mutex::default(),
        })
    }

    /// The error for a guest, from an error of the device.
    fn error(&self, err: candle_core::Error) -> GpuError {
        error_of(&self.device, &err)
    }

    /// Words with arbitrary contents, for results that no guest sees as they are.
    fn scratch(&self, words: u64) -> Result<WebGpuStorage> {
        let shape = Shape::from(words as usize);
        // SAFETY: memory of the device, whose bits are valid u32 whatever they are.
        let scratch = unsafe { self.device.alloc_uninit(&shape, DType::U32) };
        scratch.map_err(|err| self.error(err))
    }

    fn run(
        &self,
        source: &Source,
        params: &[u32],
        workgroups: [u32; 3],
        inputs: &[&WebGpuStorage],
        outputs: &mut [&mut WebGpuStorage],
    ) -> Result<()> {
        let kernel = WgslKernel {
            name: source.name,
            source: source.text,
            params,
            workgroups,
        };
        let layouts: Vec<Layout> = inputs.iter().map(|input| all(input)).collect();
        let inputs: Vec<_> = inputs.iter().copied().zip(&layouts).collect();
        let run = self.device.run_wgsl_in_place(&kernel, &inputs, outputs);
        run.map_err(|err| self.error(err))
    }

    /// As [`WebGpu::run`], with the status as the last output.
    fn run_reporting(
        &self,
        source: &Source,
        params: &[u32],
        workgroups: [u32; 3],
        inputs: &[&WebGpuStorage],
        outputs: Vec<&mut WebGpuStorage>,
    ) -> Result<()> {
        let mut outputs = outputs;
        let status = &mut *self.status.lock();
        status.used = true;
        outputs.push(&mut status.words);
        self.run(source, params, workgroups, inputs, &mut outputs)
    }

    /// Copies bytes between two storages, of any dtypes.
    fn copy_bytes(
        &self,
        src: &WebGpuStorage,
        src_offset: u64,
        dst: &mut WebGpuStorage,
        dst_offset: u64,
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let src_words = (src.len() * src.dtype().size_in_bytes()).div_ceil(4);
        let words = (dst_offset % 4 + bytes).div_ceil(4);
        let params = [src_offset, dst_offset, bytes, src_words as u64].map(|value| value as u32);
        self.run(&COPY, &params, grid(words), &[src], &mut [dst])
    }

    /// Writes a few bytes by a kernel, which is queued as others are; an upload would submit them first.
    fn write_short(&self, dst: &mut WebGpuStorage, offset: u64, data: &[u8]) -> Result<()> {
        let mut params = [0; 64];
        let words = data.len().div_ceil(4);
        params[..4].copy_from_slice(&[0, offset as u32, data.len() as u32, words as u32]);
        bytemuck::cast_slice_mut::<u32, u8>(&mut params[4..])[..data.len()].copy_from_slice(data);
        // An offset inside a word may take one more.
        let grid = grid(words as u64 + 1);
        self.run(&WRITE, &params[..4 + words], grid, &[], &mut [dst])
    }

    /// Comes before `work` is queued. Who queues faster than the device works is held up here, so that a guest can be ended; a browser's
    /// thread cannot wait. The device always has one half of the work to do while the host waits for the other.
    fn pace(&self, work: u64) -> Result<()> {
        self.stop.check()?;
        let pace = &mut *self.pace.lock();
        pace.queued = pace.queued.saturating_add(work);
        let most = DISPATCHES_AHEAD / 2 * self.work_per_dispatch();
        if pace.queued <= most || cfg!(target_arch = "wasm32") {
            return Ok(());
        }
        pace.queued = work;
        let read = self.status.lock().words.begin_read();
        let read = read.map_err(|err| self.error(err))?;
        match pace.mark.replace(Box::pin(read.finish())) {
            Some(before) => self.reach(before),
            None => Ok(()),
        }
    }

    /// Waits until the device comes to a mark.
    fn reach(&self, mut mark: Mark) -> Result<()> {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match mark.as_mut().poll(&mut context) {
                Poll::Ready(reached) => return reached.map(drop).map_err(|err| self.error(err)),
                Poll::Pending => self.stop.check()?,
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Steps or comparisons of one dispatch.
    fn work_per_dispatch(&self) -> u64 {
        if self.device.is_software() {
            1 << 26
        } else {
            1 << 34
        }
    }
}

fn error_of(device: &WebGpuDevice, err: &candle_core::Error) -> GpuError {
    if device.check().is_err() {
        return GpuError::DeviceUnavailable;
    }
    let text = err.to_string();
    if text.contains("out of memory") {
        return GpuError::OutOfMemory;
    }
    GpuError::KernelError(text.chars().take(MESSAGE).collect())
}

/// Chunks in transit to the host, and whether the last one ends with the status.
pub(crate) struct Read {
    device: WebGpuDevice,
    pieces: Vec<PendingRead>,
    size: usize,
    has_status: bool,
}

impl Read {
    fn join(
        device: &WebGpuDevice,
        pieces: Vec<candle_core::Result<CpuStorage>>,
        size: usize,
        has_status: bool,
    ) -> Result<Vec<u8>> {
        let mut joined: Vec<u8> = Vec::new();
        for piece in pieces {
            let bytes = match piece {
                Ok(CpuStorage::U8(bytes)) => bytes,
                Ok(_) => return Err(GpuError::KernelError("a read gave no bytes".into())),
                Err(err) => return Err(error_of(device, &err)),
            };
            if joined.is_empty() {
                // Often the only one.
                joined = bytes;
            } else {
                joined.extend_from_slice(&bytes);
            }
        }
        if has_status {
            let status = joined.split_off(joined.len().saturating_sub(Fault::BYTES));
            if let Some(fault) = Fault::from_bytes(&status) {
                return Err(fault.into());
            }
        }
        joined.truncate(size);
        Ok(joined)
    }
}

impl Pending for Read {
    fn wait(self) -> Result<Vec<u8>> {
        let pieces = self.pieces.into_iter().map(PendingRead::wait).collect();
        Self::join(&self.device, pieces, self.size, self.has_status)
    }

    async fn arrive(self) -> Result<Vec<u8>> {
        let mut pieces = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces {
            pieces.push(piece.finish().await);
        }
        Self::join(&self.device, pieces, self.size, self.has_status)
    }
}

impl Runtime for WebGpu {
    type Buffer = WebGpuStorage;
    type Pending = Read;

    fn describe(&self) -> Description {
        let backend = match self.device.backend_name().as_str() {
            "BrowserWebGpu" => "webgpu".into(),
            other => other.to_lowercase(),
        };
        let name = match self.device.name() {
            // Browsers keep it to themselves.
            "" => "GPU",
            name => name,
        };
        Description {
            name: name.into(),
            backend,
            is_hardware: !self.device.is_software(),
            compute_capability: String::new(),
        }
    }

    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn max_buffer(&self) -> u64 {
        // Kernels count bytes in u32, and a binding's size is a multiple of 256.
        self.device
            .max_binding_bytes()
            .min(u64::from(u32::MAX) - 255)
    }

    fn check(&self) -> Result<()> {
        self.device.check().map_err(|_| GpuError::DeviceUnavailable)
    }

    fn create(&self, bytes: u64) -> Result<WebGpuStorage> {
        let shape = Shape::from(bytes.div_ceil(4) as usize);
        let zeros = self.device.zeros_impl(&shape, DType::U32);
        zeros.map_err(|err| self.error(err))
    }

    fn write(&self, dst: &mut WebGpuStorage, offset: u64, data: &[u8]) -> Result<()> {
        if data.len() <= SHORT_WRITE {
            return self.write_short(dst, offset, data);
        }
        let uploaded = self.device.storage_from_slice(data);
        let uploaded = uploaded.map_err(|err| self.error(err))?;
        self.copy_bytes(&uploaded, 0, dst, offset, data.len() as u64)
    }

    fn begin_read(&self, src: &WebGpuStorage, offset: u64, size: u32) -> Result<Read> {
        let status = &mut *self.status.lock();
        let mut pieces = Vec::new();
        let mut rest = u64::from(size);
        let mut offset = offset;
        loop {
            let bytes = rest.min(PIECE);
            rest -= bytes;
            let is_last = rest == 0;
            let padded = bytes.next_multiple_of(4);
            let with_status = is_last && status.used;
            let words = padded / 4 + if with_status { STATUS_WORDS as u64 } else { 0 };
            let mut copy = self.scratch(words)?;
            self.copy_bytes(src, offset, &mut copy, 0, bytes)?;
            if with_status {
                self.copy_bytes(&status.words, 0, &mut copy, padded, Fault::BYTES as u64)?;
            }
            let copy = copy.bitcast(DType::U8);
            let piece = copy.and_then(|copy| copy.begin_read());
            pieces.push(piece.map_err(|err| self.error(err))?);
            if is_last {
                break;
            }
            offset += bytes;
        }
        let has_status = status.used;
        if has_status {
            let layout = all(&status.words);
            let zero = Scalar::zero(DType::U32);
            let cleared = status.words.const_set(zero, &layout);
            cleared.map_err(|err| self.error(err))?;
            status.used = false;
        }
        Ok(Read {
            device: self.device.clone(),
            pieces,
            size: size as usize,
            has_status,
        })
    }

    fn copy(
        &self,
        src: &WebGpuStorage,
        src_offset: u64,
        dst: &mut WebGpuStorage,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        self.copy_bytes(src, src_offset, dst, dst_offset, size)
    }

    fn copy_within(
        &self,
        buffer: &mut WebGpuStorage,
        src_offset: u64,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        // WebGPU lets no kernel read and write one buffer by two bindings.
        let mut copy = self.scratch(size.div_ceil(4))?;
        self.copy_bytes(buffer, src_offset, &mut copy, 0, size)?;
        self.copy_bytes(&copy, 0, buffer, dst_offset, size)
    }

    fn sync(&self) {
        // What went wrong is said by the next call.
        let _ = self.device.synchronize();
    }

    fn bootstrap_sample(&self, params: BootstrapParams, output: &mut WebGpuStorage) -> Result<()> {
        forest::bootstrap_sample(self, params, output)
    }

    fn find_split(
        &self,
        params: FindSplitParams,
        inputs: SplitInputs<'_, WebGpuStorage>,
        output: &mut WebGpuStorage,
    ) -> Result<()> {
        forest::find_split(self, params, &inputs, output)
    }

    fn average(
        &self,
        params: AverageParams,
        predictions: &WebGpuStorage,
        output: &mut WebGpuStorage,
    ) -> Result<()> {
        math::average(self, params, predictions, output)
    }

    fn matmul(
        &self,
        params: MatmulParams,
        a: &WebGpuStorage,
        b: &WebGpuStorage,
        c: &mut WebGpuStorage,
    ) -> Result<()> {
        math::matmul(self, params, a, b, c)
    }

    fn elementwise(
        &self,
        params: ElementwiseParams,
        a: Operand<'_, WebGpuStorage>,
        b: Option<Operand<'_, WebGpuStorage>>,
        output: &mut WebGpuStorage,
    ) -> Result<()> {
        math::elementwise(self, params, a, b, output)
    }

    fn reduce(
        &self,
        params: ReduceParams,
        input: &WebGpuStorage,
        output: &mut WebGpuStorage,
    ) -> Result<()> {
        math::reduce(self, params, input, output)
    }

    fn batch_predict(
        &self,
        params: BatchPredictParams,
        forest: Forest<'_, WebGpuStorage>,
        output: &mut WebGpuStorage,
    ) -> Result<()> {
        forest::batch_predict(self, params, &forest, output)
    }
}
