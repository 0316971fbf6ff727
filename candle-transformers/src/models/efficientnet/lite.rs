//! EfficientNet-Lite0: B0 for phones, with ReLU6 and without squeeze and excitation.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear, Activation, Linear, VarBuilder};

use super::STAGES;
use crate::blocks::vision::{make_divisible, pooled, run_all, ConvSpec, Picture, SameConv};

/// Channels of the first convolution and of what the classifier sees.
const STEM: usize = 32;
const FEATURES: usize = 1280;

/// The names of the parts in a file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Names {
    /// `_conv_stem`, `_blocks.0._depthwise_conv`: those of the first ports to PyTorch, and of TensorFlow's layers.
    Ports,
    /// `conv_stem`, `blocks.0.0.conv_dw`: timm's.
    Timm,
}

impl Names {
    /// Those of a file, by its first convolution. A map of variables creates missing tensors and gets timm's names.
    fn of(vb: &VarBuilder) -> Result<Self> {
        if vb.makes_tensors() {
            return Ok(Self::Timm);
        }
        for (names, stem) in [
            (Self::Ports, "_conv_stem.weight"),
            (Self::Timm, "conv_stem.weight"),
        ] {
            if vb.contains_tensor(stem) {
                return Ok(names);
            }
        }
        bail!("efficientnet-lite0: the weights have neither `_conv_stem.weight` nor `conv_stem.weight`")
    }

    /// The weights of block `i` of a stage, which is block `all` of the network.
    fn block<'a>(self, vb: &VarBuilder<'a>, stage: usize, i: usize, all: usize) -> VarBuilder<'a> {
        match self {
            Self::Ports => vb.pp("_blocks").pp(all),
            Self::Timm => vb.pp("blocks").pp(stage).pp(i),
        }
    }

    /// The convolutions of a block and their norms: the expansion if there is one, one kernel for each channel, the projection.
    fn convs(self, expands: bool) -> &'static [(&'static str, &'static str)] {
        const PORTS: [(&str, &str); 3] = [
            ("_expand_conv", "_bn0"),
            ("_depthwise_conv", "_bn1"),
            ("_project_conv", "_bn2"),
        ];
        match (self, expands) {
            (Self::Ports, true) => &PORTS,
            (Self::Ports, false) => &PORTS[1..],
            (Self::Timm, true) => &[("conv_pw", "bn1"), ("conv_dw", "bn2"), ("conv_pwl", "bn3")],
            (Self::Timm, false) => &[("conv_dw", "bn1"), ("conv_pw", "bn2")],
        }
    }
}

/// Expansion of channels, if there is any, one kernel for each, and projection.
#[derive(Debug)]
struct Block {
    convs: Vec<SameConv>,
    residual: bool,
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = run_all(&self.convs, xs)?;
        if self.residual {
            ys + xs
        } else {
            Ok(ys)
        }
    }
}

/// The classifier EfficientNet-Lite0.
///
/// Weight names are those of timm, or those of the first ports to PyTorch (`_conv_stem.weight`). Pixels of red, green and blue, from 0 to 255,
/// become (pixel - 127) / 128; images are commonly 224x224.
#[derive(Debug)]
pub struct EfficientNetLite {
    stem: SameConv,
    blocks: Vec<Block>,
    last: SameConv,
    head: Linear,
}

impl EfficientNetLite {
    /// The network with `nclasses` classes at `vb`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn lite0(vb: VarBuilder, nclasses: usize) -> Result<Self> {
        let names = Names::of(&vb)?;
        let conv = |spec, relu: bool, conv, norm| {
            let relu = relu.then_some(Activation::Relu6);
            SameConv::load(spec, 1e-3, relu, conv, norm)
        };
        let (mut inputs, mut blocks) = (STEM, Vec::new());
        for (stage, (expansion, kernel, stride, outputs, depth)) in STAGES.into_iter().enumerate() {
            let outputs = make_divisible(outputs, 8);
            for i in 0..depth as usize {
                let vb = names.block(&vb, stage, i, blocks.len());
                let stride = if i == 0 { stride } else { 1 };
                let inner = make_divisible(inputs as f64 * expansion, 8);
                let expand = ConvSpec::new(inputs, inner, 1);
                let specs = [
                    (inner > inputs).then_some((expand, true)),
                    Some((ConvSpec::depthwise(inner, kernel).stride(stride), true)),
                    Some((ConvSpec::new(inner, outputs, 1), false)),
                ];
                let convs = specs.into_iter().flatten();
                let convs = convs.zip(names.convs(inner > inputs));
                let convs = convs
                    .map(|((spec, relu), (weight, norm))| {
                        conv(spec, relu, vb.pp(weight), vb.pp(norm))
                    })
                    .collect::<Result<_>>()?;
                let residual = stride == 1 && inputs == outputs;
                blocks.push(Block { convs, residual });
                inputs = outputs;
            }
        }
        let [stem, last] = [
            ConvSpec::new(3, STEM, 3).stride(2),
            ConvSpec::new(inputs, FEATURES, 1),
        ];
        let [stem_at, stem_norm, last_at, last_norm, head] = match names {
            Names::Ports => ["_conv_stem", "_bn0", "_conv_head", "_bn1", "_fc"],
            Names::Timm => ["conv_stem", "bn1", "conv_head", "bn2", "classifier"],
        };
        Ok(Self {
            stem: conv(stem, true, vb.pp(stem_at), vb.pp(stem_norm))?,
            blocks,
            last: conv(last, true, vb.pp(last_at), vb.pp(last_norm))?,
            head: linear(FEATURES, nclasses, vb.pp(head))?,
        })
    }
}

impl Module for EfficientNetLite {
    /// From images (batch, 3, height, width) to logits (batch, nclasses).
    ///
    /// # Errors
    /// The images have another shape.
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Picture::any("efficientnet-lite0").check(xs)?;
        let xs = run_all(&self.blocks, &self.stem.forward(xs)?)?;
        self.head.forward(&pooled(&self.last.forward(&xs)?)?)
    }
}
