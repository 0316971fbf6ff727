//! One decoder for all families: embeddings, layers, a norm, logits.

mod cached;
mod causal_lm;
mod growth;
mod hidden;
mod layer;
mod offload;
mod pages;
mod recorded;
mod recorded_slots;
mod seen;
mod share;
mod shells;
mod shifts;
mod slots;
mod spec;
mod state;
mod streamed;

pub use cached::{CachedLm, SequenceCache};
pub use causal_lm::CausalLm;
pub use growth::QueryGrowth;
pub use hidden::Hidden;
pub use layer::{Layer, LayerState, Mixer};
pub use offload::{DecoderPart, Offload, Placement};
pub use seen::{Sees, Vectors};
pub use shells::{DecoderConfig, GgufFamily, GgufLm, HiddenLm, Lm, NextLm};
pub(crate) use spec::check_layers;
pub use spec::{layers, DecoderSpec, Head, LayerSpec, MixerSpec, Wiring};
pub use state::DecoderState;
pub use streamed::Reread;

use std::sync::Arc;

use candle_core::distributed::Communicator;
use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{Init, VarBuilder};

use self::offload::MovedStep;
use self::seen::How;
use self::streamed::Copies;
use super::weights::{at_once, TokenEmbedding, WeightSource, Weights};
use super::{Norm, Projection, Residual, Rotary, RotaryPairs, RotaryTables, Rows};

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
    /// The weights, for prompts that all layers read on one device.
    streamed: Option<Arc<dyn Reread>>,
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
            streamed: None,
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
        let mut copies = self.copies(&xs, step)?;
        let forward = |from: usize,
                       states: &mut [LayerState],
                       deep: &[Tensor],
                       xs,
                       step: &Step,
                       copies: &mut Option<Copies>| {
            let mut deep = deep.iter();
            let mut xs = Residual::new(xs);
            let mut before = None;
            for ((i, layer), state) in self.layers.iter().enumerate().skip(from).zip(states) {
                let whole = match copies {
                    Some(copies) if layer.is_parted() => Some(copies.layer(i)?),
                    _ => None,
                };
                drop(before.take());
                let layer = whole.as_ref().unwrap_or(layer);
                xs = layer.forward(xs, step, use_cache.then_some(state))?;
                if let Some(deep) = deep.next() {
                    xs = xs.plus_moved(deep)?;
                }
                before = whole;
            }
            Ok::<_, candle_core::Error>(xs)
        };
        let xs = match self.elsewhere() {
            0 => forward(0, &mut state.layers, deep, xs, step, &mut copies)?,
            count => {
                let (first_states, states) = state.layers.split_at_mut(count);
                let (first_deep, deep) = deep.split_at(count.min(deep.len()));
                let here = self.placement();
                let moved = MovedStep::new(step, &here)?;
                let xs = match &mut copies {
                    Some(copies) if self.spec.can_stream(count) => {
                        let (xs, there) = (here.moved(&xs)?, moved.step());
                        let first = (first_deep, first_states);
                        self.run_streamed(copies, xs, &there, step.rows, first, use_cache)?
                    }
                    _ => {
                        let xs = forward(0, first_states, first_deep, xs, step, &mut None)?;
                        here.moved(&xs.normed(None)?.1)?
                    }
                };
                forward(count, states, deep, xs, &moved.step(), &mut copies)?
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

#[cfg(feature = "cuda")]
impl RotaryRows {
    /// The model's rotary tables of at least the first `end` positions. A recording holds those that it reads: a longer sequence replaces the
    /// tables of all states.
    fn tables(state: &mut DecoderState, end: usize) -> Result<Vec<Self>> {
        rotations(state, |tables| tables.until(end))
    }

    /// Of tables, the rows of `positions`, `(b, t)` u32 on their device.
    fn at(&self, positions: &Tensor) -> Result<Self> {
        let (b, t) = positions.dims2()?;
        let positions = positions.flatten_all()?;
        let rows = |table: &Tensor| table.index_select(&positions, 0)?.reshape((b, t, ()));
        Ok(Self {
            cos: rows(&self.cos)?,
            sin: rows(&self.sin)?,
            pairs: self.pairs,
        })
    }
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
