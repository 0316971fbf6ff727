//! The imports of `wasi:gpu`, served by a backend.

use std::sync::Arc;
use std::time::Instant;

use candle_wasi_gpu as kernels;
use kernels::GpuBackend;
use tokio::task::spawn_blocking;
use wasmtime::component::{HasSelf, Linker, WasmList};
use wasmtime::StoreContextMut;

use crate::bindings::wasi::gpu::{compute, ml_kernels};
use crate::error::shortened;
use crate::guest::State;
use crate::limits::Limits;
use crate::stats::{Function, Stats};
use compute::{BufferId, GpuError};

/// A kernel that does more than this (multiplications, or elements) leaves the thread that drives guests, so that the guest's timeout holds
/// and others go on: on the CPU some 10 ms of work, and a GPU's queue holds up who fills it. The change of threads costs 10 us.
const MOST_IN_CALL: u128 = 1 << 24;

/// How a thread waits for the device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// In the call.
    InCall,
    /// Later. Reading waits on the thread.
    Queued,
    /// Later. Reading gives a future that does not hold up its thread.
    Polled,
}

/// A guest's view of its device.
pub(crate) struct Gpu {
    backend: Arc<dyn GpuBackend>,
    work: Work,
    /// Bytes of linear memory that the guest can have: no read can be longer.
    memory: usize,
    pub(crate) stats: Stats,
}

impl Gpu {
    pub(crate) fn new(backend: Box<dyn GpuBackend>, limits: &Limits) -> Self {
        let work = match backend.get_device_info().backend.as_str() {
            "cpu" => Work::InCall,
            "cuda" => Work::Queued,
            _ => Work::Polled,
        };
        Self {
            backend: backend.into(),
            work,
            memory: limits.memory,
            stats: Stats::default(),
        }
    }

    /// Gives up what the guest has under way.
    pub(crate) fn stop(&self) {
        self.backend.stop();
    }

    /// Counts a call that answers `done`, which moved `bytes`, and puts the answer into the interface's types.
    fn answer<T>(
        &mut self,
        function: Function,
        start: Instant,
        bytes: u64,
        done: kernels::Result<T>,
    ) -> Result<T, GpuError> {
        let bytes = done.is_ok().then_some(bytes);
        self.stats.record(function, start.elapsed(), bytes);
        done.map_err(GpuError::from)
    }

    async fn read(
        &self,
        buffer: BufferId,
        offset: u64,
        size: u32,
    ) -> wasmtime::Result<kernels::Result<Vec<u8>>> {
        if size as usize > self.memory {
            return Ok(Err(kernels::GpuError::InvalidParams(format!(
                "{size} bytes were to be read, the guest can have {} bytes of memory",
                self.memory
            ))));
        }
        match self.work {
            Work::InCall => Ok(self.backend.buffer_read(buffer, offset, size)),
            Work::Queued => {
                let backend = self.backend.clone();
                Ok(spawn_blocking(move || backend.buffer_read(buffer, offset, size)).await?)
            }
            Work::Polled => match self.backend.begin_read(buffer, offset, size) {
                Ok(pending) => Ok(pending.await),
                Err(err) => Ok(Err(err)),
            },
        }
    }

