//! Vectors that replace tokens' embeddings, such as those of images, and what they see of each other.

use candle_core::{bail, Result, Tensor};

use super::super::Position;
use super::{Decoder, DecoderState, Hidden, RotaryRows};

/// The positions of one call that see each other; they always see all before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// Those before, as of text.
    Before,
    /// All of the call, those after too. In layers with a window of `w`, those less than `w` away on both sides.
    All,
}

/// The input of one call: vectors instead of token ids.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// `(b, t, hidden_size)`.
    pub embeds: Tensor,
    /// How they see each other.
    pub sees: Sees,
    /// The position of each on three axes; without, they follow the last position of the sequence. For one sequence alone.
    pub positions: Option<Vec<Position>>,
    /// Added to the stream after each of the first layers: `(b, t, hidden_size)` each (DeepStack).
    pub deep: Vec<Tensor>,
}

/// How [`Decoder::run_embeds`] runs.
#[derive(Clone, Copy, Default)]
pub(super) struct How<'a> {
    /// Replaces causal visibility.
    pub(super) mask: Option<&'a Tensor>,
    /// With a mask: whether windows still count.
    pub(super) windows: bool,
    pub(super) positions: Option<&'a [Position]>,
    pub(super) deep: &'a [Tensor],
}

/// The input of slots.
pub(super) enum SlotInput<'a> {
    /// Token ids, `(b, t)`.
    Ids(&'a Tensor),
    /// Those of one slot.
    Vectors(&'a Vectors),
}

impl SlotInput<'_> {
    pub(super) fn rows(&self) -> Result<(usize, usize)> {
        match self {
            Self::Ids(ids) => ids.dims2(),
            Self::Vectors(vectors) => {
                let (b, t, _) = vectors.embeds.dims3()?;
                Ok((b, t))
            }
        }
    }

    /// The vectors, and a mask that replaces causal visibility.
    pub(super) fn embeds(&self, decoder: &Decoder) -> Result<(Tensor, Option<Tensor>)> {
        match self {
            Self::Ids(ids) => Ok((decoder.embed(ids)?, None)),
            Self::Vectors(vectors) => {
                let embeds = decoder.at_input(&vectors.embeds)?;
                let mask = vectors.sees.mask(&embeds)?;
                Ok((embeds, mask))
            }
        }
    }

    pub(super) fn positions(&self) -> Option<&[Position]> {
        match self {
            Self::Ids(_) => None,
            Self::Vectors(vectors) => vectors.positions.as_deref(),
        }
    }

    pub(super) fn deep(&self) -> &[Tensor] {
        match self {
            Self::Ids(_) => &[],
            Self::Vectors(vectors) => &vectors.deep,
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

    /// As [`forward_embeds`](Self::forward_embeds) without a mask, where the tokens `offset .. offset + t` see of each other what the vectors
    /// say. Text that follows positions on three axes goes on after the largest of them.
    ///
    /// # Errors
    /// As [`forward_embeds`](Self::forward_embeds); positions of a model that has none on three axes, another number than there are tokens,
    /// or beyond those of the model.
    pub fn forward_seen(
        &self,
        vectors: &Vectors,
        offset: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let embeds = self.at_input(&vectors.embeds)?;
        let mask = vectors.sees.mask(&embeds)?;
        let how = How {
            mask: mask.as_ref(),
            windows: true,
            positions: vectors.positions.as_deref(),
            deep: &vectors.deep,
        };
        self.run_embeds(&embeds, offset, state, how)
    }

    /// As [`forward_slots`](Self::forward_slots), of vectors of one slot, `(1, t, hidden_size)`, which see of each other what they say.
    ///
    /// # Errors
    /// As [`forward_slots`](Self::forward_slots) and [`forward_seen`](Self::forward_seen); vectors of several sequences.
    pub fn forward_slot_seen(
        &self,
        vectors: &Vectors,
        slot: usize,
        state: &mut DecoderState,
    ) -> Result<Hidden<'_>> {
        let (b, t, _) = vectors.embeds.dims3()?;
        // Of several, keys behind the end of a shorter one would be seen.
        if b != 1 {
            bail!(
                "{}: vectors of {b} sequences; a slot takes those of one",
                self.spec.family
            )
        }
        self.run_slots(SlotInput::Vectors(vectors), &[t], slot, state)
    }

    /// The rotary rows of positions on three axes, `(1, t, frequencies)`, of a call with `b` sequences of `t` tokens.
    pub(super) fn rows_on_axes(
        &self,
        positions: &[Position],
        [b, t]: [usize; 2],
        state: &DecoderState,
    ) -> Result<Vec<RotaryRows>> {
        let (family, limit) = (self.spec.family, self.spec.positions);
        if b != 1 || positions.len() != t {
            bail!(
                "{family}: {} positions for {b} sequences of {t} tokens; expected one for each token of one sequence",
                positions.len()
            )
        }
        let beyond = positions.iter().flatten().find(|at| **at as usize >= limit);
        if let Some(at) = beyond {
            bail!("{family}: position {at}; the model has {limit}")
        }
        let (device, dtype) = self.input_place();
        let rows = |tables: &super::RotaryTables| {
            let rotary = tables.rotary();
            let (Some(axes), false) = (&rotary.axes, rotary.by_length()) else {
                bail!("{family}: positions on three axes are not supported by this model")
            };
            let (mut cos, mut sin) =
                axes.angles(positions, 1, &rotary.frequencies, dtype, device)?;
            if rotary.factor != 1. {
                let factor = f64::from(rotary.factor);
                (cos, sin) = ((cos * factor)?, (sin * factor)?);
            }
            let pairs = rotary.pairs;
            Ok(RotaryRows { cos, sin, pairs })
        };
        state.rotaries.iter().map(rows).collect()
    }
}
