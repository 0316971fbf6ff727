//! Convolutions, which are cross-correlations: the kernel is not reversed.

use super::{add_bias, channels_per_group, layer, weights, within};
use crate::ops::ConvLayer;
use crate::{init, Activation, BatchNorm, VarBuilder};
use candle_core::conv::CudnnFwdAlgo;
use candle_core::{Module, Result, Tensor};

macro_rules! config {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            /// Zeros put before and after the input, in each dimension; 0 by default.
            pub padding: usize,
            /// Stride of the kernel; 1 by default.
            pub stride: usize,
            /// Distance between the kernel's elements in the input; 1 by default.
            pub dilation: usize,
            /// Number of groups of channels that are convolved independently; 1 by default.
            pub groups: usize,
            /// The algorithm that cuDNN uses; other backends choose for themselves.
            pub cudnn_fwd_algo: Option<CudnnFwdAlgo>,
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    padding: 0,
                    stride: 1,
                    dilation: 1,
                    groups: 1,
                    cudnn_fwd_algo: None,
                }
            }
        }
    };
}

config! {
    /// The settings of a [`Conv1d`].
    Conv1dConfig
}

config! {
    /// The settings of a [`Conv2d`], the same in both dimensions.
    Conv2dConfig
}

layer! {
    /// Convolution over one dimension, with a kernel of shape (out_channels, in_channels / groups, kernel_size).
    Conv1d, Conv1dConfig
}

layer! {
    /// Convolution over two dimensions, with a kernel of shape (out_channels, in_channels / groups, kernel_h, kernel_w).
    Conv2d, Conv2dConfig
}

/// From (batch, in_channels, length) to (batch, out_channels, out_length); see [`Tensor::conv1d`].
impl Module for Conv1d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let c = &self.config;
        let ys = xs.conv1d_with_algo(
            &self.weight,
            c.padding,
            c.stride,
            c.dilation,
            c.groups,
            c.cudnn_fwd_algo,
        )?;
        add_bias(ys, self.bias())
    }
}

/// From (batch, in_channels, height, width) to (batch, out_channels, out_height, out_width); see [`Tensor::conv2d`].
impl Module for Conv2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_then(xs, None, None)
    }
}

impl Conv2d {
    /// The result of this layer plus `residual`, of the same shape, then `activation`: one kernel on a WebGPU device, unless there is a
    /// gradient to compute. Not in upstream's interface.
    ///
    /// # Errors
    /// Those of [`Tensor::conv2d`], or if `residual` has another shape.
    pub fn forward_then(
        &self,
        xs: &Tensor,
        residual: Option<&Tensor>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let layer = ConvLayer {
            weight: &self.weight,
            config: self.config,
            bias: self.bias.as_ref(),
            residual,
            activation,
        };
        layer.forward(xs)
    }

    /// This layer and `bn` (in inference) fused into one layer. Its weights are on the graph, since the running statistics of `bn` are
    /// variables: a model for inference detaches them.
    ///
    /// # Errors
    /// `bn` has no weight and bias, or is for another number of channels.
    pub fn absorb_bn(&self, bn: &BatchNorm) -> Result<Self> {
        let Some((scale, shift)) = bn.weight_and_bias() else {
            candle_core::bail!("absorb_bn: the batch norm has no weight and bias")
        };
        let scale = (scale / (bn.running_var() + bn.eps())?.sqrt()?)?;
        let centred = match &self.bias {
            None => bn.running_mean().neg()?,
            Some(bias) => (bias - bn.running_mean())?,
        };
        let bias = (shift + (&scale * centred)?)?;
        let per_kernel = scale.reshape((scale.elem_count(), 1, 1, 1))?;
        Ok(Self {
            weight: self.weight.broadcast_mul(&per_kernel)?,
            bias: Some(bias),
            config: self.config,
        })
    }
}

/// A layer from the tensors `weight` (out_channels, in_channels / groups, kernel_size) and `bias` (out_channels) of `vb`. Where they
/// are new, the weight is Kaiming normal and the bias uniform within `1 / sqrt(in_channels)` of 0.
///
/// # Errors
/// A tensor is missing or has another shape, or `in_channels` is not a multiple of the groups.
pub fn conv1d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    conv1d_b(in_channels, out_channels, kernel_size, cfg, true, vb)
}

/// [`conv1d`] without a bias.
///
/// # Errors
/// Those of [`conv1d`].
pub fn conv1d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv1dConfig,
    vb: VarBuilder,
) -> Result<Conv1d> {
    conv1d_b(in_channels, out_channels, kernel_size, cfg, false, vb)
}

fn conv1d_b(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv1dConfig,
    bias: bool,
    vb: VarBuilder,
) -> Result<Conv1d> {
    let in_group = channels_per_group(in_channels, cfg.groups)?;
    let (weight, bias) = weights(
        &vb,
        &[out_channels, in_group, kernel_size],
        init::DEFAULT_KAIMING_NORMAL,
        out_channels,
        bias.then(|| within(1. / (in_channels as f64).sqrt())),
    )?;
    Ok(Conv1d::new(weight, bias, cfg))
}

/// A layer from the tensors `weight` (out_channels, in_channels / groups, kernel_size, kernel_size) and `bias` (out_channels) of
/// `vb`. New ones are filled as those of [`conv1d`].
///
/// # Errors
/// Those of [`conv1d`].
pub fn conv2d(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv2dConfig,
    vb: VarBuilder,
) -> Result<Conv2d> {
    conv2d_b(in_channels, out_channels, kernel_size, cfg, true, vb)
}

/// [`conv2d`] without a bias.
///
/// # Errors
/// Those of [`conv1d`].
pub fn conv2d_no_bias(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv2dConfig,
    vb: VarBuilder,
) -> Result<Conv2d> {
    conv2d_b(in_channels, out_channels, kernel_size, cfg, false, vb)
}

fn conv2d_b(
    in_channels: usize,
    out_channels: usize,
    kernel_size: usize,
    cfg: Conv2dConfig,
    bias: bool,
    vb: VarBuilder,
) -> Result<Conv2d> {
    let in_group = channels_per_group(in_channels, cfg.groups)?;
    let (weight, bias) = weights(
        &vb,
        &[out_channels, in_group, kernel_size, kernel_size],
        init::DEFAULT_KAIMING_NORMAL,
        out_channels,
        bias.then(|| within(1. / (in_channels as f64).sqrt())),
    )?;
    Ok(Conv2d::new(weight, bias, cfg))
}
