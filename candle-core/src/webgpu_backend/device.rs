//! The device: a GPU with Candle's ordinal, dtypes, storages and random sequence.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::adapter::{Asked, Options};
use super::elem::Elem;
use super::gpu::Gpu;
use super::pipeline_cache::{PipelineCache, PipelineCacheReport};
use super::pipelines::Kernels;
use super::shared::Shared;
use super::storage::WebGpuStorage;
use super::warm_up::{self, WarmUp};
use crate::kernel_time::KernelTime;
use crate::watch::Switches;
use crate::{DType, DeviceLocation, Error, Result, WithDType};

/// The default seed of a device.
const DEFAULT_SEED: u64 = 299_792_458;

struct Inner {
    gpu: Shared<Gpu>,
    asked: Asked,
    ordinal: usize,
    switches: Switches,
    seed: AtomicU64,
    /// Number of random numbers drawn since the seed was set: the start of the next draw's counter.
    drawn: AtomicU64,
}

/// A GPU through WebGPU. Clones are handles of the same device.
#[derive(Clone)]
pub struct WebGpuDevice(Arc<Inner>);

impl std::fmt::Debug for WebGpuDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WebGpuDevice({}, {})", self.0.ordinal, self.name())
    }
}

/// Counters of a device since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of queued kernels.
    pub dispatches: u64,
    /// Number of submissions to the driver.
    pub submits: u64,
    /// Number of compiled kernels.
    pub pipelines: u64,
    /// Bytes in buffers that storages currently hold.
    pub live_bytes: u64,
    /// Maximum of `live_bytes` since the device was opened or [`WebGpuDevice::reset_peak`] was called.
    pub peak_bytes: u64,
    /// Bytes in buffers that are free for reuse.
    pub free_bytes: u64,
}

impl WebGpuDevice {
    /// Opens the adapter with this ordinal without blocking the thread: the form for browsers.
    ///
    /// # Errors
    /// [`Error::WebGpu`] if the adapter does not exist (the error lists the existing ones) or cannot open a device.
    pub async fn new_async(ordinal: usize) -> Result<Self> {
        Self::open(Asked::WebGpu, ordinal, &Options::default()).await
    }

    /// Opens the adapter with this ordinal and these options.
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

    /// Opens the Metal adapter with this ordinal, as a device that reports itself as Metal.
    #[cfg(feature = "metal")]
    pub(crate) fn metal(ordinal: usize, options: &Options) -> Result<Self> {
        pollster::block_on(Self::open(Asked::Metal, ordinal, options))
    }

    async fn open(asked: Asked, ordinal: usize, options: &Options) -> Result<Self> {
        let switches = Switches::from_env("webgpu");
        Ok(Self(Arc::new(Inner {
            gpu: Shared::new(Gpu::open(asked, ordinal, options, switches.log).await?),
            asked,
            ordinal,
            switches,
            seed: AtomicU64::new(DEFAULT_SEED),
            drawn: AtomicU64::new(0),
        })))
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.0.gpu.info.name
    }

    /// The graphics interface of the adapter: `Vulkan`, `Metal`, `Dx12` or `BrowserWebGpu`.
    pub fn backend_name(&self) -> String {
        format!("{:?}", self.0.gpu.info.backend)
    }

    /// Whether the adapter runs on the CPU.
    pub fn is_software(&self) -> bool {
        self.0.gpu.info.device_type == wgpu::DeviceType::Cpu
    }

    /// Whether the adapter is known to be a GPU. Browsers do not report it.
    pub(super) fn is_hardware(&self) -> bool {
        use wgpu::DeviceType::{DiscreteGpu, IntegratedGpu, VirtualGpu};
        matches!(
            self.0.gpu.info.device_type,
            DiscreteGpu | IntegratedGpu | VirtualGpu
        )
    }

    /// Maximum number of bytes of a binding, a multiple of 256. Ops of this crate process larger tensors in windows;
    /// [`WebGpuDevice::run_wgsl`] rejects them.
    pub fn max_binding_bytes(&self) -> u64 {
        self.0.gpu.max_binding()
    }

