//! The autoencoder between images and latents: FLUX's, with diffusers' weight names.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::diffusion::{latents, KlHalf, KlNames, KlSpec};

/// The numbers of a `config.json`, which leaves out those that are as [`Default`] has them.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct VaeConfig {
    /// Channels of the encoded images.
    pub in_channels: usize,
    /// Channels of the decoded images.
    pub out_channels: usize,
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Channels of each level; between two levels the sides are halved.
    pub block_out_channels: Vec<usize>,
    /// Residual blocks of a level of the encoder; the decoder has one more.
    pub layers_per_block: usize,
    /// Factor of the latents, applied after subtracting `shift_factor`.
    pub scaling_factor: f64,
    /// The mean of latents.
    pub shift_factor: f64,
    /// Groups of the norms, which divide the channels.
    pub norm_num_groups: usize,
}

/// [`VaeConfig::z_image`].
impl Default for VaeConfig {
    fn default() -> Self {
        Self::z_image()
    }
}

impl VaeConfig {
    /// [Z-Image-Turbo](https://huggingface.co/Tongyi-MAI/Z-Image-Turbo)'s.
    pub fn z_image() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            latent_channels: 16,
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            scaling_factor: 0.3611,
            shift_factor: 0.1159,
            norm_num_groups: 32,
        }
    }

    fn spec(&self) -> KlSpec {
        KlSpec {
            family: FAMILY,
            in_channels: self.in_channels,
            out_channels: self.out_channels,
            latent_channels: self.latent_channels,
            first: self.block_out_channels.first().copied().unwrap_or(0),
            channels: self.block_out_channels.clone(),
            layers: self.layers_per_block,
            groups: self.norm_num_groups,
            names: KlNames::Diffusers,
        }
    }
}

/// From images to the moments of latents.
#[derive(Debug, Clone)]
pub struct Encoder {
    half: KlHalf,
}

impl Encoder {
    /// Loads `conv_in`, `down_blocks`, `mid_block`, `conv_norm_out` and `conv_out`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &VaeConfig, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            half: KlHalf::encoder(&cfg.spec(), vb)?,
        })
    }
}

/// From (batch, in_channels, height, width) to means and then logarithms of variances, (batch, 2 * latent_channels, height / 8, width / 8)
/// for four levels.
///
/// # Errors
/// The images have another shape, dtype or device, or sides that would leave nothing.
impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.half.forward(xs)
    }
}

/// From latents to images.
#[derive(Debug, Clone)]
pub struct Decoder {
    half: KlHalf,
}

impl Decoder {
    /// Loads `conv_in`, `mid_block`, `up_blocks`, `conv_norm_out` and `conv_out`.
    ///
    /// # Errors
    /// As [`Encoder::new`].
    pub fn new(cfg: &VaeConfig, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            half: KlHalf::decoder(&cfg.spec(), vb)?,
        })
    }
}

/// From (batch, latent_channels, height, width) to (batch, out_channels, 8 * height, 8 * width) for four levels.
///
/// # Errors
/// The latents have another shape, dtype or device.
impl Module for Decoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.half.forward(xs)
    }
}

/// Latents of their moments.
#[derive(Debug, Clone)]
pub struct DiagonalGaussian {
    sample: bool,
}

impl DiagonalGaussian {
    /// A sample, or with `sample` false the mean.
    pub fn new(sample: bool) -> Self {
        Self { sample }
    }
}

/// From means and then logarithms of variances, (batch, 2 * channels, ..), to (batch, channels, ..).
///
/// # Errors
/// The number of channels is odd.
impl Module for DiagonalGaussian {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        latents(xs, 1, self.sample)
    }
}

/// The autoencoder.
#[derive(Debug, Clone)]
pub struct AutoEncoderKL {
    encoder: Encoder,
    decoder: Decoder,
    reg: DiagonalGaussian,
    scale_factor: f64,
    shift_factor: f64,
}

impl AutoEncoderKL {
    /// Loads `encoder` and `decoder`.
    ///
    /// # Errors
    /// As [`Encoder::new`].
    pub fn new(cfg: &VaeConfig, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            encoder: Encoder::new(cfg, vb.pp("encoder"))?,
            decoder: Decoder::new(cfg, vb.pp("decoder"))?,
            reg: DiagonalGaussian::new(true),
            scale_factor: cfg.scaling_factor,
            shift_factor: cfg.shift_factor,
        })
    }

    /// A sample of the latents of images from -1 to 1: from (batch, in_channels, height, width) to
    /// (batch, latent_channels, height / 8, width / 8) for four levels.
    ///
    /// # Errors
    /// Those of [`Encoder`].
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let latents = self.reg.forward(&self.encoder.forward(xs)?)?;
        (latents - self.shift_factor)? * self.scale_factor
    }

    /// The images of latents, from -1 to 1: from (batch, latent_channels, height, width) to (batch, out_channels, 8 * height, 8 * width)
    /// for four levels.
    ///
    /// # Errors
    /// Those of [`Decoder`].
    pub fn decode(&self, xs: &Tensor) -> Result<Tensor> {
        let latents = ((xs / self.scale_factor)? + self.shift_factor)?;
        self.decoder.forward(&latents)
    }

    /// Factor of the latents.
    pub fn scale_factor(&self) -> f64 {
        self.scale_factor
    }

    /// The mean of latents.
    pub fn shift_factor(&self) -> f64 {
        self.shift_factor
    }
}

/// Encodes and decodes.
impl Module for AutoEncoderKL {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.decode(&self.encode(xs)?)
    }
}
