//! The transformer, and what is around it.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear, Linear, VarBuilder};

use super::blocks::{
    ContextQkvOnlyJointBlock, FinalLayer, JointBlock, MMDiTJointBlock, MMDiTXJointBlock,
};
use super::embedding::{
    PatchEmbedder, PositionEmbedder, TimestepEmbedder, Unpatchifier, VectorEmbedder,
};
use super::FAMILY;

/// The numbers of a model.
#[derive(Debug, Clone)]
pub struct Config {
    /// Sides of a patch of the latents.
    pub patch_size: usize,
    /// Channels of the latents that come in.
    pub in_channels: usize,
    /// Channels of the result.
    pub out_channels: usize,
    /// Blocks, and heads of each.
    pub depth: usize,
    /// Head dimension.
    pub head_size: usize,
    /// Size of the vector of a whole text.
    pub adm_in_channels: usize,
    /// Rows and columns of patches in the position table.
    pub pos_embed_max_size: usize,
    /// Size of the vector of a text's token.
    pub context_embed_size: usize,
    /// Cosines and sines of a time.
    pub frequency_embedding_size: usize,
}

impl Config {
    /// [SD3 medium](https://huggingface.co/stabilityai/stable-diffusion-3-medium), of 2 billion parameters.
    pub fn sd3_medium() -> Self {
        Self {
            patch_size: 2,
            in_channels: 16,
            out_channels: 16,
            depth: 24,
            head_size: 64,
            adm_in_channels: 2048,
            pos_embed_max_size: 192,
            context_embed_size: 4096,
            frequency_embedding_size: 256,
        }
    }

    /// [SD3.5 medium](https://huggingface.co/stabilityai/stable-diffusion-3.5-medium), of 2.5 billion parameters.
    pub fn sd3_5_medium() -> Self {
        Self {
            pos_embed_max_size: 384,
            ..Self::sd3_medium()
        }
    }

    /// [SD3.5 large](https://huggingface.co/stabilityai/stable-diffusion-3.5-large), of 8 billion parameters.
    pub fn sd3_5_large() -> Self {
        Self {
            depth: 38,
            ..Self::sd3_medium()
        }
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("patch_size", self.patch_size),
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
            ("depth", self.depth),
            ("head_size", self.head_size),
            ("adm_in_channels", self.adm_in_channels),
            ("pos_embed_max_size", self.pos_embed_max_size),
            ("context_embed_size", self.context_embed_size),
        ];
        match sizes.iter().find(|(_, size)| *size == 0) {
            Some((name, _)) => bail!("{FAMILY}: {name} is 0; it must be at least 1"),
            None => Ok(()),
        }
    }
}

/// The model.
#[derive(Debug, Clone)]
pub struct MMDiT {
    core: MMDiTCore,
    patch_embedder: PatchEmbedder,
    pos_embedder: PositionEmbedder,
    timestep_embedder: TimestepEmbedder,
    vector_embedder: VectorEmbedder,
    context_embedder: Linear,
    unpatchifier: Unpatchifier,
    patch_size: usize,
}

