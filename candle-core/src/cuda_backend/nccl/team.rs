//! The calls of each rank: the host's view of a group, without cards.
//!
//! A call does not wait for the other ranks' calls; the card does. So the host counts: if a rank leaves, fails or does not arrive, and has
//! not made a call that another has made, that card would wait forever; [`Team::is_unmatched`] detects it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::distributed::call::{difference, Call, Op};
use crate::DType;

/// The values that determine NCCL's protocol: the operation, the dtype, and the power of two of the bytes.
type Kind = (std::mem::Discriminant<Op>, DType, usize);

#[derive(Debug)]
pub(super) struct Team {
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// The status of a rank, which is sent to other processes in this form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Number of calls that it has made.
    pub(super) made: u64,
    /// A digest of all of them.
    pub(super) digest: u64,
    /// Whether it makes no further calls.
    pub(super) left: bool,
}

#[derive(Debug)]
struct State {
    ranks: Vec<Standing>,
    /// Calls that not all ranks have made, with the first rank and its time; the number of the first of them.
    open: VecDeque<(usize, Call, Instant)>,
    first: u64,
    /// The number of the first call of a kind.
    kinds: HashMap<Kind, u64>,
    ended: Option<String>,
}

impl Team {
    pub(super) fn new(world: usize, timeout: Duration) -> Self {
        Self {
            timeout,
            state: Mutex::new(State {
                ranks: vec![Standing::default(); world],
                open: VecDeque::new(),
                first: 0,
                kinds: HashMap::new(),
                ended: None,
            }),
            changed: Condvar::new(),
        }
    }

    /// Locks the state. Nothing panics while the lock is held; even then, a group that has ended is better than a second panic.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(super) fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    /// Whether a rank has made calls that another has not.
    pub(super) fn is_unmatched(&self) -> bool {
        let state = self.lock();
        state.ranks.iter().any(|r| r.made != state.ranks[0].made)
    }

    pub(super) fn standing(&self, rank: usize) -> Standing {
        self.lock().ranks[rank]
    }

    /// Records that `rank` makes a call, which may then be queued in the card's stream.
    ///
    /// The first call of a kind waits for the other ranks' calls here: NCCL connects them then, on the host, and that wait could not be
    /// aborted.
    ///
    /// # Errors
    /// The reason why the group has ended.
    pub(super) fn enter(&self, rank: usize, call: &Call) -> Result<(), String> {
        let mut state = self.lock();
        let number = state.ranks[rank].made;
        state.may_come(number)?;
        match state.open.get((number - state.first) as usize) {
            None => state.open.push_back((rank, call.clone(), Instant::now())),
            Some((other, theirs, _)) => {
                let calls = [(*other, theirs), (rank, call)];
                if let Some(reason) = difference(calls.into_iter()) {
                    return Err(self.end_locked(&mut state, reason));
                }
            }
        }
        let own = &mut state.ranks[rank];
        own.made += 1;
        own.digest = digest(own.digest, call);
        state.close_complete();
        self.changed.notify_all();
        let first = *state.kinds.entry(kind(call)).or_insert(number);
        while !state.is_complete(first) {
            state.may_come(first)?;
            // The watch ends a group if a rank does not arrive.
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        // A group that ended after all ranks made the call still executes it: the others have queued it.
        Ok(())
    }

    /// Updates the status of another process's rank.
    pub(super) fn hear(&self, rank: usize, heard: Standing) {
        let mut state = self.lock();
        state.ranks[rank] = heard;
        state.close_complete();
        self.changed.notify_all();
    }

    /// Checks whether the group can continue: ends it for calls that differ, ranks that left too early, and ranks that did not arrive in
    /// time. Returns true if the group has ended.
    pub(super) fn look(&self) -> bool {
        let mut state = self.lock();
        if state.ended.is_some() {
            return true;
        }
        let reason = state.trouble(self.timeout);
        match reason {
            None => false,
            Some(reason) => {
                self.end_locked(&mut state, reason);
                true
            }
        }
    }

    /// Records that `rank` makes no further calls.
    pub(super) fn leave(&self, rank: usize) {
        self.lock().ranks[rank].left = true;
        self.changed.notify_all();
    }

    /// Waits until the other ranks have made the calls that `rank` made, or the group has ended.
    pub(super) fn wait_for_others(&self, rank: usize) {
        let mut state = self.lock();
        let made = state.ranks[rank].made;
        while state.ended.is_none() && state.ranks.iter().any(|r| r.made < made) {
            let waited = self.changed.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn end(&self, reason: String) {
        self.end_locked(&mut self.lock(), reason);
    }

    fn end_locked(&self, state: &mut State, reason: String) -> String {
        self.changed.notify_all();
        state.ended.get_or_insert(reason).clone()
    }
}

impl State {
    /// An error if call `number` can no longer be completed.
    fn may_come(&mut self, number: u64) -> Result<(), String> {
        if self.ended.is_none() {
            let gone = |rank: &Standing| rank.left && rank.made <= number;
            self.ended = self
                .ranks
                .iter()
                .position(gone)
                .map(|rank| format!("rank {rank} has left"));
        }
        match &self.ended {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }
    }

    fn trouble(&mut self, timeout: Duration) -> Option<String> {
        let most = self.ranks.iter().map(|rank| rank.made).max()?;
        if let Some(last) = most.checked_sub(1) {
            if let Err(reason) = self.may_come(last) {
                self.ended = None;
                return Some(reason);
            }
        }
        let same = |a: &Standing, b: &Standing| a.made != b.made || a.digest == b.digest;
        for (rank, standing) in self.ranks.iter().enumerate() {
            if !same(&self.ranks[0], standing) {
                return Some(format!(
                    "ranks disagree: rank {rank} made different calls than rank 0, {} each",
                    standing.made
                ));
            }
        }
        let (_, call, since) = self.open.front()?;
        if since.elapsed() < timeout {
            return None;
        }
        let absent = self.ranks.iter().enumerate();
        let absent = absent.filter_map(|(i, rank)| (rank.made <= self.first).then_some(i));
        Some(format!(
            "ranks {:?} did not reach {call} within {timeout:?}",
            absent.collect::<Vec<_>>()
        ))
    }

    fn is_complete(&self, number: u64) -> bool {
        self.ranks.iter().all(|rank| rank.made > number)
    }

    fn close_complete(&mut self) {
        while !self.open.is_empty() && self.is_complete(self.first) {
            self.open.pop_front();
            self.first += 1;
        }
    }
}

fn kind(call: &Call) -> Kind {
    let bytes = call.dims.iter().product::<usize>() * call.dtype.size_in_bytes();
    let op = std::mem::discriminant(&call.op);
    (op, call.dtype, bytes.next_power_of_two())
}

/// A digest of a call after those of `before`: the same on all machines, which std's hashes do not guarantee.
pub(super) fn digest(before: u64, call: &Call) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    call.to_string().bytes().fold(before ^ 0xcbf2, mix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(len: usize) -> Call {
        Call {
            op: Op::AllReduce,
            dtype: DType::F32,
            dims: vec![len],
        }
    }

    /// A team that has made the kind of call of [`call`] once.
    fn acquainted() -> Team {
        let team = Team::new(2, Duration::from_secs(20));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| team.enter(1, &call(4)));
            team.enter(0, &call(4)).unwrap();
            other.join().unwrap().unwrap();
        });
        team
    }

