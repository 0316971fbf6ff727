//! The runtime: an opened adapter with its memory, pipelines and queue. It is independent of tensors, dtypes and ops.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use super::adapter::{self, Asked, Caps, Options};
use super::free_memory;
use super::kernel::{AnyKernel, Kernel, Shader};
use super::memory::Memory;
use super::pipeline_cache::PipelineCache;
use super::pipelines::Kernels;
use super::pool::Pool;
use super::profile::Profile;
use super::queue::{Binding, Health, Queue};
use super::warm_up;
use crate::kernel_time::KernelTime;
use crate::{Error, Result};

/// An opened GPU.
pub struct Gpu {
    id: u64,
    pub(super) info: wgpu::AdapterInfo,
    device: wgpu::Device,
    raw_queue: wgpu::Queue,
    pub(super) pool: Arc<Pool>,
    pub(super) kernels: Kernels,
    pub(super) queue: Arc<Queue>,
    /// Whether to log every dispatch, with its time.
    log: bool,
    kept: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if let Err(err) = self.kernels.save() {
            tracing::warn!(%err, "cannot write the pipeline cache");
        }
    }
}

impl Gpu {
    pub(super) async fn open(
        asked: Asked,
        ordinal: usize,
        options: &Options,
        log: bool,
    ) -> Result<Self> {
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
                "the GPU was lost ({message}): create a new device with Device::new_{}",
                asked.name()
            ));
        });
        let pool = Pool::new(device.clone(), caps.limits.max_buffer_size);
        let queue = Queue::new(
            device.clone(),
            raw_queue.clone(),
            &caps.limits,
            pool.clone(),
            health,
            log,
        );
        let cache = PipelineCache::open(&device, &info, options.pipeline_cache.as_deref());
        let gpu = Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            info,
            pool,
            kernels: Kernels::new(device.clone(), caps, cache),
            queue: Arc::new(queue),
            device,
            raw_queue,
            log,
            kept: Mutex::default(),
        };
        gpu.queue.set_profile(gpu.log_profile())?;
        Ok(gpu)
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The adapter's capabilities.
    pub(super) fn caps(&self) -> &Caps {
        &self.kernels.caps
    }

    /// The first failure that the GPU reported, as an error of `op`.
    pub(super) fn check(&self, op: &str) -> Result<()> {
        self.queue.health().check(op)
    }

    /// Maximum number of bytes of a binding, a multiple of 256.
    pub(super) fn max_binding(&self) -> u64 {
        self.caps().limits.max_storage_buffer_binding_size
    }

    /// Maximum number of workgroups of a dispatch in a dimension.
    pub(super) fn max_workgroups(&self) -> u32 {
        self.caps().limits.max_compute_workgroups_per_dimension
    }

    /// A grid of at least `invocations` invocations, `size` per workgroup, folded if a dimension would be too long. Kernels compute their
    /// index with `flat()` and compare it with the number of invocations.
    pub(super) fn grid(&self, invocations: usize, size: u32) -> [u32; 3] {
        let groups = invocations.div_ceil(size as usize);
        let limit = self.max_workgroups() as usize;
        let y = groups.div_ceil(limit).max(1);
        [groups.div_ceil(y) as u32, y as u32, 1]
    }

    /// Memory with arbitrary contents, for `op`.
    pub(super) fn memory(&self, bytes: u64, op: &str) -> Result<Memory> {
        self.check(op)?;
        let bytes = bytes.next_multiple_of(4);
        if let Ok(memory) = Memory::new(&self.pool, bytes) {
            return Ok(memory);
        }
        // Freeing unused buffers may be enough.
        self.trim()?;
        Memory::new(&self.pool, bytes).map_err(|reason| self.pool.exhausted(op, bytes, reason))
    }

    /// Free bytes: those of the budget, or the driver's plus the pool's.
    pub(super) fn free_memory(&self) -> Option<u64> {
        let left = self.pool.left_of_budget();
        left.or_else(|| Some(free_memory::of_driver(&self.device)? + self.pool.free_bytes()))
    }

    /// Frees the unused buffers. Waits for the GPU, except in a browser, where a thread must not block.
    pub(super) fn trim(&self) -> Result<()> {
        self.queue.flush()?;
        self.queue.forget_buffers();
        self.kept.lock().clear();
        self.pool.trim();
        self.check("trim")
    }

    /// The single value of a type that is kept with the GPU until [`Gpu::trim`].
    pub(super) fn kept<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut kept = self.kept.lock();
        let value = kept
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::<T>::default());
        // The key is the type of the value.
        value.clone().downcast().unwrap_or_default()
    }

    /// Queues one dispatch of `kernel`; compiles the kernel on its first use.
    pub(super) fn run<K: Kernel>(
        &self,
        kernel: &K,
        bindings: &[Binding<'_>],
        params: &K::Params,
        groups: [u32; 3],
    ) -> Result<()> {
        let shader = || Shader::of(kernel, self.caps());
        self.enqueue(kernel, shader, bindings, bytemuck::bytes_of(params), groups)
    }

    fn enqueue(
        &self,
        kernel: &(dyn AnyKernel + 'static),
        shader: impl FnOnce() -> Shader,
        bindings: &[Binding<'_>],
        params: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        if warm_up::is_warming(self.id) {
            warm_up::keep(kernel, shader);
            return Ok(());
        }
        let pipeline = self.kernels.get(kernel, shader)?;
        self.queue.dispatch(&pipeline, bindings, params, groups)
    }

    /// Times every dispatch from now on.
    pub(super) fn start_profile(&self) -> Result<()> {
        if !self.caps().timestamps {
            return Err(Error::WebGpu(format!(
                "{} has no timestamps, so it cannot time kernels",
                self.info.name
            )));
        }
        let profile = Profile::new(&self.device, &self.raw_queue);
        self.queue.set_profile(Some(profile))?;
        Ok(())
    }

    /// The times of each kernel since [`Gpu::start_profile`].
    pub(super) fn stop_profile(&self) -> Result<Vec<KernelTime>> {
        let profile = self.queue.set_profile(self.log_profile())?;
        Ok(profile.map(Profile::report).unwrap_or_default())
    }

    /// The profile that provides the log's times, if logging is enabled.
    fn log_profile(&self) -> Option<Profile> {
        let timed = self.log && self.caps().timestamps;
        timed.then(|| Profile::new(&self.device, &self.raw_queue))
    }

    /// Destroys the device, like a driver's reset.
    pub(super) fn lose(&self) {
        self.device.destroy();
        let _ = self.device.poll(wgpu::PollType::Poll);
    }
}
