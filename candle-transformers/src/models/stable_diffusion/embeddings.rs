//! Time as vectors.

use candle_core::{bail, DType, Module, Result, Tensor, D};
use candle_nn::{linear, Linear, VarBuilder};

/// Two linear layers with a SiLU between them.
#[derive(Debug)]
pub struct TimestepEmbedding {
    linear_1: Linear,
    linear_2: Linear,
}

impl TimestepEmbedding {
    /// Loads `linear_1`, from `channel` to `time_embed_dim`, and `linear_2`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(vs: VarBuilder, channel: usize, time_embed_dim: usize) -> Result<Self> {
        Ok(Self {
            linear_1: linear(channel, time_embed_dim, vs.pp("linear_1"))?,
            linear_2: linear(time_embed_dim, time_embed_dim, vs.pp("linear_2"))?,
        })
    }
}

/// From (batch, channel) to (batch, time_embed_dim).
impl Module for TimestepEmbedding {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.linear_2.forward(&self.linear_1.forward(xs)?.silu()?)
    }
}

/// Sines and cosines of a time, of frequencies from 1 down to 1/10000.
#[derive(Debug)]
pub struct Timesteps {
    num_channels: usize,
    flip_sin_to_cos: bool,
    downscale_freq_shift: f64,
}

impl Timesteps {
    /// Vectors of size `num_channels`. With `flip_sin_to_cos` the cosines come first. The logarithms of the frequencies go down by
    /// `ln(10000) / (num_channels / 2 - downscale_freq_shift)`.
    pub fn new(num_channels: usize, flip_sin_to_cos: bool, downscale_freq_shift: f64) -> Self {
        Self {
            num_channels,
            flip_sin_to_cos,
            downscale_freq_shift,
        }
    }
}

/// From times (n) to (n, num_channels) of their dtype; of 16-bit floats the angles are computed in f32. An odd last channel is 0.
///
/// # Errors
/// `num_channels` is below 2, or its half is not above the shift.
impl Module for Timesteps {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let half = self.num_channels / 2;
        let parts = half as f64 - self.downscale_freq_shift;
        if half == 0 || parts.is_nan() || parts <= 0. {
            bail!(
                "timesteps: {} channels with a shift of {}; half the channels must exceed the shift",
                self.num_channels,
                self.downscale_freq_shift
            )
        }
        let frequency = |i| (f64::ln(10_000.) * -(i as f64) / parts).exp() as f32;
        let frequencies: Vec<f32> = (0..half).map(frequency).collect();
        let frequencies = Tensor::from_vec(frequencies, (1, half), xs.device())?;
        let times = xs.to_dtype(DType::F32)?.unsqueeze(D::Minus1)?;
        let angles = times.broadcast_mul(&frequencies)?;
        let (cos, sin) = (angles.cos()?, angles.sin()?);
        let both = if self.flip_sin_to_cos {
            Tensor::cat(&[cos, sin], D::Minus1)?
        } else {
            Tensor::cat(&[sin, cos], D::Minus1)?
        };
        both.pad_with_zeros(D::Minus1, 0, self.num_channels % 2)?
            .to_dtype(xs.dtype())
    }
}
