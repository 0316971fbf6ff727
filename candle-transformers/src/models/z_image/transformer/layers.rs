//! The layers of the transformer.

use candle_core::{bail, DType, Device, Module, Result, Tensor, D};
use candle_nn::ops::{rms_norm as rms_norm_op, GatedActivation};
use candle_nn::rotary_emb::{rope_heads_with, rope_i, HeadNorms, Pairs, Rotation};
use candle_nn::{linear, linear_no_bias, rms_norm, Linear, RmsNorm, VarBuilder};

use super::{Config, ADALN_EMBED_DIM, FREQUENCY_EMBEDDING_SIZE};
use crate::blocks::diffusion::{
    attend, plain_norm, plus_gated_norm, scaled_norm, sinusoids, AdaLn, NORM_EPS,
};
use crate::blocks::{GatedMlp, MergedLinear};
use crate::models::z_image::FAMILY;

/// The epsilon of the norms of queries and keys, which is independent of `norm_eps`.
const QK_NORM_EPS: f64 = 1e-5;

/// Vectors of times.
#[derive(Debug, Clone)]
pub struct TimestepEmbedder {
    first: Linear,
    second: Linear,
}

impl TimestepEmbedder {
    /// Loads `mlp.0` and `mlp.2`, from [`FREQUENCY_EMBEDDING_SIZE`] cosines and sines to `mid_size` and to `out_size`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(out_size: usize, mid_size: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            first: linear(FREQUENCY_EMBEDDING_SIZE, mid_size, vb.pp("mlp.0"))?,
            second: linear(mid_size, out_size, vb.pp("mlp.2"))?,
        })
    }

    /// From times of any dtype, (batch), to (batch, out_size) in the dtype of the weights.
    ///
    /// # Errors
    /// `t` is not a vector.
    pub fn forward(&self, t: &Tensor) -> Result<Tensor> {
        let vectors = sinusoids(t, FREQUENCY_EMBEDDING_SIZE)?;
        let vectors = vectors.to_dtype(self.first.weight().dtype())?;
        self.second.forward(&self.first.forward(&vectors)?.silu()?)
    }
}

/// A feed-forward block with a gate, SwiGLU: [arXiv 2002.05202](https://arxiv.org/abs/2002.05202).
#[derive(Debug, Clone)]
pub struct FeedForward {
    mlp: GatedMlp,
}

impl FeedForward {
    /// Loads `w1`, the gate, `w3` and `w2`, the layer back.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(dim: usize, hidden_dim: usize, vb: VarBuilder) -> Result<Self> {
        let up = |name| linear_no_bias(dim, hidden_dim, vb.pp(name));
        let gate_up = MergedLinear::new([up("w1")?, up("w3")?])?;
        let down = linear_no_bias(hidden_dim, dim, vb.pp("w2"))?;
        Ok(Self {
            mlp: GatedMlp::new(gate_up, down.into(), GatedActivation::Silu),
        })
    }
}

/// From (.., dim) to the same shape.
impl Module for FeedForward {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.mlp.forward(x)
    }
}

/// RMS norms of the heads of queries and keys.
#[derive(Debug, Clone)]
pub struct QkNorm {
    norms: HeadNorms,
}

impl QkNorm {
    /// Loads `norm_q` and `norm_k`; `eps` is added to the mean square.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(head_dim: usize, eps: f64, vb: VarBuilder) -> Result<Self> {
        let weight = |name| rms_norm(head_dim, eps, vb.pp(name));
        let (q, k) = (weight("norm_q")?, weight("norm_k")?);
        Ok(Self {
            norms: HeadNorms::new(q.weight(), k.weight(), eps)?,
        })
    }

    /// Queries and keys, (.., head_dim) each, with their norms.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, q: &Tensor, k: &Tensor) -> Result<(Tensor, Tensor)> {
        let eps = self.norms.eps();
        Ok((
            rms_norm_op(q, self.norms.query(), eps)?,
            rms_norm_op(k, self.norms.key(), eps)?,
        ))
    }
}

