//! The device: a card's context and stream, its kernels, and its properties.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use cudarc::driver::{result as driver, sys, CudaContext, CudaSlice, CudaStream, DevicePtr};
use parking_lot::Mutex;

use super::card::{self, CardReport};
use super::error::{CudaError, During, WrapErr};
use super::faults::Faults;
use super::kernel::{Kernel, Kernels};
use super::libraries::Library;
use super::memory::{keep_freed_memory, pool};
use super::nccl::AllRecordedCalls;
use super::ops;
use super::profile::{Profiler, Timer};
use super::readback::Staging;
use super::storage::CudaStorage;
use crate::backend::{BackendDevice, BackendStorage};
use crate::kernel_time::KernelTime;
use crate::watch::Switches;
use crate::{CpuStorage, DType, DeviceLocation, Error, Layout, Result, Shape, WithDType};

/// The default seed of a device.
const DEFAULT_SEED: u64 = 299_792_458;
/// Minimum compute capability: CUDA 13 does not compile for older cards.
const OLDEST: (i32, i32) = (7, 5);

/// Identifies a CUDA device within the process: all handles from [`Device::new_cuda`](crate::Device::new_cuda) of one ordinal share an id;
/// each [`CudaDevice::new_with_stream`] has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceId(usize);

impl DeviceId {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

struct Inner {
    id: DeviceId,
    ordinal: usize,
    card: CardReport,
    /// Maximum shared memory of a block in bytes.
    max_shared: u32,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    kernels: Arc<Kernels>,
    faults: Faults,
    staging: Staging,
    profiler: Profiler,
    launches: AtomicU64,
    /// Whether work is being recorded instead of executed.
    recording: AtomicBool,
    recorded_calls: AllRecordedCalls,
    switches: Switches,
    blas: super::blas::Handles,
    modules: super::compat::Modules,
    seed: AtomicU64,
    /// Number of random numbers drawn since the seed was set: the start of the next draw's counter.
    drawn: AtomicU64,
    /// See [`CudaDevice::counters`].
    counters: CudaSlice<u32>,
}

/// Number of counters of arrived blocks, which kernels reset to 0.
pub(super) const COUNTERS: usize = 1 << 14;

/// An NVIDIA card. Clones are handles of the same device.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaDevice({:?}, {})", self.0.id, self.0.card.name)
    }
}

/// Counters of a device since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of kernels launched by this backend.
    pub launches: u64,
    /// Number of loaded kernels.
    pub kernels: u64,
    /// Bytes of the card's pool that are in use by all devices of the process on this card.
    pub live_bytes: u64,
    /// Maximum of `live_bytes`.
    pub peak_bytes: u64,
}

/// The open devices of [`BackendDevice::new`], by ordinal.
static SHARED: LazyLock<Mutex<HashMap<usize, Weak<Inner>>>> = LazyLock::new(Mutex::default);

impl CudaDevice {
    /// Opens a card with a separate stream, as in upstream: it is another device than that of [`BackendDevice::new`], and their tensors
    /// cannot be mixed.
    ///
    /// # Errors
    /// As [`Device::new_cuda`](crate::Device::new_cuda).
    pub fn new_with_stream(ordinal: usize) -> Result<Self> {
        Self::open(ordinal)
    }

