//! DINOv2 with four registers, tokens that hold what belongs to no patch: [arXiv 2309.16588](https://arxiv.org/abs/2309.16588). Weight names
//! are timm's; the classes are those of PlantCLEF 2024, 7806 species of plants.
//!
//! Positions are learned for images of 518x518; for other sizes they are interpolated bicubically.

use candle_core::{Module, Result, Tensor};
use candle_nn::{layer_norm, linear, LayerNorm, Linear, VarBuilder};

use crate::blocks::vision::{
    run_all, with_first, Grid, PatchEmbedding, Picture, VitBlock, VitSpec,
};

/// The side of the images of training, of a patch, and how many patches are on a side.
const IMAGE: usize = 518;
const PATCH: usize = 14;
const SIDE: usize = IMAGE / PATCH;
const REGISTERS: usize = 4;
const CLASSES: usize = 7806;
const EPS: f64 = 1e-6;

/// The encoder and its classifier.
#[derive(Debug)]
pub struct DinoVisionTransformer {
    patches: PatchEmbedding,
    /// The class token and the registers, which have no positions: (1, 5, size).
    first_tokens: Tensor,
    positions: Grid,
    blocks: Vec<VitBlock>,
    norm: LayerNorm,
    head: Linear,
}

impl DinoVisionTransformer {
    /// Loads `patch_embed.proj`, `cls_token`, `reg_token`, `pos_embed`, `blocks.N`, `norm` and `head` of `depth` blocks of size `embed_dim`.
    ///
    /// # Errors
    /// The heads do not divide `embed_dim`, or a weight is missing or has another shape.
    pub fn new(vb: VarBuilder, depth: usize, embed_dim: usize, num_heads: usize) -> Result<Self> {
        let spec = VitSpec::new(embed_dim, num_heads, EPS);
        spec.head_dim("dinov2reg4")?;
        let positions = vb.get((1, SIDE * SIDE, embed_dim), "pos_embed")?;
        let class = vb.get((1, 1, embed_dim), "cls_token")?;
        let registers = vb.get((1, REGISTERS, embed_dim), "reg_token")?;
        let (picture, vb_patches) = (Picture::any("dinov2reg4"), vb.pp("patch_embed").pp("proj"));
        let blocks = (0..depth).map(|i| VitBlock::load_scaled(&spec, vb.pp("blocks").pp(i)));
        Ok(Self {
            patches: PatchEmbedding::load(picture, PATCH, embed_dim, vb_patches)?,
            first_tokens: Tensor::cat(&[class, registers], 1)?,
            positions: Grid::new(positions.squeeze(0)?, SIDE, SIDE),
            blocks: blocks.collect::<Result<_>>()?,
            norm: layer_norm(embed_dim, EPS, vb.pp("norm"))?,
            head: linear(embed_dim, CLASSES, vb.pp("head"))?,
        })
    }
}

/// From images (batch, 3, height, width), whose sides are multiples of 14, to logits (batch, 7806).
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for DinoVisionTransformer {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (tokens, places) = self.patches.forward(xs)?;
        let tokens = tokens.broadcast_add(&self.positions.at(places)?)?;
        let xs = run_all(&self.blocks, &with_first(&self.first_tokens, &tokens)?)?;
        let class = xs.narrow(1, 0, 1)?.squeeze(1)?;
        self.head.forward(&self.norm.forward(&class)?)
    }
}

/// ViT-S/14: 12 blocks of size 384.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn vit_small(vb: VarBuilder) -> Result<DinoVisionTransformer> {
    DinoVisionTransformer::new(vb, 12, 384, 6)
}

/// ViT-B/14: 12 blocks of size 768.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn vit_base(vb: VarBuilder) -> Result<DinoVisionTransformer> {
    DinoVisionTransformer::new(vb, 12, 768, 12)
}
