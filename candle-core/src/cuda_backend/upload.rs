//! Copies of many bytes from the host: through pinned memory, in a separate stream.
//!
//! The driver copies pageable memory slowly, and in order with the kernels. Here threads write to one of two pinned chunks while the card
//! reads the other, and kernels run meanwhile.

use std::sync::Arc;

use cudarc::driver::{
    result as driver, sys::CUevent_flags, CudaContext, CudaEvent, CudaSlice, CudaStream,
    DevicePtrMut,
};
use parking_lot::Mutex;

use super::error::{During, WrapErr};
use super::gpu::Gpu;
use super::pinned::Pinned;
use crate::cpu::threads;
use crate::parts::chunks_of;
use crate::Result;

/// Minimum number of bytes for which the pinned memory is worth two copies and two events.
const LEAST_BYTES: usize = 1 << 20;
/// Bytes of a chunk: long enough that starting threads and copies takes a small part of its time.
const CHUNK_BYTES: usize = 8 << 20;
/// Bytes that a thread copies at a time.
const TASK_BYTES: usize = 256 << 10;

const CHUNK: &str = "copies to the card";

/// The chunks of a GPU, allocated by the first long copy.
#[derive(Default)]
pub(super) struct Uploads(Mutex<Lane>);

#[derive(Default)]
enum Lane {
    #[default]
    Unused,
    Open(Chunks),
    /// The driver has no pinned memory left.
    Refused,
}

struct Chunks {
    stream: Arc<CudaStream>,
    chunks: [Chunk; 2],
    next: usize,
}

struct Chunk {
    pinned: Pinned,
    /// After the card's last read of the chunk.
    read: CudaEvent,
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // The card may still be reading.
        if let Err(err) = self.stream.synchronize() {
            tracing::warn!(?err, "cannot wait for copies to the card");
        }
    }
}

impl Chunks {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let chunk = || -> Result<Chunk> {
            Ok(Chunk {
                pinned: Pinned::new(context, CHUNK_BYTES, CHUNK)?,
                read: context
                    .new_event(Some(CUevent_flags::CU_EVENT_DISABLE_TIMING))
                    .w()?,
            })
        };
        Ok(Self {
            chunks: [chunk()?, chunk()?],
            stream: context
                .new_stream()
                .during(|| "making a stream for copies".into())?,
            next: 0,
        })
    }

    /// Copies `parts` to consecutive bytes from the address `dst` on, after `free`, before later work of `main`.
    fn copy(
        &mut self,
        parts: &[&[u8]],
        dst: u64,
        free: &CudaEvent,
        main: &CudaStream,
    ) -> Result<()> {
        self.stream.wait(free).w()?;
        let queued = self.queue(parts, dst);
        if queued.is_err() {
            // The caller frees the memory.
            self.stream.synchronize().w()?;
        }
        queued?;
        main.join(&self.stream).w()
    }

    fn queue(&mut self, parts: &[&[u8]], dst: u64) -> Result<()> {
        let mut copied = 0;
        for pieces in chunks_of(parts, CHUNK_BYTES) {
            let chunk = &mut self.chunks[self.next];
            self.next = (self.next + 1) % 2;
            chunk.read.synchronize().w()?;
            let len = pieces.iter().map(|piece| piece.len()).sum();
            // SAFETY: the chunk has this many bytes, and the card has read them.
            let host = unsafe { std::slice::from_raw_parts_mut(chunk.pinned.host(), len) };
            fill(host, &pieces);
            // SAFETY: the caller has memory for all parts at `dst`; the chunk is not written before its event.
            unsafe {
                driver::memcpy_htod_async(dst + copied as u64, host, self.stream.cu_stream())
            }
            .w()?;
            chunk.read.record(&self.stream).w()?;
            copied += len;
        }
        Ok(())
    }
}

/// Copies the pieces to consecutive bytes, on all threads.
fn fill(mut dst: &mut [u8], pieces: &[&[u8]]) {
    for piece in pieces {
        let (to, rest) = dst.split_at_mut(piece.len());
        threads::zip_chunks(piece, TASK_BYTES, to, TASK_BYTES, |from, to| {
            to.copy_from_slice(from)
        });
        dst = rest;
    }
}

impl Gpu {
    /// Copies `parts` from the host to consecutive elements from the first of `dst` on. With `free`, the memory is unused after that event;
    /// else after all work that is queued.
    ///
    /// # Errors
    /// As [`upload_to`](Self::upload_to); if `dst` is shorter.
    pub(super) fn upload_parts(
        &self,
        parts: &[&[u8]],
        dst: &mut CudaSlice<u8>,
        free: Option<CudaEvent>,
        op: &str,
    ) -> Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        if dst.len() < bytes {
            crate::bail!("{op}: {bytes} bytes do not fit into {}", dst.len())
        }
        if self.upload_pinned(parts, dst, free, op)? {
            return Ok(());
        }
        let mut start = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            let end = start + part.len();
            self.upload_to(*part, &mut dst.slice_mut(start..end), op)?;
            start = end;
        }
        Ok(())
    }

    /// Copies the bytes of elements to the first of `dst`, which has as many.
    pub(super) fn upload_bytes<T>(
        &self,
        bytes: &[u8],
        dst: &mut CudaSlice<T>,
        op: &str,
    ) -> Result<()> {
        let held = dst.num_bytes();
        // SAFETY: any bits are elements.
        let Some(mut dst) = (unsafe { dst.transmute_mut::<u8>(bytes.len()) }) else {
            crate::bail!("{op}: {} bytes do not fit into {held}", bytes.len())
        };
        if bytes.is_empty() || self.upload_pinned(&[bytes], &mut dst, None, op)? {
            return Ok(());
        }
        self.upload_to(bytes, &mut dst, op)
    }

    /// Copies `parts` through pinned memory; returns false for few bytes, while a stream captures, without pinned memory, and while another
    /// copy uses it. `dst` has as many bytes.
    fn upload_pinned(
        &self,
        parts: &[&[u8]],
        dst: &mut impl DevicePtrMut<u8>,
        free: Option<CudaEvent>,
        op: &str,
    ) -> Result<bool> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes < LEAST_BYTES || self.captures()? {
            return Ok(false);
        }
        self.refuse_while_recording(op)?;
        // A rayon thread that waits for the others in the loop below may run another task, which copies too: it must not wait for this one.
        let Some(mut lane) = self.uploads().0.try_lock() else {
            return Ok(false);
        };
        if matches!(*lane, Lane::Unused) {
            *lane = match Chunks::new(self.context()) {
                Ok(chunks) => Lane::Open(chunks),
                Err(err) => {
                    tracing::warn!(%err, "copies to the card are slower without pinned memory");
                    Lane::Refused
                }
            };
        }
        let Lane::Open(chunks) = &mut *lane else {
            return Ok(false);
        };
        let main = self.stream();
        let free = match free {
            Some(free) => free,
            None => self.event()?,
        };
        let (address, _guard) = dst.device_ptr_mut(main);
        chunks.copy(parts, address, &free, main)?;
        Ok(true)
    }

    /// An event after all work that is queued.
    fn event(&self) -> Result<CudaEvent> {
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING;
        self.stream().record_event(Some(flags)).w()
    }
}