    fn open(ordinal: usize) -> Result<Self> {
        let count = card::count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count }.into());
        }
        let card = card::report(ordinal)?;
        let (major, minor) = card.capability;
        if card.capability < OLDEST {
            let name = card.name;
            return Err(CudaError::OldCard { name, major, minor }.into());
        }
        let context =
            CudaContext::new(ordinal).during(|| format!("opening CUDA device {ordinal}"))?;
        // SAFETY: all work of a device is in one stream, so the order of its calls is the order of the work. Programs with other streams
        // order them with events, like upstream's users.
        unsafe { context.disable_event_tracking() };
        Library::Nvrtc.open()?;
        use sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let max_shared = CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let max_shared = context.attribute(max_shared).w()? as u32;
        keep_freed_memory(&context)?;
        let stream = context.new_stream().during(|| "making a stream".into())?;
        let counters = stream
            .alloc_zeros(COUNTERS)
            .during(|| "making counters for kernels".into())?;
        let kernels = Arc::new(Kernels::new(context.clone(), card.capability)?);
        Ok(Self(Arc::new(Inner {
            id: DeviceId::new(),
            ordinal,
            max_shared,
            faults: Faults::new(&context)?,
            staging: Staging::default(),
            profiler: Profiler::default(),
            launches: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            recorded_calls: AllRecordedCalls::default(),
            switches: Switches::from_env("cuda"),
            blas: Default::default(),
            modules: Default::default(),
            card,
            context,
            stream,
            kernels,
            seed: AtomicU64::new(DEFAULT_SEED),
            drawn: AtomicU64::new(0),
            counters,
        })))
    }

    /// The properties of the card.
    pub fn card(&self) -> &CardReport {
        &self.0.card
    }

    /// The card's name.
    pub fn name(&self) -> &str {
        &self.0.card.name
    }

    /// Counters since the device was opened.
    pub fn stats(&self) -> Stats {
        let of_pool = |attribute| {
            let mut bytes = 0u64;
            let pool = pool(&self.0.context).ok()?;
            // SAFETY: the pool belongs to the card, which stays open; the attribute is a u64.
            unsafe {
                driver::mem_pool::get_attribute(pool, attribute, (&raw mut bytes).cast()).ok()?;
            }
            Some(bytes)
        };
        use sys::CUmemPool_attribute_enum as Attribute;
        Stats {
            launches: self.0.launches.load(Ordering::Relaxed),
            kernels: self.0.kernels.count() as u64,
            live_bytes: of_pool(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT).unwrap_or(0),
            peak_bytes: of_pool(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH).unwrap_or(0),
        }
    }

    /// Starts timing every kernel on the card. Slows down everything.
    pub fn start_profile(&self) -> Result<()> {
        self.0.profiler.start();
        Ok(())
    }

    /// Stops timing kernels; returns the time of each since [`CudaDevice::start_profile`], longest first.
    pub fn stop_profile(&self) -> Result<Vec<KernelTime>> {
        self.0.profiler.stop()
    }

    /// Whether kernels are being timed. Those of a recording cannot be.
    pub fn is_profiling(&self) -> bool {
        self.0.profiler.is_on()
    }

    pub(super) fn profile_begin(&self, kernel: &Kernel) -> Result<Option<Timer>> {
        self.0.launches.fetch_add(1, Ordering::Relaxed);
        self.0.profiler.begin(&self.0.stream, kernel)
    }

    pub(super) fn profile_end(&self, timer: Option<Timer>) -> Result<()> {
        match timer {
            None => Ok(()),
            Some(timer) => self.0.profiler.end(&self.0.stream, timer),
        }
    }

    pub(super) fn count_launches(&self, count: u64) {
        self.0.launches.fetch_add(count, Ordering::Relaxed);
    }

    /// Records work until the guard is dropped.
    pub(super) fn begin_recording(&self) -> Result<RecordingGuard<'_>> {
        if self.0.recording.swap(true, Ordering::AcqRel) {
            crate::bail!(
                "{} is already recording; only one recording can be active",
                self.name()
            )
        }
        self.0.recorded_calls.lock().clear();
        Ok(RecordingGuard(&self.0.recording))
    }

    pub(super) fn is_recording(&self) -> bool {
        self.0.recording.load(Ordering::Acquire)
    }

    /// Calls of groups in the current recording.
    pub(super) fn recorded_calls(&self) -> &AllRecordedCalls {
        &self.0.recorded_calls
    }

    /// An error while work is recorded: `what` needs the host.
    pub(super) fn refuse_while_recording(&self, what: &str) -> Result<()> {
        if self.0.recording.load(Ordering::Acquire) {
            crate::bail!("cannot record {what} on {}: it needs the host", self.name())
        }
        Ok(())
    }

    /// The debugging switches; while work is recorded there are no results to compare.
    pub(super) fn switches(&self) -> Switches {
        if self.0.recording.load(Ordering::Acquire) {
            self.0.switches.without_results()
        } else {
            self.0.switches
        }
    }

    /// The number of the current launch, from 0.
    pub(super) fn launch_number(&self) -> u64 {
        self.0.launches.load(Ordering::Relaxed).saturating_sub(1)
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.0.kernels
    }

    /// The architecture that kernels are compiled for, in NVRTC's notation: `sm_90a`.
    pub fn arch(&self) -> &str {
        self.0.kernels.arch()
    }

    /// Makes the card's context current in this thread.
    pub(crate) fn bind_to_thread(&self) {
        if let Err(error) = self.0.context.bind_to_thread() {
            // The driver returns the same error to the caller's first call.
            tracing::warn!(%error, "cannot bind the CUDA context to the thread");
        }
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.0.stream
    }

    pub(super) fn staging(&self) -> &Staging {
        &self.0.staging
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.0.faults
    }

    pub(super) fn blas(&self) -> &super::blas::Handles {
        &self.0.blas
    }

    /// The modules that programs have loaded.
    pub(super) fn modules(&self) -> &super::compat::Modules {
        &self.0.modules
    }

    /// The address of [`COUNTERS`] counters, with which the blocks of a kernel detect the last to arrive; all are 0 between kernels.
    pub(super) fn counters(&self) -> u64 {
        self.0.counters.device_ptr(&self.0.stream).0
    }

    /// Maximum shared memory of a block in bytes.
    pub(super) fn max_shared(&self) -> u32 {
        self.0.max_shared
    }

    /// The C++ type of `dtype`, or an error that names op, dtype and card.
    pub(super) fn c_type(&self, dtype: DType, op: &'static str) -> Result<&'static str> {
        super::elem::c_type(dtype).ok_or_else(|| {
            self.unsupported(
                op,
                dtype,
                "this dtype supports storage only: convert it on the CPU",
            )
        })
    }

    /// The error for an op that has no CUDA form for a dtype.
    pub(crate) fn unsupported(&self, op: &'static str, dtype: DType, hint: &str) -> Error {
        Error::UnsupportedOnDevice {
            op,
            dtype,
            device: format!("cuda:{} ({})", self.0.ordinal, self.name()),
            hint: hint.to_string(),
        }
        .bt()
    }

    /// A storage with arbitrary contents.
    pub(super) fn new_storage(
        &self,
        len: usize,
        dtype: DType,
        op: &'static str,
    ) -> Result<CudaStorage> {
        CudaStorage::alloc(self, len, dtype, op)
    }

    /// Reserves `count` numbers of the random sequence; returns the seed and the index of the first number.
    pub(super) fn draw(&self, count: usize) -> (u64, u64) {
        let first = self.0.drawn.fetch_add(count as u64, Ordering::Relaxed);
        (self.0.seed.load(Ordering::Relaxed), first)
    }
}

