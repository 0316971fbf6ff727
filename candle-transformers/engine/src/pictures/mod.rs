//! Images in prompts: whether a model takes them, what its prompt has in their place, and the vectors that it reads there.
//!
//! `decode.rs` reads PNG and JPEG within limits, `prompt.rs` puts images in a prompt's text, `rows.rs` gives their vectors in the order of the
//! prompt, and `session.rs` feeds them. The encoder is loaded with the first image: without one it takes no memory.

#[cfg(not(target_arch = "wasm32"))]
mod decode;
mod prompt;
mod rows;
mod session;

pub use candle_transformers::pictures::Picture;
#[cfg(not(target_arch = "wasm32"))]
pub use decode::{open_picture, read_picture, MAX_BYTES, MAX_PIXELS};
pub(crate) use prompt::check_shape;
use prompt::common;
pub(crate) use rows::PictureRows;

use crate::error::Doing;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
#[cfg(not(target_arch = "wasm32"))]
use candle_nn::VarBuilder;
use candle_transformers::pictures::{PictureEncoder, PictureSpec};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// The most images of a prompt.
pub const MAX_PICTURES: usize = 16;

/// Whether a model takes images.
pub(crate) struct PictureSupport {
    found: std::result::Result<Found, String>,
}

/// How it does.
#[cfg_attr(target_arch = "wasm32", allow(dead_code))]
struct Found {
    spec: PictureSpec,
    /// The files that have the encoder's weights.
    files: Vec<PathBuf>,
    encoder: Mutex<Option<Arc<PictureEncoder>>>,
}

impl PictureSupport {
    /// Of a model that takes none, and why.
    pub(crate) fn none(why: impl Into<String>) -> Self {
        Self {
            found: Err(why.into()),
        }
    }

    /// Of a model whose encoder is in `files`.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn new(spec: PictureSpec, files: Vec<PathBuf>) -> Self {
        Self {
            found: Ok(Found {
                spec,
                files,
                encoder: Mutex::default(),
            }),
        }
    }

    /// How the model of this name takes images.
    ///
    /// # Errors
    /// [`Error::NoPictures`] if it takes none.
    pub(crate) fn spec(&self, model: &str) -> Result<&PictureSpec> {
        self.found(model).map(|found| &found.spec)
    }

    fn found(&self, model: &str) -> Result<&Found> {
        self.found.as_ref().map_err(|why| Error::NoPictures {
            model: model.to_string(),
            why: why.clone(),
        })
    }

    /// The vectors of an image, `(tokens, vector_size)` on `device` in `dtype`.
    pub(crate) fn vectors(
        &self,
        model: &str,
        picture: &Picture,
        device: &Device,
        dtype: DType,
    ) -> Result<Tensor> {
        let found = self.found(model)?;
        let encoder = found
            .encoder(device, dtype)
            .doing("loading the image encoder")?;
        let pixels = found.spec.pixels(picture);
        pixels
            .and_then(|pixels| encoder.forward(&pixels, (device, dtype)))
            .doing("encoding an image")
    }
}

impl Found {
    fn encoder(&self, device: &Device, dtype: DType) -> candle_core::Result<Arc<PictureEncoder>> {
        let mut held = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(encoder) = &*held {
            return Ok(encoder.clone());
        }
        let encoder = Arc::new(self.load(device, dtype)?);
        *held = Some(encoder.clone());
        Ok(encoder)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn load(&self, device: &Device, dtype: DType) -> candle_core::Result<PictureEncoder> {
        // SAFETY: as for all weights, see `Weights::from_files`.
        let vb = unsafe { VarBuilder::from_mmaped_safetensors(&self.files, dtype, device) }?;
        self.spec.load(vb)
    }

    #[cfg(target_arch = "wasm32")]
    fn load(&self, _: &Device, _: DType) -> candle_core::Result<PictureEncoder> {
        candle_core::bail!("files cannot be mapped in a browser")
    }
}
