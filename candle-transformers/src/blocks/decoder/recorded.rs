//! Steps of one sequence, with the choice of the token, that a device records and then launches as a whole.
//!
//! A step of a small model is a hundred kernels of a few microseconds, and launching them one by one takes the host as long as they take
//! the device. What differs from step to step, the token and its position, is in the device's memory; a recording holds for as long as
//! keys and values fit their buffers.

use candle_core::{Result, Tensor};

use super::{Decoder, DecoderState};
use crate::generation::{Draw, NextToken};

/// The recorded steps of a state. A clone has none: its keys and values are at other addresses.
#[derive(Default)]
pub(super) struct RecordedSteps(#[cfg(feature = "cuda")] Option<on_cuda::Recorded>);

impl Clone for RecordedSteps {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for RecordedSteps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordedSteps")
    }
}

impl Decoder {
    /// The token that follows the token `ids`, `(1, 1)` u32, at position `offset`, drawn `with` these settings, whose position is replaced
    /// by `offset + 1`; the rest as in [`forward`](Self::forward). On a CUDA device the step is recorded where the model allows it, so that
    /// the next one costs the host a single launch; then [`NextToken::ids`] are those of the last step of `state`.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn next_token(
        &self,
        ids: &Tensor,
        offset: usize,
        state: &mut DecoderState,
        with: &Draw,
    ) -> Result<NextToken> {
        let position = (offset + 1) as u32;
        let with = Draw { position, ..*with };
        #[cfg(feature = "cuda")]
        if self.records(ids, state) {
            self.check_call(1, offset, state)?;
            return self.recorded_step(Some(ids), offset, state, &with);
        }
        NextToken::draw(&self.next_logits(ids, offset, state)?.squeeze(0)?, &with)
    }

    /// Whether [`next_token`](Self::next_token) is one that the device records.
    pub(crate) fn records_step(&self, ids: &Tensor, state: &DecoderState) -> bool {
        #[cfg(feature = "cuda")]
        return self.records(ids, state);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (ids, state);
            false
        }
    }

    /// Whether `ids` are those that the last recorded step of `state` left.
    pub(crate) fn left_by_last_step(&self, ids: &Tensor, state: &DecoderState) -> bool {
        #[cfg(feature = "cuda")]
        return state.recorded.left(ids);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (ids, state);
            false
        }
    }

    /// As [`next_token`](Self::next_token), greedy, of a rank whose model another rank has asked; without `ids` those of the last step are taken.
    /// The token stays on the device.
    pub(crate) fn follow_step(
        &self,
        ids: Option<&Tensor>,
        offset: usize,
        state: &mut DecoderState,
    ) -> Result<()> {
        #[cfg(feature = "cuda")]
        return self
            .recorded_step(ids, offset, state, &Draw::GREEDY)
            .map(drop);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = (ids, offset, state);
            candle_core::bail!("{}: steps are recorded with CUDA alone", self.spec.family)
        }
    }
}

#[cfg(feature = "cuda")]
pub(super) mod on_cuda {
    use std::sync::Arc;

    use candle_core::cuda_backend::Recording;
    use candle_core::{bail, DType, Device, TensorId, D};
    use candle_nn::sampling::draw_with;

    use super::super::spec::MixerSpec;
    use super::super::{Layer, LayerState, RotaryRows, Step};
    use super::*;
    use crate::blocks::{FeedForwardSpec, GrowingKvCache, Rotary, Rows};

    /// The least number of keys that a recording is made for.
    const LEAST_KEYS: usize = 512;
    /// The index of the position among the words of a draw's settings.
    const POSITION: usize = 2;

    /// A step's input and output, and the step.
    pub(super) struct Recorded {
        /// The last token, `(1, 1)`, and the position of the next one, `(1)`: u32, written by the steps.
        ids: Tensor,
        starts: Tensor,
        /// The settings for drawing tokens; `None` for the greatest logit.
        drawn: Option<Drawn>,
        /// The value of `starts` after all launched steps.
        position: usize,
        /// Number of keys that steps process; most of them are later than the step's position and masked.
        end: usize,
        /// The rotary tables that steps read.
        tables: Vec<RotaryRows>,
        /// The identity of the weights, and of the buffers of keys and values.
        decoder: Arc<()>,
        buffers: Vec<TensorId>,
        /// `None` before the second step: the first one compiles kernels, which cannot be recorded.
        step: Option<Recording>,
    }

