//! The blocks of the transformer. In all of them `x` is the image's tokens, `context` the text's, both (batch, tokens, hidden_size), and
//! `c` the condition, (batch, hidden_size), or (1, hidden_size) for the whole batch.
//!
//! `use_flash_attn` changes nothing: attention is one kernel where the device has one.

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear, Linear, VarBuilder};

use super::head_dim;
use super::projections::{AttnProjections, Mlp, Qkv, QkvOnlyAttnProjections};
use crate::blocks::diffusion::{attend, modulated, plain_norm, plus_gated, AdaLn};
use crate::blocks::vision::heads;

/// Inner size of the feed-forward blocks, in parts of the size of the stream.
const MLP_RATIO: usize = 4;

/// The layer that makes `N` vectors of the condition.
fn ada_ln<const N: usize>(hidden: usize, vb: &VarBuilder) -> Result<AdaLn<N>> {
    let layer = linear(hidden, N * hidden, vb.pp("adaLN_modulation.1"))?;
    Ok(AdaLn::new(layer))
}

/// A layer norm without weights.
#[derive(Debug, Clone)]
pub struct LayerNormNoAffine {
    eps: f64,
}

impl LayerNormNoAffine {
    /// `eps` is added to the variance.
    pub fn new(eps: f64) -> Self {
        Self { eps }
    }
}

/// From (.., n) to the same shape.
impl Module for LayerNormNoAffine {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        plain_norm(x, self.eps)
    }
}

/// The values that [`DiTBlock::pre_attention`] computes for the steps after attention.
#[derive(Debug, Clone)]
pub struct ModulateIntermediates {
    gate_msa: Tensor,
    shift_mlp: Tensor,
    scale_mlp: Tensor,
    gate_mlp: Tensor,
}

/// The layers of one kind of tokens.
#[derive(Debug, Clone)]
pub struct DiTBlock {
    attn: AttnProjections,
    mlp: Mlp,
    modulation: AdaLn<6>,
}

impl DiTBlock {
    /// Loads `attn`, `mlp` and `adaLN_modulation.1`.
    ///
    /// # Errors
    /// If the heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(hidden_size: usize, num_heads: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            attn: AttnProjections::new(hidden_size, num_heads, vb.pp("attn"))?,
            mlp: Mlp::new(hidden_size, MLP_RATIO * hidden_size, vb.pp("mlp"))?,
            modulation: ada_ln(hidden_size, &vb)?,
        })
    }

    /// The queries, keys and values of `x`.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn pre_attention(&self, x: &Tensor, c: &Tensor) -> Result<(Qkv, ModulateIntermediates)> {
        let [shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp] =
            self.modulation.forward(&c.silu()?)?;
        let qkv = self
            .attn
            .pre_attention(&modulated(x, &shift_msa, &scale_msa)?)?;
        let left = ModulateIntermediates {
            gate_msa,
            shift_mlp,
            scale_mlp,
            gate_mlp,
        };
        Ok((qkv, left))
    }

    /// `x` after attention, which gave `attn`, (batch, tokens, hidden_size), and the feed-forward block.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn post_attention(
        &self,
        attn: &Tensor,
        x: &Tensor,
        mod_interm: &ModulateIntermediates,
    ) -> Result<Tensor> {
        let attended = self.attn.post_attention(attn)?;
        let x = plus_gated(x, &mod_interm.gate_msa, &attended)?;
        mod_interm.feed_forward(&self.mlp, &x)
    }
}

impl ModulateIntermediates {
    fn feed_forward(&self, mlp: &Mlp, x: &Tensor) -> Result<Tensor> {
        let ys = mlp.forward(&modulated(x, &self.shift_mlp, &self.scale_mlp)?)?;
        plus_gated(x, &self.gate_mlp, &ys)
    }
}

/// The values that [`SelfAttnDiTBlock::pre_attention`] computes for the steps after attention.
#[derive(Debug, Clone)]
pub struct SelfAttnModulateIntermediates {
    first: ModulateIntermediates,
    gate_msa2: Tensor,
}

/// The layers of the image's tokens where they attend to themselves as well.
#[derive(Debug, Clone)]
pub struct SelfAttnDiTBlock {
    attn: AttnProjections,
    attn2: AttnProjections,
    mlp: Mlp,
    modulation: AdaLn<9>,
}

