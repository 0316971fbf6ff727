//! The autoencoder between images and latents.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::FAMILY;
use crate::blocks::diffusion::{latents, KlHalf, KlNames, KlSpec};

/// Groups of the norms.
const GROUPS: usize = 32;

/// The numbers of an autoencoder.
#[derive(Debug, Clone)]
pub struct Config {
    /// Sides of the training images, in pixels. Not used: the model accepts other sizes.
    pub resolution: usize,
    /// Channels of the encoded images.
    pub in_channels: usize,
    /// Channels of the inner feature maps, a multiple of 32.
    pub ch: usize,
    /// Channels of the decoded images.
    pub out_ch: usize,
    /// Factor of `ch` at each level; between two levels the sides are halved.
    pub ch_mult: Vec<usize>,
    /// Residual blocks of a level of the encoder; the decoder has one more.
    pub num_res_blocks: usize,
    /// Channels of the latents.
    pub z_channels: usize,
    /// Factor of the latents, applied after subtracting `shift_factor`.
    pub scale_factor: f64,
    /// The mean of latents.
    pub shift_factor: f64,
}

impl Config {
    /// That of [FLUX.1-dev](https://huggingface.co/black-forest-labs/FLUX.1-dev).
    pub fn dev() -> Self {
        Self {
            resolution: 256,
            in_channels: 3,
            ch: 128,
            out_ch: 3,
            ch_mult: vec![1, 2, 4, 4],
            num_res_blocks: 2,
            z_channels: 16,
            scale_factor: 0.3611,
            shift_factor: 0.1159,
        }
    }

    /// That of [FLUX.1-schnell](https://huggingface.co/black-forest-labs/FLUX.1-schnell), which is the same.
    pub fn schnell() -> Self {
        Self::dev()
    }

    fn spec(&self) -> KlSpec {
        KlSpec {
            family: FAMILY,
            in_channels: self.in_channels,
            out_channels: self.out_ch,
            latent_channels: self.z_channels,
            first: self.ch,
            channels: self
                .ch_mult
                .iter()
                .map(|times| self.ch.saturating_mul(*times))
                .collect(),
            layers: self.num_res_blocks,
            groups: GROUPS,
            names: KlNames::Original,
        }
    }
}

/// From images to the moments of latents.
#[derive(Debug, Clone)]
pub struct Encoder {
    half: KlHalf,
}

impl Encoder {
    /// Loads `conv_in`, `down`, `mid`, `norm_out` and `conv_out`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            half: KlHalf::encoder(&cfg.spec(), vb)?,
        })
    }
}

/// From (batch, in_channels, height, width) to means and then logarithms of variances, (batch, 2 * z_channels, height / 8, width / 8) for
/// four levels.
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
    /// Loads `conv_in`, `mid`, `up`, `norm_out` and `conv_out`.
    ///
    /// # Errors
    /// As [`Encoder::new`].
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            half: KlHalf::decoder(&cfg.spec(), vb)?,
        })
    }
}

/// From (batch, z_channels, height, width) to (batch, out_ch, 8 * height, 8 * width) for four levels.
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
    chunk_dim: usize,
}

impl DiagonalGaussian {
    /// A sample, or with `sample` false the mean; means and logarithms of variances are the halves of dimension `chunk_dim`.
    ///
    /// # Errors
    /// None.
    pub fn new(sample: bool, chunk_dim: usize) -> Result<Self> {
        Ok(Self { sample, chunk_dim })
    }
}

/// From moments to latents, with half the size in dimension `chunk_dim`.
///
/// # Errors
/// That dimension does not exist or has an odd size.
impl Module for DiagonalGaussian {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        latents(xs, self.chunk_dim, self.sample)
    }
}

/// The autoencoder.
#[derive(Debug, Clone)]
pub struct AutoEncoder {
    encoder: Encoder,
    decoder: Decoder,
    reg: DiagonalGaussian,
    shift_factor: f64,
    scale_factor: f64,
}

impl AutoEncoder {
    /// Loads `encoder` and `decoder`.
    ///
    /// # Errors
    /// As [`Encoder::new`].
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            encoder: Encoder::new(cfg, vb.pp("encoder"))?,
            decoder: Decoder::new(cfg, vb.pp("decoder"))?,
            reg: DiagonalGaussian::new(true, 1)?,
            shift_factor: cfg.shift_factor,
            scale_factor: cfg.scale_factor,
        })
    }

    /// A sample of the latents of images from -1 to 1: from (batch, in_channels, height, width) to
    /// (batch, z_channels, height / 8, width / 8) for four levels.
    ///
    /// # Errors
    /// Those of [`Encoder`].
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let latents = self.reg.forward(&self.encoder.forward(xs)?)?;
        (latents - self.shift_factor)? * self.scale_factor
    }

    /// The images of latents, from -1 to 1: from (batch, z_channels, height, width) to (batch, out_ch, 8 * height, 8 * width) for four
    /// levels.
    ///
    /// # Errors
    /// Those of [`Decoder`].
    pub fn decode(&self, xs: &Tensor) -> Result<Tensor> {
        let latents = ((xs / self.scale_factor)? + self.shift_factor)?;
        self.decoder.forward(&latents)
    }
}

/// Encodes and decodes.
impl Module for AutoEncoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.decode(&self.encode(xs)?)
    }
}
