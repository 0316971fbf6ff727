//! A prompt with images, in the calls that its language model takes it in.

use std::ops::Range;

use candle_core::{bail, Result, Tensor};

use super::{PictureSpec, Sees};
use crate::blocks::Decoder;

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

    /// The input of one run: the embeddings of its tokens, and `vectors`, `(vectors, hidden_size)`, in the place of those of images:
    /// `(1, tokens, hidden_size)`.
    ///
    /// # Errors
    /// If there are not as many vectors as tokens of images, or they are of another size.
    pub fn embeds(&self, decoder: &Decoder, tokens: &[u32], vectors: &Tensor) -> Result<Tensor> {
        let (given, size) = vectors.dims2()?;
        let wanted = tokens.iter().filter(|id| **id == self.token()).count();
        if given != wanted || size != decoder.spec().hidden {
            bail!(
                "the prompt has {wanted} tokens of images of size {}, but the images have {given} of size {size}",
                decoder.spec().hidden
            )
        }
        // Where layers are on the CPU, the table is there too.
        let vectors = decoder.at_input(vectors)?;
        let mut used = 0;
        let mut parts = Vec::new();
        for chunk in tokens.chunk_by(|a, b| (*a == self.token()) == (*b == self.token())) {
            let part = match chunk[0] == self.token() {
                true => {
                    used += chunk.len();
                    let part = vectors.narrow(0, used - chunk.len(), chunk.len())?;
                    part.unsqueeze(0)?
                }
                false => {
                    let ids = Tensor::new(chunk, decoder.device())?.unsqueeze(0)?;
                    decoder.at_input(&decoder.embed(&ids)?)?
                }
            };
            parts.push(part);
        }
        Tensor::cat(&parts, 1)
    }
}
