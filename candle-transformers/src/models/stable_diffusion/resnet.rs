//! The residual block of UNets and autoencoders: two convolutions, each behind a group norm and a SiLU, and the time between them.

use candle_core::{Module, Result, Tensor};
use candle_nn::{group_norm, linear, Conv2d, GroupNorm, Linear, VarBuilder};

use crate::blocks::vision::ConvSpec;

/// The numbers of a block.
#[derive(Debug, Clone, Copy)]
pub struct ResnetBlock2DConfig {
    /// Output channels; `None` for the number of input channels.
    pub out_channels: Option<usize>,
    /// Size of the vector of time; without it the block does not see the time.
    pub temb_channels: Option<usize>,
    /// Groups of the first norm.
    pub groups: usize,
    /// Groups of the second norm; `groups` without it.
    pub groups_out: Option<usize>,
    /// Norm epsilon.
    pub eps: f64,
    /// Whether the input passes a 1x1 convolution before the result is added. Without it, where the number of channels changes.
    pub use_in_shortcut: Option<bool>,
    /// Divisor of the result.
    pub output_scale_factor: f64,
}

/// 32 groups and a time of size 512.
impl Default for ResnetBlock2DConfig {
    fn default() -> Self {
        Self {
            out_channels: None,
            temb_channels: Some(512),
            groups: 32,
            groups_out: None,
            eps: 1e-6,
            use_in_shortcut: None,
            output_scale_factor: 1.,
        }
    }
}

/// A block.
#[derive(Debug)]
pub struct ResnetBlock2D {
    norm1: GroupNorm,
    conv1: Conv2d,
    time: Option<Linear>,
    norm2: GroupNorm,
    conv2: Conv2d,
    shortcut: Option<Conv2d>,
    scale: f64,
}

impl ResnetBlock2D {
    /// Loads `norm1`, `conv1`, `norm2`, `conv2`, and, if there are such, `time_emb_proj` and `conv_shortcut`.
    ///
    /// # Errors
    /// Groups do not divide channels, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, in_channels: usize, config: ResnetBlock2DConfig) -> Result<Self> {
        let out_channels = config.out_channels.unwrap_or(in_channels);
        let norm = |groups, channels, name| group_norm(groups, channels, config.eps, vs.pp(name));
        let conv =
            |inputs, kernel, name| ConvSpec::new(inputs, out_channels, kernel).load(vs.pp(name));
        let time = |size| linear(size, out_channels, vs.pp("time_emb_proj"));
        let has_shortcut = config
            .use_in_shortcut
            .unwrap_or(in_channels != out_channels);
        let shortcut = || conv(in_channels, 1, "conv_shortcut");
        let groups_out = config.groups_out.unwrap_or(config.groups);
        Ok(Self {
            norm1: norm(config.groups, in_channels, "norm1")?,
            conv1: conv(in_channels, 3, "conv1")?,
            time: config.temb_channels.map(time).transpose()?,
            norm2: norm(groups_out, out_channels, "norm2")?,
            conv2: conv(out_channels, 3, "conv2")?,
            shortcut: has_shortcut.then(shortcut).transpose()?,
            scale: config.output_scale_factor,
        })
    }

    /// From (batch, in_channels, height, width) to (batch, out_channels, height, width). `temb` is (batch, temb_channels); a block
    /// without `time_emb_proj` does not read it.
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, temb: Option<&Tensor>) -> Result<Tensor> {
        let mut ys = self.conv1.forward(&self.norm1.forward(xs)?.silu()?)?;
        if let (Some(temb), Some(time)) = (temb, &self.time) {
            let shift = time.forward(&temb.silu()?)?;
            ys = ys.broadcast_add(&shift.unsqueeze(2)?.unsqueeze(3)?)?;
        }
        let ys = self.conv2.forward(&self.norm2.forward(&ys)?.silu()?)?;
        let sum = match &self.shortcut {
            Some(shortcut) => (shortcut.forward(xs)? + ys)?,
            None => (xs + ys)?,
        };
        divided(sum, self.scale)
    }
}

/// `xs / scale`, without a kernel for 1.
pub(super) fn divided(xs: Tensor, scale: f64) -> Result<Tensor> {
    if scale == 1. {
        Ok(xs)
    } else {
        xs / scale
    }
}
