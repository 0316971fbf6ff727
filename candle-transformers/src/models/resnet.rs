//! ResNet, convolutions with residual connections: [arXiv 1512.03385](https://arxiv.org/abs/1512.03385). Weight names are those of
//! torchvision and timm (`timm/resnet50.a1_in1k`), or those of Transformers (`microsoft/resnet-50`).
//!
//! All functions give a model of images (batch, 3, height, width) of any size, commonly 224x224. Batch norms are those of inference; they
//! are folded into the convolutions unless the weights are variables.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::resnet;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = resnet::resnet18(1000, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{Activation, Func, VarBuilder};

use crate::blocks::vision::{
    classifier, head, names, pooled, run_all, ConvNorm, ConvSpec, Picture,
};

/// Channels of the four stages, before a bottleneck widens them.
const CHANNELS: [usize; 4] = [64, 128, 256, 512];

/// The layers inside a residual connection.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1, 3x3 and 1x1, the last with four times the channels.
    Bottleneck,
}

impl Kind {
    fn outputs(self, channels: usize) -> usize {
        match self {
            Self::Basic => channels,
            Self::Bottleneck => 4 * channels,
        }
    }

    /// The convolutions of a block.
    fn convs(self, inputs: usize, channels: usize, stride: usize) -> Vec<ConvSpec> {
        match self {
            Self::Basic => vec![
                ConvSpec::new(inputs, channels, 3).stride(stride),
                ConvSpec::new(channels, channels, 3),
            ],
            Self::Bottleneck => vec![
                ConvSpec::new(inputs, channels, 1),
                ConvSpec::new(channels, channels, 3).stride(stride),
                ConvSpec::new(channels, self.outputs(channels), 1),
            ],
        }
    }
}

/// A residual block.
struct Block {
    /// All but the last one.
    convs: Vec<ConvNorm>,
    last: ConvNorm,
    /// The projection of the input, if its shape differs from the output's.
    downsample: Option<ConvNorm>,
}

impl Block {
    fn load(
        kind: Kind,
        inputs: usize,
        channels: usize,
        stride: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let specs = kind.convs(inputs, channels, stride);
        let load = |(i, spec): (usize, &ConvSpec)| {
            let names = (format!("conv{}", i + 1), format!("bn{}", i + 1));
            spec.load_norm(vb.pp(names.0), vb.pp(names.1))
        };
        let mut convs = specs
            .iter()
            .enumerate()
            .map(|conv| Ok(load(conv)?.then(Activation::Relu)))
            .collect::<Result<Vec<_>>>()?;
        let Some(last) = convs.pop() else {
            candle_core::bail!("resnet: a block without convolutions")
        };
        let outputs = kind.outputs(channels);
        let downsample = if stride != 1 || inputs != outputs {
            let vb = vb.pp("downsample");
            let spec = ConvSpec::new(inputs, outputs, 1).stride(stride);
            Some(spec.load_norm(vb.pp(0), vb.pp(1))?)
        } else {
            None
        };
        Ok(Self {
            convs,
            last,
            downsample,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let projected = match &self.downsample {
            Some(downsample) => Some(downsample.forward(xs)?),
            None => None,
        };
        let residual = projected.as_ref().unwrap_or(xs);
        let ys = run_all(&self.convs, xs)?;
        self.last
            .forward_then(&ys, Some(residual), Some(Activation::Relu))
    }
}

fn resnet(
    kind: Kind,
    depths: [usize; 4],
    classes: Option<usize>,
    vb: VarBuilder,
) -> Result<Func<'static>> {
    let vb = names::as_timm(vb, &[names::RESNET]);
    let stem = ConvSpec::new(3, 64, 7)
        .stride(2)
        .load_norm(vb.pp("conv1"), vb.pp("bn1"))?
        .then(Activation::Relu);
    let (mut inputs, mut blocks) = (64, Vec::new());
    for (stage, (depth, channels)) in depths.into_iter().zip(CHANNELS).enumerate() {
        let vb = vb.pp(format!("layer{}", stage + 1));
        for i in 0..depth {
            let stride = if stage > 0 && i == 0 { 2 } else { 1 };
            blocks.push(Block::load(kind, inputs, channels, stride, vb.pp(i))?);
            inputs = kind.outputs(channels);
        }
    }
    let head = head(inputs, classes, vb.pp("fc"))?;
    let picture = Picture::any("resnet");
    Ok(classifier(picture, head, move |xs| {
        let xs = stem.forward(xs)?;
        // Repeating the border changes no maximum.
        let xs = xs.pad_with_same(2, 1, 1)?.pad_with_same(3, 1, 1)?;
        let xs = xs.max_pool2d_with_stride(3, 2)?;
        pooled(&run_all(&blocks, &xs)?)
    }))
}

macro_rules! sizes {
    ($($name:ident $bare:ident $text:literal $kind:ident $depths:expr, $features:literal;)*) => { $(
        #[doc = concat!("ResNet-", $text, ": from pictures (batch, 3, height, width) to logits (batch, num_classes).")]
        ///
        /// # Errors
        /// A weight is missing or has another shape. The model fails for images of another shape.
        pub fn $name(num_classes: usize, vb: VarBuilder<'_>) -> Result<Func<'_>> {
            resnet(Kind::$kind, $depths, Some(num_classes), vb)
        }

        #[doc = concat!("ResNet-", $text, " without its last layer: from pictures (batch, 3, height, width) to features (batch, ", $features, ").")]
        ///
        /// # Errors
        #[doc = concat!("Those of [`", stringify!($name), "`].")]
        pub fn $bare(vb: VarBuilder<'_>) -> Result<Func<'_>> {
            resnet(Kind::$kind, $depths, None, vb)
        }
    )* };
}

sizes! {
    resnet18 resnet18_no_final_layer "18" Basic [2, 2, 2, 2], "512";
    resnet34 resnet34_no_final_layer "34" Basic [3, 4, 6, 3], "512";
    resnet50 resnet50_no_final_layer "50" Bottleneck [3, 4, 6, 3], "2048";
    resnet101 resnet101_no_final_layer "101" Bottleneck [3, 4, 23, 3], "2048";
    resnet152 resnet152_no_final_layer "152" Bottleneck [3, 8, 36, 3], "2048";
}