/// Tables of the rotations of positions with several axes.
#[derive(Debug, Clone)]
pub struct RopeEmbedder {
    /// Cosines and sines of each axis, (positions, pairs).
    tables: Vec<(Tensor, Tensor)>,
}

impl RopeEmbedder {
    /// With the base `theta`, and `axes_dims` elements of a head and `axes_lens` positions per axis.
    ///
    /// # Errors
    /// The numbers of lengths and of axes differ, an axis has an odd number of elements, or the device has no memory.
    pub fn new(
        theta: f64,
        axes_dims: Vec<usize>,
        axes_lens: Vec<usize>,
        device: &Device,
        dtype: DType,
    ) -> Result<Self> {
        if axes_dims.len() != axes_lens.len() || axes_dims.iter().any(|dim| dim % 2 != 0) {
            bail!(
                "{FAMILY}: axes_dims is {axes_dims:?} and axes_lens {axes_lens:?}; their lengths must match, and axes_dims must be even"
            )
        }
        let axes = axes_dims.into_iter().zip(axes_lens);
        let tables = axes.map(|(dim, len)| {
            // In f64, as the model was trained.
            let frequencies = (0..dim / 2).map(|i| theta.powf(-(2. * i as f64) / dim as f64));
            let frequencies: Vec<f64> = frequencies.collect();
            let angles = (0..len).flat_map(|at| frequencies.iter().map(move |f| at as f64 * f));
            let angles: Vec<f64> = angles.collect();
            let table = |function: fn(f64) -> f64| {
                let values: Vec<f32> = angles.iter().map(|angle| function(*angle) as f32).collect();
                Tensor::from_vec(values, (len, dim / 2), device)?.to_dtype(dtype)
            };
            Ok((table(f64::cos)?, table(f64::sin)?))
        });
        Ok(Self {
            tables: tables.collect::<Result<_>>()?,
        })
    }

    /// From positions (seq, axes) of u32 to cosines and sines, (seq, head_dim / 2) each.
    ///
    /// # Errors
    /// Positions have fewer numbers than there are axes, or larger ones than an axis has positions (where the device can tell).
    pub fn forward(&self, ids: &Tensor) -> Result<(Tensor, Tensor)> {
        let (_, axes) = ids.dims2()?;
        if axes < self.tables.len() {
            bail!(
                "{FAMILY}: the positions are {:?}; they must be (seq, {})",
                ids.dims(),
                self.tables.len()
            )
        }
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for (axis, (cos_of, sin_of)) in self.tables.iter().enumerate() {
            let places = ids.narrow(1, axis, 1)?.squeeze(1)?.contiguous()?;
            cos.push(cos_of.index_select(&places, 0)?);
            sin.push(sin_of.index_select(&places, 0)?);
        }
        Ok((Tensor::cat(&cos, D::Minus1)?, Tensor::cat(&sin, D::Minus1)?))
    }
}

/// Rotates `x`, (batch, seq, heads, head_dim), elements `2 i` and `2 i + 1` by the angle of column `i` of `cos` and `sin`, (seq, head_dim /
/// 2).
///
/// # Errors
/// If shapes, dtypes or devices do not match.
pub fn apply_rotary_emb(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rope_i(&x.transpose(1, 2)?, cos, sin)?.transpose(1, 2)
}

/// The addend of scores for a mask (batch, seq) of ones and zeros: 0, or a number so low that a key is not seen.
pub(super) fn hidden_keys(mask: &Tensor) -> Result<Tensor> {
    let mask = mask.to_dtype(DType::F32)?.unsqueeze(1)?.unsqueeze(1)?;
    // Not -infinity, which would make NaN of a text without tokens.
    (mask - 1.)? * 1e9
}

