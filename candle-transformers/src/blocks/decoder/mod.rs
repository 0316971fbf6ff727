//! One decoder for all families: embeddings, layers, a norm, logits.

mod cached;
mod causal_lm;
mod growth;
mod layer;
mod offload;
mod pages;
mod recorded;
mod recorded_slots;
mod seen;
mod share;
mod shells;
mod shifts;
mod spec;

pub use cached::{CachedLm, SequenceCache};
pub use causal_lm::CausalLm;
pub use growth::QueryGrowth;
pub use layer::{Layer, LayerState, Mixer};
pub use offload::{DecoderPart, Offload, Placement};
pub use seen::{Sees, Vectors};
pub use shells::{DecoderConfig, GgufFamily, GgufLm, HiddenLm, Lm, NextLm};
pub(crate) use spec::check_layers;
pub use spec::{layers, DecoderSpec, Head, LayerSpec, MixerSpec, Wiring};

use std::sync::Arc;

use candle_core::distributed::Communicator;
use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use self::offload::MovedStep;
use self::pages::SlotPages;
use self::recorded::RecordedSteps;
use self::recorded_slots::RecordedSlots;
use self::seen::{How, SlotInput};
use self::shifts::Shifts;
use super::weights::{at_once, TokenEmbedding, WeightSource, Weights};
use super::{Norm, Part, Position, Projection, Residual, Rotary, RotaryPairs, RotaryTables, Rows};

/// The arguments of one call for its layers.
#[derive(Debug)]
pub struct Step<'a> {
    /// The rotary rows of the call's positions, by the model's rotations.
    pub rotations: Vec<RotaryRows>,
    /// Replaces causal visibility: added to the scores; it broadcasts to `(b, heads, t, positions)`.
    pub mask: Option<&'a Tensor>,
    /// With a mask: whether windows still count, as far to both sides.
    pub windows: bool,
    /// The positions of a batch's sequences, if they differ.
    pub rows: Option<&'a Rows>,
    /// The factors of queries, `(b, 1, t, 1)` or `(1, 1, t, 1)`.
    pub growth: Option<Tensor>,
}

/// The rotary rows of positions.
#[derive(Debug, Clone)]
pub struct RotaryRows {
    /// `(t, frequencies)`, or `(b, t, frequencies)`.
    pub cos: Tensor,
    /// `(t, frequencies)`, or `(b, t, frequencies)`.
    pub sin: Tensor,
    /// The pairs of a head's elements that are rotated together.
    pub pairs: RotaryPairs,
}

/// The per-sequence state between steps, such as keys and values. A clone is independent: appending to one does not change the other.
#[derive(Debug, Clone)]
pub struct DecoderState {
    /// Whether a state is kept. Otherwise every call needs the whole sequence.
    pub use_cache: bool,
    layers: Vec<LayerState>,
    rotaries: Vec<RotaryTables>,
    /// Tokens of each sequence of a batch, if they differ.
    lens: Vec<usize>,
    /// Of the sequence, or of each slot, where positions are not the indices of tokens.
    shifts: Vec<Shifts>,
    /// The pages of each slot, if slots have pages.
    pages: Option<SlotPages>,
    /// Steps that the device has recorded.
    recorded: RecordedSteps,
    /// The same of steps in slots.
    slots: RecordedSlots,
    /// What went into the layers so far, where angles depend on the length of the sequence: it is run again when they change.
    inputs: Vec<Tensor>,
}

impl DecoderState {
    /// An empty state for a model of `spec` whose activations are of `dtype`. Memory is taken as the sequence grows.
    pub fn new(spec: &DecoderSpec, dtype: DType, device: &Device) -> Self {
        Self::with_tables(spec, rotary_tables(spec, dtype, device))
    }

