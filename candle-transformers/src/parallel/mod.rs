//! A decoder whose layers are divided over several devices, one thread for each. Not in upstream's interface.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::blocks::Decoder;
//! use candle_transformers::parallel::{groups, ParallelDecoder};
//!
//! # fn main() -> candle_core::Result<()> {
//! let config = r#"{"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "vocab_size": 40,
//!     "num_hidden_layers": 2, "num_attention_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 32}"#;
//! let spec = candle_transformers::auto::config_spec(config)?;
//! // For a speed-up: one GPU each.
//! let devices = [Device::Cpu, Device::Cpu];
//! let model = ParallelDecoder::launch(&devices, groups(&devices)?, |device, group| {
//!     let mut vb = VarBuilder::zeros(DType::F32, device);
//!     Decoder::load_rank(spec.clone(), &mut vb, DType::F32, device, group)
//! })?;
//! let mut state = model.new_state();
//! let logits = model.next_logits(&Tensor::new(&[[1u32, 7, 3]], &Device::Cpu)?, 0, &mut state)?;
//! assert_eq!(logits.dims(), [1, 40]);
//! # Ok(())
//! # }
//! ```

mod follow;
mod state;

pub use state::ParallelState;

use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use candle_core::distributed::{reason, Communicator};
use candle_core::{bail, Context, Device, Result, Tensor};

use crate::blocks::{Decoder, Hidden, Vectors};
use crate::generation::{Draw, NextToken};
use follow::{follow, Call, Command, Shape};

/// The group of one rank on each of `devices`, which are all of one process; see [`candle_core::distributed::on_devices`].
///
/// # Errors
/// As [`candle_core::distributed::on_devices`].
#[cfg(not(target_arch = "wasm32"))]
pub fn groups(devices: &[Device]) -> Result<Vec<Arc<dyn Communicator>>> {
    candle_core::distributed::on_devices(devices)
}

/// A decoder on one device, or shared by ranks on several. Rank 0 runs in the thread that calls; a thread for each of the others follows
/// it: it gets the same tokens, and adds its part to the sums.
///
/// An error or a panic of a rank ends all of them: the call that is under way, and those after it, return an error that names the rank.
#[derive(Debug)]
pub struct ParallelDecoder {
    team: Arc<Team>,
}

#[derive(Debug)]
struct Team {
    decoder: Decoder,
    /// `None` for a decoder on one device.
    group: Option<Arc<dyn Communicator>>,
    followers: Vec<Sender<Command>>,
    threads: Vec<JoinHandle<()>>,
    /// Held during a call: followers execute the commands in the order of the calls.
    order: Mutex<()>,
    states: AtomicU64,
}

impl From<Decoder> for ParallelDecoder {
    /// A decoder on one device.
    fn from(decoder: Decoder) -> Self {
        Self::over(decoder, None, Vec::new(), Vec::new())
    }
}

impl ParallelDecoder {
    /// Loads one rank on each of `devices`, at the same time, and starts their threads. `groups` are the ranks' ends of one group, in
    /// order; `load` makes a rank's decoder, by [`Decoder::load_rank`].
    ///
    /// # Errors
    /// Those of `load`, with the rank; if there is not one group for each device.
    pub fn launch(
        devices: &[Device],
        groups: Vec<Arc<dyn Communicator>>,
        load: impl Fn(&Device, Arc<dyn Communicator>) -> Result<Decoder> + Sync,
    ) -> Result<Self> {
        let in_order = |(rank, group): (usize, &Arc<dyn Communicator>)| {
            group.rank() == rank && group.world_size() == devices.len()
        };
        if groups.len() != devices.len() || !groups.iter().enumerate().all(in_order) {
            bail!(
                "expected {} ranks in order, one for each device, but got {}",
                devices.len(),
                groups.len()
            )
        }
        let load = &load;
        let loaded: Vec<Result<Decoder>> = std::thread::scope(|scope| {
            let ranks = devices.iter().zip(&groups);
            let threads: Vec<_> = ranks
                .map(|(device, group)| scope.spawn(move || load(device, group.clone())))
                .collect();
            let joined = threads.into_iter().enumerate().map(|(rank, thread)| {
                let loaded = thread.join();
                let loaded = loaded.unwrap_or_else(|_| bail!("the thread panicked"));
                loaded.with_context(|| format!("rank {rank} on {:?}", devices[rank].location()))
            });
            joined.collect()
        });
        let mut ranks = loaded
            .into_iter()
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .zip(groups);
        let Some((decoder, group)) = ranks.next() else {
            bail!("no devices; at least one is required")
        };
        let (mut followers, mut threads) = (Vec::new(), Vec::new());
        for (decoder, group) in ranks {
            let (sender, receiver) = channel();
            let name = format!("candle-rank-{}", group.rank());
            let thread = std::thread::Builder::new().name(name);
            threads.push(thread.spawn(move || follow(&decoder, &*group, &receiver))?);
            followers.push(sender);
        }
        Ok(Self::over(decoder, Some(group), followers, threads))
    }