    /// Whether the device still works. Does not wait.
    ///
    /// # Errors
    /// [`Error::WebGpu`] with the first failure that the GPU reported, such as its loss. The error persists: nothing that was computed
    /// since can be trusted, and every op fails.
    pub fn check(&self) -> Result<()> {
        self.0.gpu.check("check")
    }

    /// Counters since the device was opened.
    pub fn stats(&self) -> Stats {
        let Gpu {
            pool,
            kernels,
            queue,
            ..
        } = self.gpu();
        Stats {
            dispatches: queue.dispatches(),
            submits: queue.submits(),
            pipelines: kernels.count() as u64,
            live_bytes: pool.live_bytes(),
            peak_bytes: pool.peak_bytes(),
            free_bytes: pool.free_bytes(),
        }
    }

    /// Restarts [`Stats::peak_bytes`] from the current number of live bytes.
    pub fn reset_peak(&self) {
        self.0.gpu.pool.reset_peak();
    }

    /// Frees the buffers that no storage holds. Waits for the GPU, except in a browser, where a thread must not block.
    pub fn trim(&self) -> Result<()> {
        self.0.gpu.trim()
    }

    /// Sets the maximum number of bytes of the buffers of storages and of the pool together: exceeding it is an out-of-memory error, as if
    /// the GPU's memory were exhausted. `None`, the default, sets no limit.
    pub fn set_memory_budget(&self, bytes: Option<u64>) {
        self.0.gpu.pool.set_budget(bytes);
    }

    /// Free bytes for tensors: the remaining budget, or the driver's free memory plus the pool's. `None` without a budget if the driver
    /// does not report it; Vulkan drivers with `VK_EXT_memory_budget` do.
    pub fn free_memory(&self) -> Option<u64> {
        self.0.gpu.free_memory()
    }

    /// Sets the maximum number of bytes that are kept in the pool for reuse; further freed buffers are destroyed. `None`, the default,
    /// means half of [`Stats::peak_bytes`] but at least 256 MiB; and what the program allocated again after it was destroyed, up to twice the
    /// peak.
    pub fn set_pool_cap(&self, bytes: Option<u64>) {
        self.0.gpu.pool.set_cap(bytes);
    }

    /// Destroys the underlying GPU device, like a driver's reset; for tests of the consequences.
    #[doc(hidden)]
    pub fn lose(&self) {
        self.0.gpu.lose();
    }

    /// The pipeline cache on disk; `None` if the adapter does not support it (only Vulkan does) or it is disabled.
    pub fn pipeline_cache(&self) -> Option<&PipelineCacheReport> {
        self.0.gpu.kernels.disk().map(PipelineCache::report)
    }

    /// Writes compiled pipelines to disk. This also happens when the device is dropped and after [`WebGpuDevice::warm_up`].
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn save_pipeline_cache(&self) -> Result<()> {
        Ok(self.0.gpu.kernels.save()?)
    }

    /// Starts timing every kernel on the GPU. Slows down everything.
    ///
    /// # Errors
    /// [`Error::WebGpu`] if the adapter does not support timestamps.
    pub fn start_profile(&self) -> Result<()> {
        self.0.gpu.start_profile()
    }

    /// Stops timing kernels; returns the time of each since [`WebGpuDevice::start_profile`], longest first.
    pub fn stop_profile(&self) -> Result<Vec<KernelTime>> {
        self.0.gpu.stop_profile()
    }

    /// Compiles the kernels that `work` uses, several at a time, without running any, for example before a server's first job.
    ///
    /// `work` is the program's own code on tensors of this device and on the calling thread, such as a model's forward pass over a prompt
    /// and over one token. Its ops return tensors of the right shapes with arbitrary contents, and readbacks return zeros. State that it
    /// writes, such as a key-value cache, has to be discarded. Kernels depend on shapes: a prompt of 500 tokens and one of 5 may use
    /// different ones.
    ///
    /// # Errors
    /// Errors of `work`, and of kernels that do not compile. A nested warm-up is an error.
    pub fn warm_up<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<WarmUp> {
        let shaders = warm_up::shaders(self.id(), work)?;
        let kernels = shaders.len();
        let compiled = self.0.gpu.kernels.compile_all(shaders)?;
        self.save_pipeline_cache()?;
        Ok(WarmUp { kernels, compiled })
    }

