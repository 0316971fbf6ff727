//! A prompt with images, in the calls that its language model takes it in.

use std::ops::Range;

use candle_core::{bail, Result, Tensor};

use super::{PictureSpec, Position, Sees};
use crate::blocks::{Decoder, Vectors};

/// Neighbouring tokens that are one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which of the tokens they are.
    pub range: Range<usize>,
    /// How many vectors of images are among them.
    pub vectors: usize,
    /// How they see each other.
    pub sees: Sees,
}

impl PictureSpec {
    /// The calls for `tokens`, in their order: all of them in one, or where tokens of an image see each other, each image and each text
    /// between in its own.
    pub fn runs(&self, tokens: &[u32]) -> Vec<Run> {
        let is_picture = |id: &u32| *id == self.token();
        let count = |range: &Range<usize>| {
            let ids = tokens[range.clone()].iter();
            ids.filter(|id| is_picture(id)).count()
        };
        let ranges: Vec<Range<usize>> = match self.sees() {
            Sees::Before => {
                let all = Some(0..tokens.len()).filter(|all| !all.is_empty());
                all.into_iter().collect()
            }
            Sees::All => {
                let mut end = 0;
                let alike = tokens.chunk_by(|a, b| is_picture(a) == is_picture(b));
                let range = |chunk: &[u32]| {
                    end += chunk.len();
                    end - chunk.len()..end
                };
                alike.map(range).collect()
            }
        };
        let run = |range: Range<usize>| {
            let vectors = count(&range);
            let sees = match self.sees() {
                Sees::All if vectors > 0 => Sees::All,
                _ => Sees::Before,
            };
            Run {
                range,
                vectors,
                sees,
            }
        };
        ranges.into_iter().map(run).collect()
    }

    /// The input of one run of the prompt's `tokens`: the embeddings of its tokens, and `vectors`, `(vectors, vector_size)`
    /// ([`vector_size`](Self::vector_size)), instead of those of images. `positions` are those of the whole prompt
    /// ([`positions`](Self::positions)).
    ///
    /// # Errors
    /// If the numbers of vectors and of tokens of images differ, or they are of another size; a run that is not one of these tokens, or has no
    /// positions.
    pub fn input(
        &self,
        decoder: &Decoder,
        tokens: &[u32],
        run: &Run,
        vectors: &Tensor,
        positions: Option<&[Position]>,
    ) -> Result<Vectors> {
        let hidden = decoder.spec().hidden;
        let (given, size) = vectors.dims2()?;
        let outside = || format!("the run {:?} is outside the prompt", run.range);
        let Some(tokens) = tokens.get(run.range.clone()) else {
            bail!("{}, which has {} tokens", outside(), tokens.len())
        };
        let positions = match positions.map(|all| all.get(run.range.clone())) {
            None => None,
            Some(Some(positions)) => Some(positions.to_vec()),
            Some(None) => bail!("{} that positions are given for", outside()),
        };
        let wanted = tokens.iter().filter(|id| **id == self.token()).count();
        if given != wanted || size != self.vector_size(hidden) {
            bail!(
                "the prompt has {wanted} tokens of images of size {}, but the images have {given} of size {size}",
                self.vector_size(hidden)
            )
        }
        // Where layers are on the CPU, the table is there too.
        let vectors = decoder.at_input(vectors)?;
        let level = |i: usize| vectors.narrow(1, i * hidden, hidden);
        let embed = |ids: &[u32]| {
            let ids = Tensor::new(ids, decoder.device())?.unsqueeze(0)?;
            decoder.at_input(&decoder.embed(&ids)?)
        };
        let zeros =
            |ids: &[u32]| Tensor::zeros((1, ids.len(), hidden), vectors.dtype(), vectors.device());
        let levels = match given {
            0 => 1,
            _ => size / hidden,
        };
        let deep = (1..levels).map(|i| self.between(tokens, &level(i)?, zeros));
        Ok(Vectors {
            embeds: self.between(tokens, &level(0)?, embed)?,
            sees: run.sees,
            positions,
            deep: deep.collect::<Result<_>>()?,
        })
    }

    /// `vectors`, `(n, size)`, for tokens of images, and what `text` makes of the others, `(1, tokens, size)`: `(1, tokens, size)`.
    fn between(
        &self,
        tokens: &[u32],
        vectors: &Tensor,
        text: impl Fn(&[u32]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mut used = 0;
        let mut parts = Vec::new();
        for chunk in tokens.chunk_by(|a, b| (*a == self.token()) == (*b == self.token())) {
            let part = match chunk[0] == self.token() {
                true => {
                    used += chunk.len();
                    let part = vectors.narrow(0, used - chunk.len(), chunk.len())?;
                    part.unsqueeze(0)?
                }
                false => text(chunk)?,
            };
            parts.push(part);
        }
        Tensor::cat(&parts, 1)
    }
}
