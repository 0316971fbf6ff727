//! The commands of rank 0, and the threads that follow them.

use std::collections::HashMap;
use std::sync::mpsc::Receiver;

use candle_core::distributed::{reason, Communicator};
use candle_core::{Context, DType, Result, Tensor};

use crate::blocks::{Decoder, DecoderState};

/// A command to a follower.
#[derive(Debug, Clone)]
pub(super) enum Command {
    /// A state of this number that has seen nothing.
    New(u64, Shape),
    /// A copy of a state.
    Copy { from: u64, to: u64 },
    /// The state is no longer used.
    Drop(u64),
    /// A change of a state that needs no other rank.
    Edit(u64, Edit),
    /// The tokens of this shape and dtype that rank 0 sends.
    Run {
        state: u64,
        shape: (usize, usize),
        dtype: DType,
        call: Call,
    },
    /// A greedy step that devices record: from the token that rank 0 sends, or else the one that the last step left.
    Step {
        state: u64,
        sent: bool,
        offset: usize,
    },
}

/// The sequences that a state is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// One, or the rows of a batch.
    Rows,
    /// As [`Decoder::new_slots`].
    Slots(usize),
    /// As [`Decoder::new_paged_slots`].
    PagedSlots {
        count: usize,
        pages: usize,
        page: usize,
    },
}

impl Shape {
    pub(super) fn state(self, decoder: &Decoder) -> Result<DecoderState> {
        match self {
            Self::Rows => Ok(decoder.new_state()),
            Self::Slots(count) => decoder.new_slots(count),
            Self::PagedSlots { count, pages, page } => decoder.new_paged_slots(count, pages, page),
        }
    }
}

/// A change of a slot.
#[derive(Debug, Clone)]
pub(super) enum Edit {
    Cut {
        slot: usize,
        len: usize,
    },
    Copy {
        from: usize,
        to: usize,
        len: usize,
    },
    SetPages {
        slot: usize,
        pages: Vec<u32>,
        len: usize,
    },
}

impl Edit {
    pub(super) fn apply(&self, state: &mut DecoderState) -> Result<()> {
        match self {
            Self::Cut { slot, len } => state.cut_slot(*slot, *len),
            Self::Copy { from, to, len } => state.copy_slot(*from, *to, *len),
            Self::SetPages { slot, pages, len } => state.set_pages(*slot, pages, *len),
        }
    }
}

/// A call that all ranks make with the same tokens.
#[derive(Debug, Clone)]
pub(super) enum Call {
    /// [`Decoder::next_logits`] at this offset.
    Next(usize),
    /// [`Decoder::next_logits_of_rows`], with the number of tokens of each.
    Rows(Vec<usize>),
    /// [`Decoder::forward_slots`], without what comes out.
    ReadSlots { counts: Vec<usize>, first: usize },
    /// [`Decoder::next_logits_of_slots`].
    NextOfSlots { counts: Vec<usize>, first: usize },
    /// [`Decoder::logits_of_slots`].
    LastOfSlots { last: usize, first: usize },
}

impl Call {
    /// Errors that concern this call alone, found before another rank hears of it.
    pub(super) fn check(
        &self,
        decoder: &Decoder,
        [b, t]: [usize; 2],
        state: &DecoderState,
    ) -> Result<()> {
        match self {
            Self::Next(offset) => decoder.check_call(t, *offset, state),
            Self::Rows(counts) => decoder.check_rows([b, t], counts, state),
            Self::ReadSlots { counts, first } | Self::NextOfSlots { counts, first } => {
                decoder.check_slots([b, t], counts, *first, state)
            }
            Self::LastOfSlots { last, first } => {
                decoder.check_last(t, *last)?;
                decoder.check_slots([b, t], &vec![t; b], *first, state)
            }
        }
    }

    /// The logits, if the call has any.
    pub(super) fn run(
        &self,
        decoder: &Decoder,
        ids: &Tensor,
        state: &mut DecoderState,
    ) -> Result<Option<Tensor>> {
        let logits = match self {
            Self::Next(offset) => decoder.next_logits(ids, *offset, state)?,
            Self::Rows(counts) => decoder.next_logits_of_rows(ids, counts, state)?,
            Self::ReadSlots { counts, first } => {
                decoder.forward_slots(ids, counts, *first, state)?;
                return Ok(None);
            }
            Self::NextOfSlots { counts, first } => {
                decoder.next_logits_of_slots(ids, counts, *first, state)?
            }
            Self::LastOfSlots { last, first } => {
                decoder.logits_of_slots(ids, *last, *first, state)?
            }
        };
        Ok(Some(logits))
    }
}

/// A follower's thread.
pub(super) fn follow(decoder: &Decoder, group: &dyn Communicator, commands: &Receiver<Command>) {
    let mut states = HashMap::new();
    for command in commands {
        if let Err(err) = obey(decoder, group, command, &mut states) {
            return group.abort(&reason(&err));
        }
    }
}

fn obey(
    decoder: &Decoder,
    group: &dyn Communicator,
    command: Command,
    states: &mut HashMap<u64, DecoderState>,
) -> Result<()> {
    let missing = "a missing state";
    match command {
        Command::New(number, shape) => {
            states.insert(number, shape.state(decoder)?);
        }
        Command::Copy { from, to } => {
            let copy = states.get(&from).cloned();
            states.insert(to, copy.context(missing)?);
        }
        Command::Drop(number) => {
            states.remove(&number);
        }
        Command::Edit(number, edit) => {
            edit.apply(states.get_mut(&number).context(missing)?)?;
        }
        Command::Run {
            state,
            shape,
            dtype,
            call,
        } => {
            let ids = Tensor::zeros(shape, dtype, decoder.device())?;
            let ids = group.broadcast(&ids, 0)?;
            let state = states.get_mut(&state);
            call.run(decoder, &ids, state.context(missing)?)?;
        }
        Command::Step {
            state,
            sent,
            offset,
        } => {
            let ids = if sent {
                let ids = Tensor::zeros((1, 1), DType::U32, decoder.device())?;
                Some(group.broadcast(&ids, 0)?)
            } else {
                None
            };
            let state = states.get_mut(&state).context(missing)?;
            decoder.follow_step(ids.as_ref(), offset, state)?;
        }
    }
    Ok(())
}
