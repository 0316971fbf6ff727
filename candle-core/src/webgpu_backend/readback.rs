//! Copies to the host: the bytes of a storage followed by the reports of kernels.

use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::limits::WINDOW_ALIGN;
use super::memory::Memory;
use super::queue::{Queue, State, FIRST_BATCH};
use super::shared::Shared;
use super::status::{self, STATUS_BYTES};
use crate::{Error, Result};

/// Polling time of a readback before it sleeps: a wake-up by the operating system costs about 30 us.
const SPIN: Duration = Duration::from_millis(2);
/// Maximum size of cached staging buffers, in bytes.
const KEPT_STAGING: u64 = 16 << 20;

impl Queue {
    /// Submits the pending list and starts copying the first `bytes` of a storage's memory to the host.
    pub(super) fn begin_read(self: &Arc<Self>, memory: &Memory, bytes: u64) -> Result<RawRead> {
        self.health.check("readback")?;
        // A staging buffer's size is a power of two that also holds the status after the data.
        let most = (self.pool.max_buffer_size() / 2 + 1).next_power_of_two() / 2;
        let mut pieces = memory.pieces(bytes, most.max(WINDOW_ALIGN));
        if pieces.is_empty() {
            pieces = memory.pieces(1, WINDOW_ALIGN);
            pieces.iter_mut().for_each(|piece| piece.bytes = 0);
        }
        let state = &mut *self.state.lock();
        let mut staged = Vec::with_capacity(pieces.len());
        for piece in &pieces {
            let padded = piece.bytes.next_multiple_of(16).max(16);
            staged.push(Staged {
                buffer: self.staging(state, padded + STATUS_BYTES),
                bytes: piece.bytes,
                padded,
                arrived: Arc::default(),
            });
        }
        let submitted = self.submit(state, |encoder| {
            for (piece, to) in pieces.iter().zip(&staged) {
                let raw = piece.buffer.raw();
                let bytes = to.padded.min(piece.buffer.size() - piece.offset);
                encoder.copy_buffer_to_buffer(raw, piece.offset, &to.buffer, 0, bytes);
            }
            if let Some(last) = staged.last() {
                let to = (&last.buffer, last.padded);
                encoder.copy_buffer_to_buffer(&self.status, 0, to.0, to.1, STATUS_BYTES);
            }
        });
        submitted?;
        state.batch = FIRST_BATCH;
        for piece in &staged {
            let slot = piece.arrived.clone();
            let reads = self.reads.clone();
            reads.fetch_add(1, Ordering::Relaxed);
            let map = piece.buffer.slice(..);
            map.map_async(wgpu::MapMode::Read, move |result| {
                reads.fetch_sub(1, Ordering::Relaxed);
                let mut arrival = slot.lock();
                arrival.result = Some(result.map_err(|err| err.to_string()));
                if let Some(waker) = arrival.waker.take() {
                    waker.wake();
                }
            });
        }
        Ok(RawRead {
            queue: Shared::new(self.clone()),
            staged: Shared::new(staged),
        })
    }

    /// A buffer of at least `bytes` that the host can read.
    fn staging(&self, state: &mut State, bytes: u64) -> wgpu::Buffer {
        let size = bytes.next_power_of_two();
        match state.staging.iter().position(|s| s.size() == size) {
            Some(index) => state.staging.swap_remove(index),
            None => self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("readback"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }),
        }
    }
}

/// Whether the data has arrived, and the task that waits for it.
#[derive(Default)]
struct Arrival {
    result: Option<std::result::Result<(), String>>,
    waker: Option<Waker>,
}

/// A staging buffer with a copy in flight.
struct Staged {
    buffer: wgpu::Buffer,
    bytes: u64,
    padded: u64,
    arrived: Arc<Mutex<Arrival>>,
}

/// A copy to the host in flight.
pub(super) struct RawRead {
    queue: Shared<Arc<Queue>>,
    /// In order; the status follows the data of the last one.
    staged: Shared<Vec<Staged>>,
}

impl RawRead {
    fn is_there(&self) -> bool {
        self.staged
            .iter()
            .all(|s| s.arrived.lock().result.is_some())
    }

    /// Waits on this thread. A browser's thread must not block, so there it is an error that names the asynchronous form.
    pub(super) fn wait(&self) -> Result<()> {
        if cfg!(target_arch = "wasm32") {
            return Err(Error::WebGpu(
                "a browser's thread cannot wait for the GPU: use to_vec1_async and its kin".into(),
            )
            .bt());
        }
        let start = Instant::now();
        while !self.is_there() {
            self.queue.health.check("readback")?;
            let poll = if start.elapsed() < SPIN {
                wgpu::PollType::Poll
            } else {
                wgpu::PollType::wait_indefinitely()
            };
            self.queue
                .device
                .poll(poll)
                .map_err(|err| Error::WebGpu(format!("waiting for the GPU: {err}")).bt())?;
        }
        Ok(())
    }

    /// Waits without blocking the thread.
    pub(super) async fn arrive(&self) -> Result<()> {
        std::future::poll_fn(|context| {
            if self.is_there() || self.queue.health.check("readback").is_err() {
                return Poll::Ready(());
            }
            if cfg!(target_arch = "wasm32") {
                // The event loop drives the device once this task yields to it: a task that wakes itself never would.
                for staged in self.staged.iter() {
                    let mut arrival = staged.arrived.lock();
                    if arrival.result.is_none() {
                        arrival.waker = Some(context.waker().clone());
                    }
                }
            } else {
                // Nothing else drives the device.
                let _ = self.queue.device.poll(wgpu::PollType::Poll);
                context.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
        self.queue.health.check("readback")
    }

    /// Passes the bytes to `read`, chunk by chunk in order; returns reports of kernels as an error.
    pub(super) fn take(self, read: &mut dyn FnMut(&[u8])) -> Result<()> {
        let failed = |err: &dyn std::fmt::Display| {
            let lost = self.queue.health.check("readback").err();
            lost.unwrap_or_else(|| Error::WebGpu(format!("reading a result back: {err}")).bt())
        };
        let mut reported = [0u32; 3];
        let last = self.staged.len() - 1;
        for (index, staged) in self.staged.iter().enumerate() {
            if let Some(Err(err)) = &staged.arrived.lock().result {
                return Err(failed(err));
            }
            let range = staged.buffer.slice(..).get_mapped_range();
            let mapped = range.map_err(|err| failed(&format!("{err:?}")))?;
            let (data, rest) = mapped.split_at(staged.padded as usize);
            read(&data[..staged.bytes as usize]);
            if index == last {
                bytemuck::cast_slice_mut::<u32, u8>(&mut reported).copy_from_slice(&rest[..12]);
            }
        }
        let queue = self.queue;
        let mut state = queue.state.lock();
        for staged in self.staged.into_inner() {
            staged.buffer.unmap();
            // Large ones are rare, and hold memory that tensors may need.
            if staged.buffer.size() <= KEPT_STAGING {
                state.staging.push(staged.buffer);
            }
        }
        drop(state);
        queue.health.check("readback")?;
        if reported[0] == 0 {
            return Ok(());
        }
        queue
            .queue
            .write_buffer(&queue.status, 0, &[0; STATUS_BYTES as usize]);
        status::check(reported)
    }
}
