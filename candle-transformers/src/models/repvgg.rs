//! RepVGG: branches in training, a plain stack of 3x3 convolutions in use: [arXiv 2101.03697](https://arxiv.org/abs/2101.03697). Weight
//! names are those of timm, before the branches are merged.
//!
//! Each block's branches and their batch norms, those of inference, are merged into one convolution when the weights are loaded. Images
//! are (batch, 3, height, width) of any size, commonly 224x224.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Func, VarBuilder};

use crate::blocks::vision::{classifier, head, merged, pooled, run_all, Branch, ConvSpec, Picture};

/// The width and depth of the network.
#[derive(Clone)]
pub struct Config {
    /// Factors of the channels of the first three stages, and of the last one.
    widths: [f64; 2],
    /// Groups of every second convolution.
    groups: usize,
    depths: [usize; 4],
}

/// Channels of the stages of width 1.
const CHANNELS: [f64; 4] = [64., 128., 256., 512.];
const DEPTHS_A: [usize; 4] = [2, 4, 14, 1];
const DEPTHS_B: [usize; 4] = [4, 6, 16, 1];

impl Config {
    fn new(widths: [f64; 2], groups: usize, depths: [usize; 4]) -> Self {
        Self {
            widths,
            groups,
            depths,
        }
    }

    /// RepVGG-A0.
    pub fn a0() -> Self {
        Self::new([0.75, 2.5], 1, DEPTHS_A)
    }

    /// RepVGG-A1.
    pub fn a1() -> Self {
        Self::new([1., 2.5], 1, DEPTHS_A)
    }

    /// RepVGG-A2.
    pub fn a2() -> Self {
        Self::new([1.5, 2.75], 1, DEPTHS_A)
    }

    /// RepVGG-B0.
    pub fn b0() -> Self {
        Self::new([1., 2.5], 1, DEPTHS_B)
    }

    /// RepVGG-B1.
    pub fn b1() -> Self {
        Self::new([2., 4.], 1, DEPTHS_B)
    }

    /// RepVGG-B2.
    pub fn b2() -> Self {
        Self::new([2.5, 5.], 1, DEPTHS_B)
    }

    /// RepVGG-B3.
    pub fn b3() -> Self {
        Self::new([3., 5.], 1, DEPTHS_B)
    }

    /// [`b1`](Self::b1) with four groups in every second convolution.
    pub fn b1g4() -> Self {
        Self::new([2., 4.], 4, DEPTHS_B)
    }

    /// [`b2`](Self::b2) with four groups in every second convolution.
    pub fn b2g4() -> Self {
        Self::new([2.5, 5.], 4, DEPTHS_B)
    }

    /// [`b3`](Self::b3) with four groups in every second convolution.
    pub fn b3g4() -> Self {
        Self::new([3., 5.], 4, DEPTHS_B)
    }

    /// Channels of a stage.
    fn channels(&self, stage: usize) -> usize {
        (CHANNELS[stage] * self.widths[usize::from(stage == 3)]) as usize
    }
}

/// A 3x3 convolution, a 1x1 one and the input itself, all normed and added, then a ReLU: merged into one convolution.
struct Block(Conv2d);

impl Block {
    fn load(spec: ConvSpec, vb: VarBuilder) -> Result<Self> {
        let small = ConvSpec {
            kernel: 1,
            padding: 0,
            ..spec
        };
        let conv = |spec: &ConvSpec, vb: VarBuilder| Branch::conv(spec, vb.pp("conv"), vb.pp("bn"));
        let mut branches = vec![
            conv(&spec, vb.pp("conv_kxk"))?,
            conv(&small, vb.pp("conv_1x1"))?,
        ];
        if spec.inputs == spec.outputs && spec.stride == 1 {
            branches.push(Branch::identity(&spec, vb.pp("identity"))?);
        }
        merged(&spec, branches, &vb).map(Self)
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.0.forward(xs)?.relu()
    }
}

fn model(cfg: &Config, classes: Option<usize>, vb: VarBuilder) -> Result<Func<'static>> {
    let mut inputs = cfg.channels(0).min(64);
    let stem = ConvSpec::new(3, inputs, 3).stride(2);
    let mut blocks = vec![Block::load(stem, vb.pp("stem"))?];
    for (stage, depth) in cfg.depths.into_iter().enumerate() {
        let outputs = cfg.channels(stage);
        for i in 0..depth {
            // The stem is the first convolution of all.
            let groups = match blocks.len() % 2 {
                0 => cfg.groups,
                _ => 1,
            };
            let stride = if i == 0 { 2 } else { 1 };
            let spec = ConvSpec::new(inputs, outputs, 3)
                .stride(stride)
                .groups(groups);
            blocks.push(Block::load(spec, vb.pp("stages").pp(stage).pp(i))?);
            inputs = outputs;
        }
    }
    let head = head(inputs, classes, vb.pp("head").pp("fc"))?;
    Ok(classifier(Picture::any("repvgg"), head, move |xs| {
        pooled(&run_all(&blocks, xs)?)
    }))
}

/// A classifier: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// A weight is missing or has another shape. The model fails for images of another shape.
pub fn repvgg(cfg: &Config, nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, Some(nclasses), vb)
}

/// [`repvgg()`] without its last layer: from images to features (batch, channels), the last stage's channels.
///
/// # Errors
/// Those of [`repvgg()`].
pub fn repvgg_no_final_layer(cfg: &Config, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, None, vb)
}
