//! FLUX.1, which makes images of texts: a rectified flow transformer of 12 billion parameters,
//! [arXiv 2403.03206](https://arxiv.org/abs/2403.03206), whose latents of 16 channels become images of eight times their sides.
//! [FLUX.1-dev](https://huggingface.co/black-forest-labs/FLUX.1-dev) and
//! [FLUX.1-schnell](https://huggingface.co/black-forest-labs/FLUX.1-schnell); weight names are those of Black Forest Labs' checkpoints.
//!
//! Texts come as the vectors that T5 makes of their tokens and CLIP of the whole ([`super::t5`], [`super::clip`]). [`sampling`] makes the
//! noise and runs [`model`], or [`quantized_model`] over quantised weights, from time 1 to time 0; [`autoencoder`] makes the image.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::flux::{autoencoder, model, sampling};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: Config::schnell(), and VarBuilder::from_mmaped_safetensors for each of the two files.
//! let config = model::Config {
//!     hidden_size: 16, num_heads: 2, axes_dim: vec![2, 2, 4], depth: 1, depth_single_blocks: 1,
//!     context_in_dim: 8, vec_in_dim: 8, ..model::Config::schnell()
//! };
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = model::Flux::new(&config, vb.clone())?;
//! let autoencoder = autoencoder::AutoEncoder::new(
//!     &autoencoder::Config { ch: 32, ch_mult: vec![1, 1, 1, 1], ..autoencoder::Config::schnell() }, vb)?;
//! let (t5, clip) = (Tensor::zeros((1, 3, 8), DType::F32, &device)?, Tensor::zeros((1, 8), DType::F32, &device)?);
//!
//! let noise = sampling::get_noise(1, 32, 48, &device)?;
//! let state = sampling::State::new(&t5, &clip, &noise)?;
//! let times = sampling::get_schedule(4, None);
//! let latents = sampling::denoise(
//!     &model, &state.img, &state.img_ids, &state.txt, &state.txt_ids, &state.vec, &times, 4.)?;
//! let picture = autoencoder.decode(&sampling::unpack(&latents, 32, 48)?)?;
//! assert_eq!(picture.dims(), &[1, 3, 32, 48]);
//! # Ok(())
//! # }
//! ```

pub mod autoencoder;
mod layers;
pub mod model;
pub mod quantized_model;
pub mod sampling;

use candle_core::{Result, Tensor};

/// The name in errors.
const FAMILY: &str = "flux";

/// A model that [`sampling::denoise`] runs.
pub trait WithForward {
    /// The direction from patches of noise to those of an image, (batch, patches, in_channels) as `img`.
    ///
    /// - `img`: patches of latents, (batch, patches, in_channels); `img_ids`: their positions, (batch, patches, axes).
    /// - `txt`: vectors of the text's tokens, (batch, tokens, context_in_dim); `txt_ids`: their positions, (batch, tokens, axes).
    /// - `timesteps`: 1 for noise, 0 for an image, (batch). `y`: the vector of the text, (batch, vec_in_dim).
    /// - `guidance`: the strength of the text's guidance, (batch). Models without `guidance_embed` ignore it.
    ///
    /// Positions, times, `y` and guidance may be shared by the batch, with 1 instead of `batch`.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    #[allow(clippy::too_many_arguments)]
    fn forward(
        &self,
        img: &Tensor,
        img_ids: &Tensor,
        txt: &Tensor,
        txt_ids: &Tensor,
        timesteps: &Tensor,
        y: &Tensor,
        guidance: Option<&Tensor>,
    ) -> Result<Tensor>;
}
