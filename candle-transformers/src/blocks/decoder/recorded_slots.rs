//! Steps of sequences in slots that a device records and then launches as a whole, as `recorded.rs` does for one sequence.
//!
//! Batches take one token for each slot, verification of proposed tokens takes a few for one slot. A recording holds for one shape of a step, for
//! as long as keys and values fit their buffers. Tokens, positions and tables of pages are in the device's memory, and kernels read there how many
//! keys each row has: the recording is of the most keys of its shape.

use candle_core::{DType, Result, Tensor};

use super::{Decoder, DecoderState};

/// The recordings of a state. A clone starts without: its keys and values will be elsewhere.
#[derive(Default)]
pub(super) struct RecordedSlots(#[cfg(feature = "cuda")] Vec<on_cuda::Recorded>);

impl Clone for RecordedSlots {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl std::fmt::Debug for RecordedSlots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RecordedSlots")
    }
}

impl Decoder {
    /// The logits after each of the last `last` tokens of every row of `ids`, `(b, t)` u32, which go to the slots from `first` on:
    /// `(b, last, vocab)` in f32. On a CUDA device a step whose shape comes again is recorded where the model allows it, so that it costs the
    /// host a few launches.
    ///
    /// # Errors
    /// As [`forward_slots`](Self::forward_slots); `last` is 0 or more than `t`.
    pub fn logits_of_slots(
        &self,
        ids: &Tensor,
        last: usize,
        first: usize,
        state: &mut DecoderState,
    ) -> Result<Tensor> {
        let (b, t) = ids.dims2()?;
        self.check_last(t, last)?;
        #[cfg(feature = "cuda")]
        if let Some(logits) = self.recorded_slots(ids, last, first, state)? {
            return Ok(logits);
        }
        let hidden = self.forward_slots(ids, &vec![t; b], first, state)?;
        hidden.of_last(last)?.logits()?.to_dtype(DType::F32)
    }

    /// Checks that the logits of the last `last` of `t` tokens can be had.
    pub(crate) fn check_last(&self, t: usize, last: usize) -> Result<()> {
        if !(1..=t).contains(&last) {
            candle_core::bail!(
                "{}: logits of the last {last} of {t} tokens requested; ask for 1 to {t}",
                self.spec.family
            )
        }
        Ok(())
    }
}

#[cfg(feature = "cuda")]
mod on_cuda {
    use std::sync::Arc;

    use candle_core::cuda_backend::Recording;
    use candle_core::{Device, TensorId};

    use super::super::pages::PageIndices;
    use super::super::recorded::on_cuda::{buffers, caches};
    use super::super::{RotaryRows, Step};
    use super::*;
    use crate::blocks::{GrowingKvCache, PageRows, Part, Rows};

    /// Recordings of a state at once: a batch has others as texts come and go, and each keeps memory for its intermediate results.
    const KEPT: usize = 6;
    /// Maximum number of tokens for each row: prompts take the device longer than the host.
    const MOST_TOKENS: usize = 16;

