//! Sequences of different lengths in one call: the rows of a batch, and slots in which texts come and go.

use candle_core::{bail, DType, Result, Tensor};

use super::seen::SlotInput;
use super::shifts::Shifts;
use super::{rotations, Decoder, DecoderState, Hidden, LayerSpec, MixerSpec, Step};
use crate::blocks::{Part, Rotary, Row, Rows};

impl Decoder {
    /// An empty state for `count` sequences that come and go, each in a slot: [`forward_slots`](Self::forward_slots).
    ///
    /// # Errors
    /// None at present.
    pub fn new_slots(&self, count: usize) -> Result<DecoderState> {
        let mut state = self.new_state();
        state.lens = vec![0; count];
        state.shifts = vec![Shifts::default(); count];
        Ok(state)
    }

    /// Whether a slot can forget its last positions, and another can take over its first ones: all layers are attention. Other layers have a state that
    /// knows the whole sequence.
    pub fn slots_rewind(&self) -> bool {
        let is_attention = |layer: &LayerSpec| {
            matches!(layer.mixer, MixerSpec::Attention(_) | MixerSpec::Latent(_))
        };
        self.spec.layers.iter().all(is_attention)
    }

    /// The number of positions that a sequence in a slot may have: those of the model, or those before its rotation depends on the length of
    /// the sequence (LongRoPE and dynamic scaling). Beyond these a sequence runs alone, with [`forward`](Self::forward).
    pub fn slot_positions(&self) -> usize {
        let rotaries = self.spec.rotaries.iter().map(Rotary::positions_of_one_kind);
        rotaries.fold(self.spec.positions, usize::min)
    }

    /// Runs the layers on sequences of different lengths, those of the slots `first .. first + b` of a state of
    /// [`new_slots`](Self::new_slots); other slots do not change. Row `i` of the token ids, `(b, t)`, has `counts[i]` tokens, which follow
    /// those that its slot had before; the rest of the row is ignored. A row with a count of 0 is there because it is between others: its slot
    /// does not change.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); if there is not one count for each row, one is more than `t`, all are 0, or there are fewer slots.
    pub fn forward_slots(
        &self,
        ids: &Tensor,
        counts: &[usize],
        first: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        self.run_slots(SlotInput::Ids(ids), counts, first, state)
    }