/// Attention of every token to every token, with 3-axis rotations.
#[derive(Debug, Clone)]
pub struct ZImageAttention {
    qkv: MergedLinear<3>,
    to_out: Linear,
    qk_norm: Option<QkNorm>,
    heads: usize,
    kv_heads: usize,
}

impl ZImageAttention {
    /// Loads `to_q`, `to_k`, `to_v`, `to_out.0`, and with `qk_norm` `norm_q` and `norm_k`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        cfg.check()?;
        let (dim, head_dim) = (cfg.dim, cfg.head_dim());
        let (heads, kv_heads) = (cfg.n_heads, cfg.n_kv_heads);
        let part = |name, heads| linear_no_bias(dim, heads * head_dim, vb.pp(name));
        let parts = [
            part("to_q", heads)?,
            part("to_k", kv_heads)?,
            part("to_v", kv_heads)?,
        ];
        let qk_norm = || QkNorm::new(head_dim, QK_NORM_EPS, vb.clone());
        Ok(Self {
            qkv: MergedLinear::new(parts)?,
            to_out: linear_no_bias(heads * head_dim, dim, vb.pp("to_out.0"))?,
            qk_norm: cfg.qk_norm.then(qk_norm).transpose()?,
            heads,
            kv_heads,
        })
    }

    /// From (batch, seq, dim) to the same shape. `attention_mask` is 1 for keys that are seen and 0 for others, (batch, seq); `cos` and
    /// `sin` are those of [`RopeEmbedder::forward`].
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        hidden_states: &Tensor,
        attention_mask: Option<&Tensor>,
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<Tensor> {
        let bias = attention_mask.map(hidden_keys).transpose()?;
        self.with_bias(hidden_states, bias.as_ref(), cos, sin)
    }

    fn with_bias(
        &self,
        xs: &Tensor,
        bias: Option<&Tensor>,
        cos: &Tensor,
        sin: &Tensor,
    ) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let by_head = self
            .qkv
            .forward_joined(xs)?
            .reshape((b, t, heads + 2 * kv_heads, ()))?
            .transpose(1, 2)?;
        let rotation = Rotation {
            norms: self.qk_norm.as_ref().map(|norm| &norm.norms),
            ..Rotation::new(cos, sin, Pairs::Neighbours)
        };
        let turned = rope_heads_with(&by_head, &rotation, heads, kv_heads)?;
        let q = turned.narrow(1, 0, heads)?;
        let k = turned.narrow(1, heads, kv_heads)?;
        let v = turned.narrow(1, heads + kv_heads, kv_heads)?;
        self.to_out.forward(&attend(&q, &k, &v, bias)?)
    }
}

/// Attention and a feed-forward block, each between two norms and in a residual that the time sets, or not.
#[derive(Debug, Clone)]
pub struct ZImageTransformerBlock {
    attention: ZImageAttention,
    feed_forward: FeedForward,
    attention_norms: [RmsNorm; 2],
    ffn_norms: [RmsNorm; 2],
    modulation: Option<AdaLn<4>>,
}

