//! The autoencoder between images and latents.

use candle_core::{Module, Result, Tensor};

use super::FAMILY;
use crate::blocks::diffusion::{
    latents, AutoencoderKl, KlConfig, KlDecoder, KlEncoder, KlNames, KlSpec,
};

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
}

impl KlConfig for Config {
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

    fn scale_and_shift(&self) -> [f64; 2] {
        [self.scale_factor, self.shift_factor]
    }
}

/// From pictures to the moments of latents. Loads `conv_in`, `down`, `mid`, `norm_out` and `conv_out`.
pub type Encoder = KlEncoder<Config>;

/// From latents to pictures. Loads `conv_in`, `mid`, `up`, `norm_out` and `conv_out`.
pub type Decoder = KlDecoder<Config>;

/// The autoencoder. Loads `encoder` and `decoder`.
pub type AutoEncoder = AutoencoderKl<Config>;

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
