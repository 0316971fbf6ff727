//! The ordered list of dispatches that were not submitted yet, and the two ways to wait for it.
//!
//! Ops append; nothing above this room touches an encoder. The list is submitted when it is long (the GPU starts while the
//! host still encodes), at a readback, at `synchronize`, and before an upload into a buffer that the list may still read.
//! All dispatches of a submission share one compute pass and one write of parameters; bind groups are cached by the buffers
//! in them, which the pool hands out in the same order step after step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::kernel::Pipeline;
use super::memory::{Memory, WINDOW_ALIGN};
use super::pool::{Buffer, Pool};
use super::profile::Profile;
use crate::{Error, Result};

/// The most storage buffers that a kernel binds; what every browser gives.
pub(super) const MAX_BUFFERS: usize = 8;
/// Bytes of parameters that one dispatch may have: a dynamic offset's default alignment.
pub(super) const PARAM_BYTES: usize = 256;
/// Dispatches in a submission. The first after a wait is shorter, so that an idle GPU starts early.
const BATCH: usize = 48;
const FIRST_BATCH: usize = 16;
/// Bind groups kept; past it the cache starts over.
const MAX_BIND_GROUPS: usize = 4096;
/// Uploads are cut into pieces of this size, because each waits in a staging buffer of its own size.
const UPLOAD_BYTES: u64 = 32 << 20;
/// Buffers for reading back are kept up to this size.
const KEPT_STAGING: u64 = 16 << 20;
/// How long a readback polls before it lets the operating system wake it: a wake-up costs some 30 us.
const SPIN: Duration = Duration::from_millis(2);
/// Words in the status buffer: kernel number plus one, the index, the size.
const STATUS_BYTES: u64 = 16;

/// What has gone wrong on the device, as its callbacks report it.
#[derive(Debug, Default)]
pub(super) struct Health {
    failed: AtomicBool,
    reason: Mutex<String>,
}

impl Health {
    pub(super) fn fail(&self, reason: String) {
        let mut first = self.reason.lock();
        if first.is_empty() {
            *first = reason;
        }
        self.failed.store(true, Ordering::Release);
    }

    /// The first failure as an error that names what was asked for. It stays: what was computed after it cannot be trusted.
    pub(super) fn check(&self, op: &str) -> Result<()> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(Error::WebGpu(format!("{op}: {}", self.reason.lock())).bt())
    }
}

/// One recorded dispatch.
struct Recorded {
    pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
    groups: [u32; 3],
}

#[derive(PartialEq, Eq, Hash)]
struct GroupKey {
    pipeline: u32,
    /// What [`Binding::key`] gives.
    buffers: [u64; MAX_BUFFERS],
}

struct State {
    pending: Vec<Recorded>,
    params: Vec<u8>,
    bind_groups: HashMap<GroupKey, wgpu::BindGroup>,
    /// The pool's count when the bind groups were last known to hold no buffer that it gave back.
    given_back: u64,
    batch: usize,
    staging: Vec<wgpu::Buffer>,
    profile: Option<Profile>,
}

pub(super) struct Queue {
    device: wgpu::Device,
    queue: wgpu::Queue,
    pool: Arc<Pool>,
    max_binding: u64,
    param_stride: usize,
    param_ring: wgpu::Buffer,
    /// Where kernels report an index out of range; read back with every result.
    status: wgpu::Buffer,
    health: Arc<Health>,
    state: Mutex<State>,
    log: bool,
    dispatches: AtomicU64,
    submits: AtomicU64,
}

/// What a kernel's binding is bound to.
#[derive(Clone, Copy)]
pub(super) enum Binding<'a> {
    Buffer(&'a Buffer),
    /// A buffer from a byte on, a multiple of [`WINDOW_ALIGN`].
    Window(&'a Buffer, u64),
    /// So many bytes, of which a binding reaches only some: an error.
    TooLarge(u64),
    /// The status buffer, for kernels that check indexes.
    Status,
}

impl Binding<'_> {
    /// A number for the bound range. It ends where the buffer or the limit does, so its start tells it.
    fn key(&self) -> u64 {
        // 2^36 buffers are never made; 2^28 windows are 64 GiB.
        const ID_BITS: u32 = 36;
        match self {
            Self::Buffer(buffer) => buffer.id(),
            Self::Window(buffer, offset) => buffer.id() | (offset / WINDOW_ALIGN) << ID_BITS,
            Self::TooLarge(_) | Self::Status => u64::MAX,
        }
    }
}

