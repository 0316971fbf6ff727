//! The layers of the transformer, over dense or quantised weights.

use candle_core::{Module, Result, Tensor, D};
use candle_nn::ops::LinearExtras;
use candle_nn::rotary_emb::{rope_heads_with, HeadNorms, Pairs, Rotation};
use candle_nn::{Activation, Init};

use super::model::Config;
use crate::blocks::diffusion::{attend, modulated, plus_gated, AdaLn, NORM_EPS};
use crate::blocks::{LinearSpec, Projection, Weights};

/// A linear layer with a bias.
pub(super) async fn linear(
    weights: &mut Weights<'_>,
    name: String,
    in_dim: usize,
    out_dim: usize,
) -> Result<Projection> {
    linear_b(weights, name, in_dim, out_dim, true).await
}

async fn linear_b(
    weights: &mut Weights<'_>,
    name: String,
    in_dim: usize,
    out_dim: usize,
    bias: bool,
) -> Result<Projection> {
    let spec = LinearSpec {
        name,
        in_dim,
        out_dim,
        bias,
    };
    weights.linear(&spec).await
}

/// Two layers with an activation between them.
#[derive(Debug, Clone)]
struct Mlp {
    up: Projection,
    down: Projection,
    activation: Activation,
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let extras = LinearExtras {
            activation: Some(self.activation),
            ..LinearExtras::default()
        };
        self.down.forward(&self.up.forward_with(xs, extras)?)
    }
}

/// Makes a vector of the stream's size of a time or of the text's vector: two layers with SiLU between them.
#[derive(Debug, Clone)]
pub struct MlpEmbedder {
    mlp: Mlp,
}

impl MlpEmbedder {
    pub(super) async fn load(
        weights: &mut Weights<'_>,
        name: &str,
        in_dim: usize,
        hidden: usize,
    ) -> Result<Self> {
        let up = linear(weights, format!("{name}.in_layer"), in_dim, hidden).await?;
        let down = linear(weights, format!("{name}.out_layer"), hidden, hidden).await?;
        let activation = Activation::Silu;
        Ok(Self {
            mlp: Mlp {
                up,
                down,
                activation,
            },
        })
    }
}

/// From (batch, n) to (batch, hidden_size).
impl Module for MlpEmbedder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.mlp.forward(xs)
    }
}

/// Cosines and sines of the tokens' positions, (seq, head_dim / 2) or (batch, seq, head_dim / 2).
pub(super) struct Angles {
    pub(super) cos: Tensor,
    pub(super) sin: Tensor,
}

impl Angles {
    pub(super) fn part(&self, start: usize, len: usize) -> Result<Self> {
        Ok(Self {
            cos: self.cos.narrow(D::Minus2, start, len)?,
            sin: self.sin.narrow(D::Minus2, start, len)?,
        })
    }
}

/// RMS norms of the heads of queries and keys.
#[derive(Debug, Clone)]
pub struct QkNorm {
    norms: HeadNorms,
}

impl QkNorm {
    async fn load(weights: &mut Weights<'_>, prefix: &str, head_dim: usize) -> Result<Self> {
        let (dims, init) = ([head_dim], Init::Const(1.));
        let query = format!("{prefix}.query_norm.scale");
        let query = weights.dense(&query, &dims, init).await?;
        let key = format!("{prefix}.key_norm.scale");
        let key = weights.dense(&key, &dims, init).await?;
        Ok(Self {
            norms: HeadNorms::new(&query, &key, NORM_EPS)?,
        })
    }

    /// Heads of queries, keys and values, (batch, 3 * heads, seq, head_dim), of their projections (batch, seq, 3 * heads * head_dim), the
    /// queries and keys with norm and rotated.
    fn heads(&self, projected: &Tensor, heads: usize, angles: &Angles) -> Result<Tensor> {
        let (b, t, _) = projected.dims3()?;
        let by_head = projected.reshape((b, t, 3 * heads, ()))?.transpose(1, 2)?;
        let rotation = Rotation {
            norms: Some(&self.norms),
            ..Rotation::new(&angles.cos, &angles.sin, Pairs::Neighbours)
        };
        rope_heads_with(&by_head, &rotation, heads, heads)
    }
}

