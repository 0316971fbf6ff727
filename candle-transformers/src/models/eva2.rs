//! EVA-02, a vision transformer with rotary positions and gated feed-forward blocks: [arXiv 2303.11331](https://arxiv.org/abs/2303.11331),
//! with a linear classifier. Weight names are timm's, with the table of angles as `rot_pos_embed`; images are 448x448.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::eva2::EVA2VisionTransformer;
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors, and `eva2::vit_base`.
//! let model = EVA2VisionTransformer::new(VarBuilder::zeros(DType::F32, &device), 1, 64, 1)?;
//! let picture = Tensor::zeros((1, 3, 448, 448), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::{act_mul, GatedActivation};
use candle_nn::rotary_emb::Pairs;
use candle_nn::{layer_norm, linear, linear_no_bias, LayerNorm, Linear, VarBuilder};

use crate::blocks::encoder::{Heads, Seen};
use crate::blocks::vision::{
    intermediate_layers, mean, with_first, PatchEmbedding, Picture, Taken, VitSpec,
};
use crate::blocks::MergedLinear;

/// The side of an image, of a patch, and how many patches are on a side.
const IMAGE: usize = 448;
const PATCH: usize = 14;
const SIDE: usize = IMAGE / PATCH;
const PATCHES: usize = SIDE * SIDE;
const CLASSES: usize = 1000;
/// Size of a head, which is that of the rows of sines and of cosines.
const HEAD_DIM: usize = 64;
const EPS: f64 = 1e-6;

/// `down(norm(silu(gate(x)) * up(x)))`.
#[derive(Debug)]
struct Mlp {
    gate_and_up: MergedLinear<2>,
    norm: LayerNorm,
    down: Linear,
}

