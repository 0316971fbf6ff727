//! The autoencoder of latent diffusion, [arXiv 2112.10752](https://arxiv.org/abs/2112.10752): images to latents of an eighth of their
//! height and width and back. Weight names are those of diffusers' `AutoencoderKL`.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::stable_diffusion::vae::{AutoEncoderKL, AutoEncoderKLConfig};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real one: `StableDiffusionConfig::build_vae`.
//! let config = AutoEncoderKLConfig {
//!     block_out_channels: vec![8, 8],
//!     norm_num_groups: 4,
//!     ..Default::default()
//! };
//! let vae = AutoEncoderKL::new(VarBuilder::zeros(DType::F32, &device), 3, 3, config)?;
//! let picture = Tensor::zeros((1, 3, 16, 16), DType::F32, &device)?;
//! let latents = vae.encode(&picture)?.sample()?;
//! assert_eq!(latents.dims(), &[1, 4, 8, 8]);
//! assert_eq!(vae.decode(&latents)?.dims(), picture.dims());
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{group_norm, Conv2d, GroupNorm, VarBuilder};

use super::unet_2d_blocks::{
    DownEncoderBlock2D, DownEncoderBlock2DConfig, UNetMidBlock2D, UNetMidBlock2DConfig,
    UpDecoderBlock2D, UpDecoderBlock2DConfig,
};
use crate::blocks::vision::{run_all, ConvSpec, Picture};

/// Norm epsilon.
const EPS: f64 = 1e-6;

/// The numbers of an autoencoder.
#[derive(Debug, Clone)]
pub struct AutoEncoderKLConfig {
    /// Channels of each block, from the images to the latents. All blocks but the last halve the size.
    pub block_out_channels: Vec<usize>,
    /// Residual blocks of each block; the decoder has one more.
    pub layers_per_block: usize,
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Groups of the norms, which divide all channels.
    pub norm_num_groups: usize,
    /// Whether a 1x1 convolution follows the encoder.
    pub use_quant_conv: bool,
    /// Whether a 1x1 convolution is before the decoder.
    pub use_post_quant_conv: bool,
}

/// One block of 64 channels.
impl Default for AutoEncoderKLConfig {
    fn default() -> Self {
        Self {
            block_out_channels: vec![64],
            layers_per_block: 1,
            latent_channels: 4,
            norm_num_groups: 32,
            use_quant_conv: true,
            use_post_quant_conv: true,
        }
    }
}

impl AutoEncoderKLConfig {
    /// The channels of the first and the last block.
    fn ends(&self) -> Result<(usize, usize)> {
        match (
            self.block_out_channels.first(),
            self.block_out_channels.last(),
        ) {
            (Some(&first), Some(&last)) => Ok((first, last)),
            _ => bail!("autoencoder: block_out_channels is empty; at least one block is required"),
        }
    }

    fn middle(&self, channels: usize, vb: VarBuilder) -> Result<UNetMidBlock2D> {
        let config = UNetMidBlock2DConfig {
            resnet_eps: EPS,
            attn_num_head_channels: None,
            resnet_groups: Some(self.norm_num_groups),
            ..Default::default()
        };
        UNetMidBlock2D::new(vb.pp("mid_block"), channels, None, config)
    }
}

/// The norm, the SiLU and the convolution at an end.
#[derive(Debug)]
struct Out {
    norm: GroupNorm,
    conv: Conv2d,
}

impl Out {
    /// Loads `conv_norm_out` and `conv_out`.
    fn load(groups: usize, inputs: usize, outputs: usize, vb: &VarBuilder) -> Result<Self> {
        Ok(Self {
            norm: group_norm(groups, inputs, EPS, vb.pp("conv_norm_out"))?,
            conv: ConvSpec::new(inputs, outputs, 3).load(vb.pp("conv_out"))?,
        })
    }
}

impl Module for Out {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.conv.forward(&self.norm.forward(xs)?.silu()?)
    }
}

#[derive(Debug)]
struct Encoder {
    conv_in: Conv2d,
    blocks: Vec<DownEncoderBlock2D>,
    middle: UNetMidBlock2D,
    out: Out,
    picture: Picture,
}

impl Encoder {
    fn load(channels: usize, config: &AutoEncoderKLConfig, vb: VarBuilder) -> Result<Self> {
        let (first, last) = config.ends()?;
        let (groups, count) = (config.norm_num_groups, config.block_out_channels.len());
        let inputs = [first].into_iter().chain(config.block_out_channels.clone());
        let block = |(i, (inputs, &outputs)): (usize, (usize, &usize))| {
            let config = DownEncoderBlock2DConfig {
                num_layers: config.layers_per_block,
                resnet_eps: EPS,
                resnet_groups: groups,
                add_downsample: i + 1 < count,
                downsample_padding: 0,
                ..Default::default()
            };
            DownEncoderBlock2D::new(vb.pp("down_blocks").pp(i), inputs, outputs, config)
        };
        let blocks = inputs.zip(&config.block_out_channels).enumerate();
        Ok(Self {
            conv_in: ConvSpec::new(channels, first, 3).load(vb.pp("conv_in"))?,
            blocks: blocks.map(block).collect::<Result<_>>()?,
            middle: config.middle(last, vb.clone())?,
            out: Out::load(groups, last, 2 * config.latent_channels, &vb)?,
            picture: Picture {
                channels,
                ..Picture::any("autoencoder")
            },
        })
    }
}

impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.picture.check(xs)?;
        self.picture.at_least(1 << (self.blocks.len() - 1), xs)?;
        let xs = run_all(&self.blocks, &self.conv_in.forward(xs)?)?;
        self.out.forward(&self.middle.forward(&xs, None)?)
    }
}

