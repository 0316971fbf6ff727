//! The device: an opened adapter with its pool, kernels and queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::adapter::{self, Asked, Options};
use super::kernel::{AnyKernel, Elem, Kernel, Kernels, Key, Params, Shader};
use super::memory::Memory;
use super::ops;
use super::pipeline_cache::{PipelineCache, PipelineCacheReport};
use super::pool::Pool;
use super::profile::{KernelTime, Profile};
use super::queue::{Binding, Health, Queue};
use super::storage::WebGpuStorage;
use super::warm_up;
use crate::backend::BackendDevice;
use crate::watch::Switches;
use crate::{CpuStorage, DType, DeviceLocation, Error, Layout, Result, Shape, WithDType};

/// The seed of a device that was given none.
const DEFAULT_SEED: u64 = 299_792_458;

struct Inner {
    id: u64,
    asked: Asked,
    ordinal: usize,
    info: wgpu::AdapterInfo,
    device: wgpu::Device,
    raw_queue: wgpu::Queue,
    pool: Arc<Pool>,
    kernels: Kernels,
    queue: Arc<Queue>,
    switches: Switches,
    tables: ops::upsample::Tables,
    seed: AtomicU64,
    /// Random numbers drawn since the seed was set: where the next draw's counter starts.
    drawn: AtomicU64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(err) = self.kernels.save() {
            tracing::warn!(%err, "the pipeline cache cannot be written");
        }
    }
}

/// A GPU through WebGPU. Clones are handles of the same device.
#[derive(Clone)]
pub struct WebGpuDevice(Arc<Inner>);

impl std::fmt::Debug for WebGpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebGpuDevice({}, {})", self.0.ordinal, self.0.info.name)
    }
}

/// Counters of a device, since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Kernels put into the queue.
    pub dispatches: u64,
    /// Submissions to the driver.
    pub submits: u64,
    /// Kernels compiled.
    pub pipelines: u64,
    /// Bytes in buffers that storages hold now.
    pub live_bytes: u64,
    /// The most that `live_bytes` has been since the device was opened or [`WebGpuDevice::reset_peak`] was called.
    pub peak_bytes: u64,
    /// Bytes in buffers that wait to be used again.
    pub free_bytes: u64,
}

impl WebGpuDevice {
    /// Opens the adapter with this ordinal without blocking the thread: the form for browsers.
    ///
    /// # Errors
    /// [`Error::WebGpu`] if the adapter does not exist (the error lists those that do) or gives no device.
    pub async fn new_async(ordinal: usize) -> Result<Self> {
        Self::open(Asked::WebGpu, ordinal, &Options::default()).await
    }

    /// Opens the adapter with this ordinal as `options` say.
    ///
    /// # Errors
    /// As [`WebGpuDevice::new_async`].
    pub fn with_options(ordinal: usize, options: &Options) -> Result<Self> {
        if cfg!(target_arch = "wasm32") {
            return Err(Error::WebGpu(
                "a browser's thread cannot wait for an adapter: use Device::new_webgpu_async"
                    .into(),
            )
            .bt());
        }
        pollster::block_on(Self::open(Asked::WebGpu, ordinal, options))
    }

    /// Opens the Metal adapter with this ordinal, as a device that calls itself Metal's.
    #[cfg(feature = "metal")]
    pub(crate) fn metal(ordinal: usize, options: &Options) -> Result<Self> {
        pollster::block_on(Self::open(Asked::Metal, ordinal, options))
    }

    async fn open(asked: Asked, ordinal: usize, options: &Options) -> Result<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let adapter::Opened {
            device,
            queue: raw_queue,
            info,
            caps,
        } = adapter::open(asked, ordinal, options).await?;
        let health = Arc::new(Health::default());
        let on_error = health.clone();
        device.on_uncaptured_error(Arc::new(move |err: wgpu::Error| {
            on_error.fail(format!("the GPU reports: {err}"));
        }));
        let on_lost = health.clone();
        device.set_device_lost_callback(move |_, message| {
            on_lost.fail(format!(
                "the GPU was lost ({message}): make a new device with Device::new_{}",
                asked.name()
            ));
        });
        let pool = Pool::new(device.clone(), caps.limits.max_buffer_size);
        let switches = Switches::from_env("webgpu");
        let queue = Queue::new(
            device.clone(),
            raw_queue.clone(),
            &caps.limits,
            pool.clone(),
            health,
            switches.log,
        );
        if switches.log && caps.timestamps {
            queue.set_profile(Some(Profile::new(&device, &raw_queue)))?;
        }
        let cache = PipelineCache::open(&device, &info, options.pipeline_cache.as_deref());
        Ok(Self(Arc::new(Inner {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            asked,
            ordinal,
            info,
            pool,
            kernels: Kernels::new(device.clone(), caps, cache),
            queue: Arc::new(queue),
            device,
            raw_queue,
            switches,
            tables: Default::default(),
            seed: AtomicU64::new(DEFAULT_SEED),
            drawn: AtomicU64::new(0),
        })))
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// The graphics interface that reaches the adapter: `Vulkan`, `Metal`, `Dx12` or `BrowserWebGpu`.
    pub fn backend_name(&self) -> String {
        format!("{:?}", self.0.info.backend)
    }

