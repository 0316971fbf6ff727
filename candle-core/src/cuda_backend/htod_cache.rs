//! Copies from the host while a CUDA graph is captured.
//!
//! A captured copy reads the host's memory when the graph runs, long after the call: temporary arguments no longer exist then. During the
//! lifetime of a guard, small copies are kept on the card by their contents, and a capture records a copy on the card. The kernels of this
//! backend receive their numbers by value and do not need this; kernels of upstream's users do.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use cudarc::driver::result::memcpy_dtod_async;
use cudarc::driver::sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, HostSlice};

use super::error::WrapErr;
use super::gpu::{DeviceId, Gpu};
use crate::Result;

/// Maximum length of copies that are kept, in bytes, as in upstream.
const MAX_BYTES: usize = 4096;

type Kept = HashMap<(DeviceId, Vec<u8>), CudaSlice<u8>>;

thread_local! {
    static GUARDS: Cell<usize> = const { Cell::new(0) };
    /// Kept until the thread ends: the graphs that read it are unknown.
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// During its lifetime, copies from the host by its thread may be captured; see
/// [`CudaDevice::enable_cuda_graph_htod_cache`](crate::CudaDevice::enable_cuda_graph_htod_cache).
#[must_use = "copies may be captured as long as this lives"]
pub struct CudaGraphHtodCacheGuard {
    _private: (),
}

impl Drop for CudaGraphHtodCacheGuard {
    fn drop(&mut self) {
        // A guard that was moved here was counted by another thread.
        GUARDS.set(GUARDS.get().saturating_sub(1));
    }
}

impl CudaGraphHtodCacheGuard {
    pub(super) fn new() -> Self {
        GUARDS.set(GUARDS.get() + 1);
        Self { _private: () }
    }
}

impl Gpu {
    pub(super) fn captures(&self) -> Result<bool> {
        Ok(self.stream().capture_status().w()? == CU_STREAM_CAPTURE_STATUS_ACTIVE)
    }

    /// An error if a guard exists and the stream captures: the host would read data that no kernel has written yet.
    pub(super) fn may_read(&self, op: &str) -> Result<()> {
        if GUARDS.get() > 0 && self.captures()? {
            crate::bail!(
                "{op}: a CUDA graph is being captured; its results can be read only after it has run"
            )
        }
        Ok(())
    }

    /// Copies `src` from a kept copy on the card; returns false if no guard exists, or the copy is too long and nothing is captured.
    pub(super) fn copy_kept<T, Src, Dst>(&self, src: &Src, dst: &mut Dst, op: &str) -> Result<bool>
    where
        T: DeviceRepr,
        Src: HostSlice<T> + ?Sized,
        Dst: DevicePtrMut<T>,
    {
        if GUARDS.get() == 0 || src.is_empty() {
            return Ok(false);
        }
        if dst.len() < src.len() {
            crate::bail!("{op}: {} elements do not fit into {}", src.len(), dst.len())
        }
        let captures = self.captures()?;
        // SAFETY: read at once; the guard waits for copies into pinned memory.
        let (elements, _synced) = unsafe { src.stream_synced_slice(self.stream()) };
        let count = std::mem::size_of_val(elements);
        if count > MAX_BYTES {
            if captures {
                crate::bail!("{op}: {count} bytes copied from the host while a CUDA graph is captured; the maximum is {MAX_BYTES}")
            }
            return Ok(false);
        }
        // SAFETY: types with the same representation on the card are plain bits.
        let bytes = unsafe { std::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), count) };
        KEPT.with_borrow_mut(|all| {
            let key = (self.id(), bytes.to_vec());
            if !all.contains_key(&key) {
                if captures {
                    crate::bail!(
                        "{op}: {count} bytes from the host were not copied before the capture of a CUDA graph began: run the same \
                         code once before, under the same guard"
                    )
                }
                let copy = self.stream().clone_htod(bytes).w()?;
                all.insert(key.clone(), copy);
            }
            let (from, _from) = all[&key].device_ptr(self.stream());
            let (to, _to) = dst.device_ptr_mut(self.stream());
            self.context().bind_to_thread().w()?;
            // SAFETY: both have at least `count` bytes, and are used in stream order.
            unsafe { memcpy_dtod_async(to, from, count, self.stream().cu_stream()) }.w()?;
            Ok(true)
        })
    }
}
