//! Ranks as threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::call::{difference, to_host, Call, Op};
use super::{reason, Communicator, DEFAULT_TIMEOUT};
use crate::{bail, Result, Tensor};

/// One rank of a group whose ranks are threads of this process.
///
/// Tensors go through the host, whatever device they are on: on a GPU each call waits for queued work, reads the tensor back and writes the
/// result to the device. Each rank adds the tensors itself, in the order of the ranks. In a group of one rank every call returns its
/// tensor.
#[derive(Debug)]
pub struct LocalGroup {
    rank: usize,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    world: usize,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Number of completed calls.
    round: u64,
    /// Each rank's call and tensor for the current round.
    brought: Vec<Option<(Call, Tensor)>>,
    /// The tensors of the last complete round. The next round completes only after every rank has taken them.
    complete: Arc<Vec<Tensor>>,
    /// The reason why the group has ended.
    ended: Option<String>,
}

impl LocalGroup {
    /// Creates the ranks of a group of `world_size`, in order, one for each thread.
    ///
    /// # Errors
    /// If `world_size` is 0.
    pub fn ranks(world_size: usize) -> Result<Vec<Self>> {
        Self::ranks_with_timeout(world_size, DEFAULT_TIMEOUT)
    }

    /// Like [`ranks`](Self::ranks); a call that waits longer than `timeout` for the other ranks ends the group.
    ///
    /// # Errors
    /// As [`ranks`](Self::ranks).
    pub fn ranks_with_timeout(world_size: usize, timeout: Duration) -> Result<Vec<Self>> {
        if world_size == 0 {
            bail!("a group of 0 ranks; at least 1 is required")
        }
        let shared = Arc::new(Shared {
            world: world_size,
            timeout,
            state: Mutex::new(State {
                round: 0,
                brought: vec![None; world_size],
                complete: Arc::default(),
                ended: None,
            }),
            changed: Condvar::new(),
        });
        let rank = |rank| Self {
            rank,
            shared: shared.clone(),
        };
        Ok((0..world_size).map(rank).collect())
    }

    fn call(&self, op: Op, xs: &Tensor) -> Result<Tensor> {
        let call = match Call::new(op, xs, self.shared.world) {
            Ok(call) => call,
            Err(err) => {
                // Otherwise the other ranks would wait for this call.
                self.abort(&reason(&err));
                return Err(err);
            }
        };
        if self.shared.world == 1 {
            return xs.contiguous();
        }
        let result = self.exchange(&call, xs).and_then(|parts| {
            let result = call.result(&parts)?;
            result.to_device(xs.device())
        });
        if let Err(err) = &result {
            self.abort(&reason(err));
        }
        result
    }

    /// All ranks' tensors.
    fn exchange(&self, call: &Call, xs: &Tensor) -> Result<Arc<Vec<Tensor>>> {
        let shared = &*self.shared;
        let mine = to_host(xs)?;
        let mut state = shared.lock();
        if let Some(reason) = &state.ended {
            return ended(self.rank, call, reason);
        }
        state.brought[self.rank] = Some((call.clone(), mine));
        if state.brought.iter().all(Option::is_some) {
            let calls = state.brought.iter().flatten().map(|(call, _)| call);
            if let Some(reason) = difference(calls.enumerate()) {
                shared.end(&mut state, reason.clone());
                return ended(self.rank, call, &reason);
            }
            let parts = state.brought.iter_mut().filter_map(Option::take);
            let parts: Vec<Tensor> = parts.map(|(_, tensor)| tensor).collect();
            state.complete = Arc::new(parts);
            state.round += 1;
            shared.changed.notify_all();
            return Ok(state.complete.clone());
        }
        let (round, start) = (state.round, Instant::now());
        loop {
            // A group that ended after this round was complete still has its tensors.
            if state.round != round {
                return Ok(state.complete.clone());
            }
            if let Some(reason) = &state.ended {
                return ended(self.rank, call, reason);
            }
            let Some(left) = shared.timeout.checked_sub(start.elapsed()) else {
                let absent = state.brought.iter().enumerate();
                let absent = absent.filter_map(|(rank, brought)| brought.is_none().then_some(rank));
                let reason = format!(
                    "ranks {:?} did not reach {call} within {:?}",
                    absent.collect::<Vec<_>>(),
                    shared.timeout
                );
                shared.end(&mut state, reason.clone());
                return ended(self.rank, call, &reason);
            };
            let waited = shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

fn ended<T>(rank: usize, call: &Call, reason: &str) -> Result<T> {
    bail!("rank {rank}: {call}: the group has ended: {reason}")
}

impl Shared {
    /// Locks the state. Nothing panics while the lock is held; even then, a group that has ended is better than a second panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, state: &mut State, reason: String) {
        state.ended.get_or_insert(reason);
        self.changed.notify_all();
    }
}

impl Communicator for LocalGroup {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.shared.world
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

    fn abort(&self, reason: &str) {
        let reason = format!("rank {} failed: {reason}", self.rank);
        self.shared.end(&mut self.shared.lock(), reason);
    }
}

impl Drop for LocalGroup {
    fn drop(&mut self) {
        let reason = if std::thread::panicking() {
            format!("rank {} panicked", self.rank)
        } else {
            format!("rank {} has left", self.rank)
        };
        self.shared.end(&mut self.shared.lock(), reason);
    }
}
