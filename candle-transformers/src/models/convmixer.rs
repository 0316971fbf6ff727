//! ConvMixer, patches mixed by large depthwise convolutions: [arXiv 2201.09792](https://arxiv.org/abs/2201.09792). Weight names are those of
//! the paper's program, one sequence of layers with numbers for names.
//!
//! The functions give a model of images (batch, 3, height, width), commonly 224x224; a side is cut to a multiple of the patch. Batch norms
//! are those of inference.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::convmixer;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = convmixer::c1024_20(1000, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Func, VarBuilder};

use crate::blocks::vision::{classifier, head, pooled, run_all, ConvSpec, Picture, Shift};

/// The depth of both networks.
const DEPTH: usize = 20;
const KERNEL: usize = 9;

/// A convolution, a GELU and a norm, in this order: the norm cannot be folded.
struct Unit {
    conv: Conv2d,
    norm: Shift,
}

impl Unit {
    /// The convolution at `first`, the norm two further, behind the GELU.
    fn load(spec: ConvSpec, first: usize, vb: &VarBuilder) -> Result<Self> {
        Ok(Self {
            conv: spec.load(vb.pp(first))?,
            norm: Shift::load(spec.outputs, 1e-5, vb.pp(first + 2))?,
        })
    }
}

impl Module for Unit {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(xs)?.gelu_erf()?)
    }
}

/// Mixes positions, with a residual connection, then channels.
struct Block {
    places: Unit,
    channels: Unit,
}

impl Block {
    fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        let depthwise = ConvSpec::depthwise(size, KERNEL);
        Ok(Self {
            places: Unit::load(depthwise, 0, &vb.pp(0).pp("fn"))?,
            channels: Unit::load(ConvSpec::new(size, size, 1), 1, &vb)?,
        })
    }
}

impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.channels.forward(&(xs + self.places.forward(xs)?)?)
    }
}

fn convmixer(classes: usize, size: usize, patch: usize, vb: VarBuilder) -> Result<Func<'static>> {
    // The layers' numbers: patches, GELU, norm, blocks, mean, flattening, classifier.
    let first = 3;
    let patches = Unit::load(ConvSpec::patches(3, size, patch), 0, &vb)?;
    let blocks = (first..first + DEPTH).map(|i| Block::load(size, vb.pp(i)));
    let blocks = blocks.collect::<Result<Vec<_>>>()?;
    let head = head(size, Some(classes), vb.pp(first + DEPTH + 2))?;
    let picture = Picture::any("convmixer");
    Ok(classifier(picture, head, move |xs| {
        picture.at_least(patch, xs)?;
        pooled(&run_all(&blocks, &patches.forward(xs)?)?)
    }))
}

/// ConvMixer-1536/20 with patches of 7x7: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// A weight is missing or has another shape. The model fails for images of another shape or smaller than a patch.
pub fn c1536_20(nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    convmixer(nclasses, 1536, 7, vb)
}

/// ConvMixer-1024/20 with patches of 14x14: from images (batch, 3, height, width) to logits (batch, nclasses).
///
/// # Errors
/// Those of [`c1536_20`].
pub fn c1024_20(nclasses: usize, vb: VarBuilder) -> Result<Func<'static>> {
    convmixer(nclasses, 1024, 14, vb)
}