/// [`attend`] over the heads that [`QkNorm::heads`] makes.
fn attend_joined(qkv: &Tensor, heads: usize) -> Result<Tensor> {
    let part = |i| qkv.narrow(1, i * heads, heads);
    attend(&part(0)?, &part(1)?, &part(2)?, None)
}

/// The layers to and from the heads of a stream.
#[derive(Debug, Clone)]
pub struct SelfAttention {
    qkv: Projection,
    norm: QkNorm,
    proj: Projection,
    heads: usize,
}

impl SelfAttention {
    async fn load(weights: &mut Weights<'_>, prefix: &str, cfg: &Config) -> Result<Self> {
        let hidden = cfg.hidden_size;
        let qkv = format!("{prefix}.qkv");
        let qkv = linear_b(weights, qkv, hidden, 3 * hidden, cfg.qkv_bias).await?;
        let norm = QkNorm::load(weights, &format!("{prefix}.norm"), cfg.head_dim()).await?;
        Ok(Self {
            qkv,
            norm,
            proj: linear(weights, format!("{prefix}.proj"), hidden, hidden).await?,
            heads: cfg.num_heads,
        })
    }

    fn heads(&self, xs: &Tensor, angles: &Angles) -> Result<Tensor> {
        self.norm.heads(&self.qkv.forward(xs)?, self.heads, angles)
    }
}

/// The tokens of the image, or those of the text, in a block where both have separate weights.
#[derive(Debug, Clone)]
struct Stream {
    modulation: AdaLn<6>,
    attn: SelfAttention,
    mlp: Mlp,
}

impl Stream {
    async fn load(weights: &mut Weights<'_>, prefix: &str, cfg: &Config) -> Result<Self> {
        let (hidden, inner) = (cfg.hidden_size, cfg.inner());
        let modulation = format!("{prefix}_mod.lin");
        let modulation = linear(weights, modulation, hidden, 6 * hidden).await?;
        let attn = SelfAttention::load(weights, &format!("{prefix}_attn"), cfg).await?;
        let up = linear(weights, format!("{prefix}_mlp.0"), hidden, inner).await?;
        let down = linear(weights, format!("{prefix}_mlp.2"), inner, hidden).await?;
        Ok(Self {
            modulation: AdaLn::new(modulation),
            attn,
            mlp: Mlp {
                up,
                down,
                activation: Activation::GeluPytorchTanh,
            },
        })
    }

    /// `xs` after attention, which gave `attended`, and the feed-forward block.
    fn after(&self, xs: &Tensor, attended: &Tensor, parts: &[Tensor; 6]) -> Result<Tensor> {
        let [_, _, gate1, shift2, scale2, gate2] = parts;
        let xs = plus_gated(xs, gate1, &self.attn.proj.forward(attended)?)?;
        let ys = self.mlp.forward(&modulated(&xs, shift2, scale2)?)?;
        plus_gated(&xs, gate2, &ys)
    }
}

/// A block in which image and text have separate weights and attend to each other.
#[derive(Debug, Clone)]
pub struct DoubleStreamBlock {
    img: Stream,
    txt: Stream,
}

impl DoubleStreamBlock {
    pub(super) async fn load(
        weights: &mut Weights<'_>,
        prefix: &str,
        cfg: &Config,
    ) -> Result<Self> {
        Ok(Self {
            img: Stream::load(weights, &format!("{prefix}.img"), cfg).await?,
            txt: Stream::load(weights, &format!("{prefix}.txt"), cfg).await?,
        })
    }

