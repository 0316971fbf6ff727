//! FastViT, convolutions whose branches are merged, with attention in the last stage of some: [arXiv 2303.14189](https://arxiv.org/abs/2303.14189).
//! MobileCLIP's image encoders, [arXiv 2311.17049](https://arxiv.org/abs/2311.17049), are of this family. Weight names are those of timm, before
//! the branches are merged.
//!
//! Which branches a block has, and whether a stage has encoded positions or attention over channels, the weights say. Batch norms are those of
//! inference. Images are (batch, 3, height, width) of any size, commonly 256x256.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::fastvit;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = fastvit::fastvit(&fastvit::Config::sa12(), 1000, vb)?;
//! let picture = Tensor::zeros((1, 3, 256, 256), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{Activation, Conv2d, Func, VarBuilder};
use serde::{Deserialize, Serialize};

use crate::blocks::vision::{
    channel_scale, classifier, head, merged, optional, pooled, run_all, Branch, ConvNorm, ConvSpec,
    Picture, Shift, SqueezeExcite, VitAttention, VitSpec,
};

/// Sizes of a network.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    /// Expansion factor of the feed-forward blocks.
    pub exp_ratio: usize,
    /// Channels of the first stage; each other stage has twice those of the one before.
    pub in_channels: usize,
    /// Blocks of the stages.
    pub blocks: [usize; 4],
    /// Whether the last stage has attention.
    pub attn: bool,
    /// Whether a GELU follows the large kernels between stages.
    pub lkc_use_act: bool,
}

impl Config {
    fn new(exp_ratio: usize, in_channels: usize, blocks: [usize; 4]) -> Self {
        Self {
            exp_ratio,
            in_channels,
            blocks,
            attn: false,
            lkc_use_act: false,
        }
    }

    fn with_attention(self) -> Self {
        Self { attn: true, ..self }
    }

    fn of_clip(in_channels: usize, blocks: [usize; 4]) -> Self {
        Self {
            lkc_use_act: true,
            ..Self::new(3, in_channels, blocks).with_attention()
        }
    }

    /// FastViT-T8.
    pub fn t8() -> Self {
        Self::new(3, 48, [2, 2, 4, 2])
    }

    /// FastViT-T12.
    pub fn t12() -> Self {
        Self::new(3, 64, [2, 2, 6, 2])
    }

    /// FastViT-S12.
    pub fn s12() -> Self {
        Self::new(4, 64, [2, 2, 6, 2])
    }

    /// FastViT-SA12.
    pub fn sa12() -> Self {
        Self::s12().with_attention()
    }

    /// FastViT-SA24.
    pub fn sa24() -> Self {
        Self::new(4, 64, [4, 4, 12, 4]).with_attention()
    }

    /// FastViT-SA36.
    pub fn sa36() -> Self {
        Self::new(4, 64, [6, 6, 18, 6]).with_attention()
    }

    /// FastViT-MA36.
    pub fn ma36() -> Self {
        Self::new(4, 76, [6, 6, 18, 6]).with_attention()
    }

    /// The image encoder of MobileCLIP-S0.
    pub fn mci0() -> Self {
        Self::of_clip(64, [2, 6, 10, 2])
    }

    /// The image encoder of MobileCLIP-S1.
    pub fn mci1() -> Self {
        Self::of_clip(64, [4, 12, 20, 4])
    }

    /// The image encoder of MobileCLIP-S2.
    pub fn mci2() -> Self {
        Self::of_clip(80, [4, 12, 24, 4])
    }

    fn channels(&self, stage: usize) -> usize {
        self.in_channels << stage
    }
}

/// No product of two sizes overflows below it.
const MOST: usize = 1 << 12;
/// The size of an attention head.
const HEAD: usize = 32;

/// A convolution at `conv` and its norm at `bn`, as a branch.
fn branch(spec: &ConvSpec, vb: &VarBuilder) -> Result<Branch> {
    Branch::conv(spec, vb.pp("conv"), vb.pp("bn"))
}

/// MobileOne's block: the branches that the weights have, merged; attention over channels, if the weights have it; a GELU, if requested.
struct Unit {
    conv: Conv2d,
    attention: Option<SqueezeExcite>,
    gelu: bool,
}

