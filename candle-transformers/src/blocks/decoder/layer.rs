//! A layer: what mixes positions, what follows it, and the norms and sums around both.

use std::sync::Arc;

use candle_core::distributed::Communicator;
use candle_core::{bail, DType, Module, Result, Tensor};

use super::super::weights::Weights;
use super::super::{
    Attention, Delta, FeedForward, FeedForwardSpec, GrowingKvCache, Latent, MixerState, Names,
    Norm, Projection, Recurrent, RecurrentState, Residual, Rows, ShortConv, StateSpace,
};
use super::spec::{LayerSpec, MixerSpec, Wiring};
use super::{Placement, Step};

/// The token mixer of a layer.
// One for each layer: a box would save nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone)]
pub enum Mixer {
    /// Causal attention.
    Attention(Attention),
    /// Causal attention to short vectors.
    Latent(Latent),
    /// A gated short convolution.
    ShortConv(ShortConv),
    /// A state of fixed size.
    Recurrent(Recurrent),
    /// The gated delta rule.
    Delta(Delta),
    /// Mamba 2's state space.
    StateSpace(StateSpace),
    /// Attention and a state space in parallel.
    Both(Attention, StateSpace),
}

/// The per-sequence state of a layer.
#[derive(Debug, Clone)]
pub enum LayerState {
    /// Keys and values.
    Attention(GrowingKvCache),
    /// Short vectors that keys and values are made from.
    Latent(GrowingKvCache),
    /// The state of a short convolution, a recurrence, the gated delta rule or a state space.
    Recurrent(MixerState),
    /// Keys and values, and the state of the state space.
    Both(GrowingKvCache, MixerState),
}

impl LayerState {
    /// An empty state for a layer, in a model of `positions` positions.
    pub(crate) fn new(mixer: &MixerSpec, positions: usize) -> Self {
        match mixer {
            MixerSpec::Attention(attention) => {
                Self::Attention(GrowingKvCache::with_window(positions, attention.window))
            }
            MixerSpec::Both(attention, _) => Self::Both(
                GrowingKvCache::with_window(positions, attention.window),
                MixerState::default(),
            ),
            MixerSpec::Latent(_) => Self::Latent(GrowingKvCache::new(positions)),
            MixerSpec::ShortConv(_)
            | MixerSpec::Recurrent(_)
            | MixerSpec::Delta(_)
            | MixerSpec::StateSpace(_) => Self::Recurrent(MixerState::default()),
        }
    }

    /// Keeps keys and values as `dtype`: [`GrowingKvCache::set_dtype`]. Other states are of the activations' dtype.
    pub(super) fn set_kv_dtype(&mut self, dtype: Option<DType>) {
        if let Self::Attention(kv) | Self::Both(kv, _) = self {
            kv.set_dtype(dtype);
        }
    }

    /// Number of positions added since the last reset.
    pub fn seen(&self) -> usize {
        match self {
            Self::Attention(kv) | Self::Latent(kv) | Self::Both(kv, _) => kv.seen(),
            Self::Recurrent(state) => state.seen(),
        }
    }

    /// Whether each position is there by itself, so that it can be forgotten.
    pub(super) fn has_positions(&self) -> bool {
        matches!(self, Self::Attention(_) | Self::Latent(_))
    }

    /// Forgets the positions after the first `len`. False, and nothing changes, if the state is one of a recurrence or a convolution, or a
    /// window no longer holds what the next position sees.
    pub(super) fn truncate(layers: &mut [Self], len: usize) -> Result<bool> {
        let can = |layer: &Self| match layer {
            Self::Attention(kv) | Self::Latent(kv) => kv.can_truncate(len),
            _ => false,
        };
        let all = layers.iter().all(can);
        for layer in layers.iter_mut().filter(|_| all) {
            if let Self::Attention(kv) | Self::Latent(kv) = layer {
                kv.truncate(len)?;
            }
        }
        Ok(all)
    }

    /// Gives the sequence `to` of a batch the first `len` positions of the sequence `from`.
    ///
    /// # Errors
    /// If the layer is not attention, there are no such sequences, or fewer positions.
    pub fn copy_sequence(&mut self, from: usize, to: usize, len: usize) -> Result<()> {
        match self {
            Self::Attention(kv) | Self::Latent(kv) => kv.copy_sequence(from, to, len),
            _ => bail!("only layers of attention support copying sequences"),
        }
    }

