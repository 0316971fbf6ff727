//! The state of sequences on all ranks.

use std::sync::atomic::Ordering;
use std::sync::Arc;

use candle_core::{bail, Result};

use super::follow::{Command, Edit, Shape};
use super::Team;
use crate::blocks::DecoderState;

/// The state of a sequence, or of slots, on all ranks. A clone is independent, but for the pages of slots.
#[derive(Debug)]
pub struct ParallelState {
    pub(super) team: Arc<Team>,
    pub(super) number: u64,
    pub(super) state: DecoderState,
}

impl ParallelState {
    /// Rank 0's state, of which the others make theirs.
    pub(super) fn over(team: &Arc<Team>, shape: Shape, state: DecoderState) -> Self {
        let number = team.states.fetch_add(1, Ordering::Relaxed);
        team.tell(Command::New(number, shape));
        let team = team.clone();
        Self {
            team,
            number,
            state,
        }
    }

    /// As [`DecoderState::truncate`], on one device; false on several.
    ///
    /// # Errors
    /// As [`DecoderState::truncate`].
    pub fn truncate(&mut self, len: usize) -> Result<bool> {
        Ok(self.team.followers.is_empty() && self.state.truncate(len)?)
    }

    /// As [`DecoderState::lens`].
    pub fn lens(&self) -> &[usize] {
        self.state.lens()
    }

    /// As [`DecoderState::cut_slot`], on every rank.
    ///
    /// # Errors
    /// As [`DecoderState::cut_slot`].
    pub fn cut_slot(&mut self, slot: usize, len: usize) -> Result<()> {
        self.edit(Edit::Cut { slot, len })
    }

    /// As [`DecoderState::copy_slot`], on every rank.
    ///
    /// # Errors
    /// As [`DecoderState::copy_slot`].
    pub fn copy_slot(&mut self, from: usize, to: usize, len: usize) -> Result<()> {
        self.edit(Edit::Copy { from, to, len })
    }

    /// As [`DecoderState::set_pages`], on every rank.
    ///
    /// # Errors
    /// As [`DecoderState::set_pages`].
    pub fn set_pages(&mut self, slot: usize, pages: &[u32], len: usize) -> Result<()> {
        let pages = pages.to_vec();
        self.edit(Edit::SetPages { slot, pages, len })
    }

    /// The state of a decoder on one device, for calls that take no others.
    ///
    /// # Errors
    /// If the model is on several devices.
    pub fn on_one_device(&mut self) -> Result<&mut DecoderState> {
        let ranks = 1 + self.team.followers.len();
        if ranks > 1 {
            bail!("the call takes a model on one device, and this one is on {ranks}")
        }
        Ok(&mut self.state)
    }

    fn edit(&mut self, edit: Edit) -> Result<()> {
        // An error that concerns only this call does not end the group.
        edit.apply(&mut self.state)?;
        if !self.team.followers.is_empty() {
            self.team.tell(Command::Edit(self.number, edit));
        }
        Ok(())
    }
}

impl Clone for ParallelState {
    fn clone(&self) -> Self {
        let to = self.team.states.fetch_add(1, Ordering::Relaxed);
        let from = self.number;
        self.team.tell(Command::Copy { from, to });
        Self {
            team: self.team.clone(),
            number: to,
            state: self.state.clone(),
        }
    }
}

impl Drop for ParallelState {
    fn drop(&mut self) {
        self.team.tell(Command::Drop(self.number));
    }
}
