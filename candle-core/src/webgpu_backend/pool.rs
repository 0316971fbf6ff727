//! Buffers, allocated by size class and returned when their last user drops them.
//!
//! A buffer can be reused at once, without waiting for the GPU: all its uses were recorded before it was returned, the next ones are
//! recorded after, and one queue runs them in that order.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use super::shared::Shared;

const USAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

/// Free bytes that are always kept. Above it, at most half of the peak usage is kept: a program that once needed much and now needs little
/// frees the rest. A program that allocates again what was freed, such as a network whose layers have many sizes, keeps that too, up to
/// twice the peak: allocations of 50 MiB took half of the time of 32 images through ResNet-50 on an H200.
const KEPT_BYTES: u64 = 256 << 20;

/// A buffer from the pool; dropping it returns it.
#[derive(Debug)]
pub(super) struct Buffer {
    raw: Shared<Option<wgpu::Buffer>>,
    /// Unique to the buffer, so that caches can be keyed by it.
    id: u64,
    pool: Shared<Arc<Pool>>,
}

impl Buffer {
    pub(super) fn raw(&self) -> &wgpu::Buffer {
        self.raw.as_ref().expect("present until drop")
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Size in bytes; that of the class, not the requested size.
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

/// The device is out of memory.
#[derive(Debug)]
pub(super) struct OutOfMemory(String);

/// The free buffers of one device, and the number of those in use.
#[derive(Debug)]
pub(super) struct Pool {
    device: wgpu::Device,
    max_buffer_size: u64,
    /// By size, so that the largest are freed first when there are too many.
    free: Mutex<BTreeMap<u64, Vec<(wgpu::Buffer, u64)>>>,
    freed: Mutex<Freed>,
    next_id: AtomicU64,
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    free_bytes: AtomicU64,
    /// Maximum number of bytes in live and free buffers together.
    budget: AtomicU64,
    /// Maximum number of bytes in free buffers, if set.
    cap: AtomicU64,
    /// Number of times that buffers were returned to the device: caches that hold buffers then have to release them.
    given_back: AtomicU64,
}

/// Buffers that were freed because there were too many, and what was allocated again of them.
#[derive(Debug, Default)]
struct Freed {
    /// Number of buffers by size.
    sizes: BTreeMap<u64, u64>,
    again_bytes: u64,
}

impl Freed {
    fn freed(&mut self, size: u64) {
        *self.sizes.entry(size).or_default() += 1;
    }

    /// Records an allocation.
    fn created(&mut self, size: u64) {
        if let Some(count) = self.sizes.get_mut(&size).filter(|count| **count > 0) {
            *count -= 1;
            self.again_bytes = self.again_bytes.saturating_add(size);
        }
    }

    /// Maximum number of bytes in free buffers for a peak of bytes in use.
    fn cap(&self, peak: u64) -> u64 {
        let kept = KEPT_BYTES.max(peak / 2);
        kept.saturating_add(self.again_bytes)
            .min(KEPT_BYTES.max(peak.saturating_mul(2)))
    }
}

/// The size to which a request for `bytes` is rounded: an eighth of a power of two, so at most an eighth is unused; whole MiB above 16 MiB,
/// the sizes of weights.
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
            freed: Mutex::default(),
            next_id: AtomicU64::new(1),
            live_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            free_bytes: AtomicU64::new(0),
            budget: AtomicU64::new(u64::MAX),
            cap: AtomicU64::new(u64::MAX),
            given_back: AtomicU64::new(0),
        })
    }

    /// The size of the largest buffer, a multiple of 256.
    pub(super) fn max_buffer_size(&self) -> u64 {
        self.max_buffer_size
    }

    /// A buffer of at least `bytes`, which are at most `max_buffer_size`, with arbitrary contents.
    pub(super) fn get(self: &Arc<Self>, bytes: u64) -> Result<Arc<Buffer>, OutOfMemory> {
        let size = size_class(bytes).min(self.max_buffer_size);
        let reused = self.free.lock().get_mut(&size).and_then(Vec::pop);
        let (raw, id) = match reused {
            Some(found) => {
                self.free_bytes.fetch_sub(size, Ordering::Relaxed);
                found
            }
            None => {
                self.freed.lock().created(size);
                (
                    self.create(size)?,
                    self.next_id.fetch_add(1, Ordering::Relaxed),
                )
            }
        };
        let live = self.live_bytes.fetch_add(size, Ordering::Relaxed) + size;
        self.peak_bytes.fetch_max(live, Ordering::Relaxed);
        Ok(Arc::new(Buffer {
            raw: Shared::new(Some(raw)),
            id,
            pool: Shared::new(self.clone()),
        }))
    }

    fn create(&self, size: u64) -> Result<wgpu::Buffer, OutOfMemory> {
        let budget = self.budget.load(Ordering::Relaxed);
        if (self.live_bytes() + self.free_bytes()).saturating_add(size) > budget {
            return Err(OutOfMemory(format!("the budget is {budget} bytes")));
        }
        // In a browser the scope's result arrives later than this function can wait; there, the device's handler of uncaptured errors
        // receives it.
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
            return Err(OutOfMemory(err.to_string()));
        }
        Ok(raw)
    }

    fn take_back(&self, raw: wgpu::Buffer, id: u64) {
        let size = raw.size();
        self.live_bytes.fetch_sub(size, Ordering::Relaxed);
        let mut free = self.free.lock();
        free.entry(size).or_default().push((raw, id));
        let mut total = self.free_bytes.fetch_add(size, Ordering::Relaxed) + size;
        let cap = match self.cap.load(Ordering::Relaxed) {
            u64::MAX => self.freed.lock().cap(self.peak_bytes()),
            cap => cap,
        };
        if total <= cap {
            return;
        }
        // Somewhat below the cap, so that this does not happen for every buffer.
        while total > cap - cap / 4 {
            let Some(mut largest) = free.last_entry() else {
                break;
            };
            let size = *largest.key();
            if largest.get_mut().pop().is_some() {
                self.free_bytes.fetch_sub(size, Ordering::Relaxed);
                self.freed.lock().freed(size);
                total -= size;
            }
            if largest.get().is_empty() {
                largest.remove();
            }
        }
        self.given_back.fetch_add(1, Ordering::Release);
    }

    /// Frees every buffer that is not in use.
    pub(super) fn trim(&self) {
        let freed = std::mem::take(&mut *self.free.lock());
        for (raw, _) in freed.into_values().flatten() {
            self.free_bytes.fetch_sub(raw.size(), Ordering::Relaxed);
        }
        self.given_back.fetch_add(1, Ordering::Release);
        // Otherwise buffers that the GPU still uses are freed by the next submission's clean-up.
        let _ = self.device.poll(wgpu::PollType::wait_indefinitely());
    }

    /// The error for a failed allocation of `bytes`.
    pub(super) fn exhausted(&self, op: &str, bytes: u64, reason: OutOfMemory) -> crate::Error {
        crate::Error::WebGpu(format!(
            "{op}: out of memory: requested {bytes} bytes, {} are used by tensors and {} are free in the pool; {}: drop \
             tensors, or use a smaller dtype or batch",
            self.live_bytes(),
            self.free_bytes(),
            reason.0
        ))
        .bt()
    }

    pub(super) fn set_budget(&self, bytes: Option<u64>) {
        self.budget
            .store(bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Remaining bytes of the budget for storages, if there is one. Free buffers are destroyed if they do not fit.
    pub(super) fn left_of_budget(&self) -> Option<u64> {
        match self.budget.load(Ordering::Relaxed) {
            u64::MAX => None,
            budget => Some(budget.saturating_sub(self.live_bytes())),
        }
    }

    pub(super) fn set_cap(&self, bytes: Option<u64>) {
        self.cap.store(bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Restarts the peak from the current number of live bytes.
    pub(super) fn reset_peak(&self) {
        self.peak_bytes.store(self.live_bytes(), Ordering::Relaxed);
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

    pub(super) fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::{size_class, Freed, KEPT_BYTES};

    #[test]
    fn what_is_allocated_again_is_kept() {
        let (size, peak) = (50 << 20, 600 << 20);
        let mut freed = Freed::default();
        freed.created(size);
        assert_eq!(freed.cap(peak), peak / 2);
        assert_eq!(freed.cap(0), KEPT_BYTES);
        freed.freed(size);
        freed.created(size + 1);
        assert_eq!(freed.cap(peak), peak / 2);
        freed.created(size);
        freed.created(size);
        assert_eq!(freed.cap(peak), peak / 2 + size);
        for _ in 0..100 {
            freed.freed(size);
            freed.created(size);
        }
        assert_eq!(freed.cap(peak), 2 * peak);
    }

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