impl SelfAttnDiTBlock {
    /// Loads `attn`, `attn2`, `mlp` and `adaLN_modulation.1`.
    ///
    /// # Errors
    /// As [`DiTBlock::new`].
    pub fn new(hidden_size: usize, num_heads: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            attn: AttnProjections::new(hidden_size, num_heads, vb.pp("attn"))?,
            attn2: AttnProjections::new(hidden_size, num_heads, vb.pp("attn2"))?,
            mlp: Mlp::new(hidden_size, MLP_RATIO * hidden_size, vb.pp("mlp"))?,
            modulation: ada_ln(hidden_size, &vb)?,
        })
    }

    /// The queries, keys and values of `x` for attention with the text, and for self-attention.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn pre_attention(
        &self,
        x: &Tensor,
        c: &Tensor,
    ) -> Result<(Qkv, Qkv, SelfAttnModulateIntermediates)> {
        let [shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp, shift2, scale2, gate_msa2] =
            self.modulation.forward(&c.silu()?)?;
        let qkv = self
            .attn
            .pre_attention(&modulated(x, &shift_msa, &scale_msa)?)?;
        let qkv2 = self.attn2.pre_attention(&modulated(x, &shift2, &scale2)?)?;
        let first = ModulateIntermediates {
            gate_msa,
            shift_mlp,
            scale_mlp,
            gate_mlp,
        };
        Ok((
            qkv,
            qkv2,
            SelfAttnModulateIntermediates { first, gate_msa2 },
        ))
    }

    /// `x` after both kinds of attention and the feed-forward block.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn post_attention(
        &self,
        attn: &Tensor,
        attn2: &Tensor,
        x: &Tensor,
        mod_interm: &SelfAttnModulateIntermediates,
    ) -> Result<Tensor> {
        let SelfAttnModulateIntermediates { first, gate_msa2 } = mod_interm;
        let x = plus_gated(x, &first.gate_msa, &self.attn.post_attention(attn)?)?;
        let x = plus_gated(&x, gate_msa2, &self.attn2.post_attention(attn2)?)?;
        first.feed_forward(&self.mlp, &x)
    }
}

/// The layers of the text's tokens in the last block, after which they are not used.
#[derive(Debug, Clone)]
pub struct QkvOnlyDiTBlock {
    attn: QkvOnlyAttnProjections,
    modulation: AdaLn<2>,
}

impl QkvOnlyDiTBlock {
    /// Loads `attn` and `adaLN_modulation.1`.
    ///
    /// # Errors
    /// As [`DiTBlock::new`].
    pub fn new(hidden_size: usize, num_heads: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            attn: QkvOnlyAttnProjections::new(hidden_size, num_heads, vb.pp("attn"))?,
            modulation: ada_ln(hidden_size, &vb)?,
        })
    }

    /// The queries, keys and values of `x`.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn pre_attention(&self, x: &Tensor, c: &Tensor) -> Result<Qkv> {
        let [shift, scale] = self.modulation.forward(&c.silu()?)?;
        self.attn.pre_attention(&modulated(x, &shift, &scale)?)
    }
}

/// The layer from tokens to patches.
#[derive(Debug, Clone)]
pub struct FinalLayer {
    linear: Linear,
    modulation: AdaLn<2>,
}

impl FinalLayer {
    /// Loads `linear` and `adaLN_modulation.1`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(
        hidden_size: usize,
        patch_size: usize,
        out_channels: usize,
        vb: VarBuilder,
    ) -> Result<Self> {
        let size = patch_size * patch_size * out_channels;
        Ok(Self {
            linear: linear(hidden_size, size, vb.pp("linear"))?,
            modulation: ada_ln(hidden_size, &vb)?,
        })
    }

    /// From (batch, tokens, hidden_size) to (batch, tokens, patch_size * patch_size * out_channels).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, x: &Tensor, c: &Tensor) -> Result<Tensor> {
        let [shift, scale] = self.modulation.forward(&c.silu()?)?;
        self.linear.forward(&modulated(x, &shift, &scale)?)
    }
}

/// A block in which text and image attend to each other.
pub trait JointBlock {
    /// `context` and `x` after the block, in this order.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    fn forward(&self, context: &Tensor, x: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)>;
}

/// A block of SD3.
#[derive(Debug, Clone)]
pub struct MMDiTJointBlock {
    x_block: DiTBlock,
    context_block: DiTBlock,
    num_heads: usize,
}

impl MMDiTJointBlock {
    /// Loads `x_block` and `context_block`.
    ///
    /// # Errors
    /// As [`DiTBlock::new`].
    pub fn new(
        hidden_size: usize,
        num_heads: usize,
        _use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        head_dim(hidden_size, num_heads)?;
        Ok(Self {
            x_block: DiTBlock::new(hidden_size, num_heads, vb.pp("x_block"))?,
            context_block: DiTBlock::new(hidden_size, num_heads, vb.pp("context_block"))?,
            num_heads,
        })
    }
}

