//! MobileNetV4, inverted bottlenecks of several forms, in the hybrid models with attention whose heads share keys and values:
//! [arXiv 2404.10518](https://arxiv.org/abs/2404.10518). Weight names are those of timm.
//!
//! Batch norms are those of inference; they are folded into the convolutions unless the weights are variables. Images are (batch, 3,
//! height, width) of any size, commonly 224x224 to 448x448.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::mobilenetv4;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let vb = VarBuilder::zeros(DType::F32, &device);
//! let model = mobilenetv4::mobilenetv4(&mobilenetv4::Config::small(), 1000, vb)?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{Activation, Conv2d, Func, VarBuilder};

use crate::blocks::vision::{
    channel_scale, classifier, head, mean, optional, run_all, ConvNorm, ConvSpec, Picture, Shift,
};

/// The structure of a network.
#[derive(Clone, Debug)]
pub struct Config {
    stem: usize,
    activation: Activation,
    stages: [Vec<Spec>; 5],
}

/// A block before it has weights.
#[derive(Clone, Copy, Debug)]
enum Spec {
    /// A convolution.
    Conv {
        outputs: usize,
        kernel: usize,
        stride: usize,
    },
    /// A convolution of stride 2 that expands channels, and one that projects them.
    Edge { outputs: usize, expansion: usize },
    /// The universal inverted bottleneck.
    Universal {
        outputs: usize,
        stride: usize,
        step: Step,
    },
    /// Attention over the stage's channels.
    Attention(Heads),
}

/// The kernels of the depthwise convolutions before and after the expansion of channels, 0 for none; and the expansion. The tables of the
/// networks have these as the digits of a number.
#[derive(Clone, Copy, Debug)]
struct Step(usize, usize, usize);

impl From<usize> for Step {
    fn from(digits: usize) -> Self {
        Self(digits / 100, digits / 10 % 10, digits % 10)
    }
}

/// Heads of queries over one head of keys and values.
#[derive(Clone, Copy, Debug)]
struct Heads {
    count: usize,
    size: usize,
    /// Factor by which the image for keys and values is reduced.
    stride: usize,
}

const fn conv(outputs: usize, kernel: usize, stride: usize) -> Spec {
    Spec::Conv {
        outputs,
        kernel,
        stride,
    }
}

/// Bottlenecks of a stage, the first of stride 2.
fn stage(outputs: usize, steps: &[usize]) -> Vec<Spec> {
    let spec = |(i, &digits): (usize, &usize)| Spec::Universal {
        outputs,
        stride: if i == 0 { 2 } else { 1 },
        step: digits.into(),
    };
    steps.iter().enumerate().map(spec).collect()
}

/// [`stage`] with attention behind bottleneck `first`, counted from 0, and behind the next three.
fn hybrid(outputs: usize, steps: &[usize], first: usize, heads: Heads) -> Vec<Spec> {
    let mut specs = stage(outputs, steps);
    for i in (first..first + 4).rev() {
        specs.insert(i + 1, Spec::Attention(heads));
    }
    specs
}

/// The first stage of all networks but the smallest.
const EDGE: Spec = Spec::Edge {
    outputs: 48,
    expansion: 4,
};

impl Config {
    fn new(stem: usize, first: Vec<Spec>, middle: [Vec<Spec>; 3]) -> Self {
        let [second, third, fourth] = middle;
        Self {
            stem,
            activation: Activation::Relu,
            stages: [first, second, third, fourth, vec![conv(LAST, 1, 1)]],
        }
    }

    fn medium_of(third: Vec<Spec>, fourth: Vec<Spec>) -> Self {
        Self::new(32, vec![EDGE], [stage(80, &[354, 332]), third, fourth])
    }

    fn large_of(third: Vec<Spec>, fourth: Vec<Spec>) -> Self {
        Self::new(24, vec![EDGE], [stage(96, &[354, 334]), third, fourth])
    }

    /// MobileNetV4-Conv-S.
    pub fn small() -> Self {
        let third = [553, 32, 32, 32, 32, 304];
        let fourth = [336, 554, 54, 53, 34, 34];
        Self::new(
            32,
            vec![conv(32, 3, 2), conv(32, 1, 1)],
            [
                vec![conv(96, 3, 2), conv(64, 1, 1)],
                stage(96, &third),
                stage(128, &fourth),
            ],
        )
    }

    /// MobileNetV4-Conv-M.
    pub fn medium() -> Self {
        let third = [356, 334, 334, 354, 334, 304, 2, 304];
        let fourth = [556, 554, 354, 354, 4, 304, 352, 554, 4, 4, 502];
        Self::medium_of(stage(160, &third), stage(256, &fourth))
    }

    /// MobileNetV4-Hybrid-M.
    pub fn hybrid_medium() -> Self {
        let third = [356, 2, 334, 354, 334, 304, 334, 304];
        let fourth = [556, 554, 354, 354, 2, 352, 2, 4, 304, 554, 504, 504];
        let heads = |stride| Heads {
            count: 4,
            size: 64,
            stride,
        };
        Self::medium_of(
            hybrid(160, &third, 3, heads(2)),
            hybrid(256, &fourth, 7, heads(1)),
        )
    }

