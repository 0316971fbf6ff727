//! BEiT, a vision transformer trained as BERT is: [arXiv 2106.08254](https://arxiv.org/abs/2106.08254), with a linear classifier. Weight
//! names are those of timm's checkpoints for images of 384x384.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::beit::BeitVisionTransformer;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors, and `beit::vit_base`.
//! let model = BeitVisionTransformer::new(VarBuilder::zeros(DType::F32, &device), 1, 16, 1)?;
//! let picture = Tensor::zeros((1, 3, 384, 384), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Device, Module, Result, Tensor};
use candle_nn::{layer_norm, linear, LayerNorm, Linear, VarBuilder};

use crate::blocks::vision::{
    intermediate_layers, mean, with_first, PatchEmbedding, Picture, Taken, VitBlock, VitSpec,
};

/// The side of an image, of a patch, and how many patches are on a side.
const IMAGE: usize = 384;
const PATCH: usize = 16;
const SIDE: usize = IMAGE / PATCH;
/// The class token and the patches.
const TOKENS: usize = SIDE * SIDE + 1;
/// Number of distances between two patches along a side, in both directions.
const SPAN: usize = 2 * SIDE - 1;
/// Rows of the tables: one for each distance of two patches, and from class to patch, from patch to class, from class to class.
const DISTANCES: usize = SPAN * SPAN + 3;
const CLASSES: usize = 1000;
const EPS: f64 = 1e-6;

/// A block, and what its scores gain with where two tokens are.
#[derive(Debug)]
struct Block {
    block: VitBlock,
    /// (DISTANCES, heads)
    distances: Tensor,
}

impl Block {
    fn load(spec: &VitSpec, vb: VarBuilder) -> Result<Self> {
        let table = "relative_position_bias_table";
        Ok(Self {
            distances: vb.pp("attn").get((DISTANCES, spec.heads), table)?,
            block: VitBlock::load_scaled(spec, vb)?,
        })
    }

    /// `rows` are the table's for each pair of tokens, (TOKENS * TOKENS).
    fn forward(&self, xs: &Tensor, rows: &Tensor) -> Result<Tensor> {
        // Not cached: those of all blocks together are larger than the weights.
        let by_head = self.distances.t()?.contiguous()?;
        let bias = by_head.index_select(rows, 1)?;
        let bias = bias.reshape((1, by_head.dim(0)?, TOKENS, TOKENS))?;
        self.block.forward_biased(xs, Some(&bias))
    }
}

/// The row of the table for each pair of tokens, query by query.
fn rows(device: &Device) -> Result<Tensor> {
    let row = |query: usize, key: usize| match (query.checked_sub(1), key.checked_sub(1)) {
        (Some(q), Some(k)) => {
            let (down, right) = (
                q / SIDE + SIDE - 1 - k / SIDE,
                q % SIDE + SIDE - 1 - k % SIDE,
            );
            down * SPAN + right
        }
        (None, Some(_)) => DISTANCES - 3,
        (Some(_), None) => DISTANCES - 2,
        (None, None) => DISTANCES - 1,
    };
    let rows = (0..TOKENS * TOKENS).map(|i| row(i / TOKENS, i % TOKENS) as u32);
    Tensor::from_vec(rows.collect::<Vec<_>>(), TOKENS * TOKENS, device)
}

/// The encoder and its classifier into the 1000 classes of ImageNet.
#[derive(Debug)]
pub struct BeitVisionTransformer {
    patches: PatchEmbedding,
    class_token: Tensor,
    rows: Tensor,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl BeitVisionTransformer {
    /// Loads `patch_embed.proj`, `cls_token`, `blocks.N`, `norm` and `head` of `depth` blocks of size `embed_dim`.
    ///
    /// # Errors
    /// The heads do not divide `embed_dim`, or a weight is missing or has another shape.
    pub fn new(vb: VarBuilder, depth: usize, embed_dim: usize, num_heads: usize) -> Result<Self> {
        let spec = VitSpec::new(embed_dim, num_heads, EPS);
        spec.head_dim("beit")?;
        let picture = Picture {
            size: Some((IMAGE, IMAGE)),
            ..Picture::any("beit")
        };
        let vb_patches = vb.pp("patch_embed").pp("proj");
        let blocks = (0..depth).map(|i| Block::load(&spec, vb.pp("blocks").pp(i)));
        Ok(Self {
            patches: PatchEmbedding::load(picture, PATCH, embed_dim, vb_patches)?,
            class_token: vb.get((1, 1, embed_dim), "cls_token")?,
            rows: rows(vb.device())?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: layer_norm(embed_dim, EPS, vb.pp("norm"))?,
            head: linear(embed_dim, CLASSES, vb.pp("head"))?,
        })
    }

    /// A class token and the patches; and the rows and columns of patches.
    fn tokens(&self, xs: &Tensor) -> Result<(Tensor, [usize; 2])> {
        let (tokens, places) = self.patches.forward(xs)?;
        Ok((with_first(&self.class_token, &tokens)?, places))
    }

    /// The outputs of the blocks with the indices `blocks_to_take` for images (batch, 3, 384, 384), stacked in the order of the blocks:
    /// (taken, batch, patches, embed_dim).
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
        let forward = |block: &Block, xs: &Tensor| block.forward(xs, &self.rows);
        intermediate_layers(&self.blocks, tokens, &taken, forward)
    }
}

/// From images (batch, 3, 384, 384) to logits (batch, 1000).
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for BeitVisionTransformer {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (mut xs, _) = self.tokens(xs)?;
        for block in &self.blocks {
            xs = block.forward(&xs, &self.rows)?;
        }
        let patches = mean(&xs.narrow(1, 1, TOKENS - 1)?, |xs| xs.mean(1))?;
        self.head.forward(&self.norm.forward(&patches)?)
    }
}

/// BEiT-B/16: 12 blocks of size 768.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn vit_base(vb: VarBuilder) -> Result<BeitVisionTransformer> {
    BeitVisionTransformer::new(vb, 12, 768, 12)
}

/// BEiT-L/16: 24 blocks of size 1024.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn vit_large(vb: VarBuilder) -> Result<BeitVisionTransformer> {
    BeitVisionTransformer::new(vb, 24, 1024, 16)
}
