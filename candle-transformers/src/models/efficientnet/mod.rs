//! EfficientNet, inverted bottlenecks with depth and width scaled together: [arXiv 1905.11946](https://arxiv.org/abs/1905.11946). Weight names
//! are those of torchvision.
//!
//! Images are (batch, 3, height, width) of any size, commonly 224x224 (B0) to 600x600 (B7), padded as TensorFlow does. Batch norms are those
//! of inference; they are folded into the convolutions unless the weights are variables. EfficientNet-Lite has neither squeeze and excitation
//! nor SiLU: [`EfficientNetLite`].
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::efficientnet::{EfficientNet, MBConvConfig};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = EfficientNet::new(vb, MBConvConfig::b0(), 1000)?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

mod lite;

pub use lite::EfficientNetLite;

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear, Activation, Linear, VarBuilder};

use crate::blocks::vision::{
    make_divisible, pooled, run_all, ConvSpec, Picture, SameConv, SqueezeExcite,
};

/// A stage: blocks that are alike.
#[derive(Debug, Clone, Copy)]
pub struct MBConvConfig {
    /// Expansion factor of a block's channels.
    expansion: f64,
    kernel: usize,
    /// The stride of the first block.
    stride: usize,
    inputs: usize,
    outputs: usize,
    depth: usize,
}

/// The stages of B0: expansion, kernel, stride, channels, blocks.
const STAGES: [(f64, usize, usize, f64, f64); 7] = [
    (1., 3, 1, 16., 1.),
    (6., 3, 2, 24., 2.),
    (6., 5, 2, 40., 2.),
    (6., 3, 2, 80., 3.),
    (6., 5, 1, 112., 3.),
    (6., 5, 2, 192., 4.),
    (6., 3, 1, 320., 1.),
];

impl MBConvConfig {
    /// B0's stages with more channels and more blocks.
    fn scaled(width: f64, depth: f64) -> Vec<Self> {
        let mut inputs = make_divisible(32. * width, 8);
        let stages = STAGES.into_iter();
        let stage = |(expansion, kernel, stride, channels, blocks): (f64, _, _, f64, f64)| {
            let outputs = make_divisible(channels * width, 8);
            let stage = Self {
                expansion,
                kernel,
                stride,
                inputs,
                outputs,
                depth: (blocks * depth).ceil() as usize,
            };
            inputs = outputs;
            stage
        };
        stages.map(stage).collect()
    }

    /// EfficientNet-B0.
    pub fn b0() -> Vec<Self> {
        Self::scaled(1., 1.)
    }

    /// EfficientNet-B1.
    pub fn b1() -> Vec<Self> {
        Self::scaled(1., 1.1)
    }

    /// EfficientNet-B2.
    pub fn b2() -> Vec<Self> {
        Self::scaled(1.1, 1.2)
    }

    /// EfficientNet-B3.
    pub fn b3() -> Vec<Self> {
        Self::scaled(1.2, 1.4)
    }

    /// EfficientNet-B4.
    pub fn b4() -> Vec<Self> {
        Self::scaled(1.4, 1.8)
    }

    /// EfficientNet-B5.
    pub fn b5() -> Vec<Self> {
        Self::scaled(1.6, 2.2)
    }

    /// EfficientNet-B6.
    pub fn b6() -> Vec<Self> {
        Self::scaled(1.8, 2.6)
    }

    /// EfficientNet-B7.
    pub fn b7() -> Vec<Self> {
        Self::scaled(2., 3.1)
    }
}

/// A convolution at `0` and its norm at `1`.
fn conv(spec: ConvSpec, activation: Option<Activation>, vb: VarBuilder) -> Result<SameConv> {
    SameConv::load(spec, 1e-3, activation, vb.pp(0), vb.pp(1))
}

/// An inverted bottleneck: channels are expanded, mixed with their neighbours, weighted, and projected.
#[derive(Debug)]
struct Block {
    expand: Option<SameConv>,
    depthwise: SameConv,
    squeeze_excite: SqueezeExcite,
    project: SameConv,
    residual: bool,
}

impl Block {
    fn load(cfg: &MBConvConfig, inputs: usize, stride: usize, vb: VarBuilder) -> Result<Self> {
        let (vb, silu) = (vb.pp("block"), Some(Activation::Silu));
        let inner = make_divisible(inputs as f64 * cfg.expansion, 8);
        let (expand, next) = if inner == inputs {
            (None, 0)
        } else {
            let spec = ConvSpec::new(inputs, inner, 1);
            (Some(conv(spec, silu, vb.pp(0))?), 1)
        };
        let depthwise = ConvSpec::depthwise(inner, cfg.kernel).stride(stride);
        let (squeezed, silu_inside) = ((inputs / 4).max(1), Activation::Silu);
        let gate = SqueezeExcite::load(inner, squeezed, silu_inside, &vb.pp(next + 1))?;
        let project = ConvSpec::new(inner, cfg.outputs, 1);
        Ok(Self {
            expand,
            depthwise: conv(depthwise, silu, vb.pp(next))?,
            squeeze_excite: gate,
            project: conv(project, None, vb.pp(next + 2))?,
            residual: stride == 1 && inputs == cfg.outputs,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = match &self.expand {
            Some(expand) => expand.forward(xs)?,
            None => xs.clone(),
        };
        let ys = self.squeeze_excite.forward(&self.depthwise.forward(&ys)?)?;
        let ys = self.project.forward(&ys)?;
        if self.residual {
            ys + xs
        } else {
            Ok(ys)
        }
    }
}

/// A classifier.
#[derive(Debug)]
pub struct EfficientNet {
    stem: SameConv,
    blocks: Vec<Block>,
    last: SameConv,
    head: Linear,
}

impl EfficientNet {
    /// The network of the stages `configs` with `nclasses` classes at `p`.
    ///
    /// # Errors
    /// A weight is missing or has another shape, or there are no stages.
    pub fn new(p: VarBuilder, configs: Vec<MBConvConfig>, nclasses: usize) -> Result<Self> {
        let (Some(first), Some(last)) = (configs.first(), configs.last()) else {
            bail!("efficientnet: no stages; create them with MBConvConfig::b0 and the like")
        };
        let (features, silu) = (p.pp("features"), Some(Activation::Silu));
        let stem = ConvSpec::new(3, first.inputs, 3).stride(2);
        let stem = conv(stem, silu, features.pp(0))?;
        let mut blocks = Vec::new();
        for (stage, cfg) in configs.iter().enumerate() {
            let vb = features.pp(stage + 1);
            for i in 0..cfg.depth {
                let (inputs, stride) = match i {
                    0 => (cfg.inputs, cfg.stride),
                    _ => (cfg.outputs, 1),
                };
                blocks.push(Block::load(cfg, inputs, stride, vb.pp(i))?);
            }
        }
        let size = 4 * last.outputs;
        let spec = ConvSpec::new(last.outputs, size, 1);
        let last = conv(spec, silu, features.pp(configs.len() + 1))?;
        Ok(Self {
            stem,
            blocks,
            last,
            head: linear(size, nclasses, p.pp("classifier").pp(1))?,
        })
    }
}

impl Module for EfficientNet {
    /// From images (batch, 3, height, width) to logits (batch, nclasses).
    ///
    /// # Errors
    /// The images have another shape.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Picture::any("efficientnet").check(xs)?;
        let xs = run_all(&self.blocks, &self.stem.forward(xs)?)?;
        self.head.forward(&pooled(&self.last.forward(&xs)?)?)
    }
}
