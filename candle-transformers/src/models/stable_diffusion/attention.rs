//! Attention of an image's positions to each other and to a text.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::{act_mul, sdpa_with, GatedActivation, SdpaOptions};
use candle_nn::{
    group_norm, layer_norm, linear, linear_no_bias, GroupNorm, LayerNorm, Linear, VarBuilder,
};

use super::resnet::divided;
use crate::blocks::vision::{heads, join_heads, pointwise, VitAttention};
use crate::blocks::MergedLinear;

/// The epsilon of the tokens' norms.
const EPS: f64 = 1e-5;

/// The sources of queries, keys and values.
#[derive(Debug)]
enum Inputs {
    /// The image for all, as a rule.
    One(MergedLinear<3>),
    /// Queries of the image, keys and values of the text.
    Two(Linear, MergedLinear<2>),
}

/// Attention to another sequence, or to the same.
#[derive(Debug)]
pub struct CrossAttention {
    inputs: Inputs,
    to_out: Linear,
    heads: usize,
    head_dim: usize,
}

impl CrossAttention {
    /// Loads `to_q`, `to_k`, `to_v` and `to_out.0`: `heads` heads of size `dim_head` for tokens of size `query_dim` that attend to tokens
    /// of size `context_dim`, which is `query_dim` without it. Attention is one fused op that does not keep the scores, so that
    /// `slice_size`, which limits their memory in Candle, and `use_flash_attn` change nothing.
    ///
    /// # Errors
    /// There are no heads or they have no size, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        query_dim: usize,
        context_dim: Option<usize>,
        heads: usize,
        dim_head: usize,
        slice_size: Option<usize>,
        use_flash_attn: bool,
    ) -> Result<Self> {
        let _ = (slice_size, use_flash_attn);
        if heads == 0 || dim_head == 0 {
            bail!("cross attention: {heads} heads of size {dim_head}; both must be at least 1")
        }
        let inner = heads * dim_head;
        let part = |size, name| linear_no_bias(size, inner, vs.pp(name));
        let kv_dim = context_dim.unwrap_or(query_dim);
        let q = part(query_dim, "to_q")?;
        let [k, v] = [part(kv_dim, "to_k")?, part(kv_dim, "to_v")?];
        Ok(Self {
            inputs: match context_dim {
                None => Inputs::One(MergedLinear::new([q, k, v])?),
                Some(_) => Inputs::Two(q, MergedLinear::new([k, v])?),
            },
            to_out: linear(inner, query_dim, vs.pp("to_out").pp("0"))?,
            heads,
            head_dim: dim_head,
        })
    }

    /// From (batch, tokens, query_dim) to the same shape. They attend to `context`, (batch, others, context_dim), or to each other.
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, context: Option<&Tensor>) -> Result<Tensor> {
        let [q, k, v] = match (&self.inputs, context) {
            (Inputs::One(all), None) => all.forward(xs)?,
            (Inputs::One(all), Some(context)) => {
                let [q, _, _] = all.forward(xs)?;
                let [_, k, v] = all.forward(context)?;
                [q, k, v]
            }
            (Inputs::Two(q, kv), context) => {
                let [k, v] = kv.forward(context.unwrap_or(xs))?;
                [q.forward(xs)?, k, v]
            }
        };
        let [q, k, v] = [
            heads(&q, self.heads)?,
            heads(&k, self.heads)?,
            heads(&v, self.heads)?,
        ];
        let options = SdpaOptions {
            scale: 1. / (self.head_dim as f32).sqrt(),
            ..Default::default()
        };
        let ys = sdpa_with(&q, &k, &v, &options)?;
        self.to_out.forward(&join_heads(&ys)?)
    }
}

/// `linear(up * gelu(gate))` with four times the size between.
#[derive(Debug)]
struct FeedForward {
    up_gate: Linear,
    down: Linear,
}

impl FeedForward {
    fn load(size: usize, vb: VarBuilder) -> Result<Self> {
        let inner = 4 * size;
        Ok(Self {
            up_gate: linear(size, 2 * inner, vb.pp("net").pp("0").pp("proj"))?,
            down: linear(inner, size, vb.pp("net").pp("2"))?,
        })
    }
}

