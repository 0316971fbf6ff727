//! VGG, plain stacks of 3x3 convolutions: [arXiv 1409.1556](https://arxiv.org/abs/1409.1556). Weight names are those of timm, 1000 classes.
//!
//! Images are of 224x224, as the first linear layer covers what the convolutions leave of them. The last layer is followed by a ReLU, as in
//! Candle: logits below 0 are 0.
//!
//! ```no_run
//! use candle_core::{DType, Device, ModuleT, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::vgg::{Models, Vgg};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = Vgg::new(VarBuilder::zeros(DType::F32, &device), Models::Vgg16)?;
//! let picture = Tensor::zeros((3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward_t(&picture, false)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, ModuleT, Result, Tensor};
use candle_nn::{linear, Conv2d, Dropout, FuncT, Init, Linear, VarBuilder};

use crate::blocks::vision::{ConvSpec, Picture};

/// A network of the family, by its number of layers with weights.
pub enum Models {
    /// Ten convolutions.
    Vgg13,
    /// Thirteen convolutions.
    Vgg16,
    /// Sixteen convolutions.
    Vgg19,
}

impl Models {
    /// Convolutions of the last three of the five blocks; the first two have two each.
    fn depth(&self) -> usize {
        match self {
            Self::Vgg13 => 2,
            Self::Vgg16 => 3,
            Self::Vgg19 => 4,
        }
    }
}

/// Channels of the blocks.
const CHANNELS: [usize; 5] = [64, 128, 256, 512, 512];
const SIZE: usize = 224;
/// The side after five poolings.
const LEFT: usize = SIZE >> 5;
const HIDDEN: usize = 4096;
const CLASSES: usize = 1000;

/// A classifier with 1000 classes.
#[derive(Debug)]
pub struct Vgg<'a> {
    blocks: Vec<FuncT<'a>>,
}

impl<'a> Vgg<'a> {
    /// The network at `vb`.
    ///
    /// # Errors
    /// A weight is missing or has another shape.
    pub fn new(vb: VarBuilder<'a>, model: Models) -> Result<Self> {
        let (mut inputs, mut index) = (3, 0);
        let mut blocks = Vec::with_capacity(CHANNELS.len() + 1);
        for (i, outputs) in CHANNELS.into_iter().enumerate() {
            let depth = if i < 2 { 2 } else { model.depth() };
            let mut convs = Vec::with_capacity(depth);
            for _ in 0..depth {
                let conv = ConvSpec::new(inputs, outputs, 3);
                convs.push(conv.load(vb.pp("features").pp(index))?);
                inputs = outputs;
                // A ReLU has a number as well.
                index += 2;
            }
            // So has the pooling.
            index += 1;
            blocks.push(block(convs));
        }
        blocks.push(classifier(inputs, vb)?);
        Ok(Self { blocks })
    }
}

/// Convolutions and ReLUs, then the largest of each 2x2.
fn block(convs: Vec<Conv2d>) -> FuncT<'static> {
    FuncT::new(move |xs, _| {
        let mut convs = convs.iter();
        let ys = convs.try_fold(xs.clone(), |xs, conv| conv.forward(&xs)?.relu())?;
        ys.max_pool2d(2)
    })
}

/// Three linear layers with ReLUs, and dropout in training.
fn classifier(channels: usize, vb: VarBuilder) -> Result<FuncT<'static>> {
    let layers = vb.pp("pre_logits");
    let layers = [
        covering(channels, LEFT, layers.pp("fc1"))?,
        covering(HIDDEN, 1, layers.pp("fc2"))?,
        linear(HIDDEN, CLASSES, vb.pp("head").pp("fc"))?,
    ];
    let dropout = Dropout::new(0.5);
    Ok(FuncT::new(move |xs, train| {
        layers.iter().try_fold(xs.flatten_from(1)?, |xs, layer| {
            layer.forward(&dropout.forward_t(&xs, train)?)?.relu()
        })
    }))
}

/// A convolution with [`HIDDEN`] outputs whose kernel covers the whole input of `side` x `side`: one linear layer.
fn covering(channels: usize, side: usize, vb: VarBuilder) -> Result<Linear> {
    let inputs = channels * side * side;
    let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
    let weight = vb.get_with_hints((HIDDEN, channels, side, side), "weight", init)?;
    let bound = 1. / (inputs as f64).sqrt();
    let init = Init::Uniform {
        lo: -bound,
        up: bound,
    };
    let bias = vb.get_with_hints(HIDDEN, "bias", init)?;
    let weight = weight.reshape((HIDDEN, inputs))?;
    Ok(Linear::new(weight, Some(bias)))
}

impl ModuleT for Vgg<'_> {
    /// From one image (3, 224, 224) or several, (batch, 3, 224, 224), to (batch, 1000). `train` drops half of what the linear layers are given.
    ///
    /// # Errors
    /// The images have another shape.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor> {
        let pictures = match xs.rank() {
            3 => xs.unsqueeze(0)?,
            _ => xs.clone(),
        };
        let picture = Picture {
            size: Some((SIZE, SIZE)),
            ..Picture::any("vgg")
        };
        picture.check(&pictures)?;
        let mut blocks = self.blocks.iter();
        blocks.try_fold(pictures, |xs, block| block.forward_t(&xs, train))
    }
}