    /// MobileNetV4-Conv-L.
    pub fn large() -> Self {
        Self::large_of(stage(192, &THIRD_OF_LARGE), stage(512, &FOURTH_OF_LARGE))
    }

    /// MobileNetV4-Hybrid-L.
    pub fn hybrid_large() -> Self {
        // The bottlenecks are those of Conv-L, but for one at the end.
        let fourth = [&FOURTH_OF_LARGE[..], &[504]].concat();
        let heads = |size, stride| Heads {
            count: 8,
            size,
            stride,
        };
        Self {
            activation: Activation::Gelu,
            ..Self::large_of(
                hybrid(192, &THIRD_OF_LARGE, 6, heads(48, 2)),
                hybrid(512, &fourth, 9, heads(64, 1)),
            )
        }
    }
}

/// The third stage of MobileNetV4-Conv-L.
const THIRD_OF_LARGE: [usize; 11] = [354, 334, 334, 334, 354, 534, 534, 534, 534, 534, 304];
/// The fourth stage of MobileNetV4-Conv-L.
const FOURTH_OF_LARGE: [usize; 13] = [
    554, 554, 554, 554, 504, 534, 504, 504, 534, 554, 504, 504, 504,
];

/// Channels of the last stage.
const LAST: usize = 960;
/// Channels before the classifier.
const FEATURES: usize = 1280;

/// Keys or values: one head, of a smaller image if there is a convolution that makes it.
struct Shared {
    smaller: Option<ConvNorm>,
    proj: Conv2d,
}

impl Shared {
    fn load(channels: usize, heads: &Heads, vb: VarBuilder) -> Result<Self> {
        let smaller = ConvSpec::depthwise(channels, 3).stride(heads.stride);
        let smaller = match heads.stride {
            1 => None,
            _ => Some(smaller.load_norm(vb.pp("down_conv"), vb.pp("norm"))?),
        };
        let proj = ConvSpec::new(channels, heads.size, 1).load_no_bias(vb.pp("proj"))?;
        Ok(Self { smaller, proj })
    }
}

impl Module for Shared {
    /// (batch, 1, positions, head size)
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let ys = match &self.smaller {
            Some(smaller) => self.proj.forward(&smaller.forward(xs)?)?,
            None => self.proj.forward(xs)?,
        };
        ys.flatten_from(2)?.transpose(1, 2)?.unsqueeze(1)
    }
}

/// Attention between all positions of an image.
struct Attention {
    norm: Shift,
    query: Conv2d,
    key: Shared,
    value: Shared,
    output: Conv2d,
    heads: Heads,
}

impl Attention {
    fn load(channels: usize, heads: &Heads, vb: &VarBuilder) -> Result<Self> {
        let (inner, attn) = (heads.count * heads.size, vb.pp("attn"));
        let query = ConvSpec::new(channels, inner, 1);
        let output = ConvSpec::new(inner, channels, 1);
        Ok(Self {
            norm: Shift::load(channels, 1e-5, vb.pp("norm"))?,
            query: query.load_no_bias(attn.pp("query").pp("proj"))?,
            key: Shared::load(channels, heads, attn.pp("key"))?,
            value: Shared::load(channels, heads, attn.pp("value"))?,
            output: output.load_no_bias(attn.pp("output").pp("proj"))?,
            heads: *heads,
        })
    }
}

impl Module for Attention {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let Heads { count, size, .. } = self.heads;
        let xs = self.norm.forward(xs)?;
        let (b, _, h, w) = xs.dims4()?;
        let q = self.query.forward(&xs)?.reshape((b, count, size, h * w))?;
        let (k, v) = (self.key.forward(&xs)?, self.value.forward(&xs)?);
        let options = SdpaOptions {
            scale: 1. / (size as f32).sqrt(),
            ..Default::default()
        };
        let ys = sdpa_with(&q.transpose(2, 3)?, &k, &v, &options)?;
        let ys = ys.transpose(2, 3)?.reshape((b, count * size, h, w))?;
        self.output.forward(&ys)
    }
}

/// The layers of a block.
enum Body {
    Convs(Vec<ConvNorm>),
    Attention(Box<Attention>),
}

struct Block {
    body: Body,
    /// A factor of each channel, if the weights have it: (1, channels, 1, 1).
    scale: Option<Tensor>,
    residual: bool,
}