    /// As [`new`](Self::new), with tables that other states have as well.
    fn with_tables(spec: &DecoderSpec, rotaries: Vec<RotaryTables>) -> Self {
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
    fn set_kv_dtype(&mut self, dtype: Option<DType>) {
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
    /// If the slot does not exist, or has fewer positions.
    pub fn cut_slot(&mut self, slot: usize, len: usize) -> Result<()> {
        match self.lens.get_mut(slot) {
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
    fn position(&self, sequence: usize, token: usize) -> usize {
        let shifts = self.shifts.get(sequence);
        shifts.map_or(token, |shifts| shifts.position(token))
    }

    fn cut_shifts(&mut self, sequence: usize, len: usize) {
        if let Some(shifts) = self.shifts.get_mut(sequence) {
            shifts.cut(len);
        }
    }

    fn add_positions(&mut self, sequence: usize, first: usize, positions: &[Position]) {
        if let Some(shifts) = self.shifts.get_mut(sequence) {
            shifts.add(first, positions);
        }
    }

    /// Whether positions are not the indices of tokens.
    #[cfg(feature = "cuda")]
    fn is_shifted(&self) -> bool {
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

/// The tables of a model's rotations.
fn rotary_tables(spec: &DecoderSpec, dtype: DType, device: &Device) -> Vec<RotaryTables> {
    let tables = |rotary| RotaryTables::new(rotary, spec.positions, dtype, device);
    spec.rotaries.iter().map(tables).collect()
}

/// A decoder with its weights.
#[derive(Debug, Clone)]
pub struct Decoder {
    spec: DecoderSpec,
    /// For all states: made once, not by each sequence.
    rotaries: Vec<RotaryTables>,
    embedding: TokenEmbedding,
    positions: Option<Tensor>,
    layers: Vec<Layer>,
    norm: Norm,
    head: Option<Projection>,
    /// The ranks that each have a part of the logits.
    logits_group: Option<Arc<dyn Communicator>>,
    dtype: DType,
    /// The dtype of cached keys and values, if it is not `dtype`.
    kv_dtype: Option<DType>,
    device: Device,
    /// The parts that are on another device.
    offload: Option<Offload>,
    /// Clones have the same weights.
    #[cfg(feature = "cuda")]
    identity: Arc<()>,
}

impl Decoder {
    /// Loads the weights from a source that has them at once.
    ///
    /// # Errors
    /// If the specification contradicts itself, or a weight is missing or has another shape.
    pub fn load(
        spec: DecoderSpec,
        source: &mut dyn WeightSource,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        at_once(Self::load_async(spec, source, dtype, device))
    }

    /// The decoder of `spec` with the weights of `vb`, in its dtype and on its device.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_vb(spec: DecoderSpec, mut vb: VarBuilder) -> Result<Self> {
        let (dtype, device) = (vb.dtype(), vb.device().clone());
        Self::load(spec, &mut vb, dtype, &device)
    }

    /// As [`load`](Self::load), from a source that may have to be waited for. Names and shapes are checked before anything is read.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub async fn load_async(
        spec: DecoderSpec,
        source: &mut dyn WeightSource,
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        spec.check()?;
        Self::parts(spec.clone(), &mut Weights::check(&mut *source)).await?;
        Self::parts(spec, &mut Weights::new(source, dtype, device)).await
    }

    /// As [`load`](Self::load), with some parts on another device. Token ids may be on either; logits are on `device`.
    ///
    /// # Errors
    /// As [`load`](Self::load); if the model has fewer layers.
    pub fn load_offloaded(
        spec: DecoderSpec,
        source: &mut dyn WeightSource,
        dtype: DType,
        device: &Device,
        offload: Offload,
    ) -> Result<Self> {
        spec.check()?;
        offload.check(&spec)?;
        at_once(async {
            Self::parts(spec.clone(), &mut Weights::check(&mut *source)).await?;
            let weights = Weights::new(source, dtype, device);
            Self::parts(spec, &mut weights.offloading(Some(offload))).await
        })
    }

    /// Checks that all weights exist with their shapes; returns their names.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn check_weights(spec: DecoderSpec, source: &mut dyn WeightSource) -> Result<Vec<String>> {
        let parts = Self::weights_of_parts(spec, source)?;
        Ok(parts.into_iter().map(|(_, name)| name).collect())
    }

    /// As [`check_weights`](Self::check_weights), each with the part of the decoder that it belongs to.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn weights_of_parts(
        spec: DecoderSpec,
        source: &mut dyn WeightSource,
    ) -> Result<Vec<(DecoderPart, String)>> {
        spec.check()?;
        let mut weights = Weights::check(source);
        at_once(Self::parts(spec, &mut weights))?;
        Ok(weights.into_parts())
    }

    async fn parts(spec: DecoderSpec, weights: &mut Weights<'_>) -> Result<Self> {
        let mut spec = spec.named(weights);
        let names = spec.names;
        let (vocab, hidden) = (spec.vocab, spec.hidden);
        weights.enter(DecoderPart::Embedding);
        let input = (weights.dtype(), weights.device().clone());
        let embedding = share::table_name(&spec, weights);
        let embedding = weights.embedding(&embedding, vocab, hidden).await?;
        let positions = match spec.learned_positions {
            Some(rows) => {
                let name = format!("{}.weight", names.positions);
                let init = Init::Randn {
                    mean: 0.,
                    stdev: 0.02,
                };
                Some(weights.dense(&name, &[rows, hidden], init).await?)
            }
            None => None,
        };
        weights.set_transposed(spec.transposed);
        weights.set_factors(&spec.factors);
        let mut layers = Vec::with_capacity(spec.layers.len());
        for (i, layer) in spec.layers.iter().enumerate() {
            weights.enter(DecoderPart::Layer(i));
            layers.push(Layer::load(layer, hidden, weights, &names, &names.layer(i)).await?);
        }
        weights.enter(DecoderPart::Head);
        weights.set_transposed(false);
        weights.set_factors(&[]);
        let after = |name| names.after(spec.layers.len(), name);
        let norm = after(names.final_norm);
        let norm = weights.norm(&norm, hidden, spec.final_norm).await?;
        let head_name = after(names.head);
        let (head, logits_group) = share::head(&spec, head_name, &embedding, weights).await?;
        let [short, long] = names.rope_factors_long;
        if !long.is_empty() && weights.has(long) {
            for rotary in &mut spec.rotaries {
                let pairs = rotary.frequencies.len();
                let [short, long] = [
                    weights.host(short, pairs).await?,
                    weights.host(long, pairs).await?,
                ];
                rotary.divide_by_length(&short, &long);
            }
        }
        let factors = format!("{}.weight", names.rope_factors);
        if !names.rope_factors.is_empty() && weights.has(&factors) {
            for rotary in &mut spec.rotaries {
                let factors = weights.host(&factors, rotary.frequencies.len()).await?;
                rotary.divide(&factors);
            }
        }
        Ok(Self {
            rotaries: rotary_tables(&spec, input.0, &input.1),
            spec,
            embedding,
            positions,
            layers,
            norm,
            head,
            logits_group,
            dtype: weights.dtype(),
            kv_dtype: None,
            device: weights.device().clone(),
            offload: weights.offload().cloned(),
            #[cfg(feature = "cuda")]
            identity: Arc::default(),
        })
    }

    /// The specification of the model.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// The table of tokens.
    pub fn embedding(&self) -> &TokenEmbedding {
        &self.embedding
    }

    /// The dtype of activations.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The dtype in which keys and values are kept.
    pub fn kv_dtype(&self) -> DType {
        self.kv_dtype.unwrap_or(self.dtype)
    }

    /// The decoder with states that store keys and values as `dtype`: half the memory and half the reading for f16 with activations of f32,
    /// and keys that a GPU's f16 matrices take. Stored values are rounded; a number beyond f16's 65,504 becomes infinite. Layers with
    /// another state ([`MixerSpec::Latent`], convolutions, recurrences) store it as before.
    ///
    /// # Errors
    /// If attention does not take keys of `dtype` with these activations: it takes those of the same dtype, f16 and bf16 with f32, and f16
    /// with bf16.
    pub fn with_kv_dtype(mut self, dtype: DType) -> Result<Self> {
        match (self.dtype, dtype) {
            (activations, kv) if activations == kv => {}
            (DType::F32, DType::F16 | DType::BF16) | (DType::BF16, DType::F16) => {}
            (activations, kv) => bail!(
                "{}: keys and values of {} do not go with activations of {} on {:?}: attention supports equal dtypes, f16 or bf16 \
                 with f32, and f16 with bf16",
                self.spec.family,
                kv.as_str(),
                activations.as_str(),
                self.device.location()
            ),
        }
        self.kv_dtype = (dtype != self.dtype).then_some(dtype);
        Ok(self)
    }

    /// The device of the weights, and of logits; with [`offload`](Self::offload), that of the output layer.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The parts that are on another device, if there are any.
    pub fn offload(&self) -> Option<&Offload> {
        self.offload.as_ref()
    }

    /// The device of the first layer, if it is not [`device`](Self::device).
    fn input(&self) -> Option<&Placement> {
        let offload = self.offload.as_ref()?;
        (offload.layers > 0).then_some(&offload.to)
    }

    /// The device of the first layer, with the dtype of its activations.
    fn input_place(&self) -> (&Device, DType) {
        self.input()
            .map_or((&self.device, self.dtype), |to| (&to.device, to.dtype))
    }

    /// An empty state.
    pub fn new_state(&self) -> DecoderState {
        let mut state = DecoderState::with_tables(&self.spec, self.rotaries.clone());
        state.set_kv_dtype(self.kv_dtype);
        state
    }

    /// An empty state for `count` sequences that come and go, each in a slot: [`forward_slots`](Self::forward_slots).
    ///
    /// # Errors
    /// If a layer is not attention to keys and values: its state has no positions that could be of different sequences.
    pub fn new_slots(&self, count: usize) -> Result<DecoderState> {
        let is_attention = |layer: &LayerSpec| matches!(layer.mixer, MixerSpec::Attention(_));
        if !self.spec.layers.iter().all(is_attention) {
            bail!(
                "{}: not all layers are attention layers, so sequences cannot share a state; run them one by one",
                self.spec.family
            )
        }
        let mut state = self.new_state();
        state.lens = vec![0; count];
        state.shifts = vec![Shifts::default(); count];
        Ok(state)
    }

    /// The number of positions that a sequence in a slot may have: those of the model, or those before its rotation depends on the length of
    /// the sequence (LongRoPE and dynamic scaling). Beyond these a sequence runs alone, with [`forward`](Self::forward).
    pub fn slot_positions(&self) -> usize {
        let rotaries = self.spec.rotaries.iter().map(Rotary::positions_of_one_kind);
        rotaries.fold(self.spec.positions, usize::min)
    }

    /// The embeddings of token ids, `(b, t)`: `(b, t, hidden_size)`, scaled as the model asks for.
    ///
    /// # Errors
    /// If the ids are not of an integer dtype, or one is outside the vocabulary (where the device can tell).
    pub fn embed(&self, ids: &Tensor) -> Result<Tensor> {
        let xs = match self.offload {
            Some(_) => {
                let ids = ids.to_device(self.input_place().0)?;
                self.embedding.forward(&ids)?
            }
            None => self.embedding.forward(ids)?,
        };
        match self.spec.embedding_scale {
            Some(scale) => xs * scale,
            None => Ok(xs),
        }
    }

    /// Runs the layers on token ids, `(b, t)`, at the positions `offset .. offset + t`. With a cache they continue what `state` holds;
    /// without, they have to be the whole sequence, and `offset` 0.
    ///
    /// # Errors
    /// If there are no ids, or more than fit below the model's positions: before any work is queued. If `state` was made for another
    /// model, dtype or device.
    pub fn forward(
        &self,
        ids: &Tensor,
        offset: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let (_, t) = ids.dims2()?;
        self.check_call(t, offset, state)?;
        self.forward_embeds(&self.embed(ids)?, offset, state, None)
    }

    /// As [`forward`](Self::forward), from embeddings `(b, t, hidden_size)` instead of token ids. `mask` replaces causal visibility: it is
    /// added to the scores, to which it broadcasts, `(b, heads, t, positions)`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn forward_embeds(
        &self,
        embeds: &Tensor,
        offset: usize,
        state: &mut DecoderState,
        mask: Option<&Tensor>,
    ) -> Result<Hidden<'_>> {
        let how = How {
            mask,
            ..How::default()
        };
        self.run_embeds(embeds, offset, state, how)
    }