impl Module for FeedForward {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let both = self.up_gate.forward(xs)?;
        let inner = both.dim(D::Minus1)? / 2;
        let up = both.narrow(D::Minus1, 0, inner)?;
        let gate = both.narrow(D::Minus1, inner, inner)?;
        // Exact, as in diffusers.
        self.down
            .forward(&act_mul(&gate, &up, GatedActivation::Gelu)?)
    }
}

/// Attention to the image, attention to the text and a feed-forward block, each behind a norm and in a residual.
#[derive(Debug)]
struct Block {
    norm1: LayerNorm,
    to_picture: CrossAttention,
    norm2: LayerNorm,
    to_text: CrossAttention,
    norm3: LayerNorm,
    feed_forward: FeedForward,
}

impl Block {
    fn load(
        [n_heads, d_head]: [usize; 2],
        context_dim: Option<usize>,
        vb: VarBuilder,
    ) -> Result<Self> {
        let size = n_heads * d_head;
        let norm = |name| layer_norm(size, EPS, vb.pp(name));
        let attention = |context_dim, name| {
            CrossAttention::new(vb.pp(name), size, context_dim, n_heads, d_head, None, false)
        };
        Ok(Self {
            norm1: norm("norm1")?,
            to_picture: attention(None, "attn1")?,
            norm2: norm("norm2")?,
            to_text: attention(context_dim, "attn2")?,
            norm3: norm("norm3")?,
            feed_forward: FeedForward::load(size, vb.pp("ff"))?,
        })
    }

    fn forward(&self, xs: &Tensor, context: Option<&Tensor>) -> Result<Tensor> {
        let xs = (self.to_picture.forward(&self.norm1.forward(xs)?, None)? + xs)?;
        let xs = (self.to_text.forward(&self.norm2.forward(&xs)?, context)? + &xs)?;
        self.feed_forward.forward(&self.norm3.forward(&xs)?)? + xs
    }
}

/// The numbers of a [`SpatialTransformer`].
#[derive(Debug, Clone, Copy)]
pub struct SpatialTransformerConfig {
    /// Blocks.
    pub depth: usize,
    /// Groups of the norm.
    pub num_groups: usize,
    /// Size of the text's tokens; `None` for that of the image's.
    pub context_dim: Option<usize>,
    /// No effect: [`CrossAttention::new`].
    pub sliced_attention_size: Option<usize>,
    /// Whether the first and last layer are linear layers in the file, or 1x1 convolutions.
    pub use_linear_projection: bool,
}

/// One block, without a text, behind a norm of 32 groups and between convolutions.
impl Default for SpatialTransformerConfig {
    fn default() -> Self {
        Self {
            depth: 1,
            num_groups: 32,
            context_dim: None,
            sliced_attention_size: None,
            use_linear_projection: false,
        }
    }
}

/// A transformer over the positions of an image, which also attend to a text.
#[derive(Debug)]
pub struct SpatialTransformer {
    norm: GroupNorm,
    proj_in: Linear,
    blocks: Vec<Block>,
    proj_out: Linear,
    /// The configuration of the block.
    pub config: SpatialTransformerConfig,
}

impl SpatialTransformer {
    /// Loads `norm`, `proj_in`, `transformer_blocks.N` and `proj_out`: `n_heads` heads of size `d_head` for `in_channels` channels.
    /// `use_flash_attn` changes nothing: [`CrossAttention::new`].
    ///
    /// # Errors
    /// There are no heads or they have no size, groups do not divide the channels, or a weight is missing or has another shape.
    pub fn new(
        vs: VarBuilder,
        in_channels: usize,
        n_heads: usize,
        d_head: usize,
        use_flash_attn: bool,
        config: SpatialTransformerConfig,
    ) -> Result<Self> {
        let _ = use_flash_attn;
        let inner = n_heads * d_head;
        let projection = |inputs, outputs, name| {
            if config.use_linear_projection {
                linear(inputs, outputs, vs.pp(name))
            } else {
                pointwise(inputs, outputs, vs.pp(name))
            }
        };
        let vs_blocks = vs.pp("transformer_blocks");
        let block = |i| Block::load([n_heads, d_head], config.context_dim, vs_blocks.pp(i));
        Ok(Self {
            norm: group_norm(config.num_groups, in_channels, 1e-6, vs.pp("norm"))?,
            proj_in: projection(in_channels, inner, "proj_in")?,
            blocks: (0..config.depth).map(block).collect::<Result<_>>()?,
            proj_out: projection(inner, in_channels, "proj_out")?,
            config,
        })
    }

