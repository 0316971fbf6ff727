//! Memory of the host that the card accesses directly.

use std::sync::Arc;

use cudarc::driver::{result as driver, CudaContext};
use parking_lot::Mutex;

use super::error::{During, WrapErr};
use crate::Result;

/// Maximum number of bytes that are read without waiting: token ids, rows of logits. Copying more takes longer than a wait.
pub(super) const STAGED: usize = 1 << 20;

/// Pinned host memory, which the card accesses directly.
pub(super) struct Pinned {
    context: Arc<CudaContext>,
    host: *mut u8,
}

// SAFETY: plain memory, used by one read at a time.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates memory with arbitrary contents.
    pub(super) fn new(context: &Arc<CudaContext>, bytes: usize, user: &str) -> Result<Self> {
        context.bind_to_thread().w()?;
        // SAFETY: the bytes are written before they are read.
        let host = unsafe { driver::malloc_host(bytes, 0) }
            .during(|| format!("allocating {bytes} bytes of the host for {user}"))?;
        Ok(Self {
            context: context.clone(),
            host: host.cast(),
        })
    }

    pub(super) fn host(&self) -> *mut u8 {
        self.host
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let bound = self.context.bind_to_thread();
        // SAFETY: allocated by `malloc_host`, freed once, after the card's last use has finished.
        let freed = bound.and_then(|()| unsafe { driver::free_host(self.host.cast()) });
        if let Err(err) = freed {
            tracing::warn!(?err, "cannot free pinned memory");
        }
    }
}

/// Staging memory that no read currently uses.
#[derive(Default)]
pub(super) struct Staging(Mutex<Vec<Pinned>>);

impl Staging {
    pub(super) fn take(&self, context: &Arc<CudaContext>) -> Result<Pinned> {
        if let Some(pinned) = self.0.lock().pop() {
            return Ok(pinned);
        }
        Pinned::new(context, STAGED, "readback")
    }

    pub(super) fn give_back(&self, pinned: Pinned) {
        self.0.lock().push(pinned);
    }
}
