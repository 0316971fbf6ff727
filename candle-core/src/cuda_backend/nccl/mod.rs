//! Sums, gathers and broadcasts over several cards, through NCCL.
//!
//! - `api.rs`: NCCL's functions. `team.rs`: the calls of each rank. `member.rs`: a rank's card. `peer.rs`: calls without NCCL between cards
//!   that access each other's memory. `recorded.rs`: calls of a recording. `watch.rs`: the thread that ends a group which cannot continue.

mod api;
mod member;
mod peer;
mod recorded;
mod team;
mod watch;

use std::sync::mpsc::channel;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::api::{Api, UniqueId};
use self::member::Member;
pub(super) use self::recorded::{AllRecordedCalls, RecordedCalls};
use self::team::Team;
use self::watch::Shared;
use super::device::CudaDevice;
use crate::backend::BackendDevice;
use crate::distributed::call::{Call, Op};
use crate::distributed::{reason, shared, Communicator, Links, ProcessGroup, DEFAULT_TIMEOUT};
use crate::op::BackpropOp;
use crate::{bail, Context, Device, Result, Storage, Tensor};

/// One rank of a group whose ranks have an NVIDIA card each: threads of one process, or processes.
///
/// A call queues the collective in the stream of the rank's device and returns: the card waits for the other ranks' cards, and the host
/// waits only when it reads a result. The first call of a kind (operation, dtype, power of two of the bytes) waits on the host until all
/// ranks have made it. Tensors of other devices are copied to the card, and the result back.
///
/// Sums support u8, u32, i32, i64, f16, bf16, f32 and f64; gathers and broadcasts support every dtype of whole bytes.
///
/// Up to eight ranks of one process whose cards access each other's memory exchange tensors of up to 8 MiB in a kernel of this crate, in
/// which the cards synchronise; NCCL handles the rest. Sums of 16-bit floats are rounded once there, as in
/// [`LocalGroup`](crate::distributed::LocalGroup); NCCL rounds after each card, which makes no difference with two.
///
/// Calls may be recorded, see [`CudaDevice::record`]: all ranks record the same calls, and launch them the same number of times.
///
/// # When a rank fails
/// Later calls return errors that name the rank. A card that waits for a call which a rank will not make is released. Reads from its device
/// then return an error, because they may depend on that call, until the device is opened again. Dropping a rank is not a failure for the
/// calls that it made: the others may still make them.
#[derive(Debug)]
pub struct NcclGroup {
    rank: usize,
    world: usize,
    device: CudaDevice,
    /// `None` for a group of one rank.
    shared: Option<Arc<Shared>>,
    /// The thread that watches the group, if the other ranks are processes.
    watch: Option<JoinHandle<()>>,
}

impl NcclGroup {
    /// Creates the ranks of a group, in order, one on each of `devices`, for threads of this process. A single device does not need NCCL.
    ///
    /// # Errors
    /// If there is no device, two devices are on one card, or NCCL is not installed or fails.
    pub fn ranks(devices: &[CudaDevice]) -> Result<Vec<Self>> {
        Self::ranks_with_timeout(devices, DEFAULT_TIMEOUT)
    }

    /// Like [`ranks`](Self::ranks); the group ends if another rank has not made a call within `timeout`.
    ///
    /// # Errors
    /// As [`ranks`](Self::ranks).
    pub fn ranks_with_timeout(devices: &[CudaDevice], timeout: Duration) -> Result<Vec<Self>> {
        let world = devices.len();
        if world == 0 {
            bail!("a group of 0 ranks; at least 1 is required")
        }
        if let Some(rank) = (1..world).find(|rank| is_in(&devices[*rank], &devices[..*rank])) {
            bail!(
                "two ranks on {:?}: NCCL supports one rank per device; use LocalGroup for several",
                devices[rank].location()
            )
        }
        let shared = match world {
            1 => None,
            _ => {
                let api = Api::get()?;
                member::share_memory(devices)?;
                let ranks: Vec<_> = devices.iter().cloned().enumerate().collect();
                let mut members = join(api, world, api.unique_id()?, &ranks, timeout)?;
                if let Some(peers) = peer::connect(devices)? {
                    for (member, peer) in members.iter_mut().zip(peers) {
                        member.set_peer(peer);
                    }
                }
                let team = Team::new(world, timeout);
                Some(Shared::start(team, members, None)?.0)
            }
        };
        let rank = |(rank, device): (usize, &CudaDevice)| Self {
            rank,
            world,
            device: device.clone(),
            shared: shared.clone(),
            watch: None,
        };
        Ok(devices.iter().enumerate().map(rank).collect())
    }