impl Queue {
    pub(super) fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        limits: &wgpu::Limits,
        pool: Arc<Pool>,
        health: Arc<Health>,
    ) -> Self {
        let param_stride =
            PARAM_BYTES.next_multiple_of(limits.min_uniform_buffer_offset_alignment as usize);
        let param_ring = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: (param_stride * BATCH) as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let status = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("status"),
            size: STATUS_BYTES,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Self {
            max_binding: limits.max_storage_buffer_binding_size,
            param_stride,
            param_ring,
            status,
            health,
            state: Mutex::new(State {
                pending: Vec::with_capacity(BATCH),
                params: Vec::with_capacity(param_stride * BATCH),
                bind_groups: HashMap::new(),
                given_back: 0,
                batch: FIRST_BATCH,
                staging: Vec::new(),
                profile: None,
            }),
            log: super::switch("CANDLE_WEBGPU_LOG").unwrap_or(false),
            dispatches: AtomicU64::new(0),
            submits: AtomicU64::new(0),
            device,
            queue,
            pool,
        }
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn dispatches(&self) -> u64 {
        self.dispatches.load(Ordering::Relaxed)
    }

    pub(super) fn submits(&self) -> u64 {
        self.submits.load(Ordering::Relaxed)
    }

    /// Appends a dispatch of `groups` workgroups. Does not wait.
    pub(super) fn dispatch(
        &self,
        pipeline: &Arc<Pipeline>,
        bindings: &[Binding<'_>],
        params: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        debug_assert!(params.len() <= PARAM_BYTES && bindings.len() <= MAX_BUFFERS);
        if groups.contains(&0) {
            return Ok(());
        }
        if self.log {
            eprintln!("webgpu: {} {groups:?}", pipeline.label);
        }
        self.health.check(&pipeline.label)?;
        let mut key = GroupKey {
            pipeline: pipeline.id,
            buffers: [0; MAX_BUFFERS],
        };
        for (slot, binding) in key.buffers.iter_mut().zip(bindings) {
            if let Binding::TooLarge(bytes) = binding {
                return Err(Error::WebGpu(format!(
                    "{}: an operand of {bytes} bytes, a binding reaches {}, and this kernel is not split",
                    pipeline.label, self.max_binding
                ))
                .bt());
            }
            *slot = binding.key();
        }
        let state = &mut *self.state.lock();
        let given_back = self.pool.given_back();
        if state.bind_groups.len() >= MAX_BIND_GROUPS || state.given_back != given_back {
            state.bind_groups.clear();
            state.given_back = given_back;
        }
        let bind_group = state
            .bind_groups
            .entry(key)
            .or_insert_with(|| self.bind_group(pipeline, bindings))
            .clone();
        state.params.extend_from_slice(params);
        let end = (state.pending.len() + 1) * self.param_stride;
        state.params.resize(end, 0);
        state.pending.push(Recorded {
            pipeline: pipeline.clone(),
            bind_group,
            groups,
        });
        self.dispatches.fetch_add(1, Ordering::Relaxed);
        if state.pending.len() >= state.batch {
            self.submit(state, |_| ())?;
            state.batch = BATCH;
        }
        Ok(())
    }

    fn bind_group(&self, pipeline: &Pipeline, bindings: &[Binding<'_>]) -> wgpu::BindGroup {
        let mut entries: Vec<_> = bindings
            .iter()
            .enumerate()
            .map(|(index, binding)| {
                let (buffer, offset) = match *binding {
                    Binding::Buffer(buffer) => (buffer.raw(), 0),
                    Binding::Window(buffer, offset) => (buffer.raw(), offset),
                    // `dispatch` has refused the former.
                    Binding::TooLarge(_) | Binding::Status => (&self.status, 0),
                };
                let bytes = (buffer.size() - offset).min(self.max_binding);
                wgpu::BindGroupEntry {
                    binding: index as u32,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer,
                        offset,
                        size: std::num::NonZeroU64::new(bytes),
                    }),
                }
            })
            .collect();
        entries.push(wgpu::BindGroupEntry {
            binding: bindings.len() as u32,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &self.param_ring,
                offset: 0,
                size: std::num::NonZeroU64::new(PARAM_BYTES as u64),
            }),
        });
        self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        })
    }

    /// Submits what is pending, then whatever `after` encodes.
    fn submit(
        &self,
        state: &mut State,
        after: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<()> {
        self.health.check("submit")?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        if !state.pending.is_empty() {
            self.queue.write_buffer(&self.param_ring, 0, &state.params);
            let mut profile = state.profile.take();
            match &mut profile {
                None => self.encode(&mut encoder, &state.pending, 0, None),
                Some(profile) => {
                    for (index, recorded) in state.pending.chunks(1).enumerate() {
                        let label = &recorded[0].pipeline.label;
                        let timestamps = profile.next(label, recorded[0].groups);
                        self.encode(&mut encoder, recorded, index, timestamps);
                    }
                    profile.resolve(&mut encoder);
                }
            }
            state.profile = profile;
            state.pending.clear();
            state.params.clear();
        }
        after(&mut encoder);
        self.queue.submit([encoder.finish()]);
        self.submits.fetch_add(1, Ordering::Relaxed);
        if let Some(profile) = &mut state.profile {
            profile.collect(&self.device)?;
        }
        self.health.check("submit")
    }

    /// One compute pass over `recorded`, whose parameters start at slot `first`.
    fn encode(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        recorded: &[Recorded],
        first: usize,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: None,
            timestamp_writes,
        });
        let mut current = None;
        for (index, dispatch) in recorded.iter().enumerate() {
            if current != Some(dispatch.pipeline.id) {
                pass.set_pipeline(&dispatch.pipeline.raw);
                current = Some(dispatch.pipeline.id);
            }
            let offset = ((first + index) * self.param_stride) as u32;
            pass.set_bind_group(0, &dispatch.bind_group, &[offset]);
            let [x, y, z] = dispatch.groups;
            pass.dispatch_workgroups(x, y, z);
        }
    }

    /// Submits what is pending, without waiting for it.
    pub(super) fn flush(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        if !state.pending.is_empty() {
            self.submit(state, |_| ())?;
        }
        Ok(())
    }

    /// Waits until all that was recorded is done.
    pub(super) fn synchronize(&self) -> Result<()> {
        if cfg!(target_arch = "wasm32") {
            return Err(Error::WebGpu(
                "a browser's thread cannot wait for the GPU: read a result with the asynchronous functions \
                 (to_vec1_async and its kin)"
                    .into(),
            )
            .bt());
        }
        self.flush()?;
        self.device
            .poll(wgpu::PollType::wait_indefinitely())
            .map_err(|err| Error::WebGpu(format!("waiting for the GPU: {err}")).bt())?;
        self.state.lock().batch = FIRST_BATCH;
        self.health.check("synchronize")
    }

    /// Writes `data` to the start of a storage's memory.
    pub(super) fn upload(&self, memory: &Memory, data: &[u8]) -> Result<()> {
        // `write_buffer` goes before all that is not submitted yet, which may still read the buffer's last contents.
        self.flush()?;
        self.health.check("upload")?;
        let mut rest = data;
        for piece in memory.pieces(data.len() as u64, UPLOAD_BYTES) {
            let (now, later) = rest.split_at(piece.bytes as usize);
            rest = later;
            let (words, end) = now.split_at(now.len() & !3);
            let raw = piece.buffer.raw();
            if !words.is_empty() {
                self.queue.write_buffer(raw, piece.offset, words);
            }
            if !end.is_empty() {
                let mut word = [0; 4];
                word[..end.len()].copy_from_slice(end);
                let offset = piece.offset + words.len() as u64;
                self.queue.write_buffer(raw, offset, &word);
            }
            if piece.bytes == UPLOAD_BYTES {
                self.queue.submit([]);
            }
        }
        self.health.check("upload")
    }

    /// Submits what is pending and starts copying the first `bytes` of a storage's memory to the host.
    pub(super) fn begin_read(self: &Arc<Self>, memory: &Memory, bytes: u64) -> Result<RawRead> {
        self.health.check("readback")?;
        // A staging buffer's size is a power of two, with room for the status after the data.
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
            let map = piece.buffer.slice(..);
            map.map_async(wgpu::MapMode::Read, move |result| {
                *slot.lock() = Some(result.map_err(|err| err.to_string()));
            });
        }
        Ok(RawRead {
            queue: self.clone(),
            staged,
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

    /// Starts or stops timing each dispatch; see [`super::profile`].
    pub(super) fn set_profile(&self, profile: Option<Profile>) -> Result<Option<Profile>> {
        self.flush()?;
        Ok(std::mem::replace(&mut self.state.lock().profile, profile))
    }

    /// Forgets what keeps buffers alive: cached bind groups, and the buffers for reading back.
    pub(super) fn forget_buffers(&self) {
        let state = &mut *self.state.lock();
        state.bind_groups.clear();
        state.staging.clear();
    }
}

type Arrived = Arc<Mutex<Option<std::result::Result<(), String>>>>;

/// A staging buffer that data is on its way to.
struct Staged {
    buffer: wgpu::Buffer,
    bytes: u64,
    padded: u64,
    arrived: Arrived,
}

/// Bytes on their way to the host.
pub(super) struct RawRead {
    queue: Arc<Queue>,
    /// In order; behind the last one's data comes the status.
    staged: Vec<Staged>,
}

impl RawRead {
    fn is_there(&self) -> bool {
        self.staged.iter().all(|s| s.arrived.lock().is_some())
    }

    /// Waits on this thread. A browser's thread must not wait, so there it is an error that names the asynchronous form.
    fn wait(&self) -> Result<()> {
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
    async fn arrive(&self) -> Result<()> {
        std::future::poll_fn(|context| {
            if self.is_there() || self.queue.health.check("readback").is_err() {
                return Poll::Ready(());
            }
            // Natively nobody else drives the device; in a browser the event loop does, and poll does nothing.
            let _ = self.queue.device.poll(wgpu::PollType::Poll);
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        self.queue.health.check("readback")
    }

    /// Gives the bytes to `read`, piece by piece in order, and what kernels reported as an error.
    fn take(self, read: &mut dyn FnMut(&[u8])) -> Result<()> {
        let failed = |err: &dyn std::fmt::Display| {
            let lost = self.queue.health.check("readback").err();
            lost.unwrap_or_else(|| Error::WebGpu(format!("reading a result back: {err}")).bt())
        };
        let mut status = [0u32; 3];
        let last = self.staged.len() - 1;
        for (index, staged) in self.staged.iter().enumerate() {
            if let Some(Err(err)) = &*staged.arrived.lock() {
                return Err(failed(err));
            }
            let range = staged.buffer.slice(..).get_mapped_range();
            let mapped = range.map_err(|err| failed(&format!("{err:?}")))?;
            let (data, rest) = mapped.split_at(staged.padded as usize);
            read(&data[..staged.bytes as usize]);
            if index == last {
                bytemuck::cast_slice_mut::<u32, u8>(&mut status).copy_from_slice(&rest[..12]);
            }
        }
        let queue = self.queue;
        let mut state = queue.state.lock();
        for staged in self.staged {
            staged.buffer.unmap();
            // Large ones are rare, and hold memory that tensors may need.
            if staged.buffer.size() <= KEPT_STAGING {
                state.staging.push(staged.buffer);
            }
        }
        drop(state);
        queue.health.check("readback")?;
        if status[0] == 0 {
            return Ok(());
        }
        queue
            .queue
            .write_buffer(&queue.status, 0, &[0; STATUS_BYTES as usize]);
        let [code, index, size] = status;
        if code == super::ops::DIVISION_BY_ZERO {
            return Err(Error::Msg("div: integer division by zero on a webgpu device".into()).bt());
        }
        let op = super::ops::INDEX_OPS[(code as usize - 1).min(super::ops::INDEX_OPS.len() - 1)];
        Err(Error::InvalidIndex {
            op,
            index: index as usize,
            size: size as usize,
        }
        .bt())
    }
}

/// A storage on its way to the host.
pub struct PendingRead {
    /// `None` while kernels are only compiled: then it is zeros.
    pub(super) raw: Option<RawRead>,
    pub(super) dtype: crate::DType,
    pub(super) len: usize,
}

impl PendingRead {
    /// Waits without blocking the thread: the form for browsers, and for native programs with an executor.
    pub async fn finish(self) -> Result<crate::CpuStorage> {
        if let Some(raw) = &self.raw {
            raw.arrive().await?;
        }
        self.take()
    }

    /// Waits on this thread.
    pub(super) fn wait(self) -> Result<crate::CpuStorage> {
        if let Some(raw) = &self.raw {
            raw.wait()?;
        }
        self.take()
    }

    fn take(self) -> Result<crate::CpuStorage> {
        let bytes = self.len * self.dtype.size_in_bytes();
        super::storage::cpu_storage(self.len, self.dtype, |read| match self.raw {
            Some(raw) => raw.take(read),
            None => {
                read(&vec![0; bytes]);
                Ok(())
            }
        })
    }
}
