//! The autoencoder between images and latents: FLUX's, with diffusers' weight names.

use candle_core::{Module, Result, Tensor};
use serde::Deserialize;

use super::FAMILY;
use crate::blocks::diffusion::{
    latents, AutoencoderKl, KlConfig, KlDecoder, KlEncoder, KlNames, KlSpec,
};

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
}

impl KlConfig for VaeConfig {
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

    fn scale_and_shift(&self) -> [f64; 2] {
        [self.scaling_factor, self.shift_factor]
    }
}

/// From pictures to the moments of latents. Loads `conv_in`, `down_blocks`, `mid_block`, `conv_norm_out` and `conv_out`.
pub type Encoder = KlEncoder<VaeConfig>;

/// From latents to pictures. Loads `conv_in`, `mid_block`, `up_blocks`, `conv_norm_out` and `conv_out`.
pub type Decoder = KlDecoder<VaeConfig>;

/// The autoencoder. Loads `encoder` and `decoder`.
pub type AutoEncoderKL = AutoencoderKl<VaeConfig>;

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
