//! Devices of CUDA: kernels in CUDA C++ in this folder; matrix products by Candle, which computes f32 at full precision.
//!
//! A buffer is a storage of f32, whose words kernels reinterpret as they need. All work is in the device's one stream, so it takes effect
//! in the order of the calls. A kernel that finds a fault writes it to the status, as on WebGPU.

mod forest;

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::task::Poll;

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::driver::{
    CudaSlice, CudaView, CudaViewMut, DevicePtr, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CompiledModule, CudaFunc, PendingRead, WrapErr};
use candle_core::{CpuStorage, CudaDevice, CudaStorage};
use parking_lot::Mutex;

use crate::fault::Fault;
use crate::plan::GROUP;
use crate::runtime::{Description, Forest, Operand, Pending, Runtime, SplitInputs, Stop};
use crate::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseOp, ElementwiseParams,
    FindSplitParams, GpuError, MatmulParams, ReduceOp, ReduceParams, Result,
};

const TEXT: &str = include_str!("kernels.cu");

/// Steps or comparisons of one launch.
const WORK: u64 = 1 << 34;
/// Elements that a block of `reduce` brings together.
const REDUCED: u64 = GROUP * 64;
/// Characters of a device's message that a guest gets.
const MESSAGE: usize = 500;
/// Minimum length of a write that Candle copies through pinned memory, beside the kernels. It allocates the target, so a copy follows.
const LONG_WRITE: usize = 1 << 20;

pub(crate) struct Cuda {
    device: CudaDevice,
    kernels: Kernels,
    health: Health,
    status: Mutex<Status>,
    stop: Stop,
}

struct Status {
    words: CudaSlice<f32>,
    /// Whether a kernel may have written to it since it was read.
    used: bool,
}

/// The kernels of the module, looked up once: the driver does it by name.
struct Kernels {
    bootstrap: CudaFunc,
    split_small: CudaFunc,
    split_rows: CudaFunc,
    split_mean: CudaFunc,
    split_sums: CudaFunc,
    split_scores: CudaFunc,
    average: CudaFunc,
    accumulate: CudaFunc,
    elementwise: CudaFunc,
    reduce: CudaFunc,
    reduce_end: CudaFunc,
    predict: CudaFunc,
    predict_mean: CudaFunc,
}

impl Kernels {
    fn of(module: &CompiledModule) -> candle_core::Result<Self> {
        Ok(Self {
            bootstrap: module.func("bootstrap")?,
            split_small: module.func("split_small")?,
            split_rows: module.func("split_rows")?,
            split_mean: module.func("split_mean")?,
            split_sums: module.func("split_sums")?,
            split_scores: module.func("split_scores")?,
            average: module.func("average")?,
            accumulate: module.func("accumulate")?,
            elementwise: module.func("elementwise")?,
            reduce: module.func("reduce")?,
            reduce_end: module.func("reduce_end")?,
            predict: module.func("predict")?,
            predict_mean: module.func("predict_mean")?,
        })
    }
}

/// Whether the driver has said that the context is beyond use.
#[derive(Clone, Default)]
struct Health(Arc<AtomicBool>);

impl Health {
    fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Acquire) {
            return Err(GpuError::DeviceUnavailable);
        }
        Ok(())
    }

    /// The error for a guest. Except for memory, the driver's errors stay with the context.
    fn error(&self, err: candle_core::Error) -> GpuError {
        let text = err.to_string();
        if text.contains("OUT_OF_MEMORY") || text.to_lowercase().contains("out of memory") {
            return GpuError::OutOfMemory;
        }
        if text.contains("CUDA driver") {
            self.0.store(true, Ordering::Release);
            return GpuError::DeviceUnavailable;
        }
        GpuError::KernelError(text.chars().take(MESSAGE).collect())
    }
}

/// A kernel's parameter.
enum Arg<'a> {
    Buffer(&'a CudaSlice<f32>),
    Word(u32),
    Float(f32),
    Long(u64),
}

fn words_mut(buffer: &mut CudaStorage) -> Result<&mut CudaSlice<f32>> {
    let words = buffer.as_cuda_slice_mut::<f32>();
    words.map_err(|err| GpuError::KernelError(err.to_string()))
}

/// The words of a buffer.
fn words(buffer: &CudaStorage) -> Result<&CudaSlice<f32>> {
    let words = buffer.as_cuda_slice::<f32>();
    words.map_err(|err| GpuError::KernelError(err.to_string()))
}