impl Unit {
    fn load(spec: ConvSpec, gelu: bool, vb: VarBuilder) -> Result<Self> {
        let small = ConvSpec {
            kernel: 1,
            padding: 0,
            ..spec
        };
        let large = vb.pp("conv_kxk").pp(0);
        let mut branches = vec![optional(&large, "conv.weight", |vb| branch(&spec, vb))?];
        if spec.kernel > 1 {
            let vb = vb.pp("conv_scale");
            branches.push(optional(&vb, "conv.weight", |vb| branch(&small, vb))?);
        }
        if spec.inputs == spec.outputs && spec.stride == 1 {
            let vb = vb.pp("identity");
            let load = |vb: &VarBuilder| Branch::identity(&spec, vb.clone());
            branches.push(optional(&vb, "weight", load)?);
        }
        let branches: Vec<Branch> = branches.into_iter().flatten().collect();
        if branches.is_empty() {
            bail!(
                "fastvit: {} has none of the branches conv_kxk.0, conv_scale and identity; weights with merged branches are not supported",
                vb.prefix()
            )
        }
        let channels = spec.outputs;
        Ok(Self {
            conv: merged(&spec, branches, &vb)?,
            attention: SqueezeExcite::optional(channels, channels / 16, &vb.pp("se"))?,
            gelu,
        })
    }
}

impl Module for Unit {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = self.conv.forward(xs)?;
        if let Some(attention) = &self.attention {
            ys = attention.forward(&ys)?;
        }
        if self.gelu {
            ys.gelu_erf()
        } else {
            Ok(ys)
        }
    }
}

/// A depthwise convolution, then two layers over the channels.
struct Mlp {
    neighbours: ConvNorm,
    expand: Conv2d,
    project: Conv2d,
}

impl Mlp {
    fn load(channels: usize, ratio: usize, vb: VarBuilder) -> Result<Self> {
        let (inner, conv) = (channels * ratio, vb.pp("conv"));
        let neighbours = ConvSpec::depthwise(channels, 7);
        Ok(Self {
            neighbours: neighbours.load_norm(conv.pp("conv"), conv.pp("bn"))?,
            expand: ConvSpec::new(channels, inner, 1).load(vb.pp("fc1"))?,
            project: ConvSpec::new(inner, channels, 1).load(vb.pp("fc2"))?,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = self.expand.forward(&self.neighbours.forward(xs)?)?;
        self.project.forward(&ys.gelu_erf()?)
    }
}

/// The token mixer.
enum Mixer {
    /// A convolution minus its input.
    Conv { mixer: Unit, norm: Unit },
    /// Attention between all positions, after a norm.
    Attention {
        norm: Shift,
        attention: VitAttention,
    },
}

impl Module for Mixer {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Conv { mixer, norm } => mixer.forward(xs)? - norm.forward(xs)?,
            Self::Attention { norm, attention } => {
                let tokens = norm.forward(xs)?.flatten_from(2)?.transpose(1, 2)?;
                let ys = attention.forward(&tokens, None)?;
                ys.transpose(1, 2)?.reshape(xs.shape())
            }
        }
    }
}

/// Two residuals, each with a factor of each channel.
struct Block {
    mixer: Mixer,
    mlp: Mlp,
    /// (1, channels, 1, 1)
    scales: [Tensor; 2],
}