    /// Creates this process's rank of the group of `control`, on `device`. `control` connects the ranks; then it exchanges their status a
    /// few times per second, including that a rank has left. A rank that is dropped waits until the others have made its calls.
    ///
    /// # Errors
    /// If NCCL is not installed or fails, for any rank; if the group of `control` has ended.
    pub fn connect(device: CudaDevice, control: ProcessGroup) -> Result<Self> {
        let (rank, world) = (control.rank(), control.world_size());
        let timeout = control.timeout();
        let (shared, watch) = match world {
            1 => (None, None),
            _ => {
                let own = [(rank, device.clone())];
                let joined =
                    meet(&control).and_then(|(api, id)| join(api, world, id, &own, timeout));
                let members = match joined {
                    Ok(joined) => joined,
                    Err(err) => {
                        // Otherwise the other ranks would wait for this one.
                        control.abort(&reason(&err));
                        return Err(err);
                    }
                };
                let team = Team::new(world, timeout);
                let (shared, watch) = Shared::start(team, members, Some(control))?;
                (Some(shared), Some(watch))
            }
        };
        Ok(Self {
            rank,
            world,
            device,
            shared,
            watch,
        })
    }

    fn call(&self, op: Op, xs: &Tensor) -> Result<Tensor> {
        let call = match Call::new(op, xs, self.world) {
            Ok(call) => call,
            Err(err) => {
                // Otherwise the other ranks would wait for this call.
                self.abort(&reason(&err));
                return Err(err);
            }
        };
        let Some(shared) = &self.shared else {
            return xs.contiguous();
        };
        if let Some(reason) = shared.team().ended() {
            return self.ended(&call, &reason);
        }
        let result = self.collective(shared, &call, xs);
        if let Err(err) = &result {
            self.abort(&reason(err));
        }
        result
    }

    fn ended<T>(&self, call: &Call, reason: &str) -> Result<T> {
        bail!("rank {}: {call}: the group has ended: {reason}", self.rank)
    }

    fn collective(&self, shared: &Arc<Shared>, call: &Call, xs: &Tensor) -> Result<Tensor> {
        let (card, name) = (&self.device, call.op.name());
        let unit = call.dtype.size_in_bytes();
        if unit == 0 || (call.op == Op::AllReduce && api::sum_type(call.dtype).is_none()) {
            let hint = "NCCL does not support this dtype: convert it, or use LocalGroup";
            return Err(card.unsupported(name, call.dtype, hint));
        }
        let mine = xs.to_device(&Device::Cuda(card.clone()))?.contiguous()?;
        // Gathered along the first dimension, for any requested dimension.
        let len: usize = call.dims.iter().product();
        let (ranks, dim) = match call.op {
            Op::AllGather { dim } => (self.world, dim),
            _ => (1, 0),
        };
        let out = card.new_storage(len * ranks, call.dtype, name)?;
        let send = {
            let (storage, layout) = mine.storage_and_layout();
            match &*storage {
                Storage::Cuda(storage) => storage.address() + (layout.start_offset() * unit) as u64,
                _ => bail!("{name}: a tensor that is not on {}", card.name()),
            }
        };
        let recorded = card.records_calls(shared, self.rank, call);
        if !recorded {
            shared.enter(self.rank, call)?;
        }
        if len > 0 {
            let put = shared.member(self.rank).put(call, send, out.address(), len);
            if let (Err(err), true) = (&put, recorded) {
                bail!("{call}: {}", reason(err))
            }
            if let Err(err) = put {
                // The other ranks' cards wait for this call, which all have made according to the counts.
                shared
                    .team()
                    .end(format!("rank {} failed: {}", self.rank, reason(&err)));
                shared.stop(true);
                return Err(err);
            }
        }
        let mut dims = call.dims.clone();
        dims.splice(
            0..0,
            matches!(call.op, Op::AllGather { .. }).then_some(ranks),
        );
        let out = Tensor::from_storage(Storage::Cuda(out), dims, BackpropOp::none(), false);
        let out = match (call.op, dim) {
            (Op::AllGather { .. }, 0) => out.reshape(call.result_dims(self.world))?,
            (Op::AllGather { .. }, dim) => {
                let parts = (0..ranks).map(|rank| out.get(rank));
                Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, dim)?
            }
            _ => out,
        };
        out.to_device(xs.device())
    }
}