fn out_of_range() -> GpuError {
    GpuError::InvalidParams("a range past the end of a buffer".into())
}

fn range(offset: u64, size: u64) -> std::ops::Range<usize> {
    offset as usize..(offset + size) as usize
}

/// Bytes of words.
fn bytes(words: &CudaSlice<f32>, offset: u64, size: u64) -> Result<CudaView<'_, u8>> {
    // SAFETY: any bits are a u8.
    let view = unsafe { words.transmute::<u8>(words.num_bytes()) };
    let view = view.and_then(|view| view.try_slice(range(offset, size)));
    view.ok_or_else(out_of_range)
}

/// Runs `write` with bytes of words.
fn with_bytes<T>(
    words: &mut CudaSlice<f32>,
    offset: u64,
    size: u64,
    write: impl FnOnce(CudaViewMut<'_, u8>) -> Result<T>,
) -> Result<T> {
    let count = words.num_bytes();
    // SAFETY: any bits are a u8, and any four of them an f32.
    let whole = unsafe { words.transmute_mut::<u8>(count) };
    let mut whole = whole.ok_or_else(out_of_range)?;
    let part = whole.try_slice_mut(range(offset, size));
    write(part.ok_or_else(out_of_range)?)
}

impl Cuda {
    pub(crate) fn new(device: CudaDevice) -> Result<Self> {
        let health = Health::default();
        let made = device.compile("wasi_gpu.cu", TEXT, &[]).and_then(|module| {
            let words = device.alloc_zeros::<f32>(Fault::BYTES / 4)?;
            Ok((Kernels::of(&module)?, words))
        });
        let (kernels, words) = made.map_err(|err| health.error(err))?;
        Ok(Self {
            device,
            kernels,
            health,
            status: Mutex::new(Status { words, used: false }),
            stop: Stop::default(),
        })
    }

    fn told<T>(&self, result: candle_core::Result<T>) -> Result<T> {
        result.map_err(|err| self.health.error(err))
    }

    /// Words with arbitrary contents, for results that no guest sees as they are.
    fn scratch(&self, count: u64) -> Result<CudaSlice<f32>> {
        // SAFETY: any bits are an f32, and kernels write what they or others read.
        self.told(unsafe { self.device.alloc::<f32>(count.max(1) as usize) })
    }

    /// Copies bytes to an offset in words.
    fn copy_to<Src: DevicePtr<u8>>(
        &self,
        src: &Src,
        dst: &mut CudaSlice<f32>,
        offset: u64,
    ) -> Result<()> {
        with_bytes(dst, offset, src.len() as u64, |mut part| {
            self.told(self.device.memcpy_dtod(src, &mut part))
        })
    }

    /// Launches a kernel with at least one thread per element.
    fn launch(&self, kernel: &CudaFunc, threads: u64, args: &[Arg<'_>]) -> Result<()> {
        self.stop.check()?;
        let mut builder = kernel.builder();
        for arg in args {
            match arg {
                Arg::Buffer(words) => builder.arg(*words),
                Arg::Word(value) => builder.arg(value),
                Arg::Float(value) => builder.arg(value),
                Arg::Long(value) => builder.arg(value),
            };
        }
        let blocks = threads.div_ceil(GROUP).max(1) as u32;
        let config = LaunchConfig {
            grid_dim: (blocks, 1, 1),
            block_dim: (GROUP as u32, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: the arguments are the kernel's, in its order, and the buffers as long as it expects; all work on them is in one stream.
        let launched = unsafe { builder.launch(config) };
        self.told(launched.w().map(|_| ()))
    }
}

/// Bytes in transit to the host, and whether they end with the status.
pub(crate) struct Read {
    pending: PendingRead,
    health: Health,
    size: usize,
    has_status: bool,
}

impl Pending for Read {
    fn wait(self) -> Result<Vec<u8>> {
        let read = self.pending.wait();
        let mut bytes = match read.map_err(|err| self.health.error(err))? {
            CpuStorage::U8(bytes) => bytes,
            _ => return Err(GpuError::KernelError("a read gave no bytes".into())),
        };
        if self.has_status {
            let status = bytes.split_off(bytes.len().saturating_sub(Fault::BYTES));
            if let Some(fault) = Fault::from_bytes(&status) {
                return Err(fault.into());
            }
        }
        bytes.truncate(self.size);
        Ok(bytes)
    }

    async fn arrive(self) -> Result<Vec<u8>> {
        // The closure has it to itself: it may go to another thread, but not be shared with one.
        let mut read = Some(self);
        poll_fn(
            move |context| match read.take_if(|read| read.pending.is_ready()) {
                Some(read) => Poll::Ready(read),
                None => {
                    // The driver does not wake a task.
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            },
        )
        .await
        .wait()
    }
}

impl Runtime for Cuda {
    type Buffer = CudaStorage;
    type Pending = Read;

    fn describe(&self) -> Description {
        let (major, minor) = self.device.card().capability;
        Description {
            name: self.device.name().into(),
            backend: "cuda".into(),
            is_hardware: true,
            compute_capability: format!("{major}.{minor}"),
        }
    }

    fn stop(&self) -> &Stop {
        &self.stop
    }

    fn max_buffer(&self) -> u64 {
        self.device.card().memory as u64
    }

    fn check(&self) -> Result<()> {
        self.health.check()
    }

    fn create(&self, bytes: u64) -> Result<CudaStorage> {
        let words = self.device.alloc_zeros::<f32>(bytes.div_ceil(4) as usize);
        Ok(CudaStorage::wrap_cuda_slice(
            self.told(words)?,
            self.device.clone(),
        ))
    }

    fn write(&self, dst: &mut CudaStorage, offset: u64, data: &[u8]) -> Result<()> {
        let dst = words_mut(dst)?;
        if data.len() < LONG_WRITE {
            return with_bytes(dst, offset, data.len() as u64, |mut part| {
                self.told(self.device.memcpy_htod(data, &mut part))
            });
        }
        let uploaded = self.told(self.device.clone_htod(data))?;
        self.copy_to(&uploaded, dst, offset)
    }

    fn begin_read(&self, src: &CudaStorage, offset: u64, size: u32) -> Result<Read> {
        let status = &mut *self.status.lock();
        let has_status = status.used;
        let size = u64::from(size);
        let more = if has_status { Fault::BYTES as u64 } else { 0 };
        // SAFETY: every byte is written before it is read.
        let copy = unsafe { self.device.alloc::<u8>((size + more) as usize) };
        let mut copy = self.told(copy)?;
        let mut put = |from: CudaView<'_, u8>, at: u64| {
            if from.is_empty() {
                return Ok(());
            }
            let part = copy.try_slice_mut(range(at, from.len() as u64));
            let mut part = part.ok_or_else(out_of_range)?;
            self.told(self.device.memcpy_dtod(&from, &mut part))
        };
        put(bytes(words(src)?, offset, size)?, 0)?;
        if has_status {
            put(bytes(&status.words, 0, more)?, size)?;
            let zeros = self.told(self.device.alloc_zeros::<f32>(Fault::BYTES / 4))?;
            status.words = zeros;
            status.used = false;
        }
        let storage = CudaStorage::wrap_cuda_slice(copy, self.device.clone());
        Ok(Read {
            pending: self.told(storage.begin_read())?,
            health: self.health.clone(),
            size: size as usize,
            has_status,
        })
    }

    fn copy(
        &self,
        src: &CudaStorage,
        src_offset: u64,
        dst: &mut CudaStorage,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        let from = bytes(words(src)?, src_offset, size)?;
        self.copy_to(&from, words_mut(dst)?, dst_offset)
    }

    fn copy_within(
        &self,
        buffer: &mut CudaStorage,
        src_offset: u64,
        dst_offset: u64,
        size: u64,
    ) -> Result<()> {
        let mut third = self.scratch(size.div_ceil(4))?;
        self.copy_to(&bytes(words(buffer)?, src_offset, size)?, &mut third, 0)?;
        self.copy_to(&bytes(&third, 0, size)?, words_mut(buffer)?, dst_offset)
    }

    fn sync(&self) {
        // What went wrong is said by the next call.
        let _ = self.told(self.device.synchronize());
    }

    fn bootstrap_sample(&self, params: BootstrapParams, output: &mut CudaStorage) -> Result<()> {
        let count = params.n_samples;
        let args = [
            Arg::Buffer(words(output)?),
            Arg::Word(count),
            Arg::Word(params.seed),
            Arg::Word(params.max_index),
        ];
        self.launch(&self.kernels.bootstrap, count.into(), &args)
    }

    fn find_split(
        &self,
        params: FindSplitParams,
        inputs: SplitInputs<'_, CudaStorage>,
        output: &mut CudaStorage,
    ) -> Result<()> {
        forest::find_split(self, params, &inputs, output)
    }

    fn average(
        &self,
        params: AverageParams,
        predictions: &CudaStorage,
        output: &mut CudaStorage,
    ) -> Result<()> {
        let args = [
            Arg::Buffer(words(predictions)?),
            Arg::Buffer(words(output)?),
            Arg::Word(params.n_trees),
        ];
        self.launch(
            &self.kernels.average,
            u64::from(params.n_samples) * GROUP,
            &args,
        )
    }

    fn matmul(
        &self,
        params: MatmulParams,
        a: &CudaStorage,
        b: &CudaStorage,
        c: &mut CudaStorage,
    ) -> Result<()> {
        let [m, k, n] = [params.m, params.k, params.n].map(|size| size as usize);
        let product = if k > 0 {
            let [a_layout, b_layout] = crate::cpu::matrices(params, 0, m);
            Some(self.told(a.matmul(b, (1, m, n, k), &a_layout, &b_layout))?)
        } else {
            None
        };
        let count = (m * n) as u64;
        let product = match product {
            Some(product) if params.is_plain() && words(&product)?.len() == words(c)?.len() => {
                *c = product;
                return Ok(());
            }
            product => product,
        };
        let reads = u32::from(k > 0) | u32::from(params.beta != 0.) << 1;
        let c = words(c)?;
        let args = [
            // Without a product, nothing is read there.
            Arg::Buffer(product.as_ref().map_or(Ok(c), words)?),
            Arg::Buffer(c),
            Arg::Long(count),
            Arg::Float(params.alpha),
            Arg::Float(params.beta),
            Arg::Word(reads),
        ];
        self.launch(&self.kernels.accumulate, count, &args)
    }

    fn elementwise(
        &self,
        params: ElementwiseParams,
        a: Operand<'_, CudaStorage>,
        b: Option<Operand<'_, CudaStorage>>,
        output: &mut CudaStorage,
    ) -> Result<()> {
        let output = words(output)?;
        let operand = |operand| match operand {
            Some(Operand::Other(buffer)) => words(buffer),
            // What is not there is not read.
            Some(Operand::Output) | None => Ok(output),
        };
        let op = match params.op {
            ElementwiseOp::Relu => 0,
            ElementwiseOp::Sigmoid => 1,
            ElementwiseOp::Tanh => 2,
            ElementwiseOp::Add => 3,
            ElementwiseOp::Mul => 4,
            ElementwiseOp::Sqrt => 5,
            ElementwiseOp::Exp => 6,
            ElementwiseOp::Log => 7,
        };
        let args = [
            Arg::Buffer(operand(Some(a))?),
            Arg::Buffer(operand(b)?),
            Arg::Buffer(output),
            Arg::Word(params.n_elements),
            Arg::Word(op),
        ];
        self.launch(&self.kernels.elementwise, params.n_elements.into(), &args)
    }

    fn reduce(
        &self,
        params: ReduceParams,
        input: &CudaStorage,
        output: &mut CudaStorage,
    ) -> Result<()> {
        let count = params.n_elements;
        let blocks = u64::from(count).div_ceil(REDUCED);
        let (input, output) = (words(input)?, words(output)?);
        let pairs = self.scratch(2 * blocks)?;
        let pass = |by: u32, end: u32, mean: &CudaSlice<f32>, output: &CudaSlice<f32>| {
            let args = [
                Arg::Buffer(input),
                Arg::Buffer(mean),
                Arg::Buffer(&pairs),
                Arg::Word(count),
                Arg::Word(by),
            ];
            self.launch(&self.kernels.reduce, blocks * GROUP, &args)?;
            let args = [
                Arg::Buffer(&pairs),
                Arg::Buffer(output),
                Arg::Word(blocks as u32),
                Arg::Word(end),
                Arg::Word(count),
            ];
            self.launch(&self.kernels.reduce_end, 1, &args)
        };
        // The kernels' numbers for what they do.
        match params.op {
            ReduceOp::Sum => pass(0, 0, input, output),
            ReduceOp::Max => pass(1, 1, input, output),
            ReduceOp::Min => pass(2, 2, input, output),
            ReduceOp::Mean => pass(0, 3, input, output),
            ReduceOp::Variance => {
                let mean = self.scratch(1)?;
                pass(3, 3, input, &mean)?;
                pass(4, 4, &mean, output)
            }
        }
    }

    fn batch_predict(
        &self,
        params: BatchPredictParams,
        forest: Forest<'_, CudaStorage>,
        output: &mut CudaStorage,
    ) -> Result<()> {
        forest::batch_predict(self, params, &forest, output)
    }
}
