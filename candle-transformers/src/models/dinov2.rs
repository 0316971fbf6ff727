//! DINOv2, a vision transformer trained without labels: [arXiv 2304.07193](https://arxiv.org/abs/2304.07193), with a linear classifier.
//! Weight names are those of Meta's checkpoints, or those of Transformers (`facebook/dinov2-small`).
//!
//! Positions are learned for images of 518x518; for other sizes they are interpolated bicubically.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::dinov2::DinoVisionTransformer;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors, and `dinov2::vit_small`.
//! let model = DinoVisionTransformer::new(VarBuilder::zeros(DType::F32, &device), 2, 32, 2)?;
//! let picture = Tensor::zeros((1, 3, 28, 42), DType::F32, &device)?;
//! // The patches as an image of features, of the first and the second block.
//! let features = model.get_intermediate_layers(&picture, &[0, 1], true, false, true)?;
//! assert_eq!(features.dims(), &[2, 1, 32, 2, 3]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{layer_norm, linear, LayerNorm, Linear, VarBuilder};

use crate::blocks::vision::{
    intermediate_layers, mean, names, with_first, Grid, PatchEmbedding, Picture, Taken, VitBlock,
    VitSpec,
};

/// The side of the images of training, of a patch, and how many patches are on a side.
const IMAGE: usize = 518;
const PATCH: usize = 14;
const SIDE: usize = IMAGE / PATCH;
const CLASSES: usize = 1000;
const EPS: f64 = 1e-6;

/// The encoder and its classifier into the 1000 classes of ImageNet.
#[derive(Debug)]
pub struct DinoVisionTransformer {
    patches: PatchEmbedding,
    class_token: Tensor,
    class_position: Tensor,
    positions: Grid,
    blocks: Vec<VitBlock>,
    norm: LayerNorm,
    head: Option<Linear>,
}

impl DinoVisionTransformer {
    /// Loads `patch_embed.proj`, `cls_token`, `pos_embed`, `blocks.N`, `norm` and `head` of `depth` blocks of size `embed_dim`. Under the
    /// names of Transformers (`facebook/dinov2-small`) there may be no head; the model then gives what it would be given.
    ///
    /// # Errors
    /// The heads do not divide `embed_dim`, or a weight is missing or has another shape.
    pub fn new(vb: VarBuilder, depth: usize, embed_dim: usize, num_heads: usize) -> Result<Self> {
        let spec = VitSpec::new(embed_dim, num_heads, EPS);
        spec.head_dim("dinov2")?;
        let is_metas = vb.contains_tensor("patch_embed.proj.weight") || vb.makes_tensors();
        let vb = names::as_timm(vb, &[names::DINOV2]);
        let has_head = is_metas || vb.contains_tensor("head.weight");
        let positions = vb.get((1, SIDE * SIDE + 1, embed_dim), "pos_embed")?;
        let of_places = positions.narrow(1, 1, SIDE * SIDE)?.squeeze(0)?;
        let vb_patches = vb.pp("patch_embed").pp("proj");
        let blocks = (0..depth).map(|i| VitBlock::load_scaled(&spec, vb.pp("blocks").pp(i)));
        Ok(Self {
            patches: PatchEmbedding::load(Picture::any("dinov2"), PATCH, embed_dim, vb_patches)?,
            class_token: vb.get((1, 1, embed_dim), "cls_token")?,
            class_position: positions.narrow(1, 0, 1)?,
            positions: Grid::new(of_places, SIDE, SIDE),
            blocks: blocks.collect::<Result<_>>()?,
            norm: layer_norm(embed_dim, EPS, vb.pp("norm"))?,
            head: if has_head {
                Some(linear(2 * embed_dim, CLASSES, vb.pp("head"))?)
            } else {
                None
            },
        })
    }

    /// A class token and the patches, with positions; and the rows and columns of patches.
    fn tokens(&self, xs: &Tensor) -> Result<(Tensor, [usize; 2])> {
        let (tokens, places) = self.patches.forward(xs)?;
        let tokens = tokens.broadcast_add(&self.positions.at(places)?)?;
        let class = (&self.class_token + &self.class_position)?;
        Ok((with_first(&class, &tokens)?, places))
    }

    /// The outputs of the blocks with the indices `blocks_to_take` for images (batch, 3, height, width), stacked in the order of the
    /// blocks: (taken, batch, patches, embed_dim).
    ///
    /// - `reshape`: as images, (taken, batch, embed_dim, rows, columns).
    /// - `return_class_token`: the class token is appended to each patch, along `embed_dim`; not together with `reshape`.
    /// - `norm`: the last norm is applied to each.
    ///
    /// # Errors
    /// An index has no block, `blocks_to_take` is empty, or the images have another shape.
    pub fn get_intermediate_layers(
        &self,
        xs: &Tensor,
        blocks_to_take: &[usize],
        reshape: bool,
        return_class_token: bool,
        norm: bool,
    ) -> Result<Tensor> {
        let (tokens, places) = self.tokens(xs)?;
        let taken = Taken {
            blocks: blocks_to_take,
            places: reshape.then_some(places),
            class_token: return_class_token,
            norm: norm.then_some(&self.norm),
        };
        intermediate_layers(&self.blocks, tokens, &taken, |block, xs| block.forward(xs))
    }
}

/// From images (batch, 3, height, width), whose sides are multiples of 14, to logits (batch, 1000); without a head to features (batch, 2 *
/// embed_dim), the class token's and the mean of the patches'.
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for DinoVisionTransformer {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (mut xs, _) = self.tokens(xs)?;
        for block in &self.blocks {
            xs = block.forward(&xs)?;
        }
        let xs = self.norm.forward(&xs)?;
        let patches = mean(&xs.narrow(1, 1, xs.dim(1)? - 1)?, |xs| xs.mean(1))?;
        let class = xs.narrow(1, 0, 1)?.squeeze(1)?;
        let features = Tensor::cat(&[class, patches], 1)?;
        match &self.head {
            Some(head) => head.forward(&features),
            None => Ok(features),
        }
    }
}

/// ViT-S/14: 12 blocks of size 384.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn vit_small(vb: VarBuilder) -> Result<DinoVisionTransformer> {
    DinoVisionTransformer::new(vb, 12, 384, 6)
}