#[derive(Debug)]
struct Decoder {
    conv_in: Conv2d,
    middle: UNetMidBlock2D,
    blocks: Vec<UpDecoderBlock2D>,
    out: Out,
}

impl Decoder {
    fn load(channels: usize, config: &AutoEncoderKLConfig, vb: VarBuilder) -> Result<Self> {
        let (first, last) = config.ends()?;
        let (groups, count) = (config.norm_num_groups, config.block_out_channels.len());
        let outputs = config.block_out_channels.iter().rev();
        let inputs = [&last].into_iter().chain(outputs.clone());
        let block = |(i, (&inputs, &outputs)): (usize, (&usize, &usize))| {
            let config = UpDecoderBlock2DConfig {
                num_layers: config.layers_per_block + 1,
                resnet_eps: EPS,
                resnet_groups: groups,
                add_upsample: i + 1 < count,
                ..Default::default()
            };
            UpDecoderBlock2D::new(vb.pp("up_blocks").pp(i), inputs, outputs, config)
        };
        let blocks = inputs.zip(outputs).enumerate();
        Ok(Self {
            conv_in: ConvSpec::new(config.latent_channels, last, 3).load(vb.pp("conv_in"))?,
            middle: config.middle(last, vb.clone())?,
            blocks: blocks.map(block).collect::<Result<_>>()?,
            out: Out::load(groups, first, channels, &vb)?,
        })
    }
}

impl Module for Decoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.middle.forward(&self.conv_in.forward(xs)?, None)?;
        self.out.forward(&run_all(&self.blocks, &xs)?)
    }
}

/// Normal distributions, one for each element of the latents.
#[derive(Debug, Clone)]
pub struct DiagonalGaussianDistribution {
    mean: Tensor,
    std: Tensor,
}

impl DiagonalGaussianDistribution {
    /// From (batch, 2 * channels, …): the means, and behind them the logarithms of the variances.
    ///
    /// # Errors
    /// The parameters have no second dimension, or an odd one.
    pub fn new(parameters: &Tensor) -> Result<Self> {
        let channels = match *parameters.dims() {
            [_, channels, ..] if channels % 2 == 0 => channels / 2,
            _ => bail!(
                "distribution: the parameters are {:?}; they must be (batch, 2 * channels, ..)",
                parameters.dims()
            ),
        };
        let log_variance = parameters.narrow(1, channels, channels)?;
        Ok(Self {
            mean: parameters.narrow(1, 0, channels)?,
            std: (log_variance * 0.5)?.exp()?,
        })
    }

    /// A number from each distribution: (batch, channels, …).
    ///
    /// # Errors
    /// The device has no random numbers of this dtype.
    pub fn sample(&self) -> Result<Tensor> {
        let noise = self.mean.randn_like(0., 1.)?;
        &self.mean + (&self.std * noise)?
    }
}

/// An encoder of images and a decoder of latents.
#[derive(Debug)]
pub struct AutoEncoderKL {
    encoder: Encoder,
    decoder: Decoder,
    quant_conv: Option<Conv2d>,
    post_quant_conv: Option<Conv2d>,
    /// The configuration of the model.
    pub config: AutoEncoderKLConfig,
}

impl AutoEncoderKL {
    /// Loads `encoder`, `decoder`, and, as `config` has them, `quant_conv` and `post_quant_conv`, for images of `in_channels` channels to
    /// images of `out_channels`.
    ///
    /// # Errors
    /// There are no blocks, groups do not divide channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        out_channels: usize,
        config: AutoEncoderKLConfig,
    ) -> Result<Self> {
        let latent = config.latent_channels;
        let conv = |channels, name| ConvSpec::new(channels, channels, 1).load(vs.pp(name));
        let quant_conv = || conv(2 * latent, "quant_conv");
        let post_quant_conv = || conv(latent, "post_quant_conv");
        Ok(Self {
            encoder: Encoder::load(in_channels, &config, vs.pp("encoder"))?,
            decoder: Decoder::load(out_channels, &config, vs.pp("decoder"))?,
            quant_conv: config.use_quant_conv.then(quant_conv).transpose()?,
            post_quant_conv: config
                .use_post_quant_conv
                .then(post_quant_conv)
                .transpose()?,
            config,
        })
    }

    /// From images (batch, in_channels, height, width) to the distributions of their latents,
    /// (batch, latent_channels, height / 2^k, width / 2^k) with `k` less by one than the blocks. A model takes latents times a factor,
    /// which is 0.18215 for Stable Diffusion 1 and 2 and 0.13025 for SDXL.
    ///
    /// # Errors
    /// The images have other channels or leave no latents, or have another dtype or device than the weights.
    pub fn encode(&self, xs: &Tensor) -> Result<DiagonalGaussianDistribution> {
        let xs = self.encoder.forward(xs)?;
        DiagonalGaussianDistribution::new(&match &self.quant_conv {
            Some(conv) => conv.forward(&xs)?,
            None => xs,
        })
    }

    /// From latents (batch, latent_channels, height, width) to images (batch, out_channels, height * 2^k, width * 2^k).
    ///
    /// # Errors
    /// The latents have another shape, dtype or device.
    pub fn decode(&self, xs: &Tensor) -> Result<Tensor> {
        let channels = self.config.latent_channels;
        if xs.rank() != 4 || xs.dim(1)? != channels {
            bail!(
                "autoencoder: the latents are {:?}; they must be (batch, {channels}, height, width)",
                xs.dims()
            )
        }
        match &self.post_quant_conv {
            Some(conv) => self.decoder.forward(&conv.forward(xs)?),
            None => self.decoder.forward(xs),
        }
    }
}