impl Block {
    fn load(spec: &Spec, inputs: usize, act: Activation, vb: VarBuilder) -> Result<Self> {
        let unit = |spec: ConvSpec, conv: &str, norm: &str| -> Result<ConvNorm> {
            Ok(spec.load_norm(vb.pp(conv), vb.pp(norm))?.then(act))
        };
        let plain = |convs: Result<Vec<ConvNorm>>| -> Result<Self> {
            Ok(Self {
                body: Body::Convs(convs?),
                scale: None,
                residual: false,
            })
        };
        match *spec {
            Spec::Conv {
                outputs,
                kernel,
                stride,
            } => {
                let spec = ConvSpec::new(inputs, outputs, kernel).stride(stride);
                plain(unit(spec, "conv", "bn1").map(|conv| vec![conv]))
            }
            Spec::Edge { outputs, expansion } => {
                let inner = inputs * expansion;
                let expand = ConvSpec::new(inputs, inner, 3).stride(2);
                let project = ConvSpec::new(inner, outputs, 1);
                plain(Ok(vec![
                    unit(expand, "conv_exp", "bn1")?,
                    unit(project, "conv_pwl", "bn2")?.maybe(None),
                ]))
            }
            Spec::Universal {
                outputs,
                stride,
                step,
            } => Ok(Self {
                body: Body::Convs(universal(inputs, outputs, stride, step, act, &vb)?),
                scale: scale(outputs, &vb)?,
                residual: inputs == outputs && stride == 1,
            }),
            Spec::Attention(heads) => Ok(Self {
                body: Body::Attention(Box::new(Attention::load(inputs, &heads, &vb)?)),
                scale: scale(inputs, &vb)?,
                residual: true,
            }),
        }
    }
}

fn scale(channels: usize, vb: &VarBuilder) -> Result<Option<Tensor>> {
    let name = "layer_scale.gamma";
    optional(vb, name, |vb| {
        channel_scale(channels, &[channels], name, vb)
    })
}

/// The convolutions of a universal inverted bottleneck.
fn universal(
    inputs: usize,
    outputs: usize,
    stride: usize,
    Step(start, middle, expansion): Step,
    act: Activation,
    vb: &VarBuilder,
) -> Result<Vec<ConvNorm>> {
    let unit = |name: &str, spec: ConvSpec, act: Option<Activation>| -> Result<ConvNorm> {
        let vb = vb.pp(name);
        Ok(spec.load_norm(vb.pp("conv"), vb.pp("bn"))?.maybe(act))
    };
    let (inner, mut convs) = (inputs * expansion, Vec::with_capacity(4));
    if start > 0 {
        // The last depthwise convolution makes the image smaller.
        let stride = if middle > 0 { 1 } else { stride };
        let spec = ConvSpec::depthwise(inputs, start).stride(stride);
        convs.push(unit("dw_start", spec, None)?);
    }
    convs.push(unit("pw_exp", ConvSpec::new(inputs, inner, 1), Some(act))?);
    if middle > 0 {
        let spec = ConvSpec::depthwise(inner, middle).stride(stride);
        convs.push(unit("dw_mid", spec, Some(act))?);
    }
    convs.push(unit("pw_proj", ConvSpec::new(inner, outputs, 1), None)?);
    Ok(convs)
}

impl Spec {
    /// Channels behind the block.
    fn outputs(&self, inputs: usize) -> usize {
        match *self {
            Self::Conv { outputs, .. }
            | Self::Edge { outputs, .. }
            | Self::Universal { outputs, .. } => outputs,
            Self::Attention(_) => inputs,
        }
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut ys = match &self.body {
            Body::Convs(convs) => run_all(convs, xs)?,
            Body::Attention(attention) => attention.forward(xs)?,
        };
        if let Some(scale) = &self.scale {
            ys = ys.broadcast_mul(scale)?;
        }
        if self.residual {
            ys + xs
        } else {
            Ok(ys)
        }
    }
}

fn model(cfg: &Config, classes: Option<usize>, vb: VarBuilder) -> Result<Func<'static>> {
    let act = cfg.activation;
    let stem = ConvSpec::new(3, cfg.stem, 3).stride(2);
    let stem = stem.load_norm(vb.pp("conv_stem"), vb.pp("bn1"))?.then(act);
    let (mut channels, mut blocks) = (cfg.stem, Vec::new());
    for (stage, specs) in cfg.stages.iter().enumerate() {
        for (i, spec) in specs.iter().enumerate() {
            let vb = vb.pp("blocks").pp(stage).pp(i);
            blocks.push(Block::load(spec, channels, act, vb)?);
            channels = spec.outputs(channels);
        }
    }
    let last = match classes {
        Some(_) => {
            let spec = ConvSpec::new(channels, FEATURES, 1);
            let conv = spec.load_norm(vb.pp("conv_head"), vb.pp("norm_head"))?;
            Some(conv.then(act))
        }
        None => None,
    };
    let head = head(FEATURES, classes, vb.pp("classifier"))?;
    let picture = Picture::any("mobilenetv4");
    Ok(classifier(picture, head, move |xs| {
        let xs = run_all(&blocks, &stem.forward(xs)?)?;
        let features = mean(&xs, |xs| xs.mean_keepdim((2, 3)))?;
        match &last {
            Some(last) => last.forward(&features)?.flatten_from(1),
            None => Ok(features),
        }
    }))
}

/// A classifier: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// A weight is missing or has another shape. The model fails for images of another shape.
pub fn mobilenetv4(cfg: &Config, nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, Some(nclasses), vb)
}

/// [`mobilenetv4()`] without its last two layers: from images to features (batch, 960, 1, 1).
///
/// # Errors
/// Those of [`mobilenetv4()`].
pub fn mobilenetv4_no_final_layer(cfg: &Config, vb: VarBuilder) -> Result<Func<'static>> {
    model(cfg, None, vb)
}
