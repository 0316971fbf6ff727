//! The vectors of a prompt's images, in their order.

use super::Picture;
use crate::engine::CandleBackend;
use crate::error::Doing;
use crate::Result;
use candle_core::Tensor;
use candle_transformers::blocks::Position;
use std::sync::Arc;

/// The images of a prompt, and which of their vectors come next. An image is encoded when its first vector is taken.
#[derive(Default)]
pub(crate) struct PictureRows {
    pictures: Vec<Arc<Picture>>,
    /// The next that is not encoded yet.
    next: usize,
    /// The rest of the last one, `(vectors, vector_size)`.
    rest: Option<Tensor>,
    /// Of the prompt's tokens, where the model has positions on three axes.
    positions: Option<Vec<Position>>,
}

impl PictureRows {
    /// Those of these images in the prompt `tokens`, of which the model has seen the first `seen` vectors: whole images.
    pub(crate) fn new(
        backend: &CandleBackend,
        pictures: &[Arc<Picture>],
        tokens: &[u32],
        mut seen: usize,
    ) -> Result<Self> {
        let mut next = 0;
        let positions = match pictures {
            [] => None,
            pictures => {
                let sizes = pictures.iter().map(|it| [it.width(), it.height()]);
                let positions = backend
                    .picture_spec()?
                    .positions(tokens, &sizes.collect::<Vec<_>>());
                positions.doing("reading a prompt with images")?
            }
        };
        if seen > 0 {
            let spec = backend.picture_spec()?;
            while let Some(picture) = pictures.get(next).filter(|_| seen > 0) {
                seen = seen.saturating_sub(spec.tokens(picture.width(), picture.height()));
                next += 1;
            }
        }
        Ok(Self {
            pictures: pictures.to_vec(),
            next,
            rest: None,
            positions,
        })
    }

    /// The positions of the prompt's tokens from this one on, where they are not the tokens' indices.
    pub(crate) fn positions(&self, from: usize) -> Option<&[Position]> {
        self.positions.as_ref()?.get(from..)
    }

    /// All images.
    pub(crate) fn pictures(&self) -> &[Arc<Picture>] {
        &self.pictures
    }

    /// Whether vectors are left.
    pub(crate) fn is_over(&self) -> bool {
        self.rest.is_none() && self.next == self.pictures.len()
    }

    /// Whether vectors have been taken.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn has_begun(&self) -> bool {
        self.next > 0
    }

    /// The next `count` vectors, `(count, vector_size)`, or all that are left.
    pub(crate) fn take(&mut self, count: usize, backend: &CandleBackend) -> Result<Tensor> {
        let doing = "reading an image";
        let size = backend.vector_size()?;
        let none = Tensor::zeros((0, size), backend.dtype(), backend.device());
        let (mut parts, mut left) = (Vec::new(), count);
        while left > 0 {
            let rest = match self.rest.take() {
                Some(rest) => rest,
                None => match self.pictures.get(self.next) {
                    Some(picture) => {
                        self.next += 1;
                        backend.picture_vectors(picture)?
                    }
                    None => break,
                },
            };
            let rows = rest.dim(0).doing(doing)?;
            let taken = left.min(rows);
            parts.push(rest.narrow(0, 0, taken).doing(doing)?);
            left -= taken;
            if taken < rows {
                self.rest = Some(rest.narrow(0, taken, rows - taken).doing(doing)?);
            }
        }
        match parts.is_empty() {
            true => none.doing(doing),
            false => Tensor::cat(&parts, 0).doing(doing),
        }
    }
}
