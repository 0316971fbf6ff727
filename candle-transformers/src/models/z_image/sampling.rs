//! Noise, times, guidance, and pixels.

use candle_core::{DType, Device, Result, Tensor};

use crate::blocks::diffusion::schedule;

/// Noise with the shape of latents, (batch_size, channels, height, width) of f32. An image of the VAE has 8 times the height and width.
///
/// # Errors
/// If the device has no memory.
pub fn get_noise(
    batch_size: usize,
    channels: usize,
    height: usize,
    width: usize,
    device: &Device,
) -> Result<Tensor> {
    Tensor::randn(0f32, 1., (batch_size, channels, height, width), device)
}

/// The times of `num_steps` steps, from 1, noise, to 0: one more than steps, moved to noise by `mu` as [`super::calculate_shift`] gives it.
/// No steps are the one time 1.
pub fn get_schedule(num_steps: usize, mu: f64) -> Vec<f64> {
    schedule(num_steps, Some(mu))
}

/// From images of numbers from -1 to 1 to the same shape of u8 from 0 to 255; what is outside is cut off.
///
/// # Errors
/// The images are not of a float dtype.
pub fn postprocess_image(image: &Tensor) -> Result<Tensor> {
    let from_zero = (image.clamp(-1., 1.)? + 1.)?;
    (from_zero * 127.5)?.to_dtype(DType::U8)
}

/// Guidance without a classifier, [arXiv 2207.12598](https://arxiv.org/abs/2207.12598).
#[derive(Debug, Clone)]
pub struct CfgConfig {
    /// Scale of classifier-free guidance, away from the prediction for the other text.
    pub guidance_scale: f64,
    /// The time from 0, noise, to 1 after which there is no guidance.
    pub cfg_truncation: f64,
    /// Whether predictions become no longer than without guidance.
    pub cfg_normalization: bool,
}

/// A scale of 5 at all times, not normalised.
impl Default for CfgConfig {
    fn default() -> Self {
        Self {
            guidance_scale: 5.,
            cfg_truncation: 1.,
            cfg_normalization: false,
        }
    }
}

/// `pos_pred + scale * (pos_pred - neg_pred)`: predictions for the text and for another one, both of one shape, at the time `t_norm` from
/// 0, noise, to 1. Lengths are those of the whole batch.
///
/// # Errors
/// The shapes, dtypes or devices differ.
pub fn apply_cfg(
    pos_pred: &Tensor,
    neg_pred: &Tensor,
    cfg: &CfgConfig,
    t_norm: f64,
) -> Result<Tensor> {
    let scale = cfg.guidance_scale;
    if t_norm > cfg.cfg_truncation || scale <= 0. {
        return Ok(pos_pred.clone());
    }
    let guided = (pos_pred + ((pos_pred - neg_pred)? * scale)?)?;
    if !cfg.cfg_normalization {
        return Ok(guided);
    }
    // On the device: nothing waits for a number.
    let length = |xs: &Tensor| xs.to_dtype(DType::F32)?.sqr()?.sum_all()?.sqrt();
    let longest = length(&guided)?.maximum(f32::MIN_POSITIVE)?;
    let factor = (length(pos_pred)? / longest)?.minimum(1f32)?;
    guided.broadcast_mul(&factor.to_dtype(guided.dtype())?)
}

/// Noise as the first sample of a schedule: times `sigma`, the first of its times.
///
/// # Errors
/// If the device fails.
pub fn scale_noise(noise: &Tensor, sigma: f64) -> Result<Tensor> {
    noise * sigma
}
