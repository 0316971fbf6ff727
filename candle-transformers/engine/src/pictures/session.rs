//! Sessions that read prompts with images.

use super::{common, Picture, PictureRows, PictureSupport};
use crate::engine::{CandleBackend, Parked, Session, State};
use crate::error::Doing;
use crate::{Error, Result};
use candle_core::{DType, Tensor};
use candle_transformers::pictures::PictureSpec;
use std::sync::Arc;

impl CandleBackend {
    /// Whether the model takes images, and its name.
    pub(crate) fn picture_support(&self) -> (&PictureSupport, &str) {
        (&self.pictures, &self.name)
    }

    /// How the model takes images.
    pub(crate) fn picture_spec(&self) -> Result<&PictureSpec> {
        self.pictures.spec(&self.name)
    }

    /// The vectors of an image, `(tokens, vector_size)`.
    pub(crate) fn picture_vectors(&self, picture: &Picture) -> Result<Tensor> {
        self.pictures
            .vectors(&self.name, picture, self.device(), self.dtype())
    }

    /// The size of the vectors of images.
    pub(crate) fn vector_size(&self) -> Result<usize> {
        let hidden = self.model.decoder().spec().hidden;
        Ok(self.picture_spec()?.vector_size(hidden))
    }
}

impl Parked {
    /// How many of the first `same` tokens, which it has seen as well, are of these images too.
    pub(crate) fn common(
        &self,
        backend: &CandleBackend,
        tokens: &[u32],
        same: usize,
        pictures: &[Arc<Picture>],
    ) -> Result<usize> {
        let seen = self.pictures.pictures();
        if seen.is_empty() && pictures.is_empty() {
            return Ok(same);
        }
        let spec = backend.picture_spec()?;
        let count = |it: &Picture| spec.tokens(it.width(), it.height());
        Ok(common(tokens, same, spec.token(), count, [seen, pictures]))
    }
}

impl Session<'_> {
    /// The images of the prompt `tokens`, of which the model has seen those before its position.
    ///
    /// # Errors
    /// Images that do not fit the tokens; a model that takes none, or is on several devices.
    pub(crate) fn look_at(&mut self, pictures: &[Arc<Picture>], tokens: &[u32]) -> Result<()> {
        if pictures.is_empty() {
            self.pictures = PictureRows::default();
            return Ok(());
        }
        let backend = self.backend;
        backend.check_pictures(tokens, pictures)?;
        let token = backend.picture_spec()?.token();
        let seen = tokens[..self.position].iter();
        let seen = seen.filter(|id| **id == token).count();
        self.pictures = PictureRows::new(backend, pictures, tokens, seen)?;
        Ok(())
    }

    /// As [`forward`](Self::forward), of tokens with images among them.
    pub(crate) fn forward_pictures(&mut self, tokens: &[u32]) -> Result<Tensor> {
        let doing = "running the model";
        let seen = self.seen_with(tokens.len())?;
        let backend = self.backend;
        let (spec, model) = (backend.picture_spec()?, &backend.model);
        let State::Whole(state) = &mut self.state else {
            return Err(Error::Alone("the session has a slot".to_string()));
        };
        let mut logits = None;
        for run in spec.runs(tokens) {
            let vectors = self.pictures.take(run.vectors, backend)?;
            let (first, last) = (
                self.position + run.range.start,
                run.range.end == tokens.len(),
            );
            let positions = self.pictures.positions(self.position);
            let input = spec.input(model.decoder(), tokens, &run, &vectors, positions);
            let hidden = model.forward_seen(&input.doing(doing)?, first, state);
            let hidden = hidden.doing(doing)?;
            if last {
                let last = hidden.last_logits().and_then(|it| it.flatten_all());
                logits = Some(last.and_then(|it| it.to_dtype(DType::F32)).doing(doing)?);
            }
        }
        self.position = seen;
        logits.ok_or(Error::EmptyPrompt)
    }
}