    /// A copy on another device, with room for `added` more positions; with `rows`, of these sequences. Keys and values are of `kv` there.
    pub(super) fn copied_to(
        &self,
        to: &Placement,
        kv: DType,
        added: usize,
        rows: Option<&Rows>,
    ) -> Result<Self> {
        let copied =
            |cache: &GrowingKvCache, dtype| cache.copied_to(&to.device, dtype, added, rows);
        Ok(match self {
            Self::Attention(cache) => Self::Attention(copied(cache, kv)?),
            Self::Latent(cache) => Self::Latent(copied(cache, to.dtype)?),
            _ => bail!("only layers of attention support a copy of their state on another device"),
        })
    }

    /// Adds the last `added` positions of such a copy, which come as activations of this placement. `rows` are those of the copy, on the host.
    pub(super) fn take_last(
        &mut self,
        from: &Self,
        added: usize,
        to: &Placement,
        rows: Option<&Rows>,
    ) -> Result<()> {
        let (kv, from) = match (self, from) {
            (Self::Attention(kv), Self::Attention(from)) => (kv, from),
            (Self::Latent(kv), Self::Latent(from)) => (kv, from),
            _ => bail!("only layers of attention support a copy of their state on another device"),
        };
        if let Some(rows) = rows {
            return kv.take_rows(from, rows, added, |new| to.moved(new));
        }
        let Some(last) = from.last(added)? else {
            bail!("{added} positions were added to a layer's state, and it holds none")
        };
        kv.append(&to.moved(&last)?)?;
        Ok(())
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        match self {
            Self::Attention(kv) | Self::Latent(kv) => kv.reset(),
            Self::Both(kv, state) => {
                kv.reset();
                state.reset();
            }
            Self::Recurrent(state) => state.reset(),
        }
    }
}

const OTHER_MODEL: &str =
    "the layer state does not match this layer; it was created by a different model";

/// Runs a mixer with a state of fixed size on the norm of the stream: on all sequences together, or in a step of slots with the states of those.
fn with_state(
    xs: Residual,
    norm: Option<&Norm>,
    step: &Step,
    state: Option<&mut MixerState>,
    mixer: impl Fn(Residual, Option<&Norm>, Option<&mut RecurrentState>) -> Result<(Residual, Tensor)>,
) -> Result<(Residual, Tensor)> {
    let Some(state) = state else {
        return mixer(xs, norm, None);
    };
    let Some(rows) = step.rows else {
        return mixer(xs, norm, Some(state.one()?));
    };
    let (xs, normed) = xs.normed(norm)?;
    let ys = state.rows()?.run(rows, &normed, |xs, state| {
        Ok(mixer(Residual::new(xs.clone()), None, Some(state))?.1)
    })?;
    Ok((xs, ys))
}

impl Mixer {
    async fn load(
        spec: &MixerSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        Ok(match spec {
            MixerSpec::Attention(spec) => {
                Self::Attention(Attention::load(spec, hidden, weights, names, prefix).await?)
            }
            MixerSpec::Latent(spec) => {
                Self::Latent(Latent::load(spec, hidden, weights, names, prefix).await?)
            }
            MixerSpec::ShortConv(spec) => {
                Self::ShortConv(ShortConv::load(spec, hidden, weights, names, prefix).await?)
            }
            MixerSpec::Recurrent(spec) => {
                Self::Recurrent(Recurrent::load(spec, hidden, weights, prefix).await?)
            }
            MixerSpec::Delta(spec) => {
                Self::Delta(Delta::load(spec, hidden, weights, names, prefix).await?)
            }
            MixerSpec::StateSpace(spec) => {
                Self::StateSpace(StateSpace::load(spec, hidden, weights, prefix).await?)
            }
            MixerSpec::Both(attention, space) => Self::Both(
                Attention::load(attention, hidden, weights, names, prefix).await?,
                StateSpace::load(space, hidden, weights, prefix).await?,
            ),
        })
    }