    /// Calls a kernel. `work` is about how much there is to compute.
    async fn kernel(
        &mut self,
        function: Function,
        work: u128,
        call: impl FnOnce(&dyn GpuBackend) -> kernels::Result<()> + Send + 'static,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        let start = Instant::now();
        let done = if work > MOST_IN_CALL {
            let backend = self.backend.clone();
            spawn_blocking(move || call(&*backend)).await?
        } else {
            call(&*self.backend)
        };
        Ok(self.answer(function, start, 0, done))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The product, which three counts of 32 bits cannot overflow.
fn product<const N: usize>(counts: [u32; N]) -> u128 {
    counts.into_iter().map(u128::from).product()
}

impl compute::Host for Gpu {
    fn get_device_info(&mut self) -> compute::DeviceInfo {
        let start = Instant::now();
        let info = self.backend.get_device_info();
        self.stats
            .record(Function::GetDeviceInfo, start.elapsed(), Some(0));
        compute::DeviceInfo {
            name: shortened(info.name),
            backend: shortened(info.backend),
            total_memory: info.total_memory,
            is_hardware: info.is_hardware,
            compute_capability: shortened(info.compute_capability),
        }
    }

    fn buffer_create(
        &mut self,
        size: u64,
        usage: compute::BufferUsage,
    ) -> Result<BufferId, GpuError> {
        let start = Instant::now();
        let done = self.backend.buffer_create(size, usage.into());
        self.answer(Function::BufferCreate, start, size, done)
    }

    /// Guests come by [`write_in_place`], which does not copy the data first.
    fn buffer_write(
        &mut self,
        buffer: BufferId,
        offset: u64,
        data: Vec<u8>,
    ) -> Result<(), GpuError> {
        let start = Instant::now();
        let done = self.backend.buffer_write(buffer, offset, &data);
        self.answer(Function::BufferWrite, start, data.len() as u64, done)
    }

    async fn buffer_read(
        &mut self,
        buffer: BufferId,
        offset: u64,
        size: u32,
    ) -> wasmtime::Result<Result<Vec<u8>, GpuError>> {
        let start = Instant::now();
        let done = self.read(buffer, offset, size).await?;
        Ok(self.answer(Function::BufferRead, start, size.into(), done))
    }

    fn buffer_copy(
        &mut self,
        src: BufferId,
        src_offset: u64,
        dst: BufferId,
        dst_offset: u64,
        size: u64,
    ) -> Result<(), GpuError> {
        let start = Instant::now();
        let backend = &self.backend;
        let done = backend.buffer_copy(src, src_offset, dst, dst_offset, size);
        self.answer(Function::BufferCopy, start, size, done)
    }

    fn buffer_destroy(&mut self, buffer: BufferId) -> Result<(), GpuError> {
        let start = Instant::now();
        let done = self.backend.buffer_destroy(buffer);
        self.answer(Function::BufferDestroy, start, 0, done)
    }

    async fn sync(&mut self) -> wasmtime::Result<()> {
        let start = Instant::now();
        match self.work {
            Work::InCall => self.backend.sync(),
            Work::Queued | Work::Polled => {
                let backend = self.backend.clone();
                spawn_blocking(move || backend.sync()).await?;
            }
        }
        self.stats.record(Function::Sync, start.elapsed(), Some(0));
        Ok(())
    }
}

impl ml_kernels::Host for Gpu {
    async fn kernel_bootstrap_sample(
        &mut self,
        params: ml_kernels::BootstrapParams,
        output_indices: BufferId,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        let params = kernels::BootstrapParams {
            n_samples: params.n_samples,
            seed: params.seed,
            max_index: params.max_index,
        };
        let work = product([params.n_samples]);
        self.kernel(Function::BootstrapSample, work, move |backend| {
            backend.kernel_bootstrap_sample(params, output_indices)
        })
        .await
    }

    async fn kernel_find_split(
        &mut self,
        params: ml_kernels::FindSplitParams,
        data: BufferId,
        labels: BufferId,
        indices: BufferId,
        thresholds: BufferId,
        output_scores: BufferId,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        let params = kernels::FindSplitParams {
            n_samples: params.n_samples,
            n_features: params.n_features,
            feature_idx: params.feature_idx,
            n_thresholds: params.n_thresholds,
        };
        let work = product([params.n_samples, params.n_thresholds]);
        self.kernel(Function::FindSplit, work, move |backend| {
            backend.kernel_find_split(params, data, labels, indices, thresholds, output_scores)
        })
        .await
    }

    async fn kernel_average(
        &mut self,
        params: ml_kernels::AverageParams,
        tree_predictions: BufferId,
        output: BufferId,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        let params = kernels::AverageParams {
            n_trees: params.n_trees,
            n_samples: params.n_samples,
        };
        let work = product([params.n_trees, params.n_samples]);
        self.kernel(Function::Average, work, move |backend| {
            backend.kernel_average(params, tree_predictions, output)
        })
        .await
    }

    async fn kernel_matmul(
        &mut self,
        params: ml_kernels::MatmulParams,
        a: BufferId,
        b: BufferId,
        c: BufferId,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        let params = kernels::MatmulParams {
            m: params.m,
            k: params.k,
            n: params.n,
            trans_a: params.trans_a,
            trans_b: params.trans_b,
            alpha: params.alpha,
            beta: params.beta,
        };
        let work = product([params.m, params.k.max(1), params.n]);
        self.kernel(Function::Matmul, work, move |backend| {
            backend.kernel_matmul(params, a, b, c)
        })
        .await
    }

    async fn kernel_elementwise(
        &mut self,
        params: ml_kernels::ElementwiseParams,
        input_a: BufferId,
        input_b: Option<BufferId>,
        output: BufferId,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        use ml_kernels::ElementwiseOp as From;
        let op = match params.op {
            From::Relu => kernels::ElementwiseOp::Relu,
            From::Sigmoid => kernels::ElementwiseOp::Sigmoid,
            From::Tanh => kernels::ElementwiseOp::Tanh,
            From::Add => kernels::ElementwiseOp::Add,
            From::Mul => kernels::ElementwiseOp::Mul,
            From::Sqrt => kernels::ElementwiseOp::Sqrt,
            From::Exp => kernels::ElementwiseOp::Exp,
            From::Log => kernels::ElementwiseOp::Log,
        };
        let n_elements = params.n_elements;
        let params = kernels::ElementwiseParams { n_elements, op };
        let work = product([n_elements]);
        self.kernel(Function::Elementwise, work, move |backend| {
            backend.kernel_elementwise(params, input_a, input_b, output)
        })
        .await
    }

    async fn kernel_reduce(
        &mut self,
        params: ml_kernels::ReduceParams,
        input: BufferId,
        output: BufferId,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        use ml_kernels::ReduceOp as From;
        let op = match params.op {
            From::Sum => kernels::ReduceOp::Sum,
            From::Max => kernels::ReduceOp::Max,
            From::Min => kernels::ReduceOp::Min,
            From::Mean => kernels::ReduceOp::Mean,
            From::Variance => kernels::ReduceOp::Variance,
        };
        let n_elements = params.n_elements;
        let params = kernels::ReduceParams { n_elements, op };
        let work = product([n_elements]);
        self.kernel(Function::Reduce, work, move |backend| {
            backend.kernel_reduce(params, input, output)
        })
        .await
    }

    async fn kernel_batch_predict(
        &mut self,
        params: ml_kernels::BatchPredictParams,
        samples: BufferId,
        tree_nodes: BufferId,
        tree_offsets: BufferId,
        output: BufferId,
    ) -> wasmtime::Result<Result<(), GpuError>> {
        let params = kernels::BatchPredictParams {
            batch_size: params.batch_size,
            n_features: params.n_features,
            n_trees: params.n_trees,
            max_depth: params.max_depth,
        };
        let work = product([params.batch_size, params.n_trees, params.max_depth]);
        self.kernel(Function::BatchPredict, work, move |backend| {
            backend.kernel_batch_predict(params, samples, tree_nodes, tree_offsets, output)
        })
        .await
    }
}

impl From<kernels::GpuError> for GpuError {
    fn from(err: kernels::GpuError) -> Self {
        match err {
            kernels::GpuError::OutOfMemory => Self::OutOfMemory,
            kernels::GpuError::InvalidBuffer => Self::InvalidBuffer,
            kernels::GpuError::KernelError(text) => Self::KernelError(shortened(text)),
            kernels::GpuError::DeviceUnavailable => Self::DeviceUnavailable,
            kernels::GpuError::InvalidParams(text) => Self::InvalidParams(shortened(text)),
        }
    }
}

impl From<compute::BufferUsage> for kernels::BufferUsage {
    fn from(usage: compute::BufferUsage) -> Self {
        [
            (compute::BufferUsage::MAP_READ, Self::MAP_READ),
            (compute::BufferUsage::MAP_WRITE, Self::MAP_WRITE),
            (compute::BufferUsage::COPY_SRC, Self::COPY_SRC),
            (compute::BufferUsage::COPY_DST, Self::COPY_DST),
            (compute::BufferUsage::UNIFORM, Self::UNIFORM),
            (compute::BufferUsage::STORAGE, Self::STORAGE),
        ]
        .into_iter()
        .filter_map(|(flag, ours)| usage.contains(flag).then_some(ours))
        .collect()
    }
}

/// `buffer-write` from the guest's memory to the backend, without a copy between.
fn write_in_place(
    mut store: StoreContextMut<'_, State>,
    (buffer, offset, data): (BufferId, u64, WasmList<u8>),
) -> wasmtime::Result<(Result<(), GpuError>,)> {
    let start = Instant::now();
    let backend = store.data().gpu.backend.clone();
    let bytes = data.len() as u64;
    let done = backend.buffer_write(buffer, offset, data.as_le_slice(&store));
    let gpu = &mut store.data_mut().gpu;
    Ok((gpu.answer(Function::BufferWrite, start, bytes, done),))
}

/// Offers `wasi:gpu` to guests.
pub(crate) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    compute::add_to_linker::<_, HasSelf<Gpu>>(linker, |state: &mut State| &mut state.gpu)?;
    ml_kernels::add_to_linker::<_, HasSelf<Gpu>>(linker, |state: &mut State| &mut state.gpu)?;
    linker.allow_shadowing(true);
    linker
        .instance("wasi:gpu/compute@0.1.0")?
        .func_wrap("buffer-write", write_in_place)?;
    linker.allow_shadowing(false);
    Ok(())
}
