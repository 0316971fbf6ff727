//! The ordered list of dispatches not yet submitted. `readback.rs` waits for them.
//!
//! Ops append; no layer above this file touches an encoder. The list is submitted when it is long and the GPU may be idle (it starts while
//! the host still encodes), at a readback, at `synchronize`, and before an upload into a buffer that the list may still read. All
//! dispatches of a submission share one compute pass and one write of parameters; bind groups are cached by their buffers, which the pool
//! allocates in the same order in each step.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use parking_lot::Mutex;

use super::limits::{MAX_BUFFERS, PARAM_BYTES, WINDOW_ALIGN};
use super::pipelines::Pipeline;
use super::pool::{Buffer, Pool};
use super::profile::Profile;
use super::status::STATUS_BYTES;
use super::upload::Uploads;
use crate::{watch, Error, Result};

/// Dispatches in a submission to a GPU that may be idle. The first submission after a wait is shorter, so that it starts early.
const BATCH: usize = 48;
pub(super) const FIRST_BATCH: usize = 16;
/// Maximum number of dispatches in a submission, if a buffer holds the parameters of all. A submission costs the GPU about 6 us, so while
/// it is busy there are no more submissions than necessary.
const MOST: usize = 256;
/// Maximum number of cached bind groups; the cache is then cleared.
const MAX_BIND_GROUPS: usize = 4096;
/// Failures of the device, as its callbacks report them.
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

    /// The first failure as an error that names the requested op. It persists: later results cannot be trusted.
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
    /// The keys of [`Binding::key`].
    buffers: [u64; MAX_BUFFERS],
}

pub(super) struct State {
    pending: Vec<Recorded>,
    params: Vec<u8>,
    bind_groups: HashMap<GroupKey, wgpu::BindGroup>,
    /// The pool's count when the bind groups were last known to hold no freed buffer.
    given_back: u64,
    pub(super) batch: usize,
    pub(super) staging: Vec<wgpu::Buffer>,
    profile: Option<Profile>,
}

pub(super) struct Queue {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) pool: Arc<Pool>,
    max_binding: u64,
    param_stride: usize,
    /// Number of dispatches whose parameters fit the ring.
    most: usize,
    param_ring: wgpu::Buffer,
    /// The buffer in which kernels report an index out of range; read back with every result.
    pub(super) status: wgpu::Buffer,
    pub(super) health: Arc<Health>,
    pub(super) state: Mutex<State>,
    pub(super) uploads: Uploads,
    /// Number of readbacks in flight: while it is not 0, the GPU is busy.
    pub(super) reads: Arc<AtomicUsize>,
    log: bool,
    dispatches: AtomicU64,
    submits: AtomicU64,
}

/// The resource of a kernel's binding.
#[derive(Clone, Copy)]
pub(super) enum Binding<'a> {
    Buffer(&'a Buffer),
    /// A buffer from a byte offset on, a multiple of [`WINDOW_ALIGN`].
    Window(&'a Buffer, u64),
    /// A size in bytes that exceeds a binding: an error.
    TooLarge(u64),
    /// The status buffer, for kernels that check indexes.
    Status,
}

impl Binding<'_> {
    /// A key for the bound range. It ends at the end of the buffer or at the limit, so its start identifies it.
    fn key(&self) -> u64 {
        // 2^36 buffers are never allocated; 2^28 windows are 64 GiB.
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
        log: bool,
    ) -> Self {
        let param_stride =
            PARAM_BYTES.next_multiple_of(limits.min_uniform_buffer_offset_alignment as usize);
        let most = (limits.max_buffer_size / param_stride as u64).clamp(BATCH as u64, MOST as u64);
        let param_ring = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("params"),
            size: param_stride as u64 * most,
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
            most: most as usize,
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
            uploads: Uploads::default(),
            reads: Arc::default(),
            log,
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
        self.health.check(&pipeline.label)?;
        let mut key = GroupKey {
            pipeline: pipeline.id,
            buffers: [0; MAX_BUFFERS],
        };
        for (slot, binding) in key.buffers.iter_mut().zip(bindings) {
            if let Binding::TooLarge(bytes) = binding {
                return Err(Error::WebGpu(format!(
                    "{}: an operand of {bytes} bytes exceeds the binding size of {}, and this kernel cannot be split",
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
        let number = self.dispatches.fetch_add(1, Ordering::Relaxed);
        if self.log {
            let [x, y, z] = groups;
            let (op, kernel) = (watch::current(), &pipeline.label);
            let line = format!("#{number} {op} | {kernel} | {x}x{y}x{z} workgroups");
            watch::report("webgpu", &line);
        }
        if state.pending.len() < state.batch {
            return Ok(());
        }
        if state.batch + BATCH <= self.most && self.is_busy() {
            state.batch += BATCH;
            return Ok(());
        }
        self.submit(state, |_| ())?;
        state.batch = BATCH;
        Ok(())
    }

    /// Whether the GPU is certainly busy. A browser only reports it between two tasks of its event loop.
    fn is_busy(&self) -> bool {
        let reads = || self.reads.load(Ordering::Relaxed) > 0;
        !cfg!(target_arch = "wasm32")
            && reads()
            && self.device.poll(wgpu::PollType::Poll).is_ok()
            && reads()
    }

    fn bind_group(&self, pipeline: &Pipeline, bindings: &[Binding<'_>]) -> wgpu::BindGroup {
        let mut entries: Vec<_> = bindings
            .iter()
            .enumerate()
            .map(|(index, binding)| {
                let (buffer, offset) = match *binding {
                    Binding::Buffer(buffer) => (buffer.raw(), 0),
                    Binding::Window(buffer, offset) => (buffer.raw(), offset),
                    // `dispatch` has rejected the former.
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

    /// Submits the pending list, then the commands that `after` encodes.
    pub(super) fn submit(
        &self,
        state: &mut State,
        after: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<()> {
        self.health.check("submit")?;
        let mut encoder = self.device.create_command_encoder(&Default::default());
        if !state.pending.is_empty() {
            self.queue.write_buffer(&self.param_ring, 0, &state.params);
            let first = self.dispatches() - state.pending.len() as u64;
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
                    profile.first = first;
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
            profile.collect(&self.device, self.log)?;
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

    /// Submits the pending list, without waiting for it.
    pub(super) fn flush(&self) -> Result<()> {
        let state = &mut *self.state.lock();
        if !state.pending.is_empty() {
            self.submit(state, |_| ())?;
        }
        Ok(())
    }

    /// Waits until all recorded work is done.
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

    /// Starts or stops timing each dispatch; see [`super::profile`].
    pub(super) fn set_profile(&self, profile: Option<Profile>) -> Result<Option<Profile>> {
        self.flush()?;
        Ok(std::mem::replace(&mut self.state.lock().profile, profile))
    }

    /// Releases what keeps buffers alive: cached bind groups, and the staging buffers.
    pub(super) fn forget_buffers(&self) {
        let state = &mut *self.state.lock();
        state.bind_groups.clear();
        state.staging.clear();
        self.uploads.clear();
    }
}
