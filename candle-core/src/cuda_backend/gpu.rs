//! The GPU: a card's context and stream with its memory, kernels and libraries. It is independent of tensors, dtypes and ops.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use cudarc::cublas::CudaBlas;
use cudarc::driver::{sys, CudaContext, CudaSlice, CudaStream, DevicePtr};
use parking_lot::Mutex;

use super::blas;
use super::card::{self, CardReport};
use super::error::{CudaError, During, WrapErr};
use super::faults::Faults;
use super::kernel::{Kernel, Kernels};
use super::libraries::Library;
use super::lt::{Lt, WORKSPACE};
use super::pinned::Staging;
use super::pool::keep_freed_memory;
use super::profile::{Profiler, Timer};
use super::spares::Spares;
use super::upload::Uploads;
use crate::Result;

/// The backend's name in logs.
pub(super) const NAME: &str = "cuda";
/// Minimum compute capability: CUDA 13 does not compile for older cards.
const OLDEST: (i32, i32) = (7, 5);

/// Identifies a CUDA device within the process: all handles from [`Device::new_cuda`](crate::Device::new_cuda) of one ordinal share an id;
/// each [`CudaDevice::new_with_stream`](crate::CudaDevice::new_with_stream) has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceId(usize);

impl DeviceId {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Number of counters of arrived blocks, which kernels reset to 0.
pub(super) const COUNTERS: usize = 1 << 14;

/// An opened card with a stream.
pub struct Gpu {
    id: DeviceId,
    pub(super) ordinal: usize,
    pub(super) card: CardReport,
    /// Maximum shared memory of a block in bytes.
    max_shared: u32,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    pub(super) kernels: Kernels,
    faults: Faults,
    staging: Staging,
    uploads: Uploads,
    spares: Mutex<Weak<Spares>>,
    pub(super) profiler: Profiler,
    launches: AtomicU64,
    /// Whether work is being recorded instead of executed.
    recording: AtomicBool,
    blas: blas::Handles,
    /// Whether to log every launch, with its time.
    log: bool,
    kept: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    /// See [`Gpu::counters`].
    counters: CudaSlice<u32>,
}

impl Gpu {
    pub(super) fn open(ordinal: usize, log: bool) -> Result<Self> {
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
        Ok(Self {
            id: DeviceId::new(),
            ordinal,
            max_shared,
            kernels: Kernels::new(context.clone(), card.capability)?,
            faults: Faults::new(&context)?,
            staging: Staging::default(),
            uploads: Uploads::default(),
            spares: Mutex::default(),
            profiler: Profiler::default(),
            launches: AtomicU64::new(0),
            recording: AtomicBool::new(false),
            blas: Default::default(),
            log,
            kept: Mutex::default(),
            card,
            context,
            stream,
            counters,
        })
    }

    pub(super) fn id(&self) -> DeviceId {
        self.id
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn staging(&self) -> &Staging {
        &self.staging
    }

    pub(super) fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// See [`Gpu::keep_spares`].
    pub(super) fn spares(&self) -> &Mutex<Weak<Spares>> {
        &self.spares
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The address of [`COUNTERS`] counters, with which the blocks of a kernel detect the last to arrive; all are 0 between kernels.
    pub(super) fn counters(&self) -> u64 {
        self.counters.device_ptr(&self.stream).0
    }

    /// Maximum shared memory of a block in bytes.
    pub(super) fn max_shared(&self) -> u32 {
        self.max_shared
    }

    /// Whether `CANDLE_CUDA_LOG` prints launches.
    pub(super) fn logs(&self) -> bool {
        self.log
    }

    /// cuBLASLt, if it is installed.
    pub(super) fn lt(&self) -> Result<Option<&Lt>> {
        self.blas
            .lt(|| self.alloc_slice(WORKSPACE, "matmul workspace"))
    }

    /// A handle of cuBLAS on the stream.
    ///
    /// # Errors
    /// If cuBLAS is not installed, or cannot create a handle.
    pub(super) fn cublas(&self) -> Result<Arc<CudaBlas>> {
        self.blas.cublas(&self.stream)
    }

    /// The single value of a type that is kept with the GPU: state of the layers above.
    pub(super) fn kept<T: Default + Send + Sync + 'static>(&self) -> Arc<T> {
        let mut kept = self.kept.lock();
        let value = kept
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::<T>::default());
        // The key is the type of the value.
        value.clone().downcast().unwrap_or_default()
    }

    /// Waits for all work in the stream.
    ///
    /// # Errors
    /// If work is being recorded; if the driver or a kernel failed.
    pub(super) fn wait(&self) -> Result<()> {
        self.refuse_while_recording("waiting for the device")?;
        self.stream
            .synchronize()
            .during(|| "waiting for the device".into())?;
        self.faults.check()
    }

    /// Number of launches since the card was opened.
    pub(super) fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }

    pub(super) fn count_launches(&self, count: u64) {
        self.launches.fetch_add(count, Ordering::Relaxed);
    }

    /// The number of the current launch, from 0.
    pub(super) fn launch_number(&self) -> u64 {
        self.launches().saturating_sub(1)
    }

    pub(super) fn profile_begin(&self, kernel: &Kernel) -> Result<Option<Timer>> {
        self.count_launches(1);
        self.profiler.begin(&self.stream, kernel)
    }

    pub(super) fn profile_end(&self, timer: Option<Timer>) -> Result<()> {
        match timer {
            None => Ok(()),
            Some(timer) => self.profiler.end(&self.stream, timer),
        }
    }

    /// Records work until the guard is dropped.
    pub(super) fn begin_recording(&self) -> Result<RecordingGuard<'_>> {
        if self.recording.swap(true, Ordering::AcqRel) {
            crate::bail!(
                "{} is already recording; only one recording can be active",
                self.card.name
            )
        }
        Ok(RecordingGuard(&self.recording))
    }

    pub(super) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    /// An error while work is recorded: `what` needs the host.
    pub(super) fn refuse_while_recording(&self, what: &str) -> Result<()> {
        if self.is_recording() {
            crate::bail!(
                "cannot record {what} on {}: it needs the host",
                self.card.name
            )
        }
        Ok(())
    }
}

/// See [`Gpu::begin_recording`].
pub(super) struct RecordingGuard<'a>(&'a AtomicBool);

impl Drop for RecordingGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