    struct Drawn {
        /// The position is that of the step for which these were set last.
        with: Draw,
        /// Their words, `(1, 8)`, in which steps write the position.
        words: Tensor,
        /// The token and the number of unusable logits, `(2, 1)`.
        both: Tensor,
    }

    pub(in super::super) fn caches(
        state: &mut DecoderState,
    ) -> impl Iterator<Item = &mut GrowingKvCache> {
        state.layers.iter_mut().filter_map(|layer| match layer {
            LayerState::Attention(cache) => Some(cache),
            _ => None,
        })
    }

    /// The buffers of all layers; `None` if one may not be written in place.
    pub(in super::super) fn buffers(state: &DecoderState) -> Option<Vec<TensorId>> {
        let buffer = |layer: &LayerState| match layer {
            LayerState::Attention(cache) => cache.owned_buffer().map(Tensor::id),
            _ => None,
        };
        state.layers.iter().map(buffer).collect()
    }

    impl Decoder {
        /// Whether the model's device records, and its layers need nothing from the host for a step of `tokens` tokens.
        pub(in super::super) fn is_recordable(&self, tokens: usize) -> bool {
            let Device::Cuda(device) = &self.device else {
                return false;
            };
            let head_records = self.logits_group.as_ref();
            !device.is_profiling()
                && self.offload.is_none()
                && head_records.is_none_or(|group| group.records())
                && self.layers.iter().all(Layer::group_records)
                && !self.spec.rotaries.iter().any(Rotary::by_length)
                && self.spec.layers.iter().all(|layer| {
                    let feed_forward = match &layer.feed_forward {
                        FeedForwardSpec::Experts(experts) => experts.stay_on_device(tokens),
                        _ => true,
                    };
                    matches!(layer.mixer, MixerSpec::Attention(_)) && feed_forward
                })
        }

        /// Whether the device can record this model's steps: those of one sequence, without anything that needs the host.
        pub(super) fn records(&self, ids: &Tensor, state: &DecoderState) -> bool {
            self.is_recordable(1)
                // Steps count positions from the number of tokens.
                && !state.is_shifted()
                && ids.dims() == [1, 1]
                && ids.dtype() == DType::U32
                && state.use_cache
                && state.lens.is_empty()
                && state
                    .layers
                    .iter()
                    .all(|layer| matches!(layer, LayerState::Attention(cache) if cache.is_whole()))
        }

        /// The token that follows, which the next step finds where it looks for its own; `None` for `ids` is that.
        pub(super) fn recorded_step(
            &self,
            ids: Option<&Tensor>,
            offset: usize,
            state: &mut DecoderState,
            with: &Draw,
        ) -> Result<NextToken> {
            let Device::Cuda(device) = &self.device else {
                bail!("{}: steps are recorded with CUDA alone", self.spec.family)
            };
            with.check()?;
            let before = state.recorded.0.take();
            let left = before
                .as_ref()
                .map(|last| (last.ids.clone(), last.position));
            let kept = before.filter(|recorded| {
                Arc::ptr_eq(&recorded.decoder, &self.identity)
                    && offset < recorded.end
                    && recorded.drawn.is_none() == with.is_greedy()
                    && buffers(state).as_ref() == Some(&recorded.buffers)
            });
            let mut recorded = match kept {
                Some(recorded) => recorded,
                None => self.begin(offset, state, with)?,
            };
            // The buffers may be others than those of the step that left the token.
            match (ids, left) {
                (Some(ids), _) => recorded.set(ids, offset)?,
                (None, Some((ids, position))) if position == offset => {
                    recorded.set(&ids, offset)?
                }
                (None, _) => bail!(
                    "{}: no step has left the token at {offset}",
                    self.spec.family
                ),
            }
            if let Some(drawn) = &mut recorded.drawn {
                drawn.set(with)?;
            }
            if let Some(step) = &mut recorded.step {
                step.launch()?;
            } else if recorded.buffers.is_empty() {
                self.step(&recorded, state)?;
                recorded.buffers = buffers(state).unwrap_or_default();
            } else {
                let mut step = device.record(|| self.step(&recorded, state))?;
                step.launch()?;
                recorded.step = Some(step);
            }
            for cache in caches(state) {
                cache.set_len(offset + 1)?;
            }
            recorded.position = offset + 1;
            let token = match &recorded.drawn {
                Some(drawn) => NextToken::drawn_into(&recorded.ids, &drawn.both),
                None => NextToken::of(recorded.ids.clone()),
            };
            state.recorded.0 = Some(recorded);
            token
        }