    /// What a recording is of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Shape {
        /// Rows, and tokens of each.
        rows: usize,
        tokens: usize,
        /// The first slot.
        first: usize,
        /// Positions of each row that have logits.
        last: usize,
        /// Keys that steps read; the device skips those after a row's own.
        end: usize,
    }

    /// A step's input and output, and the step.
    pub(in super::super) struct Recorded {
        shape: Shape,
        /// Tokens, `(rows, tokens)`, the position of each row's first, `(rows)`, and 0 to `tokens`, `(1, tokens)`: u32.
        ids: Tensor,
        starts: Tensor,
        after: Tensor,
        /// The value of `starts` after all steps that were launched.
        positions: Vec<usize>,
        /// The pages of the rows, if slots have pages, and their values.
        pages: Option<(PageRows, PageIndices)>,
        /// The rotary tables that steps read.
        tables: Vec<RotaryRows>,
        /// `(rows, last, vocab)` in f32.
        logits: Tensor,
        /// Identifies the weights.
        decoder: Arc<()>,
        buffers: Vec<TensorId>,
        /// `None` before the second step: the first one compiles kernels, which cannot be recorded.
        step: Option<Recording>,
    }

    impl Decoder {
        /// As [`logits_of_slots`](Self::logits_of_slots); `None` if the device does not record such a step, or not yet.
        pub(super) fn recorded_slots(
            &self,
            ids: &Tensor,
            last: usize,
            first: usize,
            state: &mut DecoderState,
        ) -> Result<Option<Tensor>> {
            let Device::Cuda(device) = &self.device else {
                return Ok(None);
            };
            let (rows, tokens) = ids.dims2()?;
            let recordable = self.is_recordable(rows * tokens)
                && self.spec.query_growth.is_none()
                // Steps count positions from the number of tokens.
                && !state.is_shifted()
                && ids.dtype() == DType::U32
                && tokens <= MOST_TOKENS;
            let slots = first..first.saturating_add(rows);
            let (Some(starts), true) = (state.lens.get(slots.clone()), recordable) else {
                return Ok(None);
            };
            let starts = starts.to_vec();
            self.check_slots([rows, tokens], &vec![tokens; rows], first, state)?;
            let longest = starts.iter().copied().max().unwrap_or(0);
            // Without buffers, or with full ones, the plain step makes them.
            let Some(buffers) = buffers(state) else {
                return Ok(None);
            };
            let Some(end) = self.most_keys(longest + tokens, state) else {
                return Ok(None);
            };
            let shape = Shape {
                rows,
                tokens,
                first,
                last,
                end,
            };
            let pages = state.pages.as_ref();
            let pages = pages.map(|pages| pages.indices(first, &starts, tokens, end));
            let pages = pages.transpose()?;
            let mut kept = std::mem::take(&mut state.slots.0);
            kept.retain(|recorded| {
                Arc::ptr_eq(&recorded.decoder, &self.identity) && recorded.buffers == buffers
            });
            let held: Vec<usize> = caches(state).map(|cache| cache.len()).collect();
            let (recorded, logits) = match kept.iter().position(|recorded| recorded.shape == shape)
            {
                Some(found) => {
                    let mut recorded = kept.remove(found);
                    recorded.set(ids, &starts, pages)?;
                    let mut step = match recorded.step.take() {
                        Some(step) => step,
                        None => device.record(|| {
                            let logits = self.slots_step(&recorded, state)?;
                            recorded.logits.slice_set(&logits, 0, 0)
                        })?,
                    };
                    step.launch()?;
                    recorded.step = Some(step);
                    // The next step overwrites the recording's.
                    let logits = recorded.logits.copy()?;
                    (recorded, logits)
                }
                None => {
                    let mut recorded = Recorded {
                        shape,
                        ids: ids.force_contiguous()?,
                        starts: positions(&starts, &self.device)?,
                        after: Tensor::arange(0, tokens as u32, &self.device)?.unsqueeze(0)?,
                        positions: Vec::new(),
                        pages: match pages {
                            Some(pages) => Some((pages.to_device(&self.device)?, pages)),
                            None => None,
                        },
                        tables: RotaryRows::tables(state, end)?,
                        logits: Tensor::zeros(0, DType::F32, &self.device)?,
                        decoder: self.identity.clone(),
                        buffers,
                        step: None,
                    };
                    let logits = self.slots_step(&recorded, state)?;
                    recorded.logits = logits.copy()?;
                    (recorded, logits)
                }
            };
            for (cache, held) in caches(state).zip(held) {
                cache.set_len(held.max(longest + tokens))?;
            }
            kept.truncate(KEPT - 1);
            kept.insert(0, recorded);
            kept[0].positions = starts.iter().map(|start| start + tokens).collect();
            state.slots.0 = kept;
            for len in &mut state.lens[slots] {
                *len += tokens;
            }
            Ok(Some(logits))
        }

        /// The number of keys that a step is recorded for whose longest row has `needed`: all that the buffers hold, or in pages the next power of
        /// two. `None` if there are fewer.
        fn most_keys(&self, needed: usize, state: &mut DecoderState) -> Option<usize> {
            let end = match &state.pages {
                Some(pages) => {
                    let most = pages.positions().min(self.spec.positions);
                    GrowingKvCache::capacity_for(needed, most, None).min(most)
                }
                None => {
                    let room = caches(state).map(|cache| cache.capacity()).min();
                    room.unwrap_or(0).min(self.spec.positions)
                }
            };
            (needed <= end).then_some(end)
        }

        /// The logits, `(rows, last, vocab)` in f32, with tokens and positions from the device's memory; moves the positions on.
        fn slots_step(&self, recorded: &Recorded, state: &mut DecoderState) -> Result<Tensor> {
            let Recorded { shape, starts, .. } = recorded;
            let embeds = self.embed(&recorded.ids)?;
            let positions = starts.unsqueeze(1)?.broadcast_add(&recorded.after)?;
            let xs = match &self.positions {
                Some(table) => {
                    let rows = table.index_select(&positions.flatten_all()?, 0)?;
                    (&embeds + rows.reshape(embeds.shape())?)?
                }
                None => embeds,
            };
            let rows = Rows {
                starts: starts.clone(),
                longest: shape.end - shape.tokens,
                part: Some(Part {
                    first: shape.first,
                    of: state.lens.len(),
                }),
                pages: recorded.pages.as_ref().map(|(pages, _)| pages.clone()),
                each: Vec::new(),
            };
            let step = Step {
                rotations: (recorded.tables.iter())
                    .map(|table| table.at(&positions))
                    .collect::<Result<_>>()?,
                mask: None,
                windows: false,
                rows: Some(&rows),
                growth: None,
            };
            let hidden = self.run(xs, &step, &[], state)?.of_last(shape.last)?;
            let logits = hidden.logits()?.to_dtype(DType::F32)?.contiguous()?;
            starts.slice_set(&starts.affine(1., shape.tokens as f64)?, 0, 0)?;
            Ok(logits)
        }
    }

    impl Recorded {
        /// Copies the tokens, and positions and pages where they are not those that the last step left.
        fn set(
            &mut self,
            ids: &Tensor,
            starts: &[usize],
            pages: Option<PageIndices>,
        ) -> Result<()> {
            self.ids.slice_set(&ids.contiguous()?, 0, 0)?;
            if self.positions != starts {
                let starts = positions(starts, self.starts.device())?;
                self.starts.slice_set(&starts, 0, 0)?;
            }
            if let (Some((rows, before)), Some(pages)) = (&mut self.pages, pages) {
                pages.write(rows, before)?;
                *before = pages;
            }
            Ok(())
        }
    }

    fn positions(starts: &[usize], device: &Device) -> Result<Tensor> {
        Tensor::from_iter(starts.iter().map(|start| *start as u32), device)
    }
}
