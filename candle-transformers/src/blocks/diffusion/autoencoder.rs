//! Variational autoencoders of latent diffusion, [arXiv 2112.10752](https://arxiv.org/abs/2112.10752): residual blocks at several sizes of
//! the image, and attention at the smallest.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{group_norm, linear, Conv2d, GroupNorm, Linear, VarBuilder};

use crate::blocks::vision::{channels_last, pointwise, ConvSpec, Picture};
use crate::blocks::{MergedLinear, Projection};

/// Added to the variance by the norms.
const EPS: f64 = 1e-6;

/// The naming scheme of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KlNames {
    /// Those of latent diffusion's own program: `down.0.block.0`, `mid.attn_1`. Attention's layers are stored as 1x1 convolutions.
    Original,
    /// Those of Hugging Face's diffusers: `down_blocks.0.resnets.0`, `mid_block.attentions.0`.
    Diffusers,
}

impl KlNames {
    fn level(self, up: bool, level: usize, levels: usize) -> String {
        match (self, up) {
            (Self::Original, false) => format!("down.{level}"),
            (Self::Original, true) => format!("up.{level}"),
            (Self::Diffusers, false) => format!("down_blocks.{level}"),
            // Diffusers counts in the order in which they run.
            (Self::Diffusers, true) => format!("up_blocks.{}", levels - 1 - level),
        }
    }

    fn block(self) -> &'static str {
        match self {
            Self::Original => "block",
            Self::Diffusers => "resnets",
        }
    }

    fn resize(self, up: bool) -> &'static str {
        match (self, up) {
            (Self::Original, false) => "downsample.conv",
            (Self::Original, true) => "upsample.conv",
            (Self::Diffusers, false) => "downsamplers.0.conv",
            (Self::Diffusers, true) => "upsamplers.0.conv",
        }
    }

    fn middle(self) -> [&'static str; 3] {
        match self {
            Self::Original => ["mid.block_1", "mid.attn_1", "mid.block_2"],
            Self::Diffusers => [
                "mid_block.resnets.0",
                "mid_block.attentions.0",
                "mid_block.resnets.1",
            ],
        }
    }

    fn shortcut(self) -> &'static str {
        match self {
            Self::Original => "nin_shortcut",
            Self::Diffusers => "conv_shortcut",
        }
    }

    fn norm_out(self) -> &'static str {
        match self {
            Self::Original => "norm_out",
            Self::Diffusers => "conv_norm_out",
        }
    }

    /// The norm, and the layers to queries, keys, values and from them.
    fn attention(self) -> [&'static str; 5] {
        match self {
            Self::Original => ["norm", "q", "k", "v", "proj_out"],
            Self::Diffusers => ["group_norm", "to_q", "to_k", "to_v", "to_out.0"],
        }
    }

    fn attention_layer(self, channels: usize, vb: VarBuilder) -> Result<Linear> {
        match self {
            Self::Original => pointwise(channels, channels, vb),
            Self::Diffusers => linear(channels, channels, vb),
        }
    }
}

/// An autoencoder before it has weights.
#[derive(Debug, Clone)]
pub struct KlSpec {
    /// The model's name, for errors.
    pub family: &'static str,
    /// Channels of the encoded images.
    pub in_channels: usize,
    /// Channels of the decoded images.
    pub out_channels: usize,
    /// Channels of the latents.
    pub latent_channels: usize,
    /// Channels before the first level.
    pub first: usize,
    /// Channels of each level; between two of them the sides are halved.
    pub channels: Vec<usize>,
    /// Residual blocks of a level; the decoder has one more.
    pub layers: usize,
    /// Groups of the norms.
    pub groups: usize,
    /// The naming scheme of the weights.
    pub names: KlNames,
}

