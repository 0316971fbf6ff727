//! The device: a GPU with Candle's dtypes, storages and random sequence.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;

use super::card::CardReport;
use super::error::WrapErr;
use super::gpu::{Gpu, NAME};
use super::pool;
use super::storage::CudaStorage;
use crate::kernel_time::KernelTime;
use crate::watch::Switches;
use crate::{DType, DeviceLocation, Error, Result};

/// The default seed of a device.
const DEFAULT_SEED: u64 = 299_792_458;

struct Inner {
    gpu: Gpu,
    switches: Switches,
    seed: AtomicU64,
    /// Number of random numbers drawn since the seed was set: the start of the next draw's counter.
    drawn: AtomicU64,
}

/// An NVIDIA card. Clones are handles of the same device.
#[derive(Clone)]
pub struct CudaDevice(Arc<Inner>);

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaDevice({:?}, {})", self.gpu().id(), self.name())
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

/// The open devices of [`Device::new_cuda`](crate::Device::new_cuda), by ordinal.
static SHARED: LazyLock<Mutex<HashMap<usize, Weak<Inner>>>> = LazyLock::new(Mutex::default);

impl CudaDevice {
    /// Opens a card with a separate stream, as in upstream: it is another device than that of
    /// [`Device::new_cuda`](crate::Device::new_cuda), and their tensors cannot be mixed.
    ///
    /// # Errors
    /// As [`Device::new_cuda`](crate::Device::new_cuda).
    pub fn new_with_stream(ordinal: usize) -> Result<Self> {
        let switches = Switches::from_env(NAME);
        Ok(Self(Arc::new(Inner {
            gpu: Gpu::open(ordinal, switches.log)?,
            switches,
            seed: AtomicU64::new(DEFAULT_SEED),
            drawn: AtomicU64::new(0),
        })))
    }

    /// The device of [`Device::new_cuda`](crate::Device::new_cuda): that of an earlier call, if it is still open.
    pub(super) fn shared(ordinal: usize) -> Result<Self> {
        let mut shared = SHARED.lock();
        if let Some(inner) = shared.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(Self(inner));
        }
        let device = Self::new_with_stream(ordinal)?;
        shared.insert(ordinal, Arc::downgrade(&device.0));
        Ok(device)
    }

    /// The properties of the card.
    pub fn card(&self) -> &CardReport {
        &self.gpu().card
    }

    /// The card's name.
    pub fn name(&self) -> &str {
        &self.gpu().card.name
    }

    /// Counters since the device was opened.
    pub fn stats(&self) -> Stats {
        let (live_bytes, peak_bytes) = pool::used(self.context());
        Stats {
            launches: self.launches(),
            kernels: self.gpu().kernels.count() as u64,
            live_bytes,
            peak_bytes,
        }
    }

    /// Returns freed memory, which is kept for later tensors, to the driver. Waits for the card.
    pub fn trim(&self) -> Result<()> {
        self.return_memory()
    }

    /// Free bytes of the card's memory, considering other programs too. Memory of freed tensors counts as free: it is returned to the
    /// driver first, which waits for the card.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn free_memory(&self) -> Result<u64> {
        self.trim()?;
        let (free, _) = self.context().mem_get_info().w()?;
        Ok(free as u64)
    }

    /// Starts timing every kernel on the card. Slows down everything.
    pub fn start_profile(&self) -> Result<()> {
        self.gpu().profiler.start();
        Ok(())
    }

    /// Stops timing kernels; returns the time of each since [`CudaDevice::start_profile`], longest first.
    pub fn stop_profile(&self) -> Result<Vec<KernelTime>> {
        self.gpu().profiler.stop()
    }

    /// Whether kernels are being timed. Those of a recording cannot be.
    pub fn is_profiling(&self) -> bool {
        self.gpu().profiler.is_on()
    }

    /// The debugging switches; while work is recorded there are no results to compare.
    pub(super) fn switches(&self) -> Switches {
        if self.is_recording() {
            self.0.switches.without_results()
        } else {
            self.0.switches
        }
    }

    /// The architecture that kernels are compiled for, in NVRTC's notation: `sm_90a`.
    pub fn arch(&self) -> &str {
        self.gpu().kernels.arch()
    }

    /// Makes the card's context current in this thread.
    pub(crate) fn bind_to_thread(&self) {
        if let Err(error) = self.context().bind_to_thread() {
            // The driver returns the same error to the caller's first call.
            tracing::warn!(%error, "cannot bind the CUDA context to the thread");
        }
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
            device: format!("cuda:{} ({})", self.gpu().ordinal, self.name()),
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
        DeviceLocation::Cuda {
            gpu_id: self.gpu().ordinal,
        }
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }
}

/// The methods of the GPU are available on its device.
#[doc(hidden)]
impl std::ops::Deref for CudaDevice {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.0.gpu
    }
}
