//! A rank's card: queues collectives in its stream, and aborts them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUstream};
use cudarc::driver::CudaContext;
use parking_lot::Mutex;

use super::super::device::CudaDevice;
use super::super::error::{During, WrapErr};
use super::super::pool::pool;
use super::api::{self, Api, Buffers, Comm, UniqueId};
use super::peer::Peer;
use crate::backend::BackendDevice;
use crate::distributed::call::{Call, Op};
use crate::{bail, Result};

/// Time limit for the end of a group to wait for a thread that is inside NCCL.
const PATIENCE: Duration = Duration::from_secs(2);

/// A rank of a group, in this process.
pub(super) struct Member {
    api: &'static Api,
    rank: usize,
    device: CudaDevice,
    comm: Comm,
    /// Whether `comm` may be used, by the holder of `turn`.
    alive: AtomicBool,
    turn: Mutex<()>,
    /// The path without NCCL, if there is one.
    peer: Option<Peer>,
}

// SAFETY: any thread may use NCCL's handle, one at a time, which `turn` ensures.
unsafe impl Send for Member {}
// SAFETY: as above.
unsafe impl Sync for Member {}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Member({}, {:?})", self.rank, self.device)
    }
}

impl Member {
    /// Joins a group; returns when all ranks have joined.
    pub(super) fn join(
        api: &'static Api,
        world: usize,
        id: UniqueId,
        rank: usize,
        device: CudaDevice,
    ) -> Result<Self> {
        device.context().bind_to_thread().w()?;
        Ok(Self {
            comm: api.join(world, id, rank)?,
            api,
            rank,
            device,
            alive: AtomicBool::new(true),
            turn: Mutex::new(()),
            peer: None,
        })
    }

    /// Calls that `peer` supports use it.
    pub(super) fn set_peer(&mut self, peer: Peer) {
        self.peer = Some(peer);
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    fn stream(&self) -> CUstream {
        self.device.stream().cu_stream()
    }

    /// Queues a call in the stream: `len` elements at `send`; the result is written to `receive`, which is large enough.
    pub(super) fn put(&self, call: &Call, send: u64, receive: u64, len: usize) -> Result<()> {
        self.device.context().bind_to_thread().w()?;
        let _turn = self.turn.lock();
        if !self.alive.load(Ordering::Acquire) {
            bail!("{call}: the group has ended")
        }
        let bytes = len * call.dtype.size_in_bytes();
        if let Some(peer) = &self.peer {
            if peer.put(call, send, receive, bytes)? {
                return Ok(());
            }
        }
        let (comm, stream) = (self.comm, self.stream());
        let elements = Buffers { send, receive, len };
        let bytes = Buffers {
            len: bytes,
            ..elements
        };
        // SAFETY: the communicator is alive, and is not ended while `turn` is held; the caller guarantees the buffers, which are freed in
        // stream order.
        unsafe {
            match (call.op, api::sum_type(call.dtype)) {
                (Op::AllReduce, Some(of)) => self.api.sum(comm, stream, elements, of),
                (Op::AllReduce, None) => {
                    bail!("{call}: NCCL does not support reductions of this dtype")
                }
                (Op::AllGather { .. }, _) => self.api.gather(comm, stream, bytes),
                (Op::Broadcast { root }, _) => self.api.send_all(comm, stream, bytes, root),
                (Op::Recording, _) => bail!("{call}: a recording is launched, not sent"),
            }
        }
    }

    /// Errors of NCCL since the last call.
    pub(super) fn async_error(&self) -> Result<()> {
        // A thread inside NCCL receives the error itself.
        let Some(_turn) = self.turn.try_lock() else {
            return Ok(());
        };
        if self.alive.load(Ordering::Acquire) {
            // SAFETY: alive, and not ended while `turn` is held.
            unsafe { self.api.async_error(self.comm) }
        } else {
            Ok(())
        }
    }

    /// Whether the stream has work that is not done.
    pub(super) fn is_busy(&self) -> bool {
        if self.device.context().bind_to_thread().is_err() {
            return true;
        }
        // SAFETY: the stream belongs to the device, which is open.
        let asked = unsafe { sys::cuStreamQuery(self.stream()) };
        asked != sys::cudaError_enum::CUDA_SUCCESS
    }

    /// Makes all later reads from the device return an error.
    pub(super) fn fail(&self, reason: &str) {
        self.device.faults().fail(format!(
            "{:?}: its contents may depend on rank {} of a group that has ended: {reason}; reopen the device",
            self.device.location(),
            self.rank
        ));
    }

    /// Aborts the collectives that the card waits for.
    pub(super) fn abort(&self) {
        if let Some(peer) = &self.peer {
            peer.stop();
        }
        let turn = self.turn.try_lock_for(PATIENCE);
        if !self.alive.swap(false, Ordering::AcqRel) {
            return;
        }
        if turn.is_none() {
            // NCCL aborts its own waits; a lock would not.
            tracing::warn!(
                rank = self.rank,
                "a thread is blocked in NCCL; ending the group anyway"
            );
        }
        self.told(self.device.context().bind_to_thread().w());
        // SAFETY: it is not used after `alive` is false, except by a thread inside NCCL, which returns with an error.
        self.told(unsafe { self.api.abort(self.comm) });
    }

    /// Waits for the stream; after `timeout`, aborts its work and marks the device as failed.
    pub(super) fn finish(&self, timeout: Duration) {
        let start = Instant::now();
        while self.is_busy() {
            if start.elapsed() >= timeout {
                self.fail(&format!("the last call took longer than {timeout:?}"));
                return self.abort();
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn told(&self, result: Result<()>) {
        if let Err(err) = result {
            tracing::warn!(rank = self.rank, %err, "a group did not end cleanly");
        }
    }

    /// Closes a group whose calls are all done or will be, when all its ranks in this process do so.
    pub(super) fn close(&self, timeout: Duration) {
        if !self.alive.load(Ordering::Acquire) {
            return;
        }
        self.finish(timeout);
        let _turn = self.turn.lock();
        if self.alive.swap(false, Ordering::AcqRel) {
            self.told(self.device.context().bind_to_thread().w());
            // SAFETY: the stream is done, and it is not used after `alive` is false.
            self.told(unsafe { self.api.destroy(self.comm) });
        }
    }
}

/// Whether a card can read and write the memory of another one.
pub(super) fn reaches(reader: &CudaContext, owner: &CudaContext) -> Result<bool> {
    let mut reaches = 0;
    // SAFETY: the pointer is to a number; both cards are open.
    unsafe { sys::cuDeviceCanAccessPeer(&mut reaches, reader.cu_device(), owner.cu_device()) }
        .result()
        .w()?;
    Ok(reaches != 0)
}

/// Lets the cards access each other's tensors, which are allocated from pools: NCCL copies directly between cards of one process.
pub(super) fn share_memory(devices: &[CudaDevice]) -> Result<()> {
    for owner in devices {
        for reader in devices {
            let (owner, reader) = (owner.context(), reader.context());
            if owner.ordinal() == reader.ordinal() {
                continue;
            }
            if !reaches(reader, owner)? {
                continue;
            }
            let access = sys::CUmemAccessDesc {
                location: sys::CUmemLocation {
                    type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                    id: reader.ordinal() as i32,
                },
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            // SAFETY: the pool belongs to the card; one description is passed.
            unsafe { sys::cuMemPoolSetAccess(pool(owner)?, &access, 1) }
                .result()
                .during(|| {
                    let (owner, reader) = (owner.ordinal(), reader.ordinal());
                    format!("letting CUDA device {reader} reach the memory of {owner}")
                })?;
        }
    }
    Ok(())
}