    #[test]
    fn a_rank_may_leave_before_others_come_to_its_calls() {
        let team = acquainted();
        team.enter(0, &call(4)).unwrap();
        team.leave(0);
        assert!(team.is_unmatched() && !team.look());
        team.enter(1, &call(4)).unwrap();
        assert!(!team.is_unmatched() && !team.look());
        assert_eq!(team.enter(1, &call(4)).unwrap_err(), "rank 0 has left");
    }

    #[test]
    fn a_call_that_a_rank_left_without_ends_the_group() {
        let team = acquainted();
        team.enter(0, &call(4)).unwrap();
        team.leave(1);
        assert!(team.look() && team.is_unmatched());
        assert_eq!(team.ended().unwrap(), "rank 1 has left");
    }

    #[test]
    fn the_first_call_of_a_kind_waits_and_is_woken_by_the_end() {
        let team = acquainted();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| team.enter(0, &call(400)));
            while team.standing(0).made < 2 {
                std::thread::yield_now();
            }
            team.end("rank 1 failed: no bread".into());
            let reason = waits.join().unwrap().unwrap_err();
            assert_eq!(reason, "rank 1 failed: no bread");
        });
    }

    #[test]
    fn calls_that_differ_name_both_ranks() {
        let team = acquainted();
        team.enter(1, &call(4)).unwrap();
        let reason = team.enter(0, &call(3)).unwrap_err();
        assert!(
            reason.contains("rank 1 calls all_reduce of [4] F32, rank 0 calls all_reduce of [3]"),
            "{reason}"
        );
        // Calls of other processes are known only by their digest.
        let team = acquainted();
        let heard = Standing {
            digest: 7,
            ..team.standing(1)
        };
        team.hear(1, heard);
        assert!(team.look());
        assert!(team.ended().unwrap().contains("ranks disagree"));
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let team = Team::new(3, Duration::ZERO);
        assert!(!team.look());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| team.enter(1, &call(4)));
            while !team.look() {
                std::thread::yield_now();
            }
            let reason = waits.join().unwrap().unwrap_err();
            assert!(
                reason.starts_with("ranks [0, 2] did not reach all_reduce"),
                "{reason}"
            );
        });
    }
}