    /// From (batch, in_channels, height, width) to the same shape. `context` is (batch, tokens, context_dim).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, context: Option<&Tensor>) -> Result<Tensor> {
        let tokens = self.norm.forward(xs)?.flatten_from(2)?.transpose(1, 2)?;
        let mut tokens = self.proj_in.forward(&tokens)?;
        for block in &self.blocks {
            tokens = block.forward(&tokens, context)?;
        }
        let ys = self.proj_out.forward(&tokens)?.transpose(1, 2)?;
        ys.reshape(xs.shape())? + xs
    }
}

/// The numbers of an [`AttentionBlock`].
#[derive(Debug, Clone, Copy)]
pub struct AttentionBlockConfig {
    /// Head dimension; `None` for one head over all channels.
    pub num_head_channels: Option<usize>,
    /// Groups of the norm.
    pub num_groups: usize,
    /// Divisor of the result.
    pub rescale_output_factor: f64,
    /// Norm epsilon.
    pub eps: f64,
}

/// One head, behind a norm of 32 groups.
impl Default for AttentionBlockConfig {
    fn default() -> Self {
        Self {
            num_head_channels: None,
            num_groups: 32,
            rescale_output_factor: 1.,
            eps: EPS,
        }
    }
}

/// Self-attention of an image's positions, with a residual connection.
#[derive(Debug)]
pub struct AttentionBlock {
    norm: GroupNorm,
    attention: VitAttention,
    scale: f64,
}

impl AttentionBlock {
    /// Loads `group_norm` and `to_q`, `to_k`, `to_v` and `to_out.0`, or, where a file has those, `query`, `key`, `value` and `proj_attn`:
    /// linear layers or 1x1 convolutions.
    ///
    /// # Errors
    /// The size of a head or the groups do not divide the channels, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, channels: usize, config: AttentionBlockConfig) -> Result<Self> {
        let head_dim = config.num_head_channels.unwrap_or(channels);
        if head_dim == 0 || !channels.is_multiple_of(head_dim) {
            bail!("attention block: heads of size {head_dim} do not divide {channels} channels")
        }
        let names = if vs.contains_tensor("to_q.weight") {
            ["to_q", "to_k", "to_v", "to_out.0"]
        } else {
            ["query", "key", "value", "proj_attn"]
        };
        let [q, k, v, out] = names.map(|name| square(channels, vs.pp(name)));
        Ok(Self {
            norm: group_norm(config.num_groups, channels, config.eps, vs.pp("group_norm"))?,
            attention: VitAttention::apart([q?, k?, v?], out?, channels / head_dim)?,
            scale: config.rescale_output_factor,
        })
    }
}

/// A linear layer, which files of Stable Diffusion 3 have as a 1x1 convolution.
fn square(channels: usize, vb: VarBuilder) -> Result<Linear> {
    match linear(channels, channels, vb.clone()) {
        Ok(linear) => Ok(linear),
        Err(err) => pointwise(channels, channels, vb).map_err(|_| err),
    }
}

/// From (batch, channels, height, width) to the same shape.
impl Module for AttentionBlock {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let tokens = self.norm.forward(xs)?.flatten_from(2)?.transpose(1, 2)?;
        let ys = self.attention.forward(&tokens, None)?.transpose(1, 2)?;
        divided((ys.reshape(xs.shape())? + xs)?, self.scale)
    }
}
