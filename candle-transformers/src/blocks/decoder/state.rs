//! What a sequence, or each slot, keeps between steps.

use candle_core::{bail, DType, Device, Result, Tensor};

use super::pages::SlotPages;
use super::recorded::RecordedSteps;
use super::recorded_slots::RecordedSlots;
use super::shifts::Shifts;
use super::{rotary_tables, DecoderSpec, LayerSpec, LayerState};
use crate::blocks::{Position, RotaryTables};

/// The per-sequence state between steps, such as keys and values. A clone is independent: appending to one does not change the other.
#[derive(Debug, Clone)]
pub struct DecoderState {
    /// Whether a state is kept. Otherwise every call needs the whole sequence.
    pub use_cache: bool,
    pub(super) layers: Vec<LayerState>,
    pub(super) rotaries: Vec<RotaryTables>,
    /// Tokens of each sequence of a batch, if they differ.
    pub(super) lens: Vec<usize>,
    /// Of the sequence, or of each slot, where positions are not the indices of tokens.
    pub(super) shifts: Vec<Shifts>,
    /// The pages of each slot, if slots have pages.
    pub(super) pages: Option<SlotPages>,
    /// Steps that the device has recorded.
    pub(super) recorded: RecordedSteps,
    /// The same of steps in slots.
    pub(super) slots: RecordedSlots,
    /// What went into the layers so far, where angles depend on the length of the sequence: it is run again when they change.
    pub(super) inputs: Vec<Tensor>,
}

impl DecoderState {
    /// An empty state for a model of `spec` whose activations are of `dtype`. Memory is taken as the sequence grows.
    pub fn new(spec: &DecoderSpec, dtype: DType, device: &Device) -> Self {
        Self::with_tables(spec, rotary_tables(spec, dtype, device))
    }

    /// As [`new`](Self::new), with tables that other states have as well.
    pub(super) fn with_tables(spec: &DecoderSpec, rotaries: Vec<RotaryTables>) -> Self {
        let state = |layer: &LayerSpec| LayerState::new(&layer.mixer, spec.positions);
        Self {
            use_cache: true,
            layers: spec.layers.iter().map(state).collect(),
            rotaries,
            lens: Vec::new(),
            shifts: vec![Shifts::default()],
            pages: None,
            recorded: RecordedSteps::default(),
            slots: RecordedSlots::default(),
            inputs: Vec::new(),
        }
    }

    /// Keeps keys and values as `dtype`; `None` is the activations' dtype. For an empty state, or after a reset.
    pub(super) fn set_kv_dtype(&mut self, dtype: Option<DType>) {
        for layer in &mut self.layers {
            layer.set_kv_dtype(dtype);
        }
    }

    /// Number of positions added since the last reset.
    pub fn seen(&self) -> usize {
        self.layers.first().map_or(0, LayerState::seen)
    }

    /// The state of a layer, if there is such a layer.
    pub fn layer_mut(&mut self, layer: usize) -> Option<&mut LayerState> {
        self.layers.get_mut(layer)
    }

    /// Replaces the cosines and sines of the first positions by those of a file, `(positions, frequencies)` each, for the model's
    /// rotation of this number.
    pub fn set_rotary(&mut self, rotation: usize, cos: Tensor, sin: Tensor) {
        if let Some(tables) = self.rotaries.get_mut(rotation) {
            tables.set(cos, sin);
        }
    }

    /// Number of positions of each sequence of a batch, or of each slot.
    pub fn lens(&self) -> &[usize] {
        &self.lens
    }

    /// Forgets the positions after the first `len`. False, and nothing changes, where a layer cannot: one of a recurrence or a
    /// convolution, or one whose window no longer holds what the next position sees.
    ///
    /// # Errors
    /// If a cache has no buffer for what it holds.
    pub fn truncate(&mut self, len: usize) -> Result<bool> {
        let done = LayerState::truncate(&mut self.layers, len)?;
        if done {
            self.shifts.iter_mut().for_each(|shifts| shifts.cut(len));
        }
        Ok(done)
    }

    /// Keeps the first `len` positions of a slot, so that a sequence can continue from there; 0 starts a new sequence.
    ///
    /// # Errors
    /// If the slot does not exist, has fewer positions, or has a layer other than attention, which can only forget all of them.
    pub fn cut_slot(&mut self, slot: usize, len: usize) -> Result<()> {
        let rewinds = self.layers.iter().all(LayerState::has_positions);
        match self.lens.get_mut(slot) {
            Some(held) if !rewinds && len > 0 && len < *held => bail!(
                "cannot truncate slot {slot} to {len} of its {held} positions: layers other than attention can only forget all of them"
            ),
            Some(held) if len <= *held => {
                *held = len;
                self.cut_shifts(slot, len);
            }
            found => bail!("cannot truncate slot {slot} to {len} positions; it has {found:?}"),
        }
        Ok(())
    }

    /// Replaces the contents of slot `to` by the first `len` positions of slot `from`.
    ///
    /// # Errors
    /// If one of them does not exist, or `from` has fewer positions.
    pub fn copy_slot(&mut self, from: usize, to: usize, len: usize) -> Result<()> {
        let slots = self.lens.len();
        if self.pages.is_some() {
            bail!("cannot copy a slot that has pages; set_pages shares them")
        }
        if from >= slots || to >= slots || self.lens[from] < len {
            bail!(
                "cannot copy {len} positions of slot {from} to slot {to}; the slots have {:?}",
                self.lens
            )
        }
        for layer in &mut self.layers {
            layer.copy_sequence(from, to, len)?;
        }
        self.lens[to] = len;
        if let (Some(mut shifts), Some(slot)) =
            (self.shifts.get(from).cloned(), self.shifts.get_mut(to))
        {
            shifts.cut(len);
            *slot = shifts;
        }
        Ok(())
    }

    /// The position of a sequence's next token, which has the index `token`.
    pub(super) fn position(&self, sequence: usize, token: usize) -> usize {
        let shifts = self.shifts.get(sequence);
        shifts.map_or(token, |shifts| shifts.position(token))
    }

    pub(super) fn cut_shifts(&mut self, sequence: usize, len: usize) {
        if let Some(shifts) = self.shifts.get_mut(sequence) {
            shifts.cut(len);
        }
    }

    pub(super) fn add_positions(&mut self, sequence: usize, first: usize, positions: &[Position]) {
        if let Some(shifts) = self.shifts.get_mut(sequence) {
            shifts.add(first, positions);
        }
    }

    /// Whether positions are not the indices of tokens.
    #[cfg(feature = "cuda")]
    pub(super) fn is_shifted(&self) -> bool {
        self.shifts.iter().any(|shifts| !shifts.is_empty())
    }

    /// Forgets the sequence, so that another can start at position 0; cheaper than a new state, since the rotary tables stay.
    pub fn reset(&mut self) {
        self.layers.iter_mut().for_each(LayerState::reset);
        self.lens.clear();
        self.shifts = vec![Shifts::default()];
        self.pages = None;
        self.inputs.clear();
        self.recorded = RecordedSteps::default();
        self.slots = RecordedSlots::default();
    }
}
