//! Segment Anything: masks of what a point, a box or another mask points at, [arXiv 2304.02643](https://arxiv.org/abs/2304.02643), with
//! the encoder of MobileSAM as well, [arXiv 2306.14289](https://arxiv.org/abs/2306.14289). Weight names are those of Facebook's and
//! MobileSAM's checkpoints.
//!
//! An image is encoded once ([`sam::Sam::embeddings`]), which takes most of the time; each prompt then takes the decoder alone.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::segment_anything::sam::{Prompt, Sam};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_pth or VarBuilder::from_mmaped_safetensors.
//! let sam = Sam::new_tiny(VarBuilder::zeros(DType::F32, &device))?;
//! // Red, green and blue from 0 to 255; the longer side is best 1024.
//! let picture = Tensor::zeros((3, 768, 1024), DType::U8, &device)?;
//! let embeddings = sam.embeddings(&picture)?;
//! let prompt = Prompt {
//!     points: &[(0.5, 0.4, true), (0.1, 0.1, false)],
//!     bounds: Some([0.2, 0.2, 0.9, 0.8]),
//!     ..Default::default()
//! };
//! let (masks, iou) = sam.forward_for_prompt(&embeddings, 768, 1024, &prompt, true)?;
//! assert_eq!((masks.dims(), iou.dims()), (&[1, 3, 256, 256][..], &[1, 3][..]));
//! # Ok(())
//! # }
//! ```
//!
//! As in Candle, GELU is exact in [`image_encoder`] and in its tanh form elsewhere, and [`sam::Sam::forward`] enlarges masks by nearest
//! neighbours, where the paper's program interpolates.

pub mod image_encoder;
pub mod mask_decoder;
pub mod prompt_encoder;
pub mod sam;
pub mod tiny_vit;
pub mod transformer;

use candle_core::{Module, Result, Tensor};
use candle_nn::{layer_norm, Activation, Conv2d, LayerNorm, VarBuilder};

use super::with_tracing::linear_b;
pub use super::with_tracing::Linear;
use crate::blocks::vision::{channels_first, channels_last, ConvSpec};

/// The name in errors.
const FAMILY: &str = "segment_anything";
/// The epsilon of the channels' norms.
const EPS: f64 = 1e-6;

/// A layer from `in_dim` to `out_dim`, from the tensors `weight` and, if `bias` says so, `bias`.
///
/// # Errors
/// If one is missing or has another shape.
pub fn linear(vb: VarBuilder, in_dim: usize, out_dim: usize, bias: bool) -> Result<Linear> {
    linear_b(in_dim, out_dim, bias, vb)
}

/// A layer norm over the channels of each position of an image.
#[derive(Debug)]
pub struct LayerNorm2d {
    norm: LayerNorm,
}

impl LayerNorm2d {
    /// From the tensors `weight` and `bias`, (num_channels); `eps` is added to the variance.
    ///
    /// # Errors
    /// If one is missing or has another shape.
    pub fn new(num_channels: usize, eps: f64, vb: VarBuilder) -> Result<Self> {
        let norm = layer_norm(num_channels, eps, vb)?;
        Ok(Self { norm })
    }
}

/// From (batch, channels, height, width) to the same shape.
impl Module for LayerNorm2d {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        channels_first(&self.norm.forward(&channels_last(xs)?)?)
    }
}

/// Two linear layers and an activation between them.
#[derive(Debug)]
pub struct MlpBlock {
    lin1: Linear,
    lin2: Linear,
    activation: Activation,
}

impl MlpBlock {
    /// From `lin1` and `lin2`; `mlp_dim` is the size between them.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(
        embedding_dim: usize,
        mlp_dim: usize,
        activation: Activation,
        vb: VarBuilder,
    ) -> Result<Self> {
        Ok(Self {
            lin1: linear(vb.pp("lin1"), embedding_dim, mlp_dim, true)?,
            lin2: linear(vb.pp("lin2"), mlp_dim, embedding_dim, true)?,
            activation,
        })
    }
}

/// From (.., embedding_dim) to the same shape.
impl Module for MlpBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let inner = self.activation.forward(&self.lin1.forward(xs)?)?;
        self.lin2.forward(&inner)
    }
}

/// The layers that turn an encoder's output into the decoder's embeddings.
#[derive(Debug)]
struct Neck {
    conv1: Conv2d,
    norm1: LayerNorm2d,
    conv2: Conv2d,
    norm2: LayerNorm2d,
}

impl Neck {
    fn load(inputs: usize, outputs: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            conv1: ConvSpec::new(inputs, outputs, 1).load_no_bias(vb.pp(0))?,
            norm1: LayerNorm2d::new(outputs, EPS, vb.pp(1))?,
            conv2: ConvSpec::new(outputs, outputs, 3).load_no_bias(vb.pp(2))?,
            norm2: LayerNorm2d::new(outputs, EPS, vb.pp(3))?,
        })
    }
}

/// From (batch, inputs, height, width) to (batch, outputs, height, width).
impl Module for Neck {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.norm1.forward(&self.conv1.forward(xs)?)?;
        self.norm2.forward(&self.conv2.forward(&xs)?)
    }
}