    /// The device's name in errors: `webgpu (ADAPTER)`.
    pub(crate) fn description(&self) -> String {
        described(self.0.asked.name(), self.name())
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.gpu.id()
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.0.gpu.kernels
    }

    pub(super) fn switches(&self) -> Switches {
        self.0.switches
    }

    /// The storage format of `dtype`, or an error that names op, dtype and adapter.
    pub(super) fn elem(&self, dtype: DType, op: &'static str) -> Result<Elem> {
        match Elem::of(dtype) {
            Some(Elem::F64) if !self.gpu().caps().f64 => Err(self.unsupported(
                op,
                dtype,
                "this adapter computes in 32 bits (it lacks SHADER_F64 or SHADER_INT64): convert to f32 on the CPU, \
                 or leave the tensor there",
            )),
            Some(elem) => Ok(elem),
            None => Err(self.unsupported(
                op,
                dtype,
                "this dtype supports storage only, on the CPU: use f32, f16, bf16, f8e4m3, u32, u8, i16, i32 or i64",
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
                "{op}: requested a tensor of {len} elements; the WebGPU backend's limit is {}",
                u32::MAX
            ))
            .bt());
        }
        let memory = self
            .gpu()
            .memory((len * dtype.size_in_bytes()) as u64, op)?;
        Ok(WebGpuStorage::new(memory, len, dtype, self.clone()))
    }

    pub(super) fn upload<T: WithDType>(&self, data: &[T]) -> Result<WebGpuStorage> {
        // SAFETY: every dtype's type is plain bytes without padding.
        let bytes = unsafe {
            std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), std::mem::size_of_val(data))
        };
        self.upload_bytes(bytes, T::DTYPE)
    }

    /// A storage from the bytes of its elements.
    pub(super) fn upload_bytes(&self, bytes: &[u8], dtype: DType) -> Result<WebGpuStorage> {
        self.upload_parts(&[bytes], dtype)
    }

    /// A storage from the bytes of its elements, the concatenation of `parts`.
    pub(crate) fn upload_parts(&self, parts: &[&[u8]], dtype: DType) -> Result<WebGpuStorage> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let storage = self.alloc(bytes / dtype.size_in_bytes(), dtype, "upload")?;
        self.gpu().queue.upload(storage.memory(), parts)?;
        Ok(storage)
    }

    /// Reserves `count` numbers of the random sequence; returns the seed and the index of the first number.
    pub(super) fn draw(&self, count: usize) -> (u64, u64) {
        let first = self.0.drawn.fetch_add(count as u64, Ordering::Relaxed);
        (self.seed(), first)
    }

    pub(super) fn seed(&self) -> u64 {
        self.0.seed.load(Ordering::Relaxed)
    }

    /// Starts another random sequence.
    pub(super) fn start_sequence(&self, seed: u64) {
        self.0.seed.store(seed, Ordering::Relaxed);
        self.0.drawn.store(0, Ordering::Relaxed);
    }

    pub(super) fn place(&self) -> DeviceLocation {
        let gpu_id = self.0.ordinal;
        match self.0.asked {
            Asked::WebGpu => DeviceLocation::WebGpu { gpu_id },
            #[cfg(feature = "metal")]
            Asked::Metal => DeviceLocation::Metal { gpu_id },
        }
    }
}

/// The name of an adapter; browsers do not report one.
fn described(interface: &str, adapter: &str) -> String {
    match adapter {
        "" => interface.to_string(),
        adapter => format!("{interface} ({adapter})"),
    }
}

/// The methods of the GPU are available on its device.
#[doc(hidden)]
impl std::ops::Deref for WebGpuDevice {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.0.gpu
    }
}

#[cfg(test)]
mod tests {
    use super::described;

    #[test]
    fn an_adapter_without_a_name_has_no_brackets() {
        assert_eq!(described("webgpu", "llvmpipe"), "webgpu (llvmpipe)");
        assert_eq!(described("webgpu", ""), "webgpu");
    }
}
