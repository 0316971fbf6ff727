//! Buffers, handed out by size class and taken back when their last user drops them.
//!
//! A buffer can be reused at once, without waiting for the GPU: all its uses were recorded before it came back, the next ones
//! are recorded after, and one queue runs them in that order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Error, Result};

const USAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

/// A buffer on loan from the pool; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Buffer {
    raw: Option<wgpu::Buffer>,
    /// Never used for two buffers, so that caches can be keyed by it.
    id: u64,
    pool: Arc<Pool>,
}

impl Buffer {
    pub(super) fn raw(&self) -> &wgpu::Buffer {
        self.raw.as_ref().expect("present until drop")
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// In bytes; the class's size, not what was asked for.
    pub(super) fn size(&self) -> u64 {
        self.raw().size()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.pool.take_back(raw, self.id);
        }
    }
}

/// The free buffers of one device, and the count of those on loan.
#[derive(Debug)]
pub(super) struct Pool {
    device: wgpu::Device,
    max_buffer_size: u64,
    free: Mutex<HashMap<u64, Vec<(wgpu::Buffer, u64)>>>,
    next_id: AtomicU64,
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    free_bytes: AtomicU64,
}

/// The size that a request for `bytes` is rounded to: an eighth of a power of two, so at most an eighth is unused; whole MiB
/// above 16 MiB, where weights live.
fn size_class(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    if bytes > 16 * MIB {
        return bytes.next_multiple_of(MIB);
    }
    let bytes = bytes.max(256);
    let step = (bytes.next_power_of_two() / 16).max(256);
    bytes.next_multiple_of(step)
}

impl Pool {
    pub(super) fn new(device: wgpu::Device, max_buffer_size: u64) -> Arc<Self> {
        Arc::new(Self {
            device,
            max_buffer_size,
            free: Mutex::default(),
            next_id: AtomicU64::new(1),
            live_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            free_bytes: AtomicU64::new(0),
        })
    }

    /// A buffer of at least `bytes`, with arbitrary contents.
    ///
    /// # Errors
    /// More than the adapter allows in one buffer, or no memory left even after the pool gave back what is free.
    pub(super) fn get(self: &Arc<Self>, bytes: u64) -> Result<Arc<Buffer>> {
        let size = size_class(bytes).min(self.max_buffer_size & !3);
        if bytes > self.max_buffer_size {
            return Err(Error::WebGpu(format!(
                "a tensor of {bytes} bytes was asked for, the adapter's max_buffer_size is {}: use a smaller dtype or shape",
                self.max_buffer_size
            ))
            .bt());
        }
        let reused = self.free.lock().get_mut(&size).and_then(Vec::pop);
        let (raw, id) = match reused {
            Some(found) => {
                self.free_bytes.fetch_sub(size, Ordering::Relaxed);
                found
            }
            None => (
                self.create(size).or_else(|_| {
                    self.trim();
                    self.create(size)
                })?,
                self.next_id.fetch_add(1, Ordering::Relaxed),
            ),
        };
        let live = self.live_bytes.fetch_add(size, Ordering::Relaxed) + size;
        self.peak_bytes.fetch_max(live, Ordering::Relaxed);
        Ok(Arc::new(Buffer {
            raw: Some(raw),
            id,
            pool: self.clone(),
        }))
    }

    fn create(&self, size: u64) -> Result<wgpu::Buffer> {
        // In a browser the scope's answer comes later than this function can wait for; there, the device's handler of
        // uncaptured errors has it.
        #[cfg(not(target_arch = "wasm32"))]
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage: USAGE,
            mapped_at_creation: false,
        });
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(err) = pollster::block_on(scope.pop()) {
            return Err(Error::WebGpu(format!(
                "no memory for a buffer of {size} bytes beside the {} in use: {err}",
                self.live_bytes()
            ))
            .bt());
        }
        Ok(raw)
    }

    fn take_back(&self, raw: wgpu::Buffer, id: u64) {
        let size = raw.size();
        self.live_bytes.fetch_sub(size, Ordering::Relaxed);
        self.free_bytes.fetch_add(size, Ordering::Relaxed);
        self.free.lock().entry(size).or_default().push((raw, id));
    }

    /// Frees every buffer that is not on loan.
    pub(super) fn trim(&self) {
        let freed = std::mem::take(&mut *self.free.lock());
        for (raw, _) in freed.into_values().flatten() {
            self.free_bytes.fetch_sub(raw.size(), Ordering::Relaxed);
        }
        let _ = self.device.poll(wgpu::PollType::wait_indefinitely());
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.free_bytes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn classes_waste_little_and_are_words() {
        for bytes in [
            0,
            1,
            255,
            256,
            257,
            1000,
            4096,
            4097,
            1 << 20,
            (1 << 24) + 1,
            1 << 31,
        ] {
            let class = size_class(bytes);
            assert!(
                class >= bytes.max(256) && class.is_multiple_of(256),
                "{bytes} -> {class}"
            );
            assert!(class <= bytes + (bytes / 8).max(256), "{bytes} -> {class}");
        }
    }
}
