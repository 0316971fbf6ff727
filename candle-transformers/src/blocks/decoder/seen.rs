//! Vectors that replace tokens' embeddings, such as those of images, and what they see of each other.

use candle_core::{bail, Result, Tensor};

use super::{Decoder, DecoderState, Hidden};

/// The positions of one call that see each other; they always see all before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Those before, as of text.
    Before,
    /// All of the call, those after too. In layers with a window of `w`, those less than `w` away on both sides.
    All,
}

/// The input of slots.
pub(super) enum SlotInput<'a> {
    /// Token ids, `(b, t)`.
    Ids(&'a Tensor),
    /// Vectors of one slot, `(1, t, hidden_size)`.
    Embeds(&'a Tensor, Sees),
}

impl SlotInput<'_> {
    pub(super) fn rows(&self) -> Result<(usize, usize)> {
        match self {
            Self::Ids(ids) => ids.dims2(),
            Self::Embeds(embeds, _) => {
                let (b, t, _) = embeds.dims3()?;
                Ok((b, t))
            }
        }
    }

    /// The vectors, and a mask that replaces causal visibility.
    pub(super) fn embeds(&self, decoder: &Decoder) -> Result<(Tensor, Option<Tensor>)> {
        match self {
            Self::Ids(ids) => Ok((decoder.embed(ids)?, None)),
            Self::Embeds(embeds, sees) => {
                let embeds = decoder.at_input(embeds)?;
                let mask = sees.mask(&embeds)?;
                Ok((embeds, mask))
            }
        }
    }
}

impl Sees {
    /// The mask that is added to scores, if it replaces causal visibility.
    fn mask(self, embeds: &Tensor) -> Result<Option<Tensor>> {
        match self {
            Self::Before => Ok(None),
            Self::All => Tensor::zeros((1, 1, 1, 1), embeds.dtype(), embeds.device()).map(Some),
        }
    }
}

impl Decoder {
    /// Vectors where the first layer takes them, in its dtype.
    pub(crate) fn at_input(&self, embeds: &Tensor) -> Result<Tensor> {
        let (device, dtype) = self.input_place();
        embeds.to_device(device)?.to_dtype(dtype)
    }

    /// As [`forward_embeds`](Self::forward_embeds) without a mask, where the positions `offset .. offset + t` see of each other what
    /// `sees` says.
    ///
    /// # Errors
    /// As [`forward_embeds`](Self::forward_embeds).
    pub fn forward_seen(
        &self,
        embeds: &Tensor,
        sees: Sees,
        offset: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let embeds = self.at_input(embeds)?;
        let mask = sees.mask(&embeds)?;
        self.run_embeds(&embeds, offset, state, mask.as_ref(), true)
    }

    /// As [`forward_slots`](Self::forward_slots), of vectors of one slot, `(1, t, hidden_size)`, which see of each other what `sees` says.
    ///
    /// # Errors
    /// As [`forward_slots`](Self::forward_slots); vectors of several sequences.
    pub fn forward_slot_seen(
        &self,
        embeds: &Tensor,
        sees: Sees,
        slot: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let (b, t, _) = embeds.dims3()?;
        // With several sequences, keys after the end of a shorter one would be visible.
        if b != 1 {
            bail!(
                "{}: vectors of {b} sequences; a slot takes those of one",
                self.spec.family
            )
        }
        self.run_slots(SlotInput::Embeds(embeds, sees), &[t], slot, state)
    }
}
