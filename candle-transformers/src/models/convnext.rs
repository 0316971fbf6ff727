//! ConvNeXt, a network of convolutions shaped like a transformer: [arXiv 2201.03545](https://arxiv.org/abs/2201.03545). The second version,
//! [arXiv 2301.00808](https://arxiv.org/abs/2301.00808), normalises over channels in each block instead of multiplying by a learned factor.
//!
//! Weight names are those of timm, or those of Transformers (`facebook/convnext-tiny-224`). The weights show their version: `gamma` is the
//! first one's factor, `mlp.grn` the second one's normalisation. The functions return a model of images (batch, 3, height, width) of at
//! least 32x32, commonly 224x224.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::convnext;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = convnext::convnext(&convnext::Config::tiny(), 1000, vb)?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{DType, Module, Result, Tensor, D};
use candle_nn::{layer_norm, linear, Conv2d, Func, LayerNorm, Linear, VarBuilder};

use crate::blocks::vision::{
    channels_first, channels_last, classifier, head, names, optional, pointwise, pooled, run_all,
    ConvSpec, Picture,
};

/// The width and depth of the network.
#[derive(Clone)]
pub struct Config {
    depths: [usize; 4],
    channels: [usize; 4],
    /// Whether the two linear layers of a block are 1x1 convolutions in the file.
    convs: bool,
}

impl Config {
    fn of_convs(third: usize, first: usize) -> Self {
        Self {
            depths: [2, 2, third, 2],
            channels: [first, 2 * first, 4 * first, 8 * first],
            convs: true,
        }
    }

    fn of_linears(third: usize, first: usize) -> Self {
        Self {
            depths: [3, 3, third, 3],
            convs: false,
            ..Self::of_convs(third, first)
        }
    }

    /// ConvNeXt-Atto, with 3.7 million weights.
    pub fn atto() -> Self {
        Self::of_convs(6, 40)
    }

    /// ConvNeXt-Femto, with 5 million weights.
    pub fn femto() -> Self {
        Self::of_convs(6, 48)
    }

    /// ConvNeXt-Pico, with 9 million weights.
    pub fn pico() -> Self {
        Self::of_convs(6, 64)
    }

    /// ConvNeXt-Nano, with 16 million weights.
    pub fn nano() -> Self {
        Self::of_convs(8, 80)
    }

    /// ConvNeXt-Tiny, with 29 million weights.
    pub fn tiny() -> Self {
        Self::of_linears(9, 96)
    }

    /// ConvNeXt-Small, with 50 million weights.
    pub fn small() -> Self {
        Self::of_linears(27, 96)
    }

    /// ConvNeXt-Base, with 89 million weights.
    pub fn base() -> Self {
        Self::of_linears(27, 128)
    }

    /// ConvNeXt-Large, with 198 million weights.
    pub fn large() -> Self {
        Self::of_linears(27, 192)
    }

    /// ConvNeXt-XLarge, with 350 million weights.
    pub fn xlarge() -> Self {
        Self::of_linears(27, 256)
    }

    /// ConvNeXt-Huge, with 660 million weights.
    pub fn huge() -> Self {
        Self::of_linears(27, 352)
    }
}

/// A layer norm over the channels of each position.
fn norm(channels: usize, vb: VarBuilder) -> Result<LayerNorm> {
    layer_norm(channels, 1e-6, vb)
}

/// The downsampling layers: patches and a norm, in either order.
enum Smaller {
    /// The stem.
    Stem {
        patches: Conv2d,
        norm: LayerNorm,
    },
    Between {
        norm: LayerNorm,
        patches: Conv2d,
    },
}

impl Module for Smaller {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let normed =
            |norm: &LayerNorm, xs: &Tensor| channels_first(&norm.forward(&channels_last(xs)?)?);
        match self {
            Self::Stem { patches, norm } => normed(norm, &patches.forward(xs)?),
            Self::Between { norm, patches } => patches.forward(&normed(norm, xs)?),
        }
    }
}

/// Global response normalisation over (batch, height, width, channels): a channel is stronger where others are weak.
struct ResponseNorm {
    weight: Tensor,
    bias: Tensor,
}

impl ResponseNorm {
    fn load(size: usize, vb: &VarBuilder) -> Result<Self> {
        Ok(Self {
            weight: vb.get(size, "weight")?,
            bias: vb.get(size, "bias")?,
        })
    }
}

