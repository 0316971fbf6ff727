//! An autoencoder between pictures and latents, whose configuration says what it is.

use std::marker::PhantomData;

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::{latents, KlHalf, KlSpec};

/// The configuration of an autoencoder.
pub trait KlConfig {
    /// Its layers.
    fn spec(&self) -> KlSpec;

    /// The number that latents are multiplied with, after the second, their mean, is subtracted.
    fn scale_and_shift(&self) -> [f64; 2];
}

/// From pictures to the moments of latents. `C` is the configuration.
#[derive(Debug, Clone)]
pub struct KlEncoder<C> {
    half: KlHalf,
    of: PhantomData<fn() -> C>,
}

impl<C: KlConfig> KlEncoder<C> {
    /// Loads `conv_in`, the blocks on the way down and in the middle, the last norm and `conv_out`, by the names of the family's files.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &C, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            half: KlHalf::encoder(&cfg.spec(), vb)?,
            of: PhantomData,
        })
    }
}

/// From (batch, channels, height, width) to means and then logarithms of variances, (batch, 2 * latent channels, height / 8, width / 8) for
/// four levels.
///
/// # Errors
/// The pictures have another shape, dtype or device, or sides that would leave nothing.
impl<C> Module for KlEncoder<C> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.half.forward(xs)
    }
}

/// From latents to pictures. `C` is the configuration.
#[derive(Debug, Clone)]
pub struct KlDecoder<C> {
    half: KlHalf,
    of: PhantomData<fn() -> C>,
}

impl<C: KlConfig> KlDecoder<C> {
    /// Loads `conv_in`, the blocks in the middle and on the way up, the last norm and `conv_out`, by the names of the family's files.
    ///
    /// # Errors
    /// As [`KlEncoder::new`].
    pub fn new(cfg: &C, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            half: KlHalf::decoder(&cfg.spec(), vb)?,
            of: PhantomData,
        })
    }
}

/// From (batch, latent channels, height, width) to (batch, channels, 8 * height, 8 * width) for four levels.
///
/// # Errors
/// The latents have another shape, dtype or device.
impl<C> Module for KlDecoder<C> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.half.forward(xs)
    }
}

/// The autoencoder. `C` is the configuration.
#[derive(Debug, Clone)]
pub struct AutoencoderKl<C> {
    encoder: KlEncoder<C>,
    decoder: KlDecoder<C>,
    scale_factor: f64,
    shift_factor: f64,
}

impl<C: KlConfig> AutoencoderKl<C> {
    /// Loads `encoder` and `decoder`.
    ///
    /// # Errors
    /// As [`KlEncoder::new`].
    pub fn new(cfg: &C, vb: VarBuilder) -> Result<Self> {
        let [scale_factor, shift_factor] = cfg.scale_and_shift();
        Ok(Self {
            encoder: KlEncoder::new(cfg, vb.pp("encoder"))?,
            decoder: KlDecoder::new(cfg, vb.pp("decoder"))?,
            scale_factor,
            shift_factor,
        })
    }
}

impl<C> AutoencoderKl<C> {
    /// A sample of the latents of pictures from -1 to 1: from (batch, channels, height, width) to
    /// (batch, latent channels, height / 8, width / 8) for four levels.
    ///
    /// # Errors
    /// Those of [`KlEncoder`].
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let latents = latents(&self.encoder.forward(xs)?, 1, true)?;
        (latents - self.shift_factor)? * self.scale_factor
    }

    /// The pictures of latents, from -1 to 1: from (batch, latent channels, height, width) to (batch, channels, 8 * height, 8 * width) for
    /// four levels.
    ///
    /// # Errors
    /// Those of [`KlDecoder`].
    pub fn decode(&self, xs: &Tensor) -> Result<Tensor> {
        let latents = ((xs / self.scale_factor)? + self.shift_factor)?;
        self.decoder.forward(&latents)
    }

    /// The number that latents are multiplied with.
    pub fn scale_factor(&self) -> f64 {
        self.scale_factor
    }

    /// The mean of latents.
    pub fn shift_factor(&self) -> f64 {
        self.shift_factor
    }
}

/// Encodes and decodes.
impl<C> Module for AutoencoderKl<C> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.decode(&self.encode(xs)?)
    }
}