/// Upstream's interface to the device's parts.
impl CudaDevice {
    /// The stream with all of this device's work.
    pub fn cuda_stream(&self) -> Arc<CudaStream> {
        self.0.stream.clone()
    }

    /// Does nothing: this backend has one stream and tracks no events.
    ///
    /// # Safety
    /// No requirements; upstream's is unsafe.
    pub unsafe fn disable_event_tracking(&self) {
        self.0.context.disable_event_tracking();
    }

    /// Whether cudarc records events for each slice; false unless a program enabled it in the context.
    pub fn is_event_tracking(&self) -> bool {
        self.0.context.is_event_tracking()
    }

    /// Identifies this device within the process.
    pub fn id(&self) -> DeviceId {
        self.0.id
    }
}

/// See [`CudaDevice::begin_recording`].
pub(super) struct RecordingGuard<'a>(&'a AtomicBool);

impl Drop for RecordingGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl BackendDevice for CudaDevice {
    type Storage = CudaStorage;

    fn new(ordinal: usize) -> Result<Self> {
        let mut shared = SHARED.lock();
        if let Some(inner) = shared.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Self(inner));
        }
        let device = Self::open(ordinal)?;
        shared.insert(ordinal, Arc::downgrade(&device.0));
        Ok(device)
    }

    fn location(&self) -> DeviceLocation {
        DeviceLocation::Cuda {
            gpu_id: self.0.ordinal,
        }
    }

    fn same_device(&self, rhs: &Self) -> bool {
        self.0.id == rhs.0.id
    }

    fn zeros_impl(&self, shape: &Shape, dtype: DType) -> Result<CudaStorage> {
        let mut storage = self.new_storage(shape.elem_count(), dtype, "zeros")?;
        storage.clear()?;
        Ok(storage)
    }

    unsafe fn alloc_uninit(&self, shape: &Shape, dtype: DType) -> Result<CudaStorage> {
        self.new_storage(shape.elem_count(), dtype, "alloc")
    }

    fn storage_from_slice<T: WithDType>(&self, data: &[T]) -> Result<CudaStorage> {
        CudaStorage::upload(self, &T::to_cpu_storage(data))
    }

    fn storage_from_cpu_storage(&self, storage: &CpuStorage) -> Result<CudaStorage> {
        CudaStorage::upload(self, storage)
    }

    fn storage_from_cpu_storage_owned(&self, storage: CpuStorage) -> Result<CudaStorage> {
        CudaStorage::upload(self, &storage)
    }

    fn rand_uniform(&self, shape: &Shape, dtype: DType, lo: f64, up: f64) -> Result<CudaStorage> {
        ops::random::uniform(self, shape.elem_count(), dtype, lo, up)
    }

    fn rand_normal(&self, shape: &Shape, dtype: DType, mean: f64, std: f64) -> Result<CudaStorage> {
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
        self.refuse_while_recording("waiting for the device")?;
        self.0
            .stream
            .synchronize()
            .during(|| "waiting for the device".into())?;
        self.0.faults.check()
    }
}

impl CudaStorage {
    /// Copies the elements to the host and waits.
    pub(super) fn read(&self) -> Result<CpuStorage> {
        let copy = self.download()?;
        self.device.faults().check()?;
        Ok(copy)
    }

    /// Copies to another CUDA device: directly on one card, through the host otherwise.
    pub fn transfer_to_device(&self, dst: &CudaDevice) -> Result<Self> {
        if dst.same_device(&self.device) {
            return self.try_clone(&Layout::contiguous(self.len()));
        }
        Self::upload(dst, &self.read()?)
    }
}
