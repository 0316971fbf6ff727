//! Stable Diffusion, which makes images of texts: [arXiv 2112.10752](https://arxiv.org/abs/2112.10752). Versions
//! [1.5](https://huggingface.co/stable-diffusion-v1-5/stable-diffusion-v1-5),
//! [2.1](https://huggingface.co/stabilityai/stable-diffusion-2-1),
//! [XL](https://huggingface.co/stabilityai/stable-diffusion-xl-base-1.0) ([arXiv 2307.01952](https://arxiv.org/abs/2307.01952)),
//! [XL Turbo](https://huggingface.co/stabilityai/sdxl-turbo) and [SSD-1B](https://huggingface.co/segmind/SSD-1B).
//!
//! An encoder of texts ([`clip`]) tells a UNet ([`unet_2d`]) what to find in noise; a scheduler ([`schedulers`]) takes it out step by step,
//! and an autoencoder ([`vae`]) makes an image of the latents that are left.
//!
//! [`TextToImage`] runs the three. The schedulers and networks also work apart, for programs that change what happens in a step.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::stable_diffusion::{StableDiffusionConfig, TextToImage};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let config = StableDiffusionConfig::v1_5(None, None, None);
//! // SAFETY: nothing changes the files while they are mapped.
//! let open = |file| unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &device) };
//! let model = TextToImage::new(
//!     &config,
//!     open("text_encoder/model.safetensors")?,
//!     open("unet/diffusion_pytorch_model.safetensors")?,
//!     open("vae/diffusion_pytorch_model.safetensors")?,
//! )?;
//! // The ids of a tokenizer, 49407 being the end; two texts, the first of them empty.
//! let mut ids = [[49407u32; 77]; 2];
//! ids[0][..2].copy_from_slice(&[49406, 49407]);
//! ids[1][..5].copy_from_slice(&[49406, 1125, 539, 2368, 49407]);
//! let texts = model.encode(&Tensor::new(&ids, &device)?)?;
//! let noise = Tensor::randn(0f32, 1., (1, 4, config.height / 8, config.width / 8), &device)?;
//! // From 0 to 1, (1, 3, height, width).
//! let image = model.generate(&texts, 7.5, &noise, 30, |step| Ok(println!("step {step}")))?;
//! # let _ = image;
//! # Ok(())
//! # }
//! ```

pub mod attention;
pub mod clip;
pub mod ddim;
pub mod ddpm;
mod diffusers;
pub mod embeddings;
pub mod euler_ancestral_discrete;
pub mod resnet;
pub mod schedulers;
mod text_to_image;
pub mod unet_2d;
pub mod unet_2d_blocks;
pub mod uni_pc;
pub mod utils;
pub mod vae;

pub use diffusers::DiffusersFiles;
pub use text_to_image::TextToImage;

use std::path::Path;
use std::sync::Arc;

use candle_core::{bail, DType, Device, Result};
use candle_nn::VarBuilder;

use self::schedulers::{PredictionType, Scheduler, SchedulerConfig, TimestepSpacing};
use self::unet_2d::{BlockConfig, UNet2DConditionModelConfig};
use self::vae::AutoEncoderKLConfig;

/// The numbers of a version.
#[derive(Clone, Debug)]
pub struct StableDiffusionConfig {
    /// Width of an image in pixels, a multiple of 8.
    pub width: usize,
    /// Height of an image in pixels, a multiple of 8.
    pub height: usize,
    /// Configuration of the text encoder.
    pub clip: clip::Config,
    /// Configuration of the second text encoder, whose tokens are appended to those of the first one.
    pub clip2: Option<clip::Config>,
    autoencoder: AutoEncoderKLConfig,
    unet: UNet2DConditionModelConfig,
    scheduler: Arc<dyn SchedulerConfig>,
    latent_scale: f64,
}

/// The differences between versions other than texts and schedulers.
struct Version {
    /// Channels, blocks of each transformer and heads.
    blocks: Vec<(usize, Option<usize>, usize)>,
    cross_attention_dim: usize,
    use_linear_projection: bool,
    /// The default side of an image.
    side: usize,
    latent_scale: f64,
}

impl Version {
    fn v1_5() -> Self {
        Self {
            blocks: vec![
                (320, Some(1), 8),
                (640, Some(1), 8),
                (1280, Some(1), 8),
                (1280, None, 8),
            ],
            cross_attention_dim: 768,
            use_linear_projection: false,
            side: 512,
            latent_scale: 0.18215,
        }
    }

