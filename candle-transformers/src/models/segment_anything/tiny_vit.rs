//! TinyViT, the encoder of MobileSAM: a stage of convolutions and stages of attention within windows,
//! [arXiv 2207.10666](https://arxiv.org/abs/2207.10666).
//!
//! Batch norms are those of inference; they are folded into the convolutions unless the weights are variables.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{layer_norm, linear, Activation, LayerNorm, VarBuilder};

use super::{Neck, FAMILY};
use crate::blocks::vision::{
    channels_first, channels_last, run_all, ConvNorm, ConvSpec, Picture, VitAttention, VitMlp,
    VitSpec, Windows,
};

/// Channels of an image and of the result.
const CHANNELS: usize = 3;
const OUTPUTS: usize = 256;
/// Expansion factor of the first stage's blocks.
const EXPANSION: usize = 4;
const EPS: f64 = 1e-5;
const GELU: Activation = Activation::GeluPytorchTanh;
/// The widths to which the image is not made smaller, those of the last stages of the paper's models: the decoder wants a sixteenth.
const NOT_SMALLER: [usize; 3] = [320, 448, 576];

/// A convolution at `c` and its norm at `bn`.
fn unit(spec: ConvSpec, vb: VarBuilder) -> Result<ConvNorm> {
    spec.load_norm(vb.pp("c"), vb.pp("bn"))
}

/// `conv1` and `conv3` of 1x1 around the depthwise `conv2`, with GELU between.
fn three(
    [inputs, inner, outputs]: [usize; 3],
    stride: usize,
    vb: VarBuilder,
) -> Result<Vec<ConvNorm>> {
    let neighbours = ConvSpec::depthwise(inner, 3).stride(stride);
    Ok(vec![
        unit(ConvSpec::new(inputs, inner, 1), vb.pp("conv1"))?.then(GELU),
        unit(neighbours, vb.pp("conv2"))?.then(GELU),
        unit(ConvSpec::new(inner, outputs, 1), vb.pp("conv3"))?,
    ])
}

/// A block of attention within windows, a depthwise convolution, and an MLP.
#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    attention: VitAttention,
    /// Relative position biases of the scores of a window: (1, heads, places, places).
    distances: Tensor,
    windows: Windows,
    neighbours: ConvNorm,
    norm2: LayerNorm,
    mlp: VitMlp,
}

impl Block {
    fn load(spec: &VitSpec, windows: Windows, vb: VarBuilder) -> Result<Self> {
        let (size, side) = (spec.size, windows.side);
        let (attention, mlp) = (vb.pp("attn"), vb.pp("mlp"));
        // One for each distance down and across, whichever way.
        let biases = attention.get((spec.heads, side * side), "attention_biases")?;
        let places = side * side;
        let apart = |i: usize| {
            let (a, b) = (i / places, i % places);
            ((a / side).abs_diff(b / side) * side + (a % side).abs_diff(b % side)) as u32
        };
        let apart = (0..places * places).map(apart).collect::<Vec<_>>();
        let apart = Tensor::from_vec(apart, places * places, vb.device())?;
        let distances = biases.index_select(&apart, 1)?;
        Ok(Self {
            norm1: layer_norm(size, EPS, attention.pp("norm"))?,
            attention: VitAttention::by_head(
                linear(size, 3 * size, attention.pp("qkv"))?,
                linear(size, size, attention.pp("proj"))?,
                spec.heads,
            ),
            distances: distances.reshape((1, spec.heads, places, places))?,
            windows,
            neighbours: unit(ConvSpec::depthwise(size, 3), vb.pp("local_conv"))?,
            norm2: layer_norm(size, EPS, mlp.pp("norm"))?,
            mlp: VitMlp::load(spec, mlp)?,
        })
    }
}

/// From (batch, rows, columns, size) to the same shape.
impl Module for Block {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, rows, columns, _) = xs.dims4()?;
        // What fills the windows at the border is normed as well, and seen.
        let normed = self.norm1.forward(&self.windows.split(xs)?)?;
        let ys = self.attention.forward(&normed, Some(&self.distances))?;
        let xs = (xs + self.windows.join(&ys, [b, rows, columns])?)?;
        let xs = channels_last(&self.neighbours.forward(&channels_first(&xs)?)?)?;
        let ys = self.mlp.forward(&self.norm2.forward(&xs)?)?;
        xs + ys
    }
}

#[derive(Debug)]
enum Blocks {
    /// Each is added to its input.
    Convs(Vec<Vec<ConvNorm>>),
    Attention(Vec<Block>),
}