impl Mlp {
    fn load(spec: &VitSpec, vb: VarBuilder) -> Result<Self> {
        let part = |name| linear(spec.size, spec.inner, vb.pp(name));
        Ok(Self {
            gate_and_up: MergedLinear::new([part("fc1_g")?, part("fc1_x")?])?,
            norm: layer_norm(spec.inner, EPS, vb.pp("norm"))?,
            down: linear(spec.inner, spec.size, vb.pp("fc2"))?,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let [gate, up] = self.gate_and_up.forward(xs)?;
        let inner = act_mul(&gate, &up, GatedActivation::Silu)?;
        self.down.forward(&self.norm.forward(&inner)?)
    }
}

#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    heads: Heads,
    proj: Linear,
    norm2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    fn load(spec: &VitSpec, vb: VarBuilder) -> Result<Self> {
        let (size, vb_attention) = (spec.size, vb.pp("attn"));
        let part = |name| linear(size, size, vb_attention.pp(name));
        // Keys have no bias. With one of zeros all three are one product.
        let k = linear_no_bias(size, size, vb_attention.pp("k_proj"))?;
        let k = Linear::new(
            k.weight().clone(),
            Some(Tensor::zeros(size, vb.dtype(), vb.device())?),
        );
        let qkv = MergedLinear::new([part("q_proj")?, k, part("v_proj")?])?;
        Ok(Self {
            norm1: layer_norm(size, EPS, vb.pp("norm1"))?,
            heads: Heads::new(qkv, spec.heads, HEAD_DIM),
            proj: part("proj")?,
            norm2: layer_norm(size, EPS, vb.pp("norm2"))?,
            mlp: Mlp::load(spec, vb.pp("mlp"))?,
        })
    }

    fn forward(&self, xs: &Tensor, angles: &(Tensor, Tensor)) -> Result<Tensor> {
        let seen = Seen {
            rotation: Some((angles, Pairs::Neighbours)),
            ..Seen::default()
        };
        let ys = self.heads.forward(&self.norm1.forward(xs)?, &seen)?;
        let xs = (xs + self.proj.forward(&ys)?)?;
        let ys = self.mlp.forward(&self.norm2.forward(&xs)?)?;
        xs + ys
    }
}

/// Cosines and sines for the class token, which is not rotated, and the patches, (1 + PATCHES, HEAD_DIM / 2) each, of a table (PATCHES, 2 *
/// HEAD_DIM) that has sines, then cosines, each twice in a row.
fn angles(table: &Tensor) -> Result<(Tensor, Tensor)> {
    let half = |start, of_class: Tensor| -> Result<Tensor> {
        let twice = table.narrow(1, start, HEAD_DIM)?.contiguous()?;
        let twice = twice.reshape((PATCHES, HEAD_DIM / 2, 2))?;
        let once = twice.narrow(2, 0, 1)?.squeeze(2)?;
        Tensor::cat(&[of_class, once], 0)
    };
    let class = (1, HEAD_DIM / 2);
    let (dtype, device) = (table.dtype(), table.device());
    Ok((
        half(HEAD_DIM, Tensor::ones(class, dtype, device)?)?,
        half(0, Tensor::zeros(class, dtype, device)?)?,
    ))
}

/// The encoder and its classifier into the 1000 classes of ImageNet.
#[derive(Debug)]
pub struct EVA2VisionTransformer {
    patches: PatchEmbedding,
    class_token: Tensor,
    /// (1, 1 + PATCHES, size)
    positions: Tensor,
    angles: (Tensor, Tensor),
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl EVA2VisionTransformer {
    /// Loads `patch_embed.proj`, `cls_token`, `pos_embed`, `rot_pos_embed`, `blocks.N`, `norm` and `head` of `depth` blocks of size
    /// `embed_dim`, whose heads are of size 64. `rot_pos_embed` is (1024, 128): for each patch 32 sines, each twice in a row, and then
    /// as many cosines.
    ///
    /// # Errors
    /// `embed_dim` is not 64 for each head, or a weight is missing or has another shape.
    pub fn new(vb: VarBuilder, depth: usize, embed_dim: usize, num_heads: usize) -> Result<Self> {
        let spec = VitSpec {
            inner: embed_dim * 8 / 3,
            ..VitSpec::new(embed_dim, num_heads, EPS)
        };
        let head_dim = spec.head_dim("eva2")?;
        if head_dim != HEAD_DIM {
            bail!(
                "eva2: {num_heads} heads of embed_dim {embed_dim} have size {head_dim}; the size must be {HEAD_DIM}"
            )
        }
        let picture = Picture {
            size: Some((IMAGE, IMAGE)),
            ..Picture::any("eva2")
        };
        let vb_patches = vb.pp("patch_embed").pp("proj");
        let blocks = (0..depth).map(|i| Block::load(&spec, vb.pp("blocks").pp(i)));
        Ok(Self {
            patches: PatchEmbedding::load(picture, PATCH, embed_dim, vb_patches)?,
            class_token: vb.get((1, 1, embed_dim), "cls_token")?,
            positions: vb.get((1, 1 + PATCHES, embed_dim), "pos_embed")?,
            angles: angles(&vb.get((PATCHES, 2 * HEAD_DIM), "rot_pos_embed")?)?,
            blocks: blocks.collect::<Result<_>>()?,
            norm: layer_norm(embed_dim, EPS, vb.pp("norm"))?,
            head: linear(embed_dim, CLASSES, vb.pp("head"))?,
        })
    }

    /// A class token and the patches, with positions; and the rows and columns of patches.
    fn tokens(&self, xs: &Tensor) -> Result<(Tensor, [usize; 2])> {
        let (tokens, places) = self.patches.forward(xs)?;
        let tokens = with_first(&self.class_token, &tokens)?;
        Ok((tokens.broadcast_add(&self.positions)?, places))
    }

    /// The outputs of the blocks with the indices `blocks_to_take` for images (batch, 3, 448, 448), stacked in the order of the blocks:
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
        let forward = |block: &Block, xs: &Tensor| block.forward(xs, &self.angles);
        intermediate_layers(&self.blocks, tokens, &taken, forward)
    }
}

/// From images (batch, 3, 448, 448) to logits (batch, 1000).
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for EVA2VisionTransformer {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (mut xs, _) = self.tokens(xs)?;
        for block in &self.blocks {
            xs = block.forward(&xs, &self.angles)?;
        }
        let patches = mean(&xs.narrow(1, 1, PATCHES)?, |xs| xs.mean(1))?;
        self.head.forward(&self.norm.forward(&patches)?)
    }
}

/// EVA-02-B/14: 12 blocks of size 768.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn vit_base(vb: VarBuilder) -> Result<EVA2VisionTransformer> {
    EVA2VisionTransformer::new(vb, 12, 768, 12)
}

/// EVA-02-L/14: 24 blocks of size 1024.
///
/// # Errors
/// A weight is missing or has another shape.
pub fn vit_large(vb: VarBuilder) -> Result<EVA2VisionTransformer> {
    EVA2VisionTransformer::new(vb, 24, 1024, 16)
}