impl Block {
    fn load(cfg: &Config, channels: usize, attention: bool, vb: VarBuilder) -> Result<Self> {
        let scale = |name: &str, vb: &VarBuilder| {
            let name = format!("{name}.gamma");
            channel_scale(channels, &[channels, 1, 1], &name, vb)
        };
        let mixer = vb.pp("token_mixer");
        let (mixer, scales) = if attention {
            let spec = VitSpec::new(channels, channels / HEAD, 0.);
            let mixer = Mixer::Attention {
                norm: Shift::load(channels, 1e-5, vb.pp("norm"))?,
                attention: VitAttention::load(&spec, false, mixer)?,
            };
            let scales = [scale("layer_scale_1", &vb)?, scale("layer_scale_2", &vb)?];
            (mixer, scales)
        } else {
            let spec = ConvSpec::depthwise(channels, 3);
            let scales = [scale("layer_scale", &mixer)?, scale("layer_scale", &vb)?];
            let mixer = Mixer::Conv {
                mixer: Unit::load(spec, false, mixer.pp("mixer"))?,
                norm: Unit::load(spec, false, mixer.pp("norm"))?,
            };
            (mixer, scales)
        };
        Ok(Self {
            mixer,
            mlp: Mlp::load(channels, cfg.exp_ratio, vb.pp("mlp"))?,
            scales,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [first, second] = &self.scales;
        let xs = (xs + self.mixer.forward(xs)?.broadcast_mul(first)?)?;
        &xs + self.mlp.forward(&xs)?.broadcast_mul(second)?
    }
}

/// Halves an image's sides and doubles its channels.
struct Smaller {
    /// A kernel of 7x7 and one of 3x3, merged.
    conv: Conv2d,
    attention: Option<SqueezeExcite>,
    gelu: bool,
    unit: Unit,
}

impl Smaller {
    fn load(inputs: usize, gelu: bool, vb: VarBuilder) -> Result<Self> {
        let (outputs, large) = (2 * inputs, vb.pp("proj").pp(0));
        let spec = |kernel| {
            let spec = ConvSpec::new(inputs, outputs, kernel);
            spec.stride(2).groups(inputs)
        };
        let branches = vec![
            branch(&spec(7), &large.pp("large_conv"))?,
            branch(&spec(3), &large.pp("small_conv"))?,
        ];
        let unit = ConvSpec::new(outputs, outputs, 1);
        Ok(Self {
            conv: merged(&spec(7), branches, &vb)?,
            attention: SqueezeExcite::optional(outputs, outputs / 4, &large.pp("se"))?,
            gelu,
            unit: Unit::load(unit, true, vb.pp("proj").pp(1))?,
        })
    }
}

impl Module for Smaller {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = self.conv.forward(xs)?;
        if let Some(attention) = &self.attention {
            ys = attention.forward(&ys)?;
        }
        if self.gelu {
            ys = Activation::Gelu.forward(&ys)?;
        }
        self.unit.forward(&ys)
    }
}

struct Stage {
    smaller: Option<Smaller>,
    /// The positional encoding, added to the input.
    positions: Option<Conv2d>,
    blocks: Vec<Block>,
}

impl Stage {
    fn load(cfg: &Config, stage: usize, vb: VarBuilder) -> Result<Self> {
        let channels = cfg.channels(stage);
        let smaller = match stage {
            0 => None,
            _ => {
                let vb = vb.pp("downsample");
                let inputs = cfg.channels(stage - 1);
                Some(Smaller::load(inputs, cfg.lkc_use_act, vb)?)
            }
        };
        let attention = cfg.attn && stage == 3;
        let blocks = (0..cfg.blocks[stage]).map(|i| {
            let vb = vb.pp("blocks").pp(i);
            Block::load(cfg, channels, attention, vb)
        });
        let blocks = blocks.collect::<Result<_>>()?;
        let positions = ConvSpec::depthwise(channels, 7);
        let load = |vb: &VarBuilder| positions.load(vb.clone());
        Ok(Self {
            smaller,
            positions: optional(&vb.pp("pos_emb").pp("pos_enc"), "weight", load)?,
            blocks,
        })
    }
}

impl Module for Stage {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut xs = match &self.smaller {
            Some(smaller) => smaller.forward(xs)?,
            None => xs.clone(),
        };
        if let Some(positions) = &self.positions {
            xs = (&xs + positions.forward(&xs)?)?;
        }
        run_all(&self.blocks, &xs)
    }
}

fn model(cfg: &Config, classes: Option<usize>, vb: VarBuilder) -> Result<Func<'static>> {
    let sizes = 1..=MOST;
    if !sizes.contains(&cfg.in_channels) || !sizes.contains(&cfg.exp_ratio) {
        bail!(
            "fastvit: in_channels is {} and exp_ratio {}; they must be from 1 to {MOST}",
            cfg.in_channels,
            cfg.exp_ratio
        )
    }
    let (channels, last) = (cfg.channels(0), cfg.channels(3));
    if cfg.attn && last % HEAD != 0 {
        bail!(
            "fastvit: in_channels is {channels}; the {last} channels of the last stage are not a multiple of the head size {HEAD}"
        )
    }
    let stem = [
        ConvSpec::new(3, channels, 3).stride(2),
        ConvSpec::depthwise(channels, 3).stride(2),
        ConvSpec::new(channels, channels, 1),
    ];
    let stem = stem.into_iter().enumerate();
    let stem = stem.map(|(i, spec)| Unit::load(spec, true, vb.pp("stem").pp(i)));
    let stem = stem.collect::<Result<Vec<_>>>()?;
    let stages = (0..4).map(|stage| Stage::load(cfg, stage, vb.pp("stages").pp(stage)));
    let stages = stages.collect::<Result<Vec<_>>>()?;
    let spec = ConvSpec::new(last, 2 * last, 3).groups(last);
    let final_conv = Unit::load(spec, true, vb.pp("final_conv"))?;
    let head = head(2 * last, classes, vb.pp("head").pp("fc"))?;
    let pools = head.is_some();
    Ok(classifier(Picture::any("fastvit"), head, move |xs| {
        let xs = run_all(&stages, &run_all(&stem, xs)?)?;
        let features = final_conv.forward(&xs)?;
        if pools {
            pooled(&features)
        } else {
            Ok(features)
        }
    }))
}

/// A classifier: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// A weight is missing or has another shape, or the last stage's channels are not heads of 32. The model fails for images of another shape.
pub fn fastvit(cfg: &Config, nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, Some(nclasses), vb)
}

/// [`fastvit()`] without the mean and the last layer: from images to features (batch, 16 * in_channels, height / 32, width / 32).
///
/// # Errors
/// Those of [`fastvit()`].
pub fn fastvit_no_final_layer(cfg: &Config, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, None, vb)
}