    fn v2_1() -> Self {
        Self {
            blocks: vec![
                (320, Some(1), 5),
                (640, Some(1), 10),
                (1280, Some(1), 20),
                (1280, None, 20),
            ],
            cross_attention_dim: 1024,
            use_linear_projection: true,
            side: 768,
            latent_scale: 0.18215,
        }
    }

    fn xl(side: usize) -> Self {
        Self {
            blocks: vec![(320, None, 5), (640, Some(2), 10), (1280, Some(10), 20)],
            cross_attention_dim: 2048,
            use_linear_projection: true,
            side,
            latent_scale: 0.13025,
        }
    }
}

impl StableDiffusionConfig {
    fn new(
        version: Version,
        sliced_attention_size: Option<usize>,
        [height, width]: [Option<usize>; 2],
        clip: clip::Config,
        clip2: Option<clip::Config>,
        scheduler: impl SchedulerConfig + 'static,
    ) -> Self {
        let block = |(out_channels, use_cross_attn, attention_head_dim)| BlockConfig {
            out_channels,
            use_cross_attn,
            attention_head_dim,
        };
        Self {
            width: width.unwrap_or(version.side),
            height: height.unwrap_or(version.side),
            clip,
            clip2,
            autoencoder: AutoEncoderKLConfig {
                block_out_channels: vec![128, 256, 512, 512],
                layers_per_block: 2,
                ..Default::default()
            },
            unet: UNet2DConditionModelConfig {
                blocks: version.blocks.into_iter().map(block).collect(),
                cross_attention_dim: version.cross_attention_dim,
                sliced_attention_size,
                use_linear_projection: version.use_linear_projection,
                ..Default::default()
            },
            scheduler: Arc::new(scheduler),
            latent_scale: version.latent_scale,
        }
    }

    /// Stable Diffusion 1.5, of 512 by 512 pixels without a size, with DDIM. `sliced_attention_size` changes nothing:
    /// [`CrossAttention::new`](attention::CrossAttention::new).
    pub fn v1_5(
        sliced_attention_size: Option<usize>,
        height: Option<usize>,
        width: Option<usize>,
    ) -> Self {
        Self::new(
            Version::v1_5(),
            sliced_attention_size,
            [height, width],
            clip::Config::v1_5(),
            None,
            ddim::DDIMSchedulerConfig::default(),
        )
    }

    /// Stable Diffusion 2.1, of 768 by 768 pixels without a size, with DDIM and predictions of `v`. `sliced_attention_size` changes
    /// nothing: [`CrossAttention::new`](attention::CrossAttention::new).
    pub fn v2_1(
        sliced_attention_size: Option<usize>,
        height: Option<usize>,
        width: Option<usize>,
    ) -> Self {
        let scheduler = ddim::DDIMSchedulerConfig {
            prediction_type: PredictionType::VPrediction,
            ..Default::default()
        };
        Self::new(
            Version::v2_1(),
            sliced_attention_size,
            [height, width],
            clip::Config::v2_1(),
            None,
            scheduler,
        )
    }

    /// SDXL 1.0, of 1024 by 1024 pixels without a size, with DDIM. `sliced_attention_size` changes nothing:
    /// [`CrossAttention::new`](attention::CrossAttention::new).
    pub fn sdxl(
        sliced_attention_size: Option<usize>,
        height: Option<usize>,
        width: Option<usize>,
    ) -> Self {
        Self::new(
            Version::xl(1024),
            sliced_attention_size,
            [height, width],
            clip::Config::sdxl(),
            Some(clip::Config::sdxl2()),
            ddim::DDIMSchedulerConfig::default(),
        )
    }

    /// SDXL Turbo, of 512 by 512 pixels without a size, with Euler's ancestral steps. `sliced_attention_size` changes nothing:
    /// [`CrossAttention::new`](attention::CrossAttention::new).
    pub fn sdxl_turbo(
        sliced_attention_size: Option<usize>,
        height: Option<usize>,
        width: Option<usize>,
    ) -> Self {
        let scheduler = euler_ancestral_discrete::EulerAncestralDiscreteSchedulerConfig {
            timestep_spacing: TimestepSpacing::Trailing,
            ..Default::default()
        };
        Self::new(
            Version::xl(512),
            sliced_attention_size,
            [height, width],
            clip::Config::sdxl(),
            Some(clip::Config::sdxl2()),
            scheduler,
        )
    }