    fn inner(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
        step: &Step,
        state: Option<&mut LayerState>,
    ) -> Result<(Residual, Tensor)> {
        match (self, state) {
            (Self::Attention(attention), Some(LayerState::Attention(kv))) => {
                attention.inner(xs, norm, step, Some(kv))
            }
            (Self::Attention(attention), None) => attention.inner(xs, norm, step, None),
            (Self::Latent(latent), Some(LayerState::Latent(cache))) => {
                latent.inner(xs, norm, step, Some(cache))
            }
            (Self::Latent(latent), None) => latent.inner(xs, norm, step, None),
            (Self::Both(attention, space), state) => {
                let (kv, state) = match state {
                    Some(LayerState::Both(kv, state)) => (Some(kv), Some(state)),
                    None => (None, None),
                    _ => bail!(OTHER_MODEL),
                };
                let (xs, normed) = xs.normed(norm)?;
                let (_, ys) = attention.inner(Residual::new(normed.clone()), None, step, kv)?;
                let (_, zs) = with_state(
                    Residual::new(normed),
                    None,
                    step,
                    state,
                    |xs, norm, state| space.inner(xs, norm, state),
                )?;
                let both = (attention.output().forward(&ys)? + space.output().forward(&zs)?)?;
                Ok((xs, both))
            }
            (mixer, Some(LayerState::Recurrent(state))) => {
                with_state(xs, norm, step, Some(state), |xs, norm, state| {
                    mixer.recur(xs, norm, state)
                })
            }
            (mixer, None) => mixer.recur(xs, norm, None),
            _ => bail!(OTHER_MODEL),
        }
    }

    /// As [`inner`](Self::inner), of a mixer with a state of fixed size.
    fn recur(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
        state: Option<&mut RecurrentState>,
    ) -> Result<(Residual, Tensor)> {
        match self {
            Self::ShortConv(conv) => conv.inner(xs, norm, state),
            Self::Recurrent(recurrent) => recurrent.inner(xs, norm, state),
            Self::Delta(delta) => delta.inner(xs, norm, state),
            Self::StateSpace(space) => space.inner(xs, norm, state),
            Self::Attention(_) | Self::Latent(_) | Self::Both(..) => bail!(OTHER_MODEL),
        }
    }

    fn output(&self) -> Option<&Projection> {
        match self {
            Self::Attention(attention) => Some(attention.output()),
            Self::Latent(latent) => Some(latent.output()),
            Self::ShortConv(conv) => Some(conv.output()),
            Self::Recurrent(recurrent) => Some(recurrent.output()),
            Self::Delta(delta) => Some(delta.output()),
            Self::StateSpace(space) => Some(space.output()),
            // Each has its own.
            Self::Both(..) => None,
        }
    }
}

/// One layer of a decoder.
#[derive(Debug, Clone)]
pub struct Layer {
    mixer: Mixer,
    feed_forward: FeedForward,
    /// Around the mixer, then around what follows it; which ones there are depends on the wiring.
    norms: [Norms; 2],
    wiring: Wiring,
    residual_scale: Option<f64>,
    /// The device of the feed-forward block, if it is not the mixer's.
    elsewhere: Option<Placement>,
    /// The ranks that each have a part of the blocks.
    group: Option<Arc<dyn Communicator>>,
}

#[derive(Debug, Clone, Default)]
struct Norms {
    before: Option<Norm>,
    after: Option<Norm>,
}

