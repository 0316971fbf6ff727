//! What a convolution over time sees before the first sample and after the last.

use candle_core::{Result, Tensor};

/// The padding of sounds at their ends.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum PadMode {
    /// By zeros.
    Constant,
    /// By their mirror image, whose axis is the first or the last sample. What a sound is too short for is taken from zeros behind it.
    Reflect,
    /// By the first and the last sample.
    Replicate,
}

impl PadMode {
    /// (batch, channels, samples) with `left` samples more before it and `right` after it.
    ///
    /// # Errors
    /// There are no samples to continue, or the device fails.
    pub(super) fn pad(self, xs: &Tensor, left: usize, right: usize) -> Result<Tensor> {
        match self {
            _ if left == 0 && right == 0 => Ok(xs.clone()),
            Self::Constant => xs.pad_with_zeros(2, left, right),
            Self::Replicate => xs.pad_with_same(2, left, right),
            Self::Reflect => reflect(xs, left, right),
        }
    }

    /// The fewest samples at a sound's start from which `left` samples before it follow.
    pub(super) fn needs(self, left: usize) -> usize {
        match self {
            Self::Reflect => left + 1,
            Self::Constant | Self::Replicate => 1,
        }
    }
}

fn reflect(xs: &Tensor, left: usize, right: usize) -> Result<Tensor> {
    let zeros = (left.max(right) + 1).saturating_sub(xs.dim(2)?);
    let xs = match zeros {
        0 => xs.clone(),
        _ => xs.pad_with_zeros(2, 0, zeros)?,
    };
    let len = xs.dim(2)?;
    let mut parts = Vec::with_capacity(3);
    if left > 0 {
        parts.push(xs.narrow(2, 1, left)?.flip(&[2])?);
    }
    parts.push(xs.clone());
    if right > 0 {
        parts.push(xs.narrow(2, len - 1 - right, right)?.flip(&[2])?);
    }
    Tensor::cat(&parts, 2)?.narrow(2, 0, left + len + right - zeros)
}

/// Number of samples that a sound of `len` lacks for its last frame, after `kernel - stride` samples of padding.
pub(super) fn completion(len: usize, kernel: usize, stride: usize) -> usize {
    let padding = kernel - stride;
    let behind_first = (len + padding).saturating_sub(kernel);
    let whole = behind_first.div_ceil(stride) * stride + stride;
    whole.saturating_sub(len)
}