    fn over(
        decoder: Decoder,
        group: Option<Arc<dyn Communicator>>,
        followers: Vec<Sender<Command>>,
        threads: Vec<JoinHandle<()>>,
    ) -> Self {
        Self {
            team: Arc::new(Team {
                decoder,
                group,
                followers,
                threads,
                order: Mutex::new(()),
                states: AtomicU64::new(0),
            }),
        }
    }

    /// The decoder of rank 0.
    pub fn decoder(&self) -> &Decoder {
        &self.team.decoder
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        1 + self.team.followers.len()
    }

    /// An empty state.
    pub fn new_state(&self) -> ParallelState {
        ParallelState::over(&self.team, Shape::Rows, self.decoder().new_state())
    }

    /// An empty state for `count` sequences that come and go; as [`Decoder::new_slots`].
    ///
    /// # Errors
    /// As [`Decoder::new_slots`].
    pub fn new_slots(&self, count: usize) -> Result<ParallelState> {
        self.state_of(Shape::Slots(count))
    }

    /// As [`new_slots`](Self::new_slots), with keys and values in `pages` pages of `page` positions on each rank; as
    /// [`Decoder::new_paged_slots`].
    ///
    /// # Errors
    /// As [`Decoder::new_paged_slots`].
    pub fn new_paged_slots(
        &self,
        count: usize,
        pages: usize,
        page: usize,
    ) -> Result<ParallelState> {
        self.state_of(Shape::PagedSlots { count, pages, page })
    }

    fn state_of(&self, shape: Shape) -> Result<ParallelState> {
        let state = shape.state(self.decoder())?;
        Ok(ParallelState::over(&self.team, shape, state))
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids; as [`Decoder::next_logits`].
    ///
    /// # Errors
    /// As [`Decoder::next_logits`]; if a rank has failed.
    pub fn next_logits(
        &self,
        ids: &Tensor,
        offset: usize,
        state: &mut ParallelState,
    ) -> Result<Tensor> {
        self.logits(ids, Call::Next(offset), state)
    }

    /// The stream after vectors that replace tokens; as [`Decoder::forward_seen`].
    ///
    /// # Errors
    /// As [`Decoder::forward_seen`]; on several devices.
    pub fn forward_seen(
        &self,
        vectors: &Vectors,
        offset: usize,
        state: &mut ParallelState,
    ) -> Result<Hidden<'_>> {
        let team = &*self.team;
        if !Arc::ptr_eq(&self.team, &state.team) {
            bail!("the state was created by a different model")
        }
        if !team.followers.is_empty() {
            bail!(
                "vectors that replace tokens, such as of images, need a model on one device, and this one is on {}",
                self.world_size()
            )
        }
        team.decoder.forward_seen(vectors, offset, &mut state.state)
    }

    /// The token that follows `ids`, `(1, 1)`, drawn `with` these settings; as [`Decoder::next_token`]. Ranks on NVIDIA cards record the step
    /// of a greedy token, each its own.
    ///
    /// # Errors
    /// As [`Decoder::next_token`]; if a rank has failed.
    pub fn next_token(
        &self,
        ids: &Tensor,
        offset: usize,
        state: &mut ParallelState,
        with: &Draw,
    ) -> Result<NextToken> {
        let team = &*self.team;
        if Arc::ptr_eq(&self.team, &state.team) {
            if team.followers.is_empty() {
                return team.decoder.next_token(ids, offset, &mut state.state, with);
            }
            if let Some(group) = &team.group {
                if with.is_greedy() && team.decoder.records_step(ids, &state.state) {
                    return team.recorded_step(&**group, ids, offset, state);
                }
            }
        }
        let position = (offset + 1) as u32;
        let logits = self.next_logits(ids, offset, state)?;
        NextToken::draw(&logits.squeeze(0)?, &Draw { position, ..*with })
    }

