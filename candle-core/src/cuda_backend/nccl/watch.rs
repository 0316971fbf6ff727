//! The state that the ranks of one process share, and the thread that ends a group which cannot continue.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::member::Member;
use super::team::{Standing, Team};
use crate::distributed::call::Call;
use crate::distributed::{reason, Communicator, ProcessGroup};
use crate::{bail, Device, Result, Tensor};

/// Time limit for cards to finish calls that all ranks have made, after a group has ended for another reason.
const GRACE: Duration = Duration::from_secs(2);

/// Interval at which ranks that are processes exchange their status.
const TELL: Duration = Duration::from_millis(25);

/// The part of a group in this process.
#[derive(Debug)]
pub(super) struct Shared {
    team: Team,
    /// All ranks, or the one of this process.
    members: Vec<Member>,
    /// The connection to the other ranks, if they are processes.
    control: Option<ProcessGroup>,
}

impl Shared {
    /// A group that all ranks have joined, and the thread that watches it.
    pub(super) fn start(
        team: Team,
        members: Vec<Member>,
        control: Option<ProcessGroup>,
    ) -> Result<(Arc<Self>, JoinHandle<()>)> {
        let thread = std::thread::Builder::new().name("candle-nccl-watch".into());
        let shared = Arc::new(Self {
            team,
            members,
            control,
        });
        let watch = match &shared.control {
            None => {
                let weak = Arc::downgrade(&shared);
                thread.spawn(move || watch(&weak))?
            }
            Some(_) => {
                let shared = shared.clone();
                thread.spawn(move || shared.tell_and_hear())?
            }
        };
        Ok((shared, watch))
    }

    /// Records that `rank` makes the calls of a recording.
    ///
    /// # Errors
    /// If the group has ended.
    pub(super) fn enter(&self, rank: usize, call: &Call) -> Result<()> {
        if let Err(reason) = self.team.enter(rank, call) {
            self.stop(false);
            bail!("rank {rank}: {call}: the group has ended: {reason}")
        }
        Ok(())
    }

    pub(super) fn team(&self) -> &Team {
        &self.team
    }

    /// A rank of this process.
    pub(super) fn member(&self, rank: usize) -> &Member {
        let place = if self.control.is_some() { 0 } else { rank };
        &self.members[place]
    }

    pub(super) fn end(&self, reason: String) {
        self.team.end(reason);
        self.stop(false);
    }

    /// Records that a rank of this process makes no further calls.
    pub(super) fn leave(&self, rank: usize) {
        if self.control.is_some() {
            // The process may end after this, and the others' cards need this one.
            self.team.wait_for_others(rank);
            self.member(rank).finish(self.team.timeout());
        }
        self.team.leave(rank);
        if self.team.look() {
            self.stop(false);
        }
    }

    /// Releases the cards of a group that has ended, if some wait for calls that will not be made. `broken`: calls that all ranks have made
    /// may not finish either.
    pub(super) fn stop(&self, broken: bool) {
        if !broken && !self.team.is_unmatched() {
            return;
        }
        let start = Instant::now();
        while broken && start.elapsed() < GRACE && self.members.iter().any(Member::is_busy) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let reason = self.team.ended().unwrap_or_default();
        // Before the cards continue: threads that wait for one must see the failure.
        for member in self.members.iter().filter(|member| member.is_busy()) {
            member.fail(&reason);
        }
        self.at_once(Member::abort);
    }

    /// Runs `end` on all members at the same time: in some versions, NCCL's shutdown waits for the other ranks.
    fn at_once(&self, end: impl Fn(&Member) + Sync) {
        std::thread::scope(|scope| {
            for member in &self.members {
                scope.spawn(|| end(member));
            }
        });
    }

    /// Waits until the watch of a rank that is a process has ended, shortly after the last rank has left: at the end of a process NCCL and
    /// the driver are unloaded, and a thread that is still closing the group would crash the process.
    pub(super) fn settle(watch: JoinHandle<()>) {
        let start = Instant::now();
        while !watch.is_finished() && start.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
        if watch.is_finished() {
            // The panic message has been printed.
            let _ = watch.join();
        }
    }

    /// Checks the group once; returns true if it has ended.
    fn look(&self) -> bool {
        let broken = self.members.iter().find_map(|member| {
            let err = member.async_error().err()?;
            Some(format!("rank {} failed: {}", member.rank(), reason(&err)))
        });
        if let Some(reason) = broken {
            self.team.end(reason);
            self.stop(true);
            return true;
        }
        let ended = self.team.look();
        if ended {
            self.stop(false);
        }
        ended
    }

    /// The watch of a rank that is a process.
    fn tell_and_hear(&self) {
        let (Some(control), Some(rank)) = (&self.control, self.members.first().map(Member::rank))
        else {
            return;
        };
        loop {
            if self.look() {
                let reason = self.team.ended().unwrap_or_default();
                let own = format!("rank {rank} failed: ");
                return control.abort(reason.strip_prefix(&own).unwrap_or(&reason));
            }
            match self.exchange(control, rank) {
                // All ranks receive the same status, so all of them stop here at the same time.
                Ok(true) => return,
                Ok(false) => std::thread::sleep(TELL),
                Err(err) => {
                    let text = reason(&err);
                    let cause = text.split_once("the group has ended: ");
                    let cause = cause.map_or(&*text, |(_, cause)| cause);
                    self.team.end(cause.to_string());
                    return self.stop(true);
                }
            }
        }
    }

    /// Exchanges the status of the ranks; returns true if all of them have left.
    fn exchange(&self, control: &ProcessGroup, rank: usize) -> Result<bool> {
        let own = self.team.standing(rank);
        let words = [own.made as i64, own.digest as i64, i64::from(own.left)];
        let all = control.all_gather(&Tensor::new(&words, &Device::Cpu)?, 0)?;
        let all = all.to_vec1::<i64>()?;
        let mut all_left = true;
        for (other, words) in all.chunks(words.len()).enumerate() {
            let &[made, digest, left] = words else {
                bail!("rank {other} reported {words:?}")
            };
            all_left &= left != 0;
            if other != rank {
                let heard = Standing {
                    made: made as u64,
                    digest: digest as u64,
                    left: left != 0,
                };
                self.team.hear(other, heard);
            }
        }
        Ok(all_left)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let timeout = self.team.timeout();
        self.at_once(|member| member.close(timeout));
    }
}

/// The watch of ranks that are threads, while one exists.
fn watch(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        if shared.look() {
            return;
        }
        let often = shared.team.timeout() / 8;
        drop(shared);
        std::thread::sleep(often.clamp(Duration::from_millis(5), Duration::from_millis(250)));
    }
}