    /// Whether the adapter runs on the CPU.
    pub fn is_software(&self) -> bool {
        self.0.info.device_type == wgpu::DeviceType::Cpu
    }

    /// The most bytes that a kernel reaches through one binding, a multiple of 256. Ops of this crate work on larger tensors in
    /// parts; [`WebGpuDevice::run_wgsl`] refuses them.
    pub fn max_binding_bytes(&self) -> u64 {
        self.max_binding()
    }

    /// Whether the device still works. Does not wait.
    ///
    /// # Errors
    /// [`Error::WebGpu`] with the first failure that the GPU reported, such as its loss. It stays: nothing that was computed since can
    /// be trusted, and every op fails.
    pub fn check(&self) -> Result<()> {
        self.0.queue.health().check("check")
    }

    /// Counters since the device was opened.
    pub fn stats(&self) -> Stats {
        Stats {
            dispatches: self.0.queue.dispatches(),
            submits: self.0.queue.submits(),
            pipelines: self.0.kernels.count() as u64,
            live_bytes: self.0.pool.live_bytes(),
            peak_bytes: self.0.pool.peak_bytes(),
            free_bytes: self.0.pool.free_bytes(),
        }
    }

    /// Lets [`Stats::peak_bytes`] count from what is live now.
    pub fn reset_peak(&self) {
        self.0.pool.reset_peak();
    }

    /// Frees the buffers that no storage holds. Waits for the GPU, but in a browser, where a thread must not.
    pub fn trim(&self) -> Result<()> {
        self.0.queue.flush()?;
        self.0.queue.forget_buffers();
        self.0.tables.clear();
        self.0.pool.trim();
        self.0.queue.health().check("trim")
    }

    /// The most bytes that buffers of storages and of the pool may have together: past it is an out-of-memory error, as where the
    /// GPU has no more. `None`, as at first, leaves it to the GPU.
    pub fn set_memory_budget(&self, bytes: Option<u64>) {
        self.0.pool.set_budget(bytes);
    }

    /// The most bytes that wait in the pool to be used again; what comes back beyond goes to the GPU. `None`, as at first, is half of
    /// [`Stats::peak_bytes`] but at least 256 MiB.
    pub fn set_pool_cap(&self, bytes: Option<u64>) {
        self.0.pool.set_cap(bytes);
    }