    /// SSD-1B, of 1024 by 1024 pixels without a size, with DDIM. `sliced_attention_size` changes nothing:
    /// [`CrossAttention::new`](attention::CrossAttention::new).
    pub fn ssd1b(
        sliced_attention_size: Option<usize>,
        height: Option<usize>,
        width: Option<usize>,
    ) -> Self {
        Self::new(
            Version::xl(1024),
            sliced_attention_size,
            [height, width],
            clip::Config::ssd1b(),
            Some(clip::Config::ssd1b2()),
            ddim::DDIMSchedulerConfig::default(),
        )
    }

    /// Factor from the autoencoder's latents to those of the UNet: `scaling_factor` in the autoencoder's `config.json`. Not in Candle's
    /// interface.
    pub fn latent_scale(&self) -> f64 {
        self.latent_scale
    }

    fn check_size(&self) -> Result<()> {
        for (name, side) in [("height", self.height), ("width", self.width)] {
            if side == 0 || side % 8 != 0 {
                bail!("stable diffusion: the {name} is {side}; it must be a multiple of 8")
            }
        }
        Ok(())
    }

    /// The autoencoder, of images of three channels, from a safetensors file.
    ///
    /// # Errors
    /// The height or the width is not a multiple of 8, the file cannot be read, or a weight is missing or has another shape.
    pub fn build_vae<P: AsRef<Path>>(
        &self,
        vae_weights: P,
        device: &Device,
        dtype: DType,
    ) -> Result<vae::AutoEncoderKL> {
        self.check_size()?;
        let vs = weights(&[vae_weights], dtype, device)?;
        vae::AutoEncoderKL::new(vs, 3, 3, self.autoencoder.clone())
    }

    /// The UNet for latents of `in_channels` channels, which are 4, and 9 with those of an image and a mask, from a safetensors file.
    /// `use_flash_attn` changes nothing: [`CrossAttention::new`](attention::CrossAttention::new).
    ///
    /// # Errors
    /// The height or the width is not a multiple of 8, the file cannot be read, or a weight is missing or has another shape.
    pub fn build_unet<P: AsRef<Path>>(
        &self,
        unet_weights: P,
        device: &Device,
        in_channels: usize,
        use_flash_attn: bool,
        dtype: DType,
    ) -> Result<unet_2d::UNet2DConditionModel> {
        let files = &[unet_weights];
        self.build_unet_sharded(files, device, in_channels, use_flash_attn, dtype)
    }

    /// As [`build_unet`](Self::build_unet), from several files.
    ///
    /// # Errors
    /// Those of [`build_unet`](Self::build_unet).
    pub fn build_unet_sharded<P: AsRef<Path>>(
        &self,
        unet_weight_files: &[P],
        device: &Device,
        in_channels: usize,
        use_flash_attn: bool,
        dtype: DType,
    ) -> Result<unet_2d::UNet2DConditionModel> {
        self.check_size()?;
        let vs = weights(unet_weight_files, dtype, device)?;
        let config = self.unet.clone();
        unet_2d::UNet2DConditionModel::new(vs, in_channels, 4, use_flash_attn, config)
    }

    /// The scheduler for this number of steps.
    ///
    /// # Errors
    /// The height or the width is not a multiple of 8, or the number of steps is 0 or greater than in training.
    pub fn build_scheduler(&self, n_steps: usize) -> Result<Box<dyn Scheduler>> {
        self.check_size()?;
        self.scheduler.build(n_steps)
    }
}

/// An encoder of texts from a safetensors file.
///
/// # Errors
/// The file cannot be read, or a weight is missing or has another shape.
pub fn build_clip_transformer<P: AsRef<Path>>(
    clip: &clip::Config,
    clip_weights: P,
    device: &Device,
    dtype: DType,
) -> Result<clip::ClipTextTransformer> {
    clip::ClipTextTransformer::new(weights(&[clip_weights], dtype, device)?, clip)
}

fn weights<P: AsRef<Path>>(
    files: &[P],
    dtype: DType,
    device: &Device,
) -> Result<VarBuilder<'static>> {
    // SAFETY: as with every map of a file, another process has to leave the files alone while the weights are read.
    unsafe { VarBuilder::from_mmaped_safetensors(files, dtype, device) }
}