/// Blocks, and what makes the image smaller and wider behind them.
#[derive(Debug)]
struct Stage {
    blocks: Blocks,
    smaller: Vec<ConvNorm>,
}

/// From (batch, inputs, height, width) to (batch, outputs, ..).
impl Module for Stage {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = match &self.blocks {
            Blocks::Convs(blocks) => blocks.iter().try_fold(xs.clone(), |xs, block| {
                GELU.forward(&(run_all(block, &xs)? + xs)?)
            })?,
            Blocks::Attention(blocks) => channels_first(&run_all(blocks, &channels_last(xs)?)?)?,
        };
        run_all(&self.smaller, &xs)
    }
}

/// The encoder of MobileSAM.
#[derive(Debug)]
pub struct TinyViT {
    patches: Vec<ConvNorm>,
    stages: Vec<Stage>,
    neck: Neck,
}

impl TinyViT {
    /// Loads `patch_embed`, a stage `layers.N` for each number of the lists, and `neck`: sizes of tokens, blocks, heads and sides of
    /// windows; the first stage does not use the last two.
    ///
    /// Each stage but the last halves the image's sides, unless the next one has a size of 320, 448 or 576.
    ///
    /// # Errors
    /// The lists differ in length or have less than two numbers, the first size is odd, heads do not divide a size, a window has a side of 0,
    /// or a weight is missing or has another shape.
    pub fn new(
        embed_dims: &[usize],
        depths: &[usize],
        num_heads: &[usize],
        window_sizes: &[usize],
        _num_classes: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let count = embed_dims.len();
        let lengths = [depths.len(), num_heads.len(), window_sizes.len()];
        if count < 2 || lengths != [count; 3] || !embed_dims[0].is_multiple_of(2) {
            bail!(
                "{FAMILY}: embed_dims {embed_dims:?}, depths {depths:?}, num_heads {num_heads:?} and window_sizes {window_sizes:?} must have \
                 equal lengths of at least two, and the first of embed_dims must be even"
            )
        }
        let first = embed_dims[0];
        let stage = |i: usize| -> Result<Stage> {
            let (size, vb) = (embed_dims[i], vb.pp("layers").pp(i));
            let smaller = match embed_dims.get(i + 1) {
                Some(&next) => {
                    let stride = if NOT_SMALLER.contains(&next) { 1 } else { 2 };
                    three([size, next, next], stride, vb.pp("downsample"))?
                }
                None => Vec::new(),
            };
            let vb = vb.pp("blocks");
            let blocks = match i {
                0 => {
                    let sizes = [size, EXPANSION * size, size];
                    let block = |n| three(sizes, 1, vb.pp(n));
                    Blocks::Convs((0..depths[i]).map(block).collect::<Result<_>>()?)
                }
                _ => {
                    let spec = VitSpec::new(size, num_heads[i], EPS);
                    spec.head_dim(FAMILY)?;
                    let side = window_sizes[i];
                    if side == 0 {
                        bail!("{FAMILY}: window_sizes {window_sizes:?}, each but the first must be at least 1")
                    }
                    let block = |n| Block::load(&spec, Windows { side }, vb.pp(n));
                    Blocks::Attention((0..depths[i]).map(block).collect::<Result<_>>()?)
                }
            };
            Ok(Stage { blocks, smaller })
        };
        let half = |inputs, outputs, at: usize| {
            let conv = ConvSpec::new(inputs, outputs, 3).stride(2);
            unit(conv, vb.pp("patch_embed").pp("seq").pp(at))
        };
        Ok(Self {
            patches: vec![
                half(CHANNELS, first / 2, 0)?.then(GELU),
                half(first / 2, first, 2)?,
            ],
            stages: (0..count).map(stage).collect::<Result<_>>()?,
            neck: Neck::load(embed_dims[count - 1], OUTPUTS, vb.pp("neck"))?,
        })
    }
}

/// From images (batch, 3, height, width) of any size, 1024x1024 for the decoder, to (batch, 256, height / 16, width / 16).
impl Module for TinyViT {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        Picture::any(FAMILY).check(xs)?;
        let xs = run_all(&self.patches, xs)?;
        self.neck.forward(&run_all(&self.stages, &xs)?)
    }
}

/// TinyViT-5M, the encoder of MobileSAM.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn tiny_vit_5m(vb: VarBuilder) -> Result<TinyViT> {
    TinyViT::new(
        &[64, 128, 160, 320],
        &[2, 2, 6, 2],
        &[2, 4, 5, 10],
        &[7, 7, 14, 7],
        1000,
        vb,
    )
}