    /// Destroys the GPU's device under this one, as a driver's reset does; for tests of what follows.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.0.device.destroy();
        let _ = self.0.device.poll(wgpu::PollType::Poll);
    }

    /// Where compiled pipelines are kept; `None` where the adapter cannot (only Vulkan can) or nobody wants it.
    pub fn pipeline_cache(&self) -> Option<&PipelineCacheReport> {
        self.0.kernels.disk().map(PipelineCache::report)
    }

    /// Writes compiled pipelines to disk, as happens anyway when the device is dropped and after [`WebGpuDevice::warm_up`].
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn save_pipeline_cache(&self) -> Result<()> {
        Ok(self.0.kernels.save()?)
    }

    /// Starts timing every kernel on the GPU. Makes everything slower.
    ///
    /// # Errors
    /// [`Error::WebGpu`] where the adapter has no timestamps.
    pub fn start_profile(&self) -> Result<()> {
        if !self.0.kernels.caps.timestamps {
            return Err(Error::WebGpu(format!(
                "{} has no timestamps, so kernels cannot be timed on it",
                self.name()
            )));
        }
        let profile = Profile::new(&self.0.device, &self.0.raw_queue);
        self.0.queue.set_profile(Some(profile))?;
        Ok(())
    }

    /// Stops timing kernels and gives the time of each since [`WebGpuDevice::start_profile`], longest first.
    pub fn stop_profile(&self) -> Result<Vec<KernelTime>> {
        let log = self.0.switches.log && self.0.kernels.caps.timestamps;
        let next = log.then(|| Profile::new(&self.0.device, &self.0.raw_queue));
        let profile = self.0.queue.set_profile(next)?;
        Ok(profile.map(Profile::report).unwrap_or_default())
    }

    /// The device as errors name it: `webgpu (ADAPTER)`.
    pub(crate) fn description(&self) -> String {
        format!("{} ({})", self.0.asked.name(), self.name())
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.0.kernels
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.0.queue
    }

    pub(super) fn switches(&self) -> Switches {
        self.0.switches
    }

    pub(super) fn tables(&self) -> &ops::upsample::Tables {
        &self.0.tables
    }

    /// How `dtype` is stored, or an error that names op, dtype and adapter.
    pub(super) fn elem(&self, dtype: DType, op: &'static str) -> Result<Elem> {
        match Elem::of(dtype) {
            Some(Elem::F64) if !self.kernels().caps.f64 => Err(self.unsupported(
                op,
                dtype,
                "this adapter computes in 32 bits (it lacks SHADER_F64 or SHADER_INT64): convert to f32 on the CPU, \
                 or leave the tensor there",
            )),
            Some(elem) => Ok(elem),
            None => Err(self.unsupported(
                op,
                dtype,
                "this dtype can only be held, on the CPU: use f32, f16, bf16, f8e4m3, u32, u8, i16, i32 or i64",
            )),
        }
    }

    /// The error for an op that has no WebGPU form for a dtype.
    pub(crate) fn unsupported(&self, op: &'static str, dtype: DType, hint: &str) -> Error {
        Error::UnsupportedOnDevice {
            op,
            dtype,
            device: self.description(),
            hint: hint.to_string(),
        }
        .bt()
    }

    /// A storage with arbitrary contents.
    pub(super) fn alloc(
        &self,
        len: usize,
        dtype: DType,
        op: &'static str,
    ) -> Result<WebGpuStorage> {
        self.elem(dtype, op)?;
        // Kernels count elements in u32.
        if u32::try_from(len).is_err() {
            return Err(Error::WebGpu(format!(
                "{op}: a tensor of {len} elements was asked for, the WebGPU backend takes at most {}",
                u32::MAX
            ))
            .bt());
        }
        self.0.queue.health().check(op)?;
        let bytes = (len * dtype.size_in_bytes()).next_multiple_of(4) as u64;
        let pool = &self.0.pool;
        let memory = match Memory::new(pool, bytes) {
            Ok(memory) => memory,
            // What nobody uses may be enough.
            Err(_) => {
                self.trim()?;
                Memory::new(pool, bytes).map_err(|reason| pool.exhausted(op, bytes, reason))?
            }
        };
        Ok(WebGpuStorage::new(memory, len, dtype, self.clone()))
    }

    /// The most bytes that a binding reaches, a multiple of 256.
    pub(super) fn max_binding(&self) -> u64 {
        self.kernels().caps.limits.max_storage_buffer_binding_size
    }

    /// The most workgroups that a dispatch has in a dimension.
    pub(super) fn max_workgroups(&self) -> u32 {
        let limits = &self.kernels().caps.limits;
        limits.max_compute_workgroups_per_dimension
    }

    /// A grid of at least `invocations` invocations, `size` to a workgroup, folded where a dimension would be too long.
    /// Kernels find their place with `flat()` and compare it with their count.
    pub(super) fn grid(&self, invocations: usize, size: u32) -> [u32; 3] {
        let groups = invocations.div_ceil(size as usize);
        let limit = self.max_workgroups() as usize;
        let y = groups.div_ceil(limit).max(1);
        [groups.div_ceil(y) as u32, y as u32, 1]
    }

    /// Puts one dispatch of `kernel` into the queue, compiling it if this is its first use.
    pub(super) fn run<K: Kernel>(
        &self,
        kernel: &K,
        bindings: &[Binding<'_>],
        params: &K::Params,
        groups: [u32; 3],
    ) -> Result<()> {
        let shader = || Shader::of(kernel, &self.kernels().caps);
        self.enqueue(kernel, shader, bindings, bytemuck::bytes_of(params), groups)
    }

    /// As [`WebGpuDevice::run`], of a kernel that is named by hand.
    pub(super) fn launch<P: Params>(
        &self,
        key: Key,
        shader: impl FnOnce() -> Shader,
        bindings: &[Binding<'_>],
        params: &P,
        groups: [u32; 3],
    ) -> Result<()> {
        self.enqueue(&key, shader, bindings, bytemuck::bytes_of(params), groups)
    }

    fn enqueue(
        &self,
        kernel: &(dyn AnyKernel + 'static),
        shader: impl FnOnce() -> Shader,
        bindings: &[Binding<'_>],
        params: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        if warm_up::is_warming(self.0.id) {
            warm_up::keep(kernel, shader);
            return Ok(());
        }
        let pipeline = self.0.kernels.get(kernel, shader)?;
        self.0.queue.dispatch(&pipeline, bindings, params, groups)
    }

    fn upload<T: WithDType>(&self, data: &[T]) -> Result<WebGpuStorage> {
        // SAFETY: every dtype's type is plain bytes without padding.
        let bytes = unsafe {
            std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), std::mem::size_of_val(data))
        };
        self.upload_bytes(bytes, T::DTYPE)
    }

    /// A storage of the elements whose bytes these are.
    pub(super) fn upload_bytes(&self, bytes: &[u8], dtype: DType) -> Result<WebGpuStorage> {
        let storage = self.alloc(bytes.len() / dtype.size_in_bytes(), dtype, "upload")?;
        self.0.queue.upload(storage.memory(), bytes)?;
        Ok(storage)
    }

    /// Reserves `count` numbers of the random sequence; gives the seed and the first number's place.
    pub(super) fn draw(&self, count: usize) -> (u64, u64) {
        let first = self.0.drawn.fetch_add(count as u64, Ordering::Relaxed);
        (self.0.seed.load(Ordering::Relaxed), first)
    }
}

impl BackendDevice for WebGpuDevice {
    type Storage = WebGpuStorage;

    fn new(ordinal: usize) -> Result<Self> {
        Self::with_options(ordinal, &Options::default())
    }

    fn location(&self) -> DeviceLocation {
        let gpu_id = self.0.ordinal;
        match self.0.asked {
            Asked::WebGpu => DeviceLocation::WebGpu { gpu_id },
            #[cfg(feature = "metal")]
            Asked::Metal => DeviceLocation::Metal { gpu_id },
        }
    }

    fn same_device(&self, rhs: &Self) -> bool {
        self.0.id == rhs.0.id
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<WebGpuStorage> {
        let mut storage = self.alloc(shape.elem_count(), dtype, "zeros")?;
        let zero = crate::scalar::Scalar::zero(dtype);
        ops::fill::const_set(&mut storage, zero, &Layout::contiguous(shape))?;
        Ok(storage)
    }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<WebGpuStorage> {
        self.alloc(shape.elem_count(), dtype, "alloc")
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<WebGpuStorage> {
        self.upload(data)
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<WebGpuStorage> {
        match storage {
            CpuStorage::U8(data) => self.upload(data),
            CpuStorage::U32(data) => self.upload(data),
            CpuStorage::I16(data) => self.upload(data),
            CpuStorage::I32(data) => self.upload(data),
            CpuStorage::I64(data) => self.upload(data),
            CpuStorage::BF16(data) => self.upload(data),
            CpuStorage::F16(data) => self.upload(data),
            CpuStorage::F32(data) => self.upload(data),
            CpuStorage::F64(data) => self.upload(data),
            CpuStorage::F8E4M3(data) => self.upload(data),
            other => {
                let dtype = crate::backend::BackendStorage::dtype(other);
                Err(self.unsupported("upload", dtype, "this dtype can only be held, on the CPU"))
            }
        }
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<WebGpuStorage> {
        self.storage_from_cpu_storage(&storage)
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<WebGpuStorage> {
        ops::random::uniform(self, shape.elem_count(), dtype, lo, up)
    }

    fn rand_normal(
        &self,
        shape: &Shape,
        dtype: DType,
        mean: f64,
        std: f64,
    ) -> Result<WebGpuStorage> {
        ops::random::normal(self, shape.elem_count(), dtype, mean, std)
    }

    fn set_seed(&self, seed: u64) -> Result<()> {
        self.0.seed.store(seed, Ordering::Relaxed);
        self.0.drawn.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn get_current_seed(&self) -> Result<u64> {
        Ok(self.0.seed.load(Ordering::Relaxed))
    }

    fn synchronize(&self) -> Result<()> {
        self.0.queue.synchronize()
    }
}
