//! Collectives of ranks that are threads of one process, on cards that access each other's memory: one launch of `kernels/peer.cu` on each;
//! the launches synchronise inside the kernel. For sums of a few kilobytes NCCL takes longer to start than the cards take to add them.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, DevicePtr};

use super::super::device::CudaDevice;
use super::super::elem::{bits_type, c_type};
use super::super::error::WrapErr;
use super::super::kernel::{source, Kernel};
use super::super::launch::{Args, Grid};
use super::super::pinned::Pinned;
use super::member::reaches;
use crate::backend::BackendDevice;
use crate::distributed::call::{Call, Op};
use crate::Result;

/// Maximum number of ranks, limited by the kernel's flags.
const MOST_RANKS: usize = 8;
/// Maximum number of blocks of a launch. They wait for each other, so all have to be on the card at once.
const BLOCKS: usize = 64;
const THREADS: usize = 512;
/// Size in bytes of a slot for tensors, of which a rank has four: the sums of a prompt of a thousand tokens.
const SPACE: usize = 8 << 20;
/// Size in bytes of the flags and counters before the slots, see `peer.cu`.
const HEAD: usize = 4 * (2 * BLOCKS * 8 + 64);
/// Maximum number of bytes of a rank whose words are sent together with the number of the call.
const QUICK: usize = 64 << 10;
/// Size in bytes of a slot for them: twice the data, for each rank, alternating.
const QUICK_SPACE: usize = 2 * QUICK;
/// Maximum number of bytes that all cards together read of a sum in which each adds everything; for longer ones each adds its part.
const ONE_SHOT: usize = 512 << 10;

/// Size of a rank's memory in bytes.
const SIZE: usize = HEAD + 4 * SPACE + 2 * MOST_RANKS * QUICK_SPACE;

/// Addresses of all ranks' memory, as the kernel declares them.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
struct Peers {
    at: [u64; MOST_RANKS],
}

/// A rank's memory that the others read and write.
pub(super) struct Mailbox {
    device: CudaDevice,
    memory: CudaSlice<u8>,
}

/// A rank's connection to the others.
pub(super) struct Peer {
    device: CudaDevice,
    rank: usize,
    /// The memory of all ranks, which lives while any of them does.
    mailboxes: Arc<Vec<Mailbox>>,
    peers: Peers,
    stop: Stop,
}

/// A word of host memory that waiting kernels poll: not 0 if the group has ended.
struct Stop(Pinned);

// SAFETY: a word that is written atomically, by any thread.
unsafe impl Sync for Stop {}

impl Stop {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let stop = Self(Pinned::new(context, size_of::<u32>(), "a group")?);
        stop.set(0);
        Ok(stop)
    }

    fn word(&self) -> *mut u32 {
        self.0.host().cast()
    }

    fn set(&self, value: u32) {
        // SAFETY: the word lives as long as this.
        unsafe { self.word().write_volatile(value) }
    }
}

/// Whether every card can access the memory of every other one.
fn all_reach(devices: &[CudaDevice]) -> Result<bool> {
    for owner in devices {
        for reader in devices {
            let (owner, reader) = (owner.context(), reader.context());
            if owner.ordinal() == reader.ordinal() {
                continue;
            }
            if !reaches(reader, owner)? {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The connections of all ranks, in order; `None` if the cards cannot access each other's memory, or there are too many. The cards' pools
/// have to be shared before.
pub(super) fn connect(devices: &[CudaDevice]) -> Result<Option<Vec<Peer>>> {
    if devices.len() > MOST_RANKS || !all_reach(devices)? {
        return Ok(None);
    }
    let mut mailboxes = Vec::with_capacity(devices.len());
    for device in devices {
        device.context().bind_to_thread().w()?;
        let mut memory = device.alloc_slice::<u8>(SIZE, "group")?;
        // Calls are numbered from 1.
        device.stream().memset_zeros(&mut memory).w()?;
        // Before another card reads it.
        device.synchronize()?;
        mailboxes.push(Mailbox {
            device: device.clone(),
            memory,
        });
    }
    let mut peers = Peers {
        at: [0; MOST_RANKS],
    };
    for (at, mailbox) in peers.at.iter_mut().zip(&mailboxes) {
        *at = mailbox.address();
    }
    let mailboxes = Arc::new(mailboxes);
    let peer = |(rank, device): (usize, &CudaDevice)| {
        Ok(Peer {
            device: device.clone(),
            rank,
            mailboxes: mailboxes.clone(),
            peers,
            stop: Stop::new(device.context())?,
        })
    };
    let all: Result<Vec<_>> = devices.iter().enumerate().map(peer).collect();
    all.map(Some)
}

impl Mailbox {
    fn address(&self) -> u64 {
        let (address, _) = self.memory.device_ptr(self.device.stream());
        address
    }
}

impl Peer {
    /// Queues a call in the stream, if this path supports it: `bytes` at `send`; the result is written to `receive`. All ranks decide the
    /// same for a call.
    pub(super) fn put(&self, call: &Call, send: u64, receive: u64, bytes: usize) -> Result<bool> {
        let world = self.mailboxes.len();
        let whole = bytes.is_multiple_of(16) || !matches!(call.op, Op::AllGather { .. });
        if bytes == 0 || bytes > SPACE || !whole {
            return Ok(false);
        }
        let bits = bits_type(call.dtype.size_in_bytes());
        let (mode, of, root) = match call.op {
            Op::AllReduce => match c_type(call.dtype) {
                Some(of) => ("SUM", of, 0),
                None => return Ok(false),
            },
            Op::AllGather { .. } => ("GATHER", bits, 0),
            Op::Broadcast { root } => ("BROADCAST", bits, root),
            Op::Recording => return Ok(false),
        };
        // Receivers of a broadcast send nothing: the root would not know when its words have been read.
        let quick = mode != "BROADCAST" && bytes <= QUICK;
        let one_shot = mode != "SUM" || world == 2 || bytes * world <= ONE_SHOT;
        let kernel = Kernel::new(source!("peer"))
            .define("MODE", mode)
            .define("WORLD", world)
            .define("T", of)
            .define("SHOTS", if one_shot { 1 } else { 2 })
            // A view may start anywhere, and the other ranks do not know where.
            .define("ALIGNED", send.is_multiple_of(16))
            .define("QUICK", quick)
            .define("QUICK_SPACE", QUICK_SPACE)
            .define("SPACE", SPACE)
            .define("BLOCKS", BLOCKS);
        let units = bytes.div_ceil(16);
        let part = if one_shot {
            units
        } else {
            units.div_ceil(world)
        };
        let (blocks, threads) = match part.div_ceil(THREADS) {
            _ if quick => (bytes.div_ceil(8 * 128).min(BLOCKS), 128),
            // Few units: more cores issue requests than one block has.
            0..=4 => (part.div_ceil(128).clamp(1, BLOCKS), 128),
            blocks => (blocks.min(BLOCKS), THREADS),
        };
        let args = Args::new()
            .value(send)
            .value(receive)
            .value(self.peers)
            .size(bytes)
            .value(self.rank as u32)
            .value(root as u32)
            .value(self.stop.word() as u64);
        let grid = Grid::new([blocks as u32, 1, 1], threads as u32);
        self.device.launch(&kernel, grid, args)?;
        Ok(true)
    }

    /// Releases a waiting kernel.
    pub(super) fn stop(&self) {
        self.stop.set(1);
    }
}
