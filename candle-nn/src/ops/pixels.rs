//! Rearranges images: channels to pixels and back, repeated borders.

use candle_core::{bail, Result, Tensor};

/// Spreads channels over pixels: from (batch, c * r², h, w) to (batch, c, h * r, w * r), with r the `upscale_factor`; see
/// <https://arxiv.org/abs/1609.05158>.
///
/// # Errors
/// `xs` has not 4 dimensions, or its channels are not a multiple of r².
pub fn pixel_shuffle(xs: &Tensor, upscale_factor: usize) -> Result<Tensor> {
    let (batch, channels, h, w) = xs.dims4()?;
    let r = upscale_factor;
    if r == 0 || !channels.is_multiple_of(r * r) {
        bail!(
            "pixel_shuffle: the {channels} channels of {:?} do not divide into {r} by {r} pixels",
            xs.dims()
        )
    }
    let out_channels = channels / (r * r);
    xs.reshape(vec![batch, out_channels, r, r, h, w])?
        .permute(vec![0, 1, 4, 2, 5, 3])?
        .reshape((batch, out_channels, h * r, w * r))
}

/// Gathers pixels into channels, the inverse of [`pixel_shuffle`]: from (batch, c, h * r, w * r) to (batch, c * r², h, w), with r the
/// `downscale_factor`.
///
/// # Errors
/// `xs` has not 4 dimensions, or its height or width is not a multiple of r.
pub fn pixel_unshuffle(xs: &Tensor, downscale_factor: usize) -> Result<Tensor> {
    let (batch, channels, h, w) = xs.dims4()?;
    let r = downscale_factor;
    if r == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
        bail!(
            "pixel_unshuffle: {h} by {w} pixels of {:?} do not divide into blocks of {r} by {r}",
            xs.dims()
        )
    }
    xs.reshape(vec![batch, channels, h / r, r, w / r, r])?
        .permute(vec![0, 1, 3, 5, 2, 4])?
        .reshape((batch, channels * r * r, h / r, w / r))
}

/// Repeats the border of (batch, channels, h, w) `pad` times on each side: (batch, channels, h + 2 * pad, w + 2 * pad).
///
/// # Errors
/// `xs` has not 4 dimensions, or has no pixels to repeat.
pub fn replication_pad2d(xs: &Tensor, pad: usize) -> Result<Tensor> {
    let (_batch, _channels, h, w) = xs.dims4()?;
    if pad == 0 {
        return Ok(xs.clone());
    }
    if h == 0 || w == 0 {
        bail!("replication_pad2d: {:?} has no border to repeat", xs.dims())
    }
    xs.pad_with_same(2, pad, pad)?.pad_with_same(3, pad, pad)
}