impl MMDiT {
    /// Loads the model. `use_flash_attn` changes nothing.
    ///
    /// # Errors
    /// If a size of the configuration is 0, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, use_flash_attn: bool, vb: VarBuilder) -> Result<Self> {
        cfg.check()?;
        let (depth, patch) = (cfg.depth, cfg.patch_size);
        let hidden = cfg.head_size.saturating_mul(depth);
        let context = cfg.context_embed_size;
        let frequencies = cfg.frequency_embedding_size;
        let (vb_t, vb_y) = (vb.pp("t_embedder"), vb.pp("y_embedder"));
        Ok(Self {
            timestep_embedder: TimestepEmbedder::new(hidden, frequencies, vb_t)?,
            vector_embedder: VectorEmbedder::new(cfg.adm_in_channels, hidden, vb_y)?,
            context_embedder: linear(context, hidden, vb.pp("context_embedder"))?,
            patch_embedder: PatchEmbedder::new(
                patch,
                cfg.in_channels,
                hidden,
                vb.pp("x_embedder"),
            )?,
            pos_embedder: PositionEmbedder::new(hidden, patch, cfg.pos_embed_max_size, vb.clone())?,
            core: MMDiTCore::new(
                depth,
                hidden,
                depth,
                patch,
                cfg.out_channels,
                use_flash_attn,
                vb,
            )?,
            unpatchifier: Unpatchifier::new(patch, cfg.out_channels)?,
            patch_size: patch,
        })
    }

    /// The direction in which noise becomes the latents of an image: from (batch, in_channels, height, width) to
    /// (batch, out_channels, height, width).
    ///
    /// - `t`: times from 1000, noise, to 0, (batch) of any dtype. `y`: vectors of whole texts, (batch, adm_in_channels).
    /// - `context`: vectors of the texts' tokens, (batch, tokens, context_embed_size).
    /// - `skip_layers`: blocks that are left out, by their index, for skip-layer guidance. The last block cannot be, and stays.
    ///
    /// `t` and `y` may be shared by the batch, with 1 instead of `batch`.
    ///
    /// # Errors
    /// If the sides are not multiples of the patch size or have more patches than positions, or shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        x: &Tensor,
        t: &Tensor,
        y: &Tensor,
        context: &Tensor,
        skip_layers: Option<&[usize]>,
    ) -> Result<Tensor> {
        let (patch, dims) = (self.patch_size, x.dims());
        let (batch, h, w) = match *dims {
            [b, _, h, w] if h % patch == 0 && w % patch == 0 => (b, h, w),
            _ => bail!(
                "{FAMILY}: the latents are {dims:?}; they must be (batch, channels, height, width) with sides that are multiples of \
                 {patch}"
            ),
        };
        let rows = |t: &Tensor, rank| {
            let rows = t.dims().first().copied().unwrap_or(0);
            t.rank() == rank && (rows == 1 || rows == batch)
        };
        if !rows(t, 1) || !rows(y, 2) {
            bail!(
                "{FAMILY}: t is {:?} and y is {:?}; for latents of {dims:?} they must be ({batch}) and ({batch}, adm_in_channels)",
                t.dims(),
                y.dims()
            )
        }
        if context.rank() != 3 || context.dim(0)? != batch {
            bail!(
                "{FAMILY}: context is {:?}; for latents of {dims:?} it must be ({batch}, tokens, context_embed_size)",
                context.dims()
            )
        }
        let places = self.pos_embedder.get_cropped_pos_embed(h, w)?;
        let xs = self.patch_embedder.forward(x)?.broadcast_add(&places)?;
        let times = self.timestep_embedder.forward(t)?;
        let condition = times.broadcast_add(&self.vector_embedder.forward(y)?)?;
        let context = self.context_embedder.forward(context)?;
        let patches = self.core.forward(&context, &xs, &condition, skip_layers)?;
        self.unpatchifier.unpatchify(&patches, h, w)
    }
}

#[derive(Debug, Clone)]
enum Joint {
    Plain(MMDiTJointBlock),
    SelfAttention(MMDiTXJointBlock),
}

impl Joint {
    fn block(&self) -> &dyn JointBlock {
        match self {
            Self::Plain(block) => block,
            Self::SelfAttention(block) => block,
        }
    }
}

/// The blocks and the last layer.
#[derive(Debug, Clone)]
pub struct MMDiTCore {
    joint_blocks: Vec<Joint>,
    last_block: ContextQkvOnlyJointBlock,
    final_layer: FinalLayer,
}

impl MMDiTCore {
    /// Loads `joint_blocks` and `final_layer`. Blocks for which there is an `x_block.attn2` are [`MMDiTXJointBlock`]s.
    ///
    /// # Errors
    /// If `depth` is 0, the heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(
        depth: usize,
        hidden_size: usize,
        num_heads: usize,
        patch_size: usize,
        out_channels: usize,
        use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        let Some(last) = depth.checked_sub(1) else {
            bail!("{FAMILY}: depth is 0; it must be at least 1")
        };
        let (size, heads, flash) = (hidden_size, num_heads, use_flash_attn);
        let vb_blocks = vb.pp("joint_blocks");
        // Not with_capacity: a configuration can ask for any number of blocks that no file has.
        let mut joint_blocks = Vec::new();
        for i in 0..last {
            let vb = vb_blocks.pp(i);
            joint_blocks.push(if vb.contains_tensor("x_block.attn2.qkv.weight") {
                Joint::SelfAttention(MMDiTXJointBlock::new(size, heads, flash, vb)?)
            } else {
                Joint::Plain(MMDiTJointBlock::new(size, heads, flash, vb)?)
            });
        }
        let vb_last = vb_blocks.pp(last);
        Ok(Self {
            joint_blocks,
            last_block: ContextQkvOnlyJointBlock::new(size, heads, flash, vb_last)?,
            final_layer: FinalLayer::new(size, patch_size, out_channels, vb.pp("final_layer"))?,
        })
    }

    /// From tokens of text and image, (batch, tokens, hidden_size) each, and the condition, (batch, hidden_size), to patches,
    /// (batch, tokens, patch_size * patch_size * out_channels). `skip_layers` is that of [`MMDiT::forward`].
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        context: &Tensor,
        x: &Tensor,
        c: &Tensor,
        skip_layers: Option<&[usize]>,
    ) -> Result<Tensor> {
        let skipped = skip_layers.unwrap_or_default();
        let (mut context, mut x) = (context.clone(), x.clone());
        for (i, block) in self.joint_blocks.iter().enumerate() {
            if !skipped.contains(&i) {
                (context, x) = block.block().forward(&context, &x, c)?;
            }
        }
        let x = self.last_block.forward(&context, &x, c)?;
        self.final_layer.forward(&x, c)
    }
}
