//! The autoencoder: images to latents of a quarter of their height and width and back,
//! [arXiv 2211.07292](https://arxiv.org/abs/2211.07292). The latents are not quantised.

use candle_core::{Module, Result, Tensor};
use candle_nn::ops::{pixel_shuffle, pixel_unshuffle, replication_pad2d};
use candle_nn::{
    conv_transpose2d, linear, Conv2d, ConvTranspose2d, ConvTranspose2dConfig, Linear, VarBuilder,
};

use super::common::LayerNormNoWeights;
use crate::blocks::vision::{channels_first, channels_last, run_all, ConvNorm, ConvSpec, Picture};

/// Channels of the images.
const CHANNELS: usize = 3;
/// Pixels per position of the first level, in each direction.
const PATCH: usize = 2;
/// Channels of the latents.
const LATENT: usize = 4;
/// Channels of the two levels.
const LEVELS: [usize; 2] = [192, 384];
/// Blocks of the decoder's first level.
const BOTTLENECK: usize = 12;

/// A residual block whose parts are weighted by six learned numbers.
#[derive(Debug)]
pub struct MixingResidualBlock {
    norm1: LayerNormNoWeights,
    depthwise: Conv2d,
    norm2: LayerNormNoWeights,
    channelwise: [Linear; 2],
    /// (6): scale, less 1, and shift of the first norm, the weight of the first part, and the same of the second.
    gammas: Tensor,
}

impl MixingResidualBlock {
    /// Loads `depthwise.1`, `channelwise.{0,2}` and `gammas` for `inp` channels, and `embed_dim` between.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(inp: usize, embed_dim: usize, vb: VarBuilder) -> Result<Self> {
        let depthwise = ConvSpec::depthwise(inp, 3).padding(0);
        let vb_channelwise = vb.pp("channelwise");
        Ok(Self {
            norm1: LayerNormNoWeights::new(inp)?,
            depthwise: depthwise.load(vb.pp("depthwise").pp("1"))?,
            norm2: LayerNormNoWeights::new(inp)?,
            channelwise: [
                linear(inp, embed_dim, vb_channelwise.pp("0"))?,
                linear(embed_dim, inp, vb_channelwise.pp("2"))?,
            ],
            gammas: vb.get(6, "gammas")?,
        })
    }

    /// Element `i` of the gammas.
    fn gamma(&self, i: usize) -> Result<Tensor> {
        self.gammas.narrow(0, i, 1)
    }

    /// `xs * (1 + scale) + shift`, whose numbers are at `i`.
    fn shifted(&self, xs: &Tensor, i: usize) -> Result<Tensor> {
        xs.broadcast_mul(&(self.gamma(i)? + 1.)?)?
            .broadcast_add(&self.gamma(i + 1)?)
    }
}

/// From (batch, inp, height, width) to the same shape.
impl Module for MixingResidualBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.norm1.forward(&channels_last(xs)?)?;
        let ys = channels_first(&self.shifted(&ys, 0)?)?;
        let ys = self.depthwise.forward(&replication_pad2d(&ys, 1)?)?;
        let xs = (xs + ys.broadcast_mul(&self.gamma(2)?)?)?;

        let ys = self.norm2.forward(&channels_last(&xs)?)?;
        let [expand, project] = &self.channelwise;
        let ys = expand.forward(&self.shifted(&ys, 3)?)?.gelu()?;
        let ys = channels_first(&project.forward(&ys)?)?;
        xs + ys.broadcast_mul(&self.gamma(5)?)?
    }
}

/// The autoencoder.
#[derive(Debug)]
pub struct PaellaVQ {
    conv_in: Conv2d,
    down: (MixingResidualBlock, Conv2d, MixingResidualBlock),
    to_latents: ConvNorm,
    from_latents: Conv2d,
    bottleneck: Vec<MixingResidualBlock>,
    up: (ConvTranspose2d, MixingResidualBlock),
    conv_out: Conv2d,
}

impl PaellaVQ {
    /// Loads `in_block.1`, `down_blocks.N`, `up_blocks.N` and `out_block.0`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(vb: VarBuilder) -> Result<Self> {
        let [first, second] = LEVELS;
        let (vb_down, vb_up) = (vb.pp("down_blocks"), vb.pp("up_blocks"));
        let block = |size, vb| MixingResidualBlock::new(size, 4 * size, vb);
        let pixels = CHANNELS * PATCH * PATCH;
        let halves = ConvSpec::new(first, second, 4).stride(2).padding(1);
        let latents = vb_down.pp(3);
        let doubles = ConvTranspose2dConfig {
            padding: 1,
            stride: 2,
            ..Default::default()
        };
        let bottleneck = (0..BOTTLENECK).map(|i| block(second, vb_up.pp(1 + i)));
        let bottleneck = bottleneck.collect::<Result<_>>()?;
        let after = 1 + BOTTLENECK;
        Ok(Self {
            conv_in: ConvSpec::new(pixels, first, 1).load(vb.pp("in_block").pp("1"))?,
            down: (
                block(first, vb_down.pp(0))?,
                halves.load(vb_down.pp(1))?,
                block(second, vb_down.pp(2))?,
            ),
            to_latents: ConvSpec::new(second, LATENT, 1).load_norm(latents.pp(0), latents.pp(1))?,
            from_latents: ConvSpec::new(LATENT, second, 1).load(vb_up.pp(0).pp(0))?,
            bottleneck,
            up: (
                conv_transpose2d(second, first, 4, doubles, vb_up.pp(after))?,
                block(first, vb_up.pp(after + 1))?,
            ),
            conv_out: ConvSpec::new(first, pixels, 1).load(vb.pp("out_block").pp("0"))?,
        })
    }

    /// From images (batch, 3, height, width), whose sides are multiples of 4, to latents (batch, 4, height / 4, width / 4).
    ///
    /// # Errors
    /// The images have another shape, dtype or device.
    pub fn encode(&self, xs: &Tensor) -> Result<Tensor> {
        let picture = Picture {
            multiple: 2 * PATCH,
            ..Picture::any("paella")
        };
        picture.check(xs)?;
        let (first, halves, second) = &self.down;
        let xs = self.conv_in.forward(&pixel_unshuffle(xs, PATCH)?)?;
        let xs = halves.forward(&first.forward(&xs)?)?;
        self.to_latents.forward(&second.forward(&xs)?)
    }

    /// From latents (batch, 4, height, width) to images (batch, 3, 4 * height, 4 * width).
    ///
    /// # Errors
    /// The latents have another shape, dtype or device.
    pub fn decode(&self, xs: &Tensor) -> Result<Tensor> {
        let latents = Picture {
            channels: LATENT,
            ..Picture::any("paella")
        };
        latents.check(xs)?;
        let (doubles, last) = &self.up;
        let xs = run_all(&self.bottleneck, &self.from_latents.forward(xs)?)?;
        let xs = last.forward(&doubles.forward(&xs)?)?;
        pixel_shuffle(&self.conv_out.forward(&xs)?, PATCH)
    }
}

/// Images through the latents and back, (batch, 3, height, width) to the same shape.
impl Module for PaellaVQ {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.decode(&self.encode(xs)?)
    }
}