impl JointBlock for MMDiTJointBlock {
    fn forward(&self, context: &Tensor, x: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        let (of_context, context_left) = self.context_block.pre_attention(context, c)?;
        let (of_x, x_left) = self.x_block.pre_attention(x, c)?;
        let (context_attn, x_attn) = joint(&of_context, &of_x, self.num_heads)?;
        let context = self
            .context_block
            .post_attention(&context_attn, context, &context_left)?;
        Ok((context, self.x_block.post_attention(&x_attn, x, &x_left)?))
    }
}

/// A block of SD3.5 medium, whose image attends to itself as well.
#[derive(Debug, Clone)]
pub struct MMDiTXJointBlock {
    x_block: SelfAttnDiTBlock,
    context_block: DiTBlock,
    num_heads: usize,
}

impl MMDiTXJointBlock {
    /// Loads `x_block` and `context_block`.
    ///
    /// # Errors
    /// As [`DiTBlock::new`].
    pub fn new(
        hidden_size: usize,
        num_heads: usize,
        _use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        head_dim(hidden_size, num_heads)?;
        Ok(Self {
            x_block: SelfAttnDiTBlock::new(hidden_size, num_heads, vb.pp("x_block"))?,
            context_block: DiTBlock::new(hidden_size, num_heads, vb.pp("context_block"))?,
            num_heads,
        })
    }
}

impl JointBlock for MMDiTXJointBlock {
    fn forward(&self, context: &Tensor, x: &Tensor, c: &Tensor) -> Result<(Tensor, Tensor)> {
        let (of_context, context_left) = self.context_block.pre_attention(context, c)?;
        let (of_x, of_x2, x_left) = self.x_block.pre_attention(x, c)?;
        let (context_attn, x_attn) = joint(&of_context, &of_x, self.num_heads)?;
        let x_attn2 = alone(&of_x2, self.num_heads)?;
        let context = self
            .context_block
            .post_attention(&context_attn, context, &context_left)?;
        let x = self.x_block.post_attention(&x_attn, &x_attn2, x, &x_left)?;
        Ok((context, x))
    }
}

/// The last block.
#[derive(Debug, Clone)]
pub struct ContextQkvOnlyJointBlock {
    x_block: DiTBlock,
    context_block: QkvOnlyDiTBlock,
    num_heads: usize,
}

impl ContextQkvOnlyJointBlock {
    /// Loads `x_block` and `context_block`.
    ///
    /// # Errors
    /// As [`DiTBlock::new`].
    pub fn new(
        hidden_size: usize,
        num_heads: usize,
        _use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        head_dim(hidden_size, num_heads)?;
        Ok(Self {
            x_block: DiTBlock::new(hidden_size, num_heads, vb.pp("x_block"))?,
            context_block: QkvOnlyDiTBlock::new(hidden_size, num_heads, vb.pp("context_block"))?,
            num_heads,
        })
    }

    /// `x` after the block.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, context: &Tensor, x: &Tensor, c: &Tensor) -> Result<Tensor> {
        let of_context = self.context_block.pre_attention(context, c)?;
        let (of_x, x_left) = self.x_block.pre_attention(x, c)?;
        let (_, x_attn) = joint(&of_context, &of_x, self.num_heads)?;
        self.x_block.post_attention(&x_attn, x, &x_left)
    }
}

/// Joint attention of text and image tokens: (batch, tokens, hidden_size) of each.
fn joint(context: &Qkv, x: &Qkv, num_heads: usize) -> Result<(Tensor, Tensor)> {
    let (tokens, patches) = (context.q.dim(1)?, x.q.dim(1)?);
    let both = Qkv {
        q: Tensor::cat(&[&context.q, &x.q], 1)?,
        k: Tensor::cat(&[&context.k, &x.k], 1)?,
        v: Tensor::cat(&[&context.v, &x.v], 1)?,
    };
    let attended = alone(&both, num_heads)?;
    Ok((
        attended.narrow(1, 0, tokens)?,
        attended.narrow(1, tokens, patches)?,
    ))
}

/// Self-attention.
fn alone(qkv: &Qkv, num_heads: usize) -> Result<Tensor> {
    let (q, k) = (heads(&qkv.q, num_heads)?, heads(&qkv.k, num_heads)?);
    attend(&q, &k, &qkv.v.transpose(1, 2)?, None)
}