    /// From `img` and `txt`, the condition with its activation, and the angles of `txt` and then `img`.
    pub(super) fn forward(
        &self,
        img: &Tensor,
        txt: &Tensor,
        condition: &Tensor,
        angles: &Angles,
    ) -> Result<(Tensor, Tensor)> {
        let (tokens, patches) = (txt.dim(1)?, img.dim(1)?);
        let heads = |stream: &Stream, xs: &Tensor, parts: &[Tensor; 6], angles: &Angles| {
            let normed = modulated(xs, &parts[0], &parts[1])?;
            stream.attn.heads(&normed, angles)
        };
        let img_parts = self.img.modulation.forward(condition)?;
        let txt_parts = self.txt.modulation.forward(condition)?;
        let txt_heads = heads(&self.txt, txt, &txt_parts, &angles.part(0, tokens)?)?;
        let img_heads = heads(&self.img, img, &img_parts, &angles.part(tokens, patches)?)?;
        let qkv = Tensor::cat(&[txt_heads, img_heads], 2)?;
        let attended = attend_joined(&qkv, self.img.attn.heads)?;
        let of_img = attended.narrow(1, tokens, patches)?;
        let of_txt = attended.narrow(1, 0, tokens)?;
        Ok((
            self.img.after(img, &of_img, &img_parts)?,
            self.txt.after(txt, &of_txt, &txt_parts)?,
        ))
    }
}

/// A block with one set of weights for the tokens of text and image, whose attention and feed-forward block read the same norm.
#[derive(Debug, Clone)]
pub struct SingleStreamBlock {
    /// To queries, keys and values, and to the inner vector of the feed-forward block.
    linear1: Projection,
    /// From the heads and the inner vector.
    linear2: Projection,
    norm: QkNorm,
    modulation: AdaLn<3>,
    heads: usize,
    hidden: usize,
}

impl SingleStreamBlock {
    pub(super) async fn load(
        weights: &mut Weights<'_>,
        prefix: &str,
        cfg: &Config,
    ) -> Result<Self> {
        let (hidden, inner) = (cfg.hidden_size, cfg.inner());
        let name = |part| format!("{prefix}.{part}");
        let linear1 = linear(weights, name("linear1"), hidden, 3 * hidden + inner).await?;
        let linear2 = linear(weights, name("linear2"), hidden + inner, hidden).await?;
        let norm = QkNorm::load(weights, &name("norm"), cfg.head_dim()).await?;
        let modulation = linear(weights, name("modulation.lin"), hidden, 3 * hidden).await?;
        Ok(Self {
            linear1,
            linear2,
            norm,
            modulation: AdaLn::new(modulation),
            heads: cfg.num_heads,
            hidden,
        })
    }

    pub(super) fn forward(
        &self,
        xs: &Tensor,
        condition: &Tensor,
        angles: &Angles,
    ) -> Result<Tensor> {
        let [shift, scale, gate] = self.modulation.forward(condition)?;
        let projected = self.linear1.forward(&modulated(xs, &shift, &scale)?)?;
        let size = 3 * self.hidden;
        let qkv = projected.narrow(D::Minus1, 0, size)?;
        let inner = projected.narrow(D::Minus1, size, projected.dim(D::Minus1)? - size)?;
        let attended = attend_joined(&self.norm.heads(&qkv, self.heads, angles)?, self.heads)?;
        let ys = Tensor::cat(&[attended, inner.gelu()?], D::Minus1)?;
        plus_gated(xs, &gate, &self.linear2.forward(&ys)?)
    }
}

/// The layer from the stream to patches, behind a norm that the condition sets.
#[derive(Debug, Clone)]
pub struct LastLayer {
    linear: Projection,
    modulation: AdaLn<2>,
}

impl LastLayer {
    pub(super) async fn load(weights: &mut Weights<'_>, cfg: &Config) -> Result<Self> {
        let (hidden, name) = (cfg.hidden_size, |part| format!("final_layer.{part}"));
        let layer = linear(weights, name("linear"), hidden, cfg.in_channels).await?;
        let modulation = name("adaLN_modulation.1");
        let modulation = linear(weights, modulation, hidden, 2 * hidden).await?;
        Ok(Self {
            linear: layer,
            modulation: AdaLn::new(modulation),
        })
    }

    pub(super) fn forward(&self, xs: &Tensor, condition: &Tensor) -> Result<Tensor> {
        let [shift, scale] = self.modulation.forward(condition)?;
        self.linear.forward(&modulated(xs, &shift, &scale)?)
    }
}