impl Layer {
    /// Loads the layer from weights named `prefix` and a suffix; `hidden` is the size of the stream.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub async fn load(
        spec: &LayerSpec,
        hidden: usize,
        weights: &mut Weights<'_>,
        names: &Names,
        prefix: &str,
    ) -> Result<Self> {
        let (attn, mlp) = (
            [names.attn_norm, names.attn_post_norm],
            [names.mlp_norm, names.mlp_post_norm],
        );
        let mut norms = [Norms::default(), Norms::default()];
        for (i, (norms, [before, after])) in norms.iter_mut().zip([attn, mlp]).enumerate() {
            let (has_before, has_after) = match spec.wiring {
                Wiring::Pre | Wiring::ParallelTwoNorms => (true, false),
                Wiring::Sandwich => (true, true),
                Wiring::PostInside | Wiring::PostOutside => (false, true),
                Wiring::Parallel => (i == 0, false),
            };
            if has_before {
                let name = format!("{prefix}.{before}");
                norms.before = Some(weights.norm(&name, hidden, spec.norm).await?);
            }
            if has_after {
                let name = format!("{prefix}.{after}");
                norms.after = Some(weights.norm(&name, hidden, spec.norm).await?);
            }
        }
        let mixer = Mixer::load(&spec.mixer, hidden, weights, names, prefix).await?;
        let elsewhere = match &spec.feed_forward {
            FeedForwardSpec::Experts(_) => weights.enter_experts(),
            _ => None,
        };
        Ok(Self {
            mixer,
            elsewhere,
            feed_forward: FeedForward::load(&spec.feed_forward, hidden, weights, names, prefix)
                .await?,
            norms,
            wiring: spec.wiring,
            residual_scale: spec.residual_scale,
            group: weights.group().cloned(),
        })
    }

    /// Whether the feed-forward block is on another device.
    pub(super) fn is_parted(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// Whether other ranks have parts of the layer too.
    pub(super) fn is_share(&self) -> bool {
        self.group
            .as_ref()
            .is_some_and(|group| group.world_size() > 1)
    }

    /// Whether a device can record what the ranks say to each other.
    #[cfg(feature = "cuda")]
    pub(super) fn group_records(&self) -> bool {
        self.group
            .as_ref()
            .is_none_or(|group| group.world_size() == 1 || group.records())
    }

    /// Runs the layer on `xs`, whose sum is `(b, t, hidden_size)`.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        xs: Residual,
        step: &Step,
        state: Option<&mut LayerState>,
    ) -> Result<Residual> {
        let [attn, mlp] = &self.norms;
        match self.wiring {
            Wiring::Parallel | Wiring::ParallelTwoNorms => {
                let (xs, normed) = xs.normed(attn.before.as_ref())?;
                let other = match &mlp.before {
                    Some(_) => xs.clone().normed(mlp.before.as_ref())?.1,
                    None => normed.clone(),
                };
                let (_, ys) = self.mixer.inner(Residual::new(normed), None, step, state)?;
                let mixer = self.mixer.output();
                let feed_forward = self.feed_forward.output();
                if let (Some(mixer), Some(feed_forward), true) =
                    (mixer, feed_forward, self.is_share())
                {
                    // Both are parts of sums over the ranks, which one call adds up.
                    let (_, zs) = self.feed_forward.inner(Residual::new(other), None)?;
                    let both = (mixer.forward(&ys)? + feed_forward.forward(&zs)?)?;
                    return self.add(xs, None, both, None);
                }
                let xs = self.add(xs, mixer, ys, None)?;
                let (_, ys, output) = self.feed(Residual::new(other), None)?;
                self.add(xs, output, ys, None)
            }
            _ => {
                let (xs, ys) = self.mixer.inner(xs, attn.before.as_ref(), step, state)?;
                let xs = self.add(xs, self.mixer.output(), ys, attn.after.as_ref())?;
                let (xs, ys, output) = self.feed(xs, mlp.before.as_ref())?;
                self.add(xs, output, ys, mlp.after.as_ref())
            }
        }
    }

    /// The block after the mixer, without its last layer, which is the last of the three.
    fn feed(
        &self,
        xs: Residual,
        norm: Option<&Norm>,
    ) -> Result<(Residual, Tensor, Option<&Projection>)> {
        let output = self.feed_forward.output();
        let Some(elsewhere) = &self.elsewhere else {
            let (xs, ys) = self.feed_forward.inner(xs, norm)?;
            return Ok((xs, ys, output));
        };
        let (xs, normed) = xs.normed(norm)?;
        let moved = Residual::new(elsewhere.moved(&normed)?);
        let (_, mut ys) = self.feed_forward.inner(moved, None)?;
        if let Some(output) = output {
            ys = output.forward(&ys)?;
        }
        Ok((xs, Placement::of(&normed).moved(&ys)?, None))
    }

    /// The stream with a block's output added to it.
    fn add(
        &self,
        xs: Residual,
        output: Option<&Projection>,
        ys: Tensor,
        after: Option<&Norm>,
    ) -> Result<Residual> {
        let outside = self.wiring == Wiring::PostOutside;
        let after_block = after.filter(|_| !outside);
        let group = self.group.as_ref().filter(|group| group.world_size() > 1);
        if let (Some(output), None, None, None) = (output, after_block, self.residual_scale, group)
        {
            let xs = xs.add(output, &ys)?;
            return self.normed_outside(xs, after.filter(|_| outside));
        }
        let mut ys = match output {
            Some(output) => output.forward(&ys)?,
            None => ys,
        };
        if let Some(group) = group {
            ys = group.all_reduce(&ys)?;
        }
        match (after_block, self.residual_scale) {
            (Some(norm), None) => return xs.add_normed(norm, &ys),
            (Some(norm), Some(_)) => ys = norm.forward(&ys)?,
            (None, _) => {}
        }
        if let Some(scale) = self.residual_scale {
            ys = (ys * scale)?;
        }
        let xs = xs.plus(ys)?;
        self.normed_outside(xs, after.filter(|_| outside))
    }

    fn normed_outside(&self, xs: Residual, norm: Option<&Norm>) -> Result<Residual> {
        match norm {
            Some(norm) => Ok(Residual::new(xs.normed(Some(norm))?.1)),
            None => Ok(xs),
        }
    }
}