impl KlSpec {
    /// Checks what the layers take for granted, and gives the channels of the last level.
    fn check(&self) -> Result<usize> {
        let (family, groups) = (self.family, self.groups);
        let Some(&last) = self.channels.last() else {
            bail!("{family}: the autoencoder has no levels; at least 1 is required")
        };
        let sizes = [
            ("channels of pictures", self.in_channels),
            ("channels of results", self.out_channels),
            ("channels of latents", self.latent_channels),
            ("residual blocks in a level", self.layers),
            ("groups of channels", groups),
        ];
        if let Some((what, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            bail!("{family}: the autoencoder has 0 {what}; at least 1 is required")
        }
        let mut channels = self.channels.iter().chain([&self.first]);
        if let Some(c) = channels.find(|c| **c == 0 || *c % groups != 0) {
            bail!("{family}: {c} channels of the autoencoder cannot be split into {groups} groups")
        }
        Ok(last)
    }

    fn norm(&self, channels: usize, vb: VarBuilder) -> Result<GroupNorm> {
        group_norm(self.groups, channels, EPS, vb)
    }

    fn block(&self, inputs: usize, outputs: usize, vb: VarBuilder) -> Result<Stage> {
        let shortcut = if inputs == outputs {
            None
        } else {
            let vb = vb.pp(self.names.shortcut());
            Some(ConvSpec::new(inputs, outputs, 1).load(vb)?)
        };
        Ok(Stage::Block(ResidualBlock {
            norm1: self.norm(inputs, vb.pp("norm1"))?,
            conv1: ConvSpec::new(inputs, outputs, 3).load(vb.pp("conv1"))?,
            norm2: self.norm(outputs, vb.pp("norm2"))?,
            conv2: ConvSpec::new(outputs, outputs, 3).load(vb.pp("conv2"))?,
            shortcut,
        }))
    }

    fn attention(&self, channels: usize, vb: VarBuilder) -> Result<Stage> {
        let [norm, q, k, v, out] = self.names.attention();
        let layer = |name| self.names.attention_layer(channels, vb.pp(name));
        Ok(Stage::Attention(Attention {
            norm: self.norm(channels, vb.pp(norm))?,
            qkv: MergedLinear::new([layer(q)?, layer(k)?, layer(v)?])?,
            out: layer(out)?.into(),
        }))
    }

    /// The blocks at the smallest size.
    fn middle(&self, channels: usize, vb: &VarBuilder) -> Result<[Stage; 3]> {
        let [first, attention, second] = self.names.middle();
        Ok([
            self.block(channels, channels, vb.pp(first))?,
            self.attention(channels, vb.pp(attention))?,
            self.block(channels, channels, vb.pp(second))?,
        ])
    }

    /// The blocks of a level, from `inputs` channels.
    fn level(&self, up: bool, level: usize, inputs: usize, vb: &VarBuilder) -> Result<Vec<Stage>> {
        let (levels, channels) = (self.channels.len(), self.channels[level]);
        let vb = vb.pp(self.names.level(up, level, levels));
        let vb_blocks = vb.pp(self.names.block());
        let mut stages = Vec::with_capacity(self.layers + 2);
        for i in 0..self.layers + usize::from(up) {
            let inputs = if i == 0 { inputs } else { channels };
            stages.push(self.block(inputs, channels, vb_blocks.pp(i))?);
        }
        let conv = ConvSpec::new(channels, channels, 3);
        let vb_resize = vb.pp(self.names.resize(up));
        match up {
            false if level + 1 < levels => {
                let conv = conv.stride(2).padding(0);
                stages.push(Stage::Down(conv.load(vb_resize)?));
            }
            true if level > 0 => stages.push(Stage::Up(conv.load(vb_resize)?)),
            _ => {}
        }
        Ok(stages)
    }
}

/// Two convolutions, each after a norm and SiLU, with a residual connection.
#[derive(Debug, Clone)]
struct ResidualBlock {
    norm1: GroupNorm,
    conv1: Conv2d,
    norm2: GroupNorm,
    conv2: Conv2d,
    /// If the channels change.
    shortcut: Option<Conv2d>,
}

impl Module for ResidualBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.norm1.forward(xs)?.silu()?;
        let ys = self.norm2.forward(&self.conv1.forward(&ys)?)?.silu()?;
        let ys = self.conv2.forward(&ys)?;
        match &self.shortcut {
            Some(shortcut) => shortcut.forward(xs)? + ys,
            None => xs + ys,
        }
    }
}

/// Attention between all positions, with one head.
#[derive(Debug, Clone)]
struct Attention {
    norm: GroupNorm,
    qkv: MergedLinear<3>,
    out: Projection,
}

impl Module for Attention {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, c, h, w) = xs.dims4()?;
        let places = channels_last(&self.norm.forward(xs)?)?.reshape((b, h * w, c))?;
        let [q, k, v] = self.qkv.forward(&places)?;
        let options = SdpaOptions {
            scale: (1. / (c as f64).sqrt()) as f32,
            ..SdpaOptions::default()
        };
        let head = |xs: Tensor| xs.unsqueeze(1);
        let ys = sdpa_with(&head(q)?, &head(k)?, &head(v)?, &options)?;
        let ys = self.out.forward(&ys.squeeze(1)?)?;
        xs + ys.transpose(1, 2)?.reshape((b, c, h, w))?
    }
}