impl ZImageTransformerBlock {
    /// Loads `attention`, `feed_forward`, `attention_norm{1,2}`, `ffn_norm{1,2}`, and with `modulation` `adaLN_modulation.0`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, modulation: bool, vb: VarBuilder) -> Result<Self> {
        let attention = ZImageAttention::new(cfg, vb.pp("attention"))?;
        let dim = cfg.dim;
        let norm = |name| rms_norm(dim, cfg.norm_eps, vb.pp(name));
        let ada_ln = || linear(cfg.adaln_dim(), 4 * dim, vb.pp("adaLN_modulation.0"));
        Ok(Self {
            attention,
            feed_forward: FeedForward::new(dim, cfg.hidden_dim(), vb.pp("feed_forward"))?,
            attention_norms: [norm("attention_norm1")?, norm("attention_norm2")?],
            ffn_norms: [norm("ffn_norm1")?, norm("ffn_norm2")?],
            modulation: modulation.then(ada_ln).transpose()?.map(AdaLn::new),
        })
    }

    /// From (batch, seq, dim) to the same shape. `attn_mask`, `cos` and `sin` are those of [`ZImageAttention::forward`]; `adaln_input`,
    /// what [`TimestepEmbedder`] gives, is needed with modulation.
    ///
    /// # Errors
    /// `adaln_input` is missing, or shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        x: &Tensor,
        attn_mask: Option<&Tensor>,
        cos: &Tensor,
        sin: &Tensor,
        adaln_input: Option<&Tensor>,
    ) -> Result<Tensor> {
        let bias = attn_mask.map(hidden_keys).transpose()?;
        self.with_bias(x, bias.as_ref(), cos, sin, adaln_input)
    }

    pub(super) fn with_bias(
        &self,
        x: &Tensor,
        bias: Option<&Tensor>,
        cos: &Tensor,
        sin: &Tensor,
        adaln_input: Option<&Tensor>,
    ) -> Result<Tensor> {
        let attention = |xs: &Tensor| self.attention.with_bias(xs, bias, cos, sin);
        let feed_forward = |xs: &Tensor| self.feed_forward.forward(xs);
        let ([before, after], [ffn_before, ffn_after]) = (&self.attention_norms, &self.ffn_norms);
        match (&self.modulation, adaln_input) {
            (Some(_), None) => bail!(
                "{FAMILY}: adaln_input is missing; a block with modulation needs the time embedding"
            ),
            (Some(modulation), Some(condition)) => {
                let [scale_msa, gate_msa, scale_mlp, gate_mlp] = modulation.forward(condition)?;
                let ys = attention(&scaled_norm(x, before, &scale_msa)?)?;
                let x = plus_gated_norm(x, &gate_msa.tanh()?, after, &ys)?;
                let ys = feed_forward(&scaled_norm(&x, ffn_before, &scale_mlp)?)?;
                plus_gated_norm(&x, &gate_mlp.tanh()?, ffn_after, &ys)
            }
            (None, _) => {
                let ys = attention(&before.forward(x)?)?;
                let x = candle_nn::ops::norm_add(&ys, after.as_op(), x)?;
                let ys = feed_forward(&ffn_before.forward(&x)?)?;
                candle_nn::ops::norm_add(&ys, ffn_after.as_op(), &x)
            }
        }
    }
}

/// A layer norm without weights.
#[derive(Debug, Clone)]
pub struct LayerNormNoParams {
    eps: f64,
}

impl LayerNormNoParams {
    /// `eps` is added to the variance.
    pub fn new(eps: f64) -> Self {
        Self { eps }
    }
}

/// From (.., n) to the same shape.
impl Module for LayerNormNoParams {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        plain_norm(x, self.eps)
    }
}

/// The layer from tokens to patches.
#[derive(Debug, Clone)]
pub struct FinalLayer {
    linear: Linear,
    modulation: AdaLn<1>,
}

impl FinalLayer {
    /// Loads `linear` and `adaLN_modulation.1`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(hidden_size: usize, out_channels: usize, vb: VarBuilder) -> Result<Self> {
        let condition = hidden_size.min(ADALN_EMBED_DIM);
        let modulation = linear(condition, hidden_size, vb.pp("adaLN_modulation.1"))?;
        Ok(Self {
            linear: linear(hidden_size, out_channels, vb.pp("linear"))?,
            modulation: AdaLn::new(modulation),
        })
    }

    /// From (batch, seq, hidden_size) and the vector of the time, (batch, 256) or (batch, hidden_size) if that is smaller, to
    /// (batch, seq, out_channels).
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, x: &Tensor, c: &Tensor) -> Result<Tensor> {
        let [scale] = self.modulation.forward(&c.silu()?)?;
        let normed = plain_norm(x, NORM_EPS)?.broadcast_mul(&(scale + 1.)?)?;
        self.linear.forward(&normed)
    }
}
