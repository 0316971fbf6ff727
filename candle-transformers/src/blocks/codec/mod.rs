//! The common parts of neural audio codecs: kernels under weight normalisation, LSTMs, and codebooks that quantise a residual stage by
//! stage.

mod codebook;
mod lstm;
mod stages;
mod weight_norm;

pub use codebook::{residual_decode, residual_encode, Codebook, Stage};
pub use lstm::ResidualLstm;
pub use stages::{
    repeat_interleave, DecoderBlock, EncoderBlock, ResidualUnit, Snake1d, VectorQuantizer,
};
pub(crate) use stages::{DecoderStages, Form};
pub use weight_norm::KernelNames;

use candle_core::{bail, DType, Result, Tensor};

/// The batch and the samples of a sound of shape (batch, `channels`, samples).
///
/// # Errors
/// The shape is another, or there are no samples.
pub fn sound(family: &str, xs: &Tensor, channels: usize) -> Result<(usize, usize)> {
    match *xs.dims() {
        [batch, c, samples] if c == channels && samples > 0 => Ok((batch, samples)),
        _ => bail!(
            "{family}: sounds must be (batch, {channels}, samples) with at least 1 sample, not {:?}",
            xs.dims()
        ),
    }
}

/// The dtype for sums of many numbers of `dtype`.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}
