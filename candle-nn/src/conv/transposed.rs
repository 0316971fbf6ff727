//! Transposed convolutions: the gradient of a convolution with respect to its input, used forwards.

use super::{add_bias, channels_per_group, layer, weights, within};
use crate::VarBuilder;
use candle_core::{Module, Result, Tensor};

/// The settings of a [`ConvTranspose1d`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose1dConfig {
    /// Elements cut off both ends of the result; 0 by default.
    pub padding: usize,
    /// Elements added at the end of the result; 0 by default.
    pub output_padding: usize,
    /// Distance in the result between neighbouring input elements; 1 by default.
    pub stride: usize,
    /// Distance in the result between neighbouring kernel elements; 1 by default.
    pub dilation: usize,
    /// Number of groups of channels that are convolved independently; 1 by default.
    pub groups: usize,
}

impl Default for ConvTranspose1dConfig {
    fn default() -> Self {
        Self {
            padding: 0,
            output_padding: 0,
            stride: 1,
            dilation: 1,
            groups: 1,
        }
    }
}

/// The settings of a [`ConvTranspose2d`], the same in both dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvTranspose2dConfig {
    /// Elements cut off all sides of the result; 0 by default.
    pub padding: usize,
    /// Elements added at the end of both dimensions of the result; 0 by default.
    pub output_padding: usize,
    /// Distance in the result between neighbouring input elements; 1 by default.
    pub stride: usize,
    /// Distance in the result between neighbouring kernel elements; 1 by default.
    pub dilation: usize,
}

impl Default for ConvTranspose2dConfig {
    fn default() -> Self {
        Self {
            padding: 0,
            output_padding: 0,
            stride: 1,
            dilation: 1,
        }
    }
}

layer! {
    /// Transposed convolution over one dimension, with a kernel of shape (in_channels, out_channels / groups, kernel_size).
    ConvTranspose1d, ConvTranspose1dConfig
}

layer! {
    /// Transposed convolution over two dimensions, with a kernel of shape (in_channels, out_channels, kernel_h, kernel_w).
    ConvTranspose2d, ConvTranspose2dConfig
}

/// From (batch, in_channels, length) to (batch, out_channels, out_length); see [`Tensor::conv_transpose1d`].
impl Module for ConvTranspose1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let c = &self.config;
        let ys = xs.conv_transpose1d(
            &self.weight,
            c.padding,
            c.output_padding,
            c.stride,
            c.dilation,
            c.groups,
        )?;
        add_bias(ys, self.bias())
    }
}

/// From (batch, in_channels, height, width) to (batch, out_channels, out_height, out_width); see [`Tensor::conv_transpose2d`].
impl Module for ConvTranspose2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let c = &self.config;
        let ys = xs.conv_transpose2d(
            &self.weight,
            c.padding,
            c.output_padding,
            c.stride,
            c.dilation,
        )?;
        add_bias(ys, self.bias())
    }
}

/// A layer from the tensors `weight` (in_channels, out_channels / groups, kernel_size) and `bias` (out_channels) of `vb`. New ones are
/// uniform within `1 / sqrt(out_channels * kernel_size)` of 0.
///
/// # Errors
/// A tensor is missing or has another shape, or `out_channels` is not a multiple of the groups.
pub fn conv_transpose1d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose1dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    conv_transpose1d_b(in_channels, out_channels, kernel_size, cfg, true, vb)
}

/// [`conv_transpose1d`] without a bias.
///
/// # Errors
/// Those of [`conv_transpose1d`].
pub fn conv_transpose1d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose1dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    conv_transpose1d_b(in_channels, out_channels, kernel_size, cfg, false, vb)
}

fn conv_transpose1d_b(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose1dConfig,
    bias: bool,
    vb: VarBuilder,
) -> Result<ConvTranspose1d> {
    let out_group = channels_per_group(out_channels, cfg.groups)?;
    let init = within(1. / (out_channels as f64 * kernel_size as f64).sqrt());
    let (weight, bias) = weights(
        &vb,
        &[in_channels, out_group, kernel_size],
        init,
        out_channels,
        bias.then_some(init),
    )?;
    Ok(ConvTranspose1d::new(weight, bias, cfg))
}

/// A layer from the tensors `weight` (in_channels, out_channels, kernel_size, kernel_size) and `bias` (out_channels) of `vb`. New ones
/// are uniform within `1 / (sqrt(out_channels) * kernel_size)` of 0.
///
/// # Errors
/// A tensor is missing or has another shape.
pub fn conv_transpose2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose2dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose2d> {
    conv_transpose2d_b(in_channels, out_channels, kernel_size, cfg, true, vb)
}

/// [`conv_transpose2d`] without a bias.
///
/// # Errors
/// Those of [`conv_transpose2d`].
pub fn conv_transpose2d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose2dConfig,
    vb: VarBuilder,
) -> Result<ConvTranspose2d> {
    conv_transpose2d_b(in_channels, out_channels, kernel_size, cfg, false, vb)
}

fn conv_transpose2d_b(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: ConvTranspose2dConfig,
    bias: bool,
    vb: VarBuilder,
) -> Result<ConvTranspose2d> {
    let init = within(1. / ((out_channels as f64).sqrt() * kernel_size as f64));
    let (weight, bias) = weights(
        &vb,
        &[in_channels, out_channels, kernel_size, kernel_size],
        init,
        out_channels,
        bias.then_some(init),
    )?;
    Ok(ConvTranspose2d::new(weight, bias, cfg))
}