impl Module for ResponseNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        // In f16 a sum of squares may overflow.
        let wide = match xs.dtype() {
            DType::F16 => xs.to_dtype(DType::F32)?,
            _ => xs.clone(),
        };
        let length = wide.sqr()?.sum_keepdim((1, 2))?.sqrt()?;
        let mean = (length.mean_keepdim(D::Minus1)? + 1e-6)?;
        let factor = length.broadcast_div(&mean)?.to_dtype(xs.dtype())?;
        let ys = xs.broadcast_mul(&factor.broadcast_mul(&self.weight)?)?;
        ys.broadcast_add(&self.bias)? + xs
    }
}

struct Block {
    depthwise: Conv2d,
    norm: LayerNorm,
    expand: Linear,
    response: Option<ResponseNorm>,
    project: Linear,
    /// (channels)
    gamma: Option<Tensor>,
}

impl Block {
    fn load(channels: usize, convs: bool, vb: VarBuilder) -> Result<Self> {
        let layer = if convs { pointwise } else { linear };
        let (inner, mlp) = (4 * channels, vb.pp("mlp"));
        let response = optional(&mlp.pp("grn"), "weight", |vb| ResponseNorm::load(inner, vb))?;
        Ok(Self {
            depthwise: ConvSpec::depthwise(channels, 7).load(vb.pp("conv_dw"))?,
            norm: norm(channels, vb.pp("norm"))?,
            expand: layer(channels, inner, mlp.pp("fc1"))?,
            response,
            project: layer(inner, channels, mlp.pp("fc2"))?,
            gamma: optional(&vb, "gamma", |vb| vb.get(channels, "gamma"))?,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = channels_last(&self.depthwise.forward(xs)?)?;
        let mut ys = self.expand.forward(&self.norm.forward(&ys)?)?.gelu_erf()?;
        if let Some(response) = &self.response {
            ys = response.forward(&ys)?;
        }
        ys = self.project.forward(&ys)?;
        if let Some(gamma) = &self.gamma {
            ys = ys.broadcast_mul(gamma)?;
        }
        channels_first(&ys)? + xs
    }
}

/// A stage: what makes the image smaller, and its blocks.
struct Stage {
    smaller: Smaller,
    blocks: Vec<Block>,
}

impl Stage {
    fn load(cfg: &Config, stage: usize, vb: &VarBuilder) -> Result<Self> {
        let channels = cfg.channels[stage];
        let smaller = match stage {
            0 => {
                let vb = vb.pp("stem");
                Smaller::Stem {
                    patches: ConvSpec::patches(3, channels, 4).load(vb.pp(0))?,
                    norm: norm(channels, vb.pp(1))?,
                }
            }
            _ => {
                let vb = vb.pp("stages").pp(stage).pp("downsample");
                let inputs = cfg.channels[stage - 1];
                Smaller::Between {
                    norm: norm(inputs, vb.pp(0))?,
                    patches: ConvSpec::patches(inputs, channels, 2).load(vb.pp(1))?,
                }
            }
        };
        let vb = vb.pp("stages").pp(stage).pp("blocks");
        let blocks = (0..cfg.depths[stage]).map(|i| Block::load(channels, cfg.convs, vb.pp(i)));
        Ok(Self {
            smaller,
            blocks: blocks.collect::<Result<_>>()?,
        })
    }
}

impl Module for Stage {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        run_all(&self.blocks, &self.smaller.forward(xs)?)
    }
}

fn model(cfg: &Config, classes: Option<usize>, vb: VarBuilder) -> Result<Func<'static>> {
    let vb = names::as_timm(vb, &[names::CONVNEXT, names::CONVNEXT_V2]);
    let stages = (0..4).map(|stage| Stage::load(cfg, stage, &vb));
    let stages = stages.collect::<Result<Vec<_>>>()?;
    let vb = vb.pp("head");
    let last = match classes {
        Some(_) => Some(norm(cfg.channels[3], vb.pp("norm"))?),
        None => None,
    };
    let head = head(cfg.channels[3], classes, vb.pp("fc"))?;
    let picture = Picture::any("convnext");
    Ok(classifier(picture, head, move |xs| {
        picture.at_least(32, xs)?;
        let features = pooled(&run_all(&stages, xs)?)?;
        match &last {
            Some(norm) => norm.forward(&features),
            None => Ok(features),
        }
    }))
}

/// A classifier: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// A weight is missing or has another shape. The model fails for images of another shape or below 32x32.
pub fn convnext(cfg: &Config, nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, Some(nclasses), vb)
}

/// [`convnext()`] without its last norm and layer: from images to features (batch, channels), the last stage's channels.
///
/// # Errors
/// Those of [`convnext()`].
pub fn convnext_no_final_layer(cfg: &Config, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, None, vb)
}
