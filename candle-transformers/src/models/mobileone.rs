//! MobileOne: branches in training, a plain stack of depthwise and 1x1 convolutions in use:
//! [arXiv 2206.04040](https://arxiv.org/abs/2206.04040). Weight names are those of timm, before the branches are merged.
//!
//! Each block's branches and their batch norms, those of inference, are merged into one convolution when the weights are loaded. Images
//! are (batch, 3, height, width) of any size, commonly 224x224.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::mobileone;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = mobileone::mobileone(&mobileone::Config::s0(), 1000, vb)?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Func, VarBuilder};

use crate::blocks::vision::{
    classifier, head, merged, pooled, run_all, Branch, ConvSpec, Picture, SqueezeExcite,
};

/// The width of the network, and the number of its blocks' branches.
#[derive(Clone)]
pub struct Config {
    /// Branches of a block that are alike.
    branches: usize,
    /// Factors of [`CHANNELS`].
    widths: [f32; 5],
}

/// Channels of the stem and of the stages of width 1.
const CHANNELS: [f32; 5] = [64., 64., 128., 256., 512.];
/// The depths of the stages: pairs of a depthwise and a 1x1 convolution.
const DEPTHS: [usize; 4] = [2, 8, 10, 1];

impl Config {
    fn new(branches: usize, widths: [f32; 5]) -> Self {
        Self { branches, widths }
    }

    /// MobileOne-S0, the one with four branches.
    pub fn s0() -> Self {
        Self::new(4, [0.75, 0.75, 1., 1., 2.])
    }

    /// MobileOne-S1.
    pub fn s1() -> Self {
        Self::new(1, [1.5, 1.5, 1.5, 2., 2.5])
    }

    /// MobileOne-S2.
    pub fn s2() -> Self {
        Self::new(1, [1.5, 1.5, 2., 2.5, 4.])
    }

    /// MobileOne-S3.
    pub fn s3() -> Self {
        Self::new(1, [2., 2., 2.5, 3., 4.])
    }

    /// MobileOne-S4. Its files have attention over channels (squeeze and excitation) in the last blocks; any block that finds its weights
    /// has it.
    pub fn s4() -> Self {
        Self::new(1, [3., 3., 3.5, 3.5, 4.])
    }

    /// Channels of the stem, which are 64 at most, and of the stages.
    fn channels(&self, stage: usize) -> usize {
        let channels = (CHANNELS[stage] * self.widths[stage]) as usize;
        if stage == 0 {
            channels.min(64)
        } else {
            channels
        }
    }
}

/// Parallel convolutions of one size, a 1x1 one, and the input itself, all normed and added: merged into one. Attention if the weights have
/// it, then a ReLU.
struct Block {
    conv: Conv2d,
    attention: Option<SqueezeExcite>,
}

impl Block {
    fn load(spec: ConvSpec, branches: usize, identity: bool, vb: VarBuilder) -> Result<Self> {
        let conv = |spec: &ConvSpec, vb: VarBuilder| Branch::conv(spec, vb.pp("conv"), vb.pp("bn"));
        let alike = (0..branches).map(|i| conv(&spec, vb.pp("conv_kxk").pp(i)));
        let mut branches = alike.collect::<Result<Vec<_>>>()?;
        if spec.kernel > 1 {
            let small = ConvSpec {
                kernel: 1,
                padding: 0,
                ..spec
            };
            branches.push(conv(&small, vb.pp("conv_scale"))?);
        }
        if identity {
            branches.push(Branch::identity(&spec, vb.pp("identity"))?);
        }
        let (channels, attention) = (spec.outputs, vb.pp("attn"));
        Ok(Self {
            conv: merged(&spec, branches, &vb)?,
            attention: SqueezeExcite::optional(channels, channels / 16, &attention)?,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = self.conv.forward(xs)?;
        if let Some(attention) = &self.attention {
            ys = attention.forward(&ys)?;
        }
        ys.relu()
    }
}

fn model(cfg: &Config, classes: Option<usize>, vb: VarBuilder) -> Result<Func<'static>> {
    let mut inputs = cfg.channels(0);
    let stem = ConvSpec::new(3, inputs, 3).stride(2);
    let mut blocks = vec![Block::load(stem, 1, false, vb.pp("stem"))?];
    for (stage, depth) in DEPTHS.into_iter().enumerate() {
        let outputs = cfg.channels(stage + 1);
        for i in 0..depth {
            let stride = if i == 0 { 2 } else { 1 };
            let pair = [
                ConvSpec::depthwise(inputs, 3).stride(stride),
                ConvSpec::new(inputs, outputs, 1),
            ];
            for (j, spec) in pair.into_iter().enumerate() {
                // Also in the first pair of a stage as wide as the one before, which S0 has.
                let identity = spec.stride == 1 && spec.inputs == spec.outputs;
                let vb = vb.pp("stages").pp(stage).pp(2 * i + j);
                blocks.push(Block::load(spec, cfg.branches, identity, vb)?);
            }
            inputs = outputs;
        }
    }
    let head = head(inputs, classes, vb.pp("head").pp("fc"))?;
    Ok(classifier(Picture::any("mobileone"), head, move |xs| {
        pooled(&run_all(&blocks, xs)?)
    }))
}

/// A classifier: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// A weight is missing or has another shape. The model fails for images of another shape.
pub fn mobileone(cfg: &Config, nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, Some(nclasses), vb)
}

/// [`mobileone()`] without its last layer: from images to features (batch, channels), the last stage's channels.
///
/// # Errors
/// Those of [`mobileone()`].
pub fn mobileone_no_final_layer(cfg: &Config, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, None, vb)
}