/// NCCL, between several cards of which each has one device.
pub(crate) struct NcclLinks;

impl Links for NcclLinks {
    fn ranks(&self, devices: &[Device]) -> Option<Result<Vec<Arc<dyn Communicator>>>> {
        let ranks = NcclGroup::ranks(&separate_cards(devices)?);
        Some(ranks.map(shared))
    }
}

/// The devices, if they are several and each is on a separate NVIDIA card.
fn separate_cards(devices: &[Device]) -> Option<Vec<CudaDevice>> {
    let mut cards: Vec<CudaDevice> = Vec::new();
    for device in devices {
        match device {
            Device::Cuda(card) if !is_in(card, &cards) => cards.push(card.clone()),
            _ => return None,
        }
    }
    (cards.len() > 1).then_some(cards)
}

/// Whether one of `devices` is on the same card.
fn is_in(device: &CudaDevice, devices: &[CudaDevice]) -> bool {
    let mut places = devices.iter().map(BackendDevice::location);
    places.any(|place| place == device.location())
}

/// The library, and rank 0's id, once all ranks have both.
fn meet(control: &ProcessGroup) -> Result<(&'static Api, UniqueId)> {
    let api = Api::get()?;
    let mut id = UniqueId([0; UniqueId::LEN]);
    if control.rank() == 0 {
        id = api.unique_id()?;
    }
    let bytes: Vec<u8> = id.0.iter().map(|byte| *byte as u8).collect();
    let bytes = Tensor::from_vec(bytes, UniqueId::LEN, &Device::Cpu)?;
    let bytes = control.broadcast(&bytes, 0)?.to_vec1::<u8>()?;
    for (place, byte) in id.0.iter_mut().zip(bytes) {
        *place = byte as std::ffi::c_char;
    }
    // A rank without NCCL ends the group here, before the others wait for it inside NCCL.
    control.all_reduce(&Tensor::new(1u8, &Device::Cpu)?)?;
    Ok((api, id))
}

/// Joins these ranks of a group at the same time. A rank that waits for a failed one stays in a waiting thread.
fn join(
    api: &'static Api,
    world: usize,
    id: UniqueId,
    ranks: &[(usize, CudaDevice)],
    timeout: Duration,
) -> Result<Vec<Member>> {
    let (sender, receiver) = channel();
    for (rank, device) in ranks.iter().cloned() {
        let sender = sender.clone();
        let join = move || {
            let member = Member::join(api, world, id, rank, device);
            // A receiver that no longer listens has returned another error.
            let _ = sender.send((rank, member));
        };
        let thread = std::thread::Builder::new().name(format!("candle-nccl-join-{rank}"));
        thread.spawn(join)?;
    }
    let (start, mut members) = (Instant::now(), Vec::new());
    while members.len() < ranks.len() {
        let left = timeout.saturating_sub(start.elapsed());
        let Ok((rank, member)) = receiver.recv_timeout(left) else {
            bail!("the {world} ranks of a group did not join within {timeout:?}; set NCCL_DEBUG=INFO for details")
        };
        members.push(member.with_context(|| format!("rank {rank}"))?);
    }
    members.sort_by_key(Member::rank);
    Ok(members)
}

impl Communicator for NcclGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world
    }

    fn all_reduce(&self, xs: &Tensor) -> Result<Tensor> {
        self.call(Op::AllReduce, xs)
    }

    fn all_gather(&self, xs: &Tensor, dim: usize) -> Result<Tensor> {
        self.call(Op::AllGather { dim }, xs)
    }

    fn broadcast(&self, xs: &Tensor, root: usize) -> Result<Tensor> {
        self.call(Op::Broadcast { root }, xs)
    }

    fn records(&self) -> bool {
        true
    }

    fn abort(&self, reason: &str) {
        if let Some(shared) = &self.shared {
            shared.end(format!("rank {} failed: {reason}", self.rank));
        }
    }
}

impl Drop for NcclGroup {
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            if std::thread::panicking() {
                shared.end(format!("rank {} panicked", self.rank))
            } else {
                shared.leave(self.rank)
            }
        }
        if let Some(watch) = self.watch.take() {
            Shared::settle(watch);
        }
    }
}
