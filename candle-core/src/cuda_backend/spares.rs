//! Memory of weights that are copied to the card one layer at a time, while the layer before is in use.
//!
//! Memory from the driver's pool is free after all kernels that were queued before its allocation: a copy into it would wait for them.
//! Spare memory is free after the kernels that were queued when its last owner was dropped.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use cudarc::driver::{sys::CUevent_flags, CudaEvent, CudaSlice};
use parking_lot::Mutex;

use super::error::WrapErr;
use super::gpu::Gpu;
use crate::Result;

/// Memory that dropped weights leave to the next ones of the same size.
#[derive(Default)]
pub(crate) struct Spares(Mutex<VecDeque<Spare>>);

struct Spare {
    slice: CudaSlice<u8>,
    /// After the last kernel that uses it.
    free: CudaEvent,
}

impl Spares {
    /// Memory of `len` bytes. If there is none, the same number of bytes of other sizes returns to the pool, so that sizes that are no longer requested
    /// do not add up.
    fn take(&self, len: usize) -> Option<Spare> {
        let mut all = self.0.lock();
        if let Some(index) = all.iter().position(|spare| spare.slice.len() == len) {
            return all.remove(index);
        }
        let mut returned = 0;
        while returned < len {
            returned += all.pop_front()?.slice.len();
        }
        None
    }

    fn put(&self, slice: CudaSlice<u8>) -> Result<()> {
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let free = slice.stream().record_event(Some(flags)).w()?;
        self.0.lock().push_back(Spare { slice, free });
        Ok(())
    }

    /// Returns all memory to the pool.
    fn clear(&self) {
        self.0.lock().clear();
    }
}

/// Memory of a weight, which dropped becomes spare.
#[derive(Debug)]
pub(super) struct WeightMemory {
    slice: ManuallyDrop<CudaSlice<u8>>,
    spares: Weak<Spares>,
}

impl Deref for WeightMemory {
    type Target = CudaSlice<u8>;

    fn deref(&self) -> &CudaSlice<u8> {
        &self.slice
    }
}

impl DerefMut for WeightMemory {
    fn deref_mut(&mut self) -> &mut CudaSlice<u8> {
        &mut self.slice
    }
}

impl Drop for WeightMemory {
    fn drop(&mut self) {
        // SAFETY: the field is not used again.
        let slice = unsafe { ManuallyDrop::take(&mut self.slice) };
        let Some(spares) = self.spares.upgrade() else {
            return;
        };
        if let Err(err) = spares.put(slice) {
            tracing::warn!(%err, "cannot keep a weight's memory");
        }
    }
}

impl Gpu {
    /// Memory of dropped weights, which is kept as long as one of the returned values exists.
    pub(crate) fn keep_spares(&self) -> Arc<Spares> {
        let mut current = self.spares().lock();
        if let Some(spares) = current.upgrade() {
            return spares;
        }
        let spares = Arc::new(Spares::default());
        *current = Arc::downgrade(&spares);
        spares
    }

    /// Returns the memory of dropped weights to the pool.
    pub(super) fn return_spares(&self) {
        if let Some(spares) = self.spares().lock().upgrade() {
            spares.clear();
        }
    }

    /// Memory for `len` bytes of a weight; that of a dropped one is free after the event.
    pub(super) fn weight_memory(
        &self,
        len: usize,
        op: &'static str,
    ) -> Result<(WeightMemory, Option<CudaEvent>)> {
        let spares = self.spares().lock().clone();
        let spare = spares.upgrade().and_then(|spares| spares.take(len));
        let (slice, free) = match spare {
            Some(Spare { slice, free }) => (slice, Some(free)),
            None => (self.alloc_slice(len, op)?, None),
        };
        let memory = WeightMemory {
            slice: ManuallyDrop::new(slice),
            spares,
        };
        Ok((memory, free))
    }
}
