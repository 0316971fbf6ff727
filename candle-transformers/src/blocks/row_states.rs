//! States of fixed size of the sequences that share a decoder's state: slots, or the rows of a batch.

use candle_core::{bail, Result, Tensor};

use super::{RecurrentState, Rows};

/// The state of a mixer with a state of fixed size: of one sequence, or of one batch of sequences of one length, or of slots.
#[derive(Debug, Clone)]
pub enum MixerState {
    /// Of all sequences, which are equally long.
    One(RecurrentState),
    /// Of each by itself.
    Rows(RowStates),
}

impl Default for MixerState {
    fn default() -> Self {
        Self::One(RecurrentState::default())
    }
}

impl MixerState {
    /// Number of positions added since the last reset; of slots 0.
    pub fn seen(&self) -> usize {
        match self {
            Self::One(state) => state.seen(),
            Self::Rows(_) => 0,
        }
    }

    /// Forgets all sequences.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The state of sequences that are equally long.
    ///
    /// # Errors
    /// If it is of slots.
    pub(super) fn one(&mut self) -> Result<&mut RecurrentState> {
        match self {
            Self::One(state) => Ok(state),
            Self::Rows(_) => {
                bail!("the state has sequences of different lengths; use forward_slots")
            }
        }
    }

    /// The states of slots.
    ///
    /// # Errors
    /// If it is of sequences that are equally long.
    pub(super) fn rows(&mut self) -> Result<&mut RowStates> {
        if self.seen() == 0 && matches!(self, Self::One(_)) {
            *self = Self::Rows(RowStates::default());
        }
        match self {
            Self::Rows(rows) => Ok(rows),
            Self::One(_) => bail!("the state has sequences of one length; use forward"),
        }
    }
}

/// The states of one layer, by slot. Those that ran together stay in one tensor, so that the next step of the same slots copies nothing.
#[derive(Debug, Clone, Default)]
pub struct RowStates {
    /// By slot. That of a slot in [`joined`](Self::joined) is there.
    own: Vec<RecurrentState>,
    joined: Vec<Joined>,
}

/// States of neighbouring slots.
#[derive(Debug, Clone)]
struct Joined {
    first: usize,
    /// Whose state it is: the rows of other slots have no meaning.
    live: Vec<bool>,
    /// With a row for each slot.
    state: RecurrentState,
}

impl Joined {
    fn has(&self, slot: usize) -> bool {
        let row = slot.checked_sub(self.first);
        row.and_then(|row| self.live.get(row)) == Some(&true)
    }
}

impl RowStates {
    /// Runs `mixer` on `xs`, `(b, t, hidden)`, with the states of the slots of `rows`. A row without tokens changes no state; what comes out for it,
    /// and behind the tokens of a shorter row, has no meaning.
    ///
    /// # Errors
    /// Those of `mixer`; no row has a token.
    pub(super) fn run(
        &mut self,
        rows: &Rows,
        xs: &Tensor,
        mut mixer: impl FnMut(&Tensor, &mut RecurrentState) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let t = xs.dim(1)?;
        let first = rows.part.map_or(0, |part| part.first);
        let live: Vec<bool> = rows.each.iter().map(|row| row.count > 0).collect();
        let goes_on = |row: &super::Row| row.count == 0 || row.count == t && row.start > 0;
        let all_go_on = rows.each.iter().all(goes_on);
        let same = |joined: &&mut Joined| joined.first == first && joined.live == live;
        if let Some(joined) = self.joined.iter_mut().find(same).filter(|_| all_go_on) {
            return mixer(xs, &mut joined.state);
        }
        self.part(first, &live)?;
        let slots = first..first + live.len();
        if self.own.len() < slots.end {
            self.own.resize(slots.end, RecurrentState::default());
        }
        let own = &mut self.own[slots];
        for (state, row) in own.iter_mut().zip(&rows.each) {
            if row.count > 0 && row.start == 0 {
                state.reset();
            }
        }
        if all_go_on {
            let mut state = join(own, &live)?;
            let ys = mixer(xs, &mut state)?;
            for (own, _) in own.iter_mut().zip(&live).filter(|(_, live)| **live) {
                own.reset();
            }
            self.joined.push(Joined { first, live, state });
            return Ok(ys);
        }
        let mut ys = Vec::with_capacity(live.len());
        for (i, (state, row)) in own.iter_mut().zip(&rows.each).enumerate() {
            ys.push(match row.count {
                0 => None,
                count => {
                    let xs = xs.narrow(0, i, 1)?.narrow(1, 0, count)?.contiguous()?;
                    let ys = mixer(&xs, state)?;
                    Some(ys.pad_with_zeros(1, 0, t - count)?)
                }
            });
        }
        let Some(zeros) = ys.iter().flatten().next().map(Tensor::zeros_like) else {
            bail!("a call for {} rows has no tokens", live.len())
        };
        let zeros = zeros?;
        let ys: Vec<Tensor> = ys
            .into_iter()
            .map(|ys| ys.unwrap_or_else(|| zeros.clone()))
            .collect();
        Tensor::cat(&ys, 0)
    }

    /// Takes apart the states that are joined with one of these slots.
    fn part(&mut self, first: usize, live: &[bool]) -> Result<()> {
        let slots = || (first..).zip(live).filter(|(_, live)| **live);
        let meets = |joined: &mut Joined| slots().any(|(slot, _)| joined.has(slot));
        let parted: Vec<Joined> = self.joined.extract_if(.., meets).collect();
        for joined in parted {
            let rows = joined.live.len();
            for row in (0..rows).filter(|row| joined.live[*row]) {
                let part = |part: &Tensor| match rows {
                    1 => Ok(part.clone()),
                    _ => {
                        // Some mixers count heads in the first dimension too.
                        let each = part.dim(0)? / rows;
                        // A view would keep the states of all.
                        part.narrow(0, row * each, each)?.copy()
                    }
                };
                let [before, kept] = &joined.state.parts;
                self.own[joined.first + row] = RecurrentState {
                    seen: joined.state.seen,
                    parts: [
                        before.as_ref().map(part).transpose()?,
                        kept.as_ref().map(part).transpose()?,
                    ],
                };
            }
        }
        Ok(())
    }
}

/// The states of slots as rows of one; zeros for those that are not `live`.
fn join(own: &[RecurrentState], live: &[bool]) -> Result<RecurrentState> {
    let part = |part: usize| {
        let of_live = own.iter().zip(live).filter(|(_, live)| **live);
        let Some(some) = of_live
            .clone()
            .find_map(|(state, _)| state.parts[part].as_ref())
        else {
            return Ok(None);
        };
        let zeros = some.zeros_like()?;
        let rows = own.iter().zip(live).map(|(state, live)| {
            let own = state.parts[part].as_ref().filter(|_| *live);
            own.unwrap_or(&zeros)
        });
        Tensor::cat(&rows.collect::<Vec<_>>(), 0).map(Some)
    };
    let seen = own.iter().map(|state| state.seen).max().unwrap_or(0);
    Ok(RecurrentState {
        seen,
        parts: [part(0)?, part(1)?],
    })
}