    /// As [`forward_embeds`](Self::forward_embeds), in all its forms.
    fn run_embeds(
        &self,
        embeds: &Tensor,
        offset: usize,
        state: &mut DecoderState,
        how: How<'_>,
    ) -> Result<Hidden<'_>> {
        let How { mask, windows, .. } = how;
        let (b, t, _) = embeds.dims3()?;
        self.check_call(t, offset, state)?;
        if self.layers.iter().any(Layer::is_share) && mask.is_some_and(by_head) {
            bail!(
                "{}: a per-head mask is not supported on a rank that has only some of the heads",
                self.spec.family
            )
        }
        let moved = |xs: &Tensor| match self.input() {
            Some(to) => to.moved(xs),
            None => Ok(xs.clone()),
        };
        let (embeds, mask) = (moved(embeds)?, mask.map(moved).transpose()?);
        let mask = mask.as_ref();
        let xs = match &self.positions {
            Some(table) => embeds.broadcast_add(&table.narrow(0, offset, t)?)?,
            None => embeds,
        };
        let (mut xs, mut start) = (xs, offset);
        if state.use_cache && self.spec.rotaries.iter().any(Rotary::by_length) {
            // A caller may have gone back.
            cut(&mut state.inputs, offset)?;
            let changed = |rotary: &Rotary| rotary.kind(offset) != rotary.kind(offset + t);
            if offset > 0 && self.spec.rotaries.iter().any(changed) {
                let seen: usize = state.inputs.iter().map(|xs| xs.dims()[1]).sum();
                if seen != offset || mask.is_some() {
                    bail!(
                        "{}: at {} positions the rotation of all of the sequence changes, so it has to be run again; that takes all of its \
                         tokens ({seen} of {offset} are known) and no mask",
                        self.spec.family,
                        offset + t
                    )
                }
                let mut parts = std::mem::take(&mut state.inputs);
                parts.push(xs);
                xs = Tensor::cat(&parts, 1)?;
                start = 0;
                state.reset();
            }
            let end = offset + t;
            let may_change = |rotary: &Rotary| rotary.by_length() && !rotary.is_settled(end);
            if self.spec.rotaries.iter().any(may_change) {
                state.inputs.push(xs.clone())
            } else {
                state.inputs.clear()
            }
        }
        let len = xs.dim(1)?;
        // A caller may have gone back.
        state.cut_shifts(0, offset);
        let rotations = match how.positions {
            Some(positions) => self.rows_on_axes(positions, [b, t], state)?,
            None => {
                let first = state.position(0, start);
                rotations(state, |tables| tables.rows(first, len))?
            }
        };
        let step = Step {
            rotations,
            mask,
            windows,
            rows: None,
            growth: self.growth(&[start], len)?,
        };
        let hidden = self.run(xs, &step, how.deep, state)?;
        if let (Some(positions), true) = (how.positions, state.use_cache) {
            state.add_positions(0, offset, positions);
        }
        match start == offset {
            true => Ok(hidden),
            false => hidden.of_last(t),
        }
    }

    /// Runs the layers as an encoder on whole texts: token ids, `(b, t)`. Each sees all tokens of its row for which `counts`, integers of
    /// the same shape, is not 0, including later ones. In layers with a window of `w` it sees those at a distance less than `w` on both
    /// sides. Outputs at positions with a count of 0 are unspecified.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); if the shapes differ, or a layer is not attention to keys.
    pub fn encode(&self, ids: &Tensor, counts: &Tensor) -> Result<Hidden<'_>> {
        let family = self.spec.family;
        if counts.dims() != ids.dims() {
            bail!(
                "{family}: the mask is {:?} and the ids are {:?}; they must have one shape",
                counts.dims(),
                ids.dims()
            )
        }
        let is_attention = |layer: &LayerSpec| matches!(layer.mixer, MixerSpec::Attention(_));
        if !self.spec.layers.iter().all(is_attention) || self.positions.is_some() {
            bail!("{family}: cannot run as an encoder: not all of its layers are attention layers with positions")
        }
        let (_, t) = ids.dims2()?;
        let mut state = self.new_state();
        state.use_cache = false;
        self.check_call(t, 0, &state)?;
        let xs = self.embed(ids)?;
        let mask = keys_that_count(&counts.to_device(xs.device())?, xs.dtype())?;
        let step = Step {
            rotations: rotations(&mut state, |tables| tables.rows(0, t))?,
            mask: Some(&mask),
            windows: true,
            rows: None,
            growth: self.growth(&[0], t)?,
        };
        self.run(xs, &step, &[], &mut state)
    }

    /// Runs the layers on a batch of sequences that need not be of one length: row `i` of the token ids, `(b, t)`, has `counts[i]` tokens,
    /// which follow those that the row had before; what comes after them counts for nothing. Rows of an empty state begin at position 0.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); if there is not one count for each row, or one is 0 or more than `t`.
    pub fn forward_rows(
        &self,
        ids: &Tensor,
        counts: &[usize],
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let (b, _) = ids.dims2()?;
        state.lens.resize(b, 0);
        self.forward_slots(ids, counts, 0, state)
    }

    /// As [`forward_rows`](Self::forward_rows), with the sequences of the slots `first .. first + b` of a state of
    /// [`new_slots`](Self::new_slots); the others are left as they are.
    ///
    /// # Errors
    /// As [`forward_rows`](Self::forward_rows); if there are not as many slots.
    pub fn forward_slots(
        &self,
        ids: &Tensor,
        counts: &[usize],
        first: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        self.run_slots(SlotInput::Ids(ids), counts, first, state)
    }

    fn run_slots(
        &self,
        input: SlotInput<'_>,
        counts: &[usize],
        first: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let (b, t) = input.rows()?;
        let of = state.lens.len();
        let Some(starts) = state.lens.get(first..first.saturating_add(b)) else {
            bail!(
                "{}: slots {first} to {} requested, but the state has {of}",
                self.spec.family,
                first.saturating_add(b)
            )
        };
        let starts = starts.to_vec();
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
        let longest = self.check_slots([b, t], counts, &starts, state)?;
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
            part: Some(Part { first, of }),
            pages: match &state.pages {
                Some(pages) => Some(pages.rows(first, &starts, t, xs.device())?),
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
            .map(|(row, count)| (row * t + count - 1) as u32);
        let last = Tensor::from_iter(last, &self.device)?;
        let logits = hidden.of_tokens(&last)?.logits()?;
        logits.reshape((b, ()))?.to_dtype(DType::F32)
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last token of each row; see [`forward_rows`](Self::forward_rows).
    ///
    /// # Errors
    /// As [`forward_rows`](Self::forward_rows).
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

    /// The factors of queries of `t` positions from each of `starts` on.
    fn growth(&self, starts: &[usize], t: usize) -> Result<Option<Tensor>> {
        let Some(growth) = self.spec.query_growth else {
            return Ok(None);
        };
        let end = starts.iter().max().map_or(0, |start| start + t);
        let starts = starts.iter().map(|start| *start as u32);
        let (device, dtype) = self.input_place();
        let starts = Tensor::from_iter(starts, device)?;
        growth.factors(&starts, t, end, dtype)
    }

    /// Runs all layers. `deep` is added to the stream after each of the first ones.
    fn run(
        &self,
        xs: Tensor,
        step: &Step,
        deep: &[Tensor],
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        if deep.len() > self.layers.len() {
            bail!(
                "{}: vectors for {} layers, but the model has {}",
                self.spec.family,
                deep.len(),
                self.layers.len()
            )
        }
        let use_cache = state.use_cache;
        let forward =
            |layers: &[Layer], states: &mut [LayerState], deep: &[Tensor], xs, step: &Step| {
                let mut deep = deep.iter();
                let mut xs = Residual::new(xs);
                for (layer, state) in layers.iter().zip(states) {
                    xs = layer.forward(xs, step, use_cache.then_some(state))?;
                    if let Some(deep) = deep.next() {
                        xs = xs.plus_moved(deep)?;
                    }
                }
                Ok::<_, candle_core::Error>(xs)
            };
        let elsewhere = self.offload.as_ref().map_or(0, |offload| offload.layers);
        let xs = match elsewhere {
            0 => forward(&self.layers, &mut state.layers, deep, xs, step)?,
            count => {
                let (first, rest) = self.layers.split_at(count);
                let (first_states, states) = state.layers.split_at_mut(count);
                let (first_deep, deep) = deep.split_at(count.min(deep.len()));
                let xs = forward(first, first_states, first_deep, xs, step)?;
                let xs = xs.normed(None)?.1;
                let here = Placement {
                    device: self.device.clone(),
                    dtype: self.dtype,
                };
                let step = MovedStep::new(step, &here)?;
                forward(rest, states, deep, here.moved(&xs)?, &step.step())?
            }
        };
        Ok(Hidden { decoder: self, xs })
    }

    /// The logits, `(b, vocab)` in f32, of what follows the last of the token ids; the rest as in [`forward`](Self::forward).
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn next_logits(
        &self,
        ids: &Tensor,
        offset: usize,
        state: &mut DecoderState,
    ) -> Result<Tensor> {
        let logits = self.forward(ids, offset, state)?.last_logits()?;
        logits.squeeze(1)?.to_dtype(DType::F32)
    }

    /// Checks a call with rows of different lengths, all of the state's; where the longest of them begins.
    pub(crate) fn check_rows(
        &self,
        [b, t]: [usize; 2],
        counts: &[usize],
        state: &DecoderState,
    ) -> Result<usize> {
        let starts = &state.lens[..b.min(state.lens.len())];
        self.check_slots([b, t], counts, starts, state)
    }

    /// As [`check_rows`](Self::check_rows), of rows that begin at `starts`.
    fn check_slots(
        &self,
        [b, t]: [usize; 2],
        counts: &[usize],
        starts: &[usize],
        state: &DecoderState,
    ) -> Result<usize> {
        if counts.len() != b || counts.iter().any(|count| !(1..=t).contains(count)) {
            bail!(
                "{}: counts {counts:?} for a batch of {b} rows of {t}: each must be from 1 to {t}",
                self.spec.family
            )
        }
        let longest = starts.iter().copied().max().unwrap_or(0);
        self.check_call(t, longest, state)?;
        Ok(longest)
    }

    pub(crate) fn check_call(&self, t: usize, offset: usize, state: &DecoderState) -> Result<()> {
        let (family, limit) = (self.spec.family, self.spec.positions);
        if t == 0 {
            bail!("{family}: no tokens; at least one is required")
        }
        let end = offset.saturating_add(t);
        if end > limit {
            bail!(
                "{family}: {end} tokens ({t} from position {offset}) exceed the model's max_position_embeddings of \
                 {limit}; shorten the prompt or generate less"
            )
        }
        if state.layers.len() != self.layers.len() {
            bail!(
                "{family}: the cache has {} layers, but the model has {}",
                state.layers.len(),
                self.layers.len()
            )
        }
        Ok(())
    }
}

/// From a mask `(b, keys)` of numbers that are not 0 where a key counts, to what is added to scores: `(b, 1, 1, keys)`.
pub(crate) fn keys_that_count(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    let (b, keys) = mask.dims2()?;
    let counts = mask.ne(0u32)?;
    let zeros = Tensor::zeros((b, keys), dtype, mask.device())?;
    let hidden = Tensor::full(f32::NEG_INFINITY, (b, keys), mask.device())?.to_dtype(dtype)?;
    counts.where_cond(&zeros, &hidden)?.reshape((b, 1, 1, keys))
}

/// Whether a mask, which broadcasts to `(b, heads, t, positions)`, has something else for each head.
fn by_head(mask: &Tensor) -> bool {
    let rank = mask.rank();
    rank >= 3 && mask.dims()[rank - 3] != 1
}

/// Keeps the first `len` positions of parts `(b, t, hidden_size)`.
fn cut(parts: &mut Vec<Tensor>, len: usize) -> Result<()> {
    let mut left = len;
    let mut kept = Vec::with_capacity(parts.len());
    for part in parts.drain(..) {
        let take = part.dims()[1].min(left);
        if take > 0 {
            kept.push(part.narrow(1, 0, take)?);
        }
        left -= take;
    }
    *parts = kept;
    Ok(())
}

/// The rows that `rows` takes from each of the model's rotary tables.
fn rotations(
    state: &mut DecoderState,
    rows: impl Fn(&RotaryTables) -> Result<(Tensor, Tensor)>,
) -> Result<Vec<RotaryRows>> {
    let rotation = |tables: &RotaryTables| {
        let (cos, sin) = rows(tables)?;
        let pairs = tables.rotary().pairs;
        Ok(RotaryRows { cos, sin, pairs })
    };
    state.rotaries.iter().map(rotation).collect()
}

/// The stream after the last layer.
#[derive(Debug, Clone)]
pub struct Hidden<'a> {
    decoder: &'a Decoder,
    xs: Residual,
}