    pub(super) fn run_slots(
        &self,
        input: SlotInput<'_>,
        counts: &[usize],
        first: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let (b, t) = input.rows()?;
        self.check_slots([b, t], counts, first, state)?;
        let of = state.lens.len();
        let starts = state.lens[first..first + b].to_vec();
        let longest = starts.iter().copied().max().unwrap_or(0);
        let (embeds, mask) = input.embeds(self)?;
        let mask = mask.as_ref();
        let xs = match &self.positions {
            Some(table) => {
                let positions = starts
                    .iter()
                    .flat_map(|start| (0..t).map(move |i| (start + i) as u32));
                let positions = Tensor::from_iter(positions, embeds.device())?;
                let rows = table.index_select(&positions, 0)?;
                (&embeds + rows.reshape(embeds.shape())?)?
            }
            None => embeds,
        };
        let rows = Rows {
            starts: Tensor::from_iter(starts.iter().map(|start| *start as u32), xs.device())?,
            longest,
            each: Row::each(&starts, counts),
            part: Some(Part { first, of }),
            pages: match &state.pages {
                Some(pages) => {
                    let indices = pages.indices(first, &starts, t, longest + t)?;
                    Some(indices.to_device(xs.device())?)
                }
                None => None,
            },
        };
        let rotations = match input.positions() {
            Some(positions) => self.rows_on_axes(positions, [b, t], state)?,
            None => {
                let first = (first..).zip(&starts);
                let first: Vec<usize> = first.map(|(i, len)| state.position(i, *len)).collect();
                rotations(state, |tables| tables.rows_from(&first, t))?
            }
        };
        let step = Step {
            rotations,
            mask,
            windows: mask.is_some(),
            rows: Some(&rows),
            growth: self.growth(&starts, t)?,
        };
        let hidden = self.run(xs, &step, input.deep(), state)?;
        if let (Some(positions), Some(start)) = (input.positions(), starts.first()) {
            state.add_positions(first, *start, positions);
        }
        for (len, count) in state.lens[first..].iter_mut().zip(counts) {
            *len += count;
        }
        Ok(hidden)
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last token of each of these slots; see [`forward_slots`](Self::forward_slots).
    ///
    /// # Errors
    /// As [`forward_slots`](Self::forward_slots).
    pub fn next_logits_of_slots(
        &self,
        ids: &Tensor,
        counts: &[usize],
        first: usize,
        state: &mut DecoderState,
    ) -> Result<Tensor> {
        let (b, t) = ids.dims2()?;
        if counts.len() == b && counts.iter().all(|count| *count == t) {
            return self.logits_of_slots(ids, 1, first, state)?.squeeze(1);
        }
        let hidden = self.forward_slots(ids, counts, first, state)?;
        let last = counts
            .iter()
            .enumerate()
            .map(|(row, count)| (row * t + count.saturating_sub(1)) as u32);
        let last = Tensor::from_iter(last, &self.device)?;
        let logits = hidden.of_tokens(&last)?.logits()?;
        logits.reshape((b, ()))?.to_dtype(DType::F32)
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last token of each row; see [`forward_slots`](Self::forward_slots). Rows of an
    /// empty state begin at position 0.
    ///
    /// # Errors
    /// As [`forward_slots`](Self::forward_slots).
    pub fn next_logits_of_rows(
        &self,
        ids: &Tensor,
        counts: &[usize],
        state: &mut DecoderState,
    ) -> Result<Tensor> {
        let (b, _) = ids.dims2()?;
        state.lens.resize(b, 0);
        self.next_logits_of_slots(ids, counts, 0, state)
    }

    /// Checks a call with rows of different lengths, all of the state's.
    pub(crate) fn check_rows(
        &self,
        [b, t]: [usize; 2],
        counts: &[usize],
        state: &DecoderState,
    ) -> Result<()> {
        let starts = &state.lens[..b.min(state.lens.len())];
        self.check_counts([b, t], counts, starts, state)
    }

    /// Checks a call of [`forward_slots`](Self::forward_slots).
    pub(crate) fn check_slots(
        &self,
        [b, t]: [usize; 2],
        counts: &[usize],
        first: usize,
        state: &DecoderState,
    ) -> Result<()> {
        let end = first.saturating_add(b);
        let Some(starts) = state.lens.get(first..end) else {
            bail!(
                "{}: slots {first} to {end} requested, but the state has {}",
                self.spec.family,
                state.lens.len()
            )
        };
        // Rows of one batch take their angles from one table.
        let last = starts.iter().map(|start| start + t).max().unwrap_or(0);
        let one_kind = |rotary: &Rotary| {
            let same = |end: usize| end == 0 || rotary.kind(end) == rotary.kind(last);
            starts.iter().all(|start| same(*start) && same(start + t))
        };
        if !self.spec.rotaries.iter().all(one_kind) {
            bail!(
                "{}: sequences of {starts:?} positions and {t} more have different rotations, which one batch cannot have; run them one by one",
                self.spec.family
            )
        }
        self.check_counts([b, t], counts, starts, state)
    }

    /// As [`check_rows`](Self::check_rows), of rows that begin at `starts`.
    fn check_counts(
        &self,
        [b, t]: [usize; 2],
        counts: &[usize],
        starts: &[usize],
        state: &DecoderState,
    ) -> Result<()> {
        let all_zero = counts.iter().all(|count| *count == 0);
        if counts.len() != b || all_zero || counts.iter().any(|count| *count > t) {
            bail!(
                "{}: counts {counts:?} for a batch of {b} rows of {t}: each must be from 0 to {t}, and one at least 1",
                self.spec.family
            )
        }
        let longest = starts.iter().copied().max().unwrap_or(0);
        self.check_call(t, longest, state)
    }
}
