//! Parts of models that make images of noise: autoencoders between images and latents, times as vectors, and the norms and gates of a
//! transformer's blocks that a condition sets.

pub mod autoencoder;
pub mod condition;
mod latent_space;
pub mod schedule;

pub use autoencoder::{latents, KlHalf, KlNames, KlSpec};
pub use condition::{
    attend, modulated, plain_norm, plus_gated, plus_gated_norm, scaled_norm, AdaLn, NORM_EPS,
};
pub use latent_space::{AutoencoderKl, KlConfig, KlDecoder, KlEncoder};
pub use schedule::{schedule, shift_of, shifted};

use candle_core::{bail, DType, Result, Tensor, D};

/// The longest period of [`sinusoids`].
const PERIOD: f64 = 10_000.;

/// Times, (batch), as vectors of f32, (batch, dim): cosines of `dim / 2` frequencies from 1 down to nearly `1 / 10000`, then their sines.
///
/// # Errors
/// `dim` is odd or 0, or `times` is not a vector.
pub fn sinusoids(times: &Tensor, dim: usize) -> Result<Tensor> {
    if dim == 0 || !dim.is_multiple_of(2) {
        bail!("the size of time embeddings is {dim}; it must be even and at least 2")
    }
    let half = dim / 2;
    // In f32, as the models were trained: early frequencies are multiplied with times of up to 1000.
    let step = (-PERIOD.ln() / half as f64) as f32;
    let frequencies = (0..half).map(|i| (i as f32 * step).exp());
    let frequencies = Tensor::from_iter(frequencies, times.device())?.unsqueeze(0)?;
    let times = times.to_dtype(DType::F32)?;
    let angles = times.unsqueeze(1)?.broadcast_mul(&frequencies)?;
    Tensor::cat(&[angles.cos()?, angles.sin()?], D::Minus1)
}