impl Hidden<'_> {
    /// The stream as the last layer leaves it, `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn stream(self) -> Result<Tensor> {
        Ok(self.xs.normed(None)?.1)
    }

    /// The stream after the final norm, `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn normed(self) -> Result<Tensor> {
        Ok(self.xs.normed(Some(&self.decoder.norm))?.1)
    }

    /// The logits of every position, `(b, t, vocab)`, in the model's dtype.
    ///
    /// # Errors
    /// If the model has no output layer.
    pub fn logits(self) -> Result<Tensor> {
        let decoder = self.decoder;
        let Some(head) = &decoder.head else {
            bail!("{}: the model has no output layer", decoder.spec.family)
        };
        let (_, mut logits) = self.xs.project(Some(&decoder.norm), head)?;
        if let Some(group) = &decoder.logits_group {
            logits = group.all_gather(&logits, logits.rank() - 1)?;
        }
        if let Some(scale) = decoder.spec.logit_scale {
            logits = (logits * scale)?;
        }
        match decoder.spec.logit_softcap {
            Some(cap) => (logits / cap)?.tanh()? * cap,
            None => Ok(logits),
        }
    }

    /// The tokens of these numbers, `(n)` in u32, counted row by row: `(1, n, hidden_size)`.
    ///
    /// # Errors
    /// If there is one that is not in the stream.
    pub fn of_tokens(self, tokens: &Tensor) -> Result<Self> {
        let xs = self.xs.of_tokens(tokens)?;
        Ok(Self { xs, ..self })
    }

    /// The last `count` positions.
    fn of_last(self, count: usize) -> Result<Self> {
        let xs = self.xs.last_positions(count)?;
        Ok(Self { xs, ..self })
    }

    /// The logits of the last position, `(b, 1, vocab)`, in the model's dtype.
    ///
    /// # Errors
    /// If the device fails.
    pub fn last_logits(self) -> Result<Tensor> {
        // The norm goes row by row: only the last one is needed.
        let xs = self.xs.last_position()?;
        Self { xs, ..self }.logits()
    }
}
