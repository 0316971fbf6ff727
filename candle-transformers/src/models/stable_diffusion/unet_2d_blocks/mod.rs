//! The blocks of a UNet and of an autoencoder: residual blocks, attention behind each of them in some, and a change of the size behind all.
//!
//! Images are (batch, channels, height, width), the time is (batch, temb_channels), a text is (batch, tokens, cross_attention_dim). Each
//! block's pass is a [`tracing`] span.

mod down;
mod middle;
mod up;

pub use self::down::{
    CrossAttnDownBlock2D, CrossAttnDownBlock2DConfig, DownBlock2D, DownBlock2DConfig,
    DownEncoderBlock2D, DownEncoderBlock2DConfig,
};
pub use self::middle::{
    UNetMidBlock2D, UNetMidBlock2DConfig, UNetMidBlock2DCrossAttn, UNetMidBlock2DCrossAttnConfig,
};
pub use self::up::{
    CrossAttnUpBlock2D, CrossAttnUpBlock2DConfig, UpBlock2D, UpBlock2DConfig, UpDecoderBlock2D,
    UpDecoderBlock2DConfig,
};

use candle_core::{bail, Result};
use candle_nn::VarBuilder;

use super::attention::{SpatialTransformer, SpatialTransformerConfig};
use super::resnet::{ResnetBlock2D, ResnetBlock2DConfig};

/// The residual blocks `resnets.N`: one for each number of channels that come in.
fn resnets(
    inputs: impl Iterator<Item = usize>,
    config: ResnetBlock2DConfig,
    vb: &VarBuilder,
) -> Result<Vec<ResnetBlock2D>> {
    let vb = vb.pp("resnets");
    let load = |(i, inputs)| ResnetBlock2D::new(vb.pp(i), inputs, config);
    inputs.enumerate().map(load).collect()
}

/// `count` numbers: the first one, and then the others.
fn first_then(first: usize, others: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| if i == 0 { first } else { others })
}

/// The transformer at `vb` with this number of heads.
fn transformer(
    channels: usize,
    heads: usize,
    use_flash_attn: bool,
    config: SpatialTransformerConfig,
    vb: VarBuilder,
) -> Result<SpatialTransformer> {
    if heads == 0 || !channels.is_multiple_of(heads) {
        bail!("unet: {heads} heads do not divide {channels} channels")
    }
    let head_dim = channels / heads;
    SpatialTransformer::new(vb, channels, heads, head_dim, use_flash_attn, config)
}