        /// Room for steps from `offset` on.
        fn begin(&self, offset: usize, state: &mut DecoderState, with: &Draw) -> Result<Recorded> {
            let room = caches(state).map(|cache| cache.capacity()).max();
            let room = room.filter(|room| *room > offset);
            let end = room.unwrap_or_else(|| {
                let doubled = (offset + 1).next_power_of_two().max(LEAST_KEYS);
                doubled.min(self.spec.positions)
            });
            Ok(Recorded {
                ids: Tensor::zeros((1, 1), DType::U32, &self.device)?,
                starts: Tensor::new(&[offset as u32], &self.device)?,
                drawn: if with.is_greedy() {
                    None
                } else {
                    Some(Drawn {
                        with: *with,
                        words: Tensor::new(&[with.words()], &self.device)?,
                        both: Tensor::zeros((2, 1), DType::U32, &self.device)?,
                    })
                },
                position: offset,
                end,
                tables: RotaryRows::tables(state, end)?,
                decoder: self.identity.clone(),
                buffers: Vec::new(),
                step: None,
            })
        }

        /// One step, with token and position from the device's memory.
        fn step(&self, recorded: &Recorded, state: &mut DecoderState) -> Result<()> {
            let Recorded {
                ids, starts, end, ..
            } = recorded;
            let embeds = self.embed(ids)?;
            let xs = match &self.positions {
                Some(table) => (&embeds + table.index_select(starts, 0)?.unsqueeze(0)?)?,
                None => embeds,
            };
            let rows = Rows {
                starts: starts.clone(),
                longest: end - 1,
                part: None,
                pages: None,
                each: Vec::new(),
            };
            let step = Step {
                rotations: (recorded.tables.iter())
                    .map(|table| table.at(&starts.unsqueeze(1)?))
                    .collect::<Result<_>>()?,
                mask: None,
                windows: false,
                rows: Some(&rows),
                growth: match self.spec().query_growth {
                    Some(growth) => growth.factors(starts, 1, *end, self.dtype)?,
                    None => None,
                },
            };
            let hidden = self.run(xs, &step, &[], state)?;
            let logits = hidden.last_logits()?.squeeze(1)?;
            starts.slice_set(&starts.affine(1., 1.)?, 0, 0)?;
            match &recorded.drawn {
                None => ids.slice_set(&logits.argmax_keepdim(D::Minus1)?, 0, 0),
                Some(drawn) => {
                    let position = starts.unsqueeze(0)?;
                    drawn.words.slice_set(&position, 1, POSITION)?;
                    drawn
                        .both
                        .slice_set(&draw_with(&logits, &drawn.words)?, 0, 0)?;
                    ids.slice_set(&drawn.both.narrow(0, 0, 1)?.contiguous()?, 0, 0)
                }
            }
        }
    }

    impl RecordedSteps {
        pub(super) fn left(&self, ids: &Tensor) -> bool {
            self.0
                .as_ref()
                .is_some_and(|recorded| recorded.ids.id() == ids.id())
        }
    }

    impl Drawn {
        /// Other settings than those of the last step; the position is the steps' own matter.
        fn set(&mut self, with: &Draw) -> Result<()> {
            let position = self.with.position;
            if (Draw { position, ..*with }) != self.with {
                self.with = *with;
                let words = Tensor::new(&[with.words()], self.words.device())?;
                self.words.slice_set(&words, 0, 0)?;
            }
            Ok(())
        }
    }

    impl Recorded {
        /// Puts the token and its position where the step looks for them, unless the last one left them there.
        fn set(&self, ids: &Tensor, offset: usize) -> Result<()> {
            if ids.id() != self.ids.id() {
                self.ids.slice_set(&ids.contiguous()?, 0, 0)?;
            }
            if offset != self.position {
                let start = Tensor::new(&[offset as u32], self.starts.device())?;
                self.starts.slice_set(&start, 0, 0)?;
            }
            Ok(())
        }
    }
}
