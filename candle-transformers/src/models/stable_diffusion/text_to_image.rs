//! From a text to an image: the encoder of texts, the UNet with its scheduler, and the autoencoder.

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::clip::ClipTextTransformer;
use super::unet_2d::UNet2DConditionModel;
use super::vae::AutoEncoderKL;
use super::StableDiffusionConfig;

/// The three networks of a version with one encoder of texts: 1.5, 2.1, Turbo (not XL Turbo), and what was fine-tuned from them. Not in
/// Candle's interface.
#[derive(Debug)]
pub struct TextToImage {
    text: ClipTextTransformer,
    unet: UNet2DConditionModel,
    vae: AutoEncoderKL,
    config: StableDiffusionConfig,
    dtype: DType,
}

impl TextToImage {
    /// Loads the networks from the weights of `text_encoder`, `unet` and `vae`. All of them compute in the dtype of the UNet's weights.
    ///
    /// # Errors
    /// The configuration has a second encoder of texts, as SDXL has; the height or the width is not a multiple of 8; or a weight is missing
    /// or has another shape.
    pub fn new(
        config: &StableDiffusionConfig,
        text_encoder: VarBuilder,
        unet: VarBuilder,
        vae: VarBuilder,
    ) -> Result<Self> {
        config.check_size()?;
        if config.clip2.is_some() {
            bail!("stable diffusion: the configuration has two text encoders; only versions with one are supported, such as 1.5, 2.1 and Turbo")
        }
        let dtype = unet.dtype();
        Ok(Self {
            text: ClipTextTransformer::new(text_encoder.set_dtype(dtype), &config.clip)?,
            unet: UNet2DConditionModel::new(unet, 4, 4, false, config.unet.clone())?,
            vae: AutoEncoderKL::new(vae.set_dtype(dtype), 3, 3, config.autoencoder.clone())?,
            config: config.clone(),
            dtype,
        })
    }

    /// Vectors of texts: from ids (texts, tokens) to (texts, tokens, size). Texts are filled up to the encoder's
    /// [`max_position_embeddings`](super::clip::Config::max_position_embeddings), as in training.
    ///
    /// # Errors
    /// There are no tokens, or more than the encoder has positions.
    pub fn encode(&self, ids: &Tensor) -> Result<Tensor> {
        self.text.forward(ids)
    }

    /// An image for a text: f32 numbers from 0 to 1, (1, 3, height, width).
    ///
    /// - `texts` has the vectors of the text, (1, tokens, size), or of two texts, (2, tokens, size). Each step then moves away from the
    ///   first towards the second, by `guidance` times their difference (classifier-free guidance): 1 for no effect of the first text,
    ///   which is the empty one or describes what must not be in the image. `guidance` has no effect on one text.
    /// - `noise` has mean 0 and deviation 1: (1, 4, height / 8, width / 8).
    /// - `on_step` runs after each of the `steps`, counted from 1. A GPU may not have computed the step by then, unless `on_step`
    ///   synchronises the device. Its error ends the generation.
    ///
    /// # Errors
    /// Shapes do not match, `steps` is 0 or greater than in training, or `on_step` returns an error.
    pub fn generate(
        &self,
        texts: &Tensor,
        guidance: f64,
        noise: &Tensor,
        steps: usize,
        mut on_step: impl FnMut(usize) -> Result<()>,
    ) -> Result<Tensor> {
        let (height, width) = (self.config.height / 8, self.config.width / 8);
        if noise.dims() != [1, 4, height, width] {
            bail!(
                "stable diffusion: the noise is {:?}; for an image of {} by {} pixels it must be (1, 4, {height}, {width})",
                noise.dims(),
                self.config.width,
                self.config.height
            )
        }
        let count = texts.dim(0)?;
        if !(1..=2).contains(&count) {
            bail!(
                "stable diffusion: the texts are {:?}; there must be one, or one to move away from and one",
                texts.dims()
            )
        }
        let mut scheduler = self.config.build_scheduler(steps)?;
        // The scheduler computes in f32: 16 bits round the small factors of many steps.
        let mut latents = (noise.to_dtype(DType::F32)? * scheduler.init_noise_sigma())?;
        for (i, timestep) in scheduler.timesteps().to_vec().into_iter().enumerate() {
            let input = scheduler.scale_model_input(latents.clone(), timestep)?;
            let input = input
                .repeat((count, 1, 1, 1))?
                .to_dtype(self.dtype)?
                .contiguous()?;
            let found = self.unet.forward(&input, timestep as f64, texts)?;
            let found = found.to_dtype(DType::F32)?;
            let found = if count == 1 {
                found
            } else {
                let (from, to) = (found.narrow(0, 0, 1)?, found.narrow(0, 1, 1)?);
                (&from + ((to - &from)? * guidance)?)?
            };
            latents = scheduler.step(&found, timestep, &latents)?;
            on_step(i + 1)?;
        }
        let latents = (latents / self.config.latent_scale)?.to_dtype(self.dtype)?;
        let image = self.vae.decode(&latents)?.to_dtype(DType::F32)?;
        image.affine(0.5, 0.5)?.clamp(0., 1.)
    }
}