#[derive(Debug, Clone)]
enum Stage {
    Block(ResidualBlock),
    Attention(Attention),
    /// Half the height and width.
    Down(Conv2d),
    /// Twice the height and width.
    Up(Conv2d),
}

impl Module for Stage {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Block(block) => block.forward(xs),
            Self::Attention(attention) => attention.forward(xs),
            Self::Down(conv) => {
                // The padding is on one side only: no padding of a convolution.
                let xs = xs.pad_with_zeros(D::Minus1, 0, 1)?;
                conv.forward(&xs.pad_with_zeros(D::Minus2, 0, 1)?)
            }
            Self::Up(conv) => {
                let (_, _, h, w) = xs.dims4()?;
                conv.forward(&xs.upsample_nearest2d(2 * h, 2 * w)?)
            }
        }
    }
}

/// The encoder or the decoder.
#[derive(Debug, Clone)]
pub struct KlHalf {
    picture: Picture,
    /// The smallest sides that leave something.
    least: usize,
    conv_in: Conv2d,
    stages: Vec<Stage>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl KlHalf {
    /// From images (batch, in_channels, height, width) to mean and logarithm of the variance of each number of the latents,
    /// (batch, 2 * latent_channels, height / n, width / n), where n is 2 to the power of the levels less one.
    ///
    /// # Errors
    /// The sizes contradict each other, or a weight is missing or has another shape.
    pub fn encoder(spec: &KlSpec, vb: VarBuilder) -> Result<Self> {
        let last = spec.check()?;
        let mut stages = Vec::new();
        let mut inputs = spec.first;
        for (level, &channels) in spec.channels.iter().enumerate() {
            stages.extend(spec.level(false, level, inputs, &vb)?);
            inputs = channels;
        }
        stages.extend(spec.middle(last, &vb)?);
        let sizes = [spec.in_channels, spec.first, last, 2 * spec.latent_channels];
        let least = 1usize << (spec.channels.len() - 1).min(31);
        Self::new(spec, sizes, stages, least, vb)
    }

    /// From latents (batch, latent_channels, height, width) to images (batch, out_channels, n * height, n * width).
    ///
    /// # Errors
    /// As [`encoder`](Self::encoder).
    pub fn decoder(spec: &KlSpec, vb: VarBuilder) -> Result<Self> {
        let last = spec.check()?;
        let mut stages = Vec::from(spec.middle(last, &vb)?);
        let mut inputs = last;
        for (level, &channels) in spec.channels.iter().enumerate().rev() {
            stages.extend(spec.level(true, level, inputs, &vb)?);
            inputs = channels;
        }
        let sizes = [spec.latent_channels, last, inputs, spec.out_channels];
        Self::new(spec, sizes, stages, 1, vb)
    }

    fn new(
        spec: &KlSpec,
        [inputs, first, last, outputs]: [usize; 4],
        stages: Vec<Stage>,
        least: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        Ok(Self {
            picture: Picture {
                channels: inputs,
                ..Picture::any(spec.family)
            },
            least,
            conv_in: ConvSpec::new(inputs, first, 3).load(vb.pp("conv_in"))?,
            stages,
            norm_out: spec.norm(last, vb.pp(spec.names.norm_out()))?,
            conv_out: ConvSpec::new(last, outputs, 3).load(vb.pp("conv_out"))?,
        })
    }
}

/// See [`KlHalf::encoder`] and [`KlHalf::decoder`].
impl Module for KlHalf {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.picture.check(xs)?;
        self.picture.at_least(self.least, xs)?;
        let first = self.conv_in.forward(xs)?;
        let mut stages = self.stages.iter();
        let xs = stages.try_fold(first, |xs, stage| stage.forward(&xs))?;
        self.conv_out.forward(&self.norm_out.forward(&xs)?.silu()?)
    }
}

/// Latents of their `moments`: means and then logarithms of variances along `dim`. A sample, or the mean.
///
/// # Errors
/// `dim` does not exist or has an odd size.
pub fn latents(moments: &Tensor, dim: usize, sample: bool) -> Result<Tensor> {
    let size = moments.dim(dim)?;
    if size % 2 != 0 {
        bail!(
            "moments {:?} of latents: dimension {dim} holds means and variances, so its size must be even",
            moments.dims()
        )
    }
    let mean = moments.narrow(dim, 0, size / 2)?;
    if !sample {
        return Ok(mean);
    }
    let deviation = (moments.narrow(dim, size / 2, size / 2)? * 0.5)?.exp()?;
    &mean + (deviation * mean.randn_like(0., 1.)?)?
}