    /// As [`next_logits`](Self::next_logits), of sequences that need not be of one length; as [`Decoder::next_logits_of_rows`].
    ///
    /// # Errors
    /// As [`Decoder::next_logits_of_rows`]; if a rank has failed.
    pub fn next_logits_of_rows(
        &self,
        ids: &Tensor,
        counts: &[usize],
        state: &mut ParallelState,
    ) -> Result<Tensor> {
        self.logits(ids, Call::Rows(counts.to_vec()), state)
    }

    /// Reads tokens into slots, without logits; as [`Decoder::forward_slots`].
    ///
    /// # Errors
    /// As [`Decoder::forward_slots`]; if a rank has failed.
    pub fn read_slots(
        &self,
        ids: &Tensor,
        counts: &[usize],
        first: usize,
        state: &mut ParallelState,
    ) -> Result<()> {
        let counts = counts.to_vec();
        self.run(ids, Call::ReadSlots { counts, first }, state)?;
        Ok(())
    }

    /// The logits of what follows the last token of each slot; as [`Decoder::next_logits_of_slots`].
    ///
    /// # Errors
    /// As [`Decoder::next_logits_of_slots`]; if a rank has failed.
    pub fn next_logits_of_slots(
        &self,
        ids: &Tensor,
        counts: &[usize],
        first: usize,
        state: &mut ParallelState,
    ) -> Result<Tensor> {
        let counts = counts.to_vec();
        self.logits(ids, Call::NextOfSlots { counts, first }, state)
    }

    /// The logits after each of the last `last` tokens of every slot; as [`Decoder::logits_of_slots`].
    ///
    /// # Errors
    /// As [`Decoder::logits_of_slots`]; if a rank has failed.
    pub fn logits_of_slots(
        &self,
        ids: &Tensor,
        last: usize,
        first: usize,
        state: &mut ParallelState,
    ) -> Result<Tensor> {
        self.logits(ids, Call::LastOfSlots { last, first }, state)
    }

    fn logits(&self, ids: &Tensor, call: Call, state: &mut ParallelState) -> Result<Tensor> {
        self.run(ids, call, state)?
            .context("the call has no logits")
    }

    fn run(&self, ids: &Tensor, call: Call, state: &mut ParallelState) -> Result<Option<Tensor>> {
        let team = &*self.team;
        if !Arc::ptr_eq(&self.team, &state.team) {
            bail!("the state was created by a different model")
        }
        let Some(group) = team.group.as_ref().filter(|_| !team.followers.is_empty()) else {
            return call.run(&team.decoder, ids, &mut state.state);
        };
        let (decoder, (b, t)) = (&team.decoder, ids.dims2()?);
        // An error that concerns only this call does not end the group.
        call.check(decoder, [b, t], &state.state)?;
        let _order = team.order.lock().unwrap_or_else(PoisonError::into_inner);
        team.send(&Command::Run {
            state: state.number,
            shape: (b, t),
            dtype: ids.dtype(),
            call: call.clone(),
        });
        // What is on the card already is sent without the host.
        let result = ids.to_device(decoder.device()).and_then(|ids| {
            group.broadcast(&ids, 0)?;
            call.run(decoder, &ids, &mut state.state)
        });
        if let Err(err) = &result {
            group.abort(&reason(err));
        }
        result
    }
}

impl Team {
    fn recorded_step(
        &self,
        group: &dyn Communicator,
        ids: &Tensor,
        offset: usize,
        state: &mut ParallelState,
    ) -> Result<NextToken> {
        let decoder = &self.decoder;
        decoder.check_call(1, offset, &state.state)?;
        let sent = !decoder.left_by_last_step(ids, &state.state);
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&Command::Step {
            state: state.number,
            sent,
            offset,
        });
        let result = if sent {
            group.broadcast(ids, 0).map(drop)
        } else {
            Ok(())
        };
        let result =
            result.and_then(|()| decoder.next_token(ids, offset, &mut state.state, &Draw::GREEDY));
        if let Err(err) = &result {
            group.abort(&reason(err));
        }
        result
    }

    fn tell(&self, command: Command) {
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        self.send(&command);
    }

    fn send(&self, command: &Command) {
        for follower in &self.followers {
            // One that is gone has ended the group, which the next call says.
            let _ = follower.send(command.clone());
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        // Followers may wait for what this thread was about to do.
        if let (true, Some(group)) = (std::thread::panicking(), &self.group) {
            group.abort("the thread panicked");
        }
        self.followers.clear();
        for thread in self.threads.drain(..) {
            // A panic of a follower has been an error of the call that it ended.
            let _ = thread.join();
        }
    }
}
