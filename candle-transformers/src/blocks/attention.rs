//! Causal self-attention with grouped key/value heads, GQA: [arXiv 2305.13245](https://arxiv.org/abs/2305.13245).

use candle_core::{Result, Tensor};
use candle_nn::{linear_no_bias, ops::sdpa, RmsNorm, VarBuilder};

use super::{GrowingKvCache, MergedLinear, Projection, Residual, RotaryPairs};

/// The sizes of an attention block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionConfig {
    /// Size of the input and output.
    pub hidden_size: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads, each read by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Size of a head.
    pub head_dim: usize,
    /// Which elements of a head are rotated together.
    pub rotary_pairs: RotaryPairs,
}

/// Causal self-attention with rotary positions and an optional KV cache.
#[derive(Debug, Clone)]
pub struct CausalSelfAttention {
    qkv: MergedLinear<3>,
    o_proj: Projection,
    cfg: AttentionConfig,
    scale: f32,
}

impl CausalSelfAttention {
    /// A block from its projections: to queries, keys and values (`heads * head_dim`, and twice `kv_heads * head_dim` outputs), and
    /// from the heads back to `hidden_size`. They are checked when the block is applied.
    pub fn new(cfg: AttentionConfig, qkv: MergedLinear<3>, o_proj: Projection) -> Self {
        Self {
            qkv,
            o_proj,
            cfg,
            scale: 1. / (cfg.head_dim as f32).sqrt(),
        }
    }

    /// Loads `q_proj`, `k_proj`, `v_proj` and `o_proj` from `vb`, without biases.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn load(cfg: AttentionConfig, vb: VarBuilder) -> Result<Self> {
        let q_size = cfg.heads * cfg.head_dim;
        let kv_size = cfg.kv_heads * cfg.head_dim;
        let parts = [("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)];
        let qkv = MergedLinear::load(cfg.hidden_size, parts, &vb)?;
        let o_proj = linear_no_bias(q_size, cfg.hidden_size, vb.pp("o_proj"))?;
        Ok(Self::new(cfg, qkv, o_proj.into()))
    }

    /// The stream `xs`, `(b, t, hidden_size)`, with this block of its norm added to it: each position attends to those before it
    /// and to what `kv` holds, which the new positions are added to. `cos` and `sin`, `(t, head_dim / 2)`, are the positions'
    /// rotary rows.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        xs: Residual,
        norm: &RmsNorm,
        cos: &Tensor,
        sin: &Tensor,
        kv: Option<&mut GrowingKvCache>,
    ) -> Result<Residual> {
        let AttentionConfig {
            heads,
            kv_heads,
            head_dim,
            rotary_pairs,
            ..
        } = self.cfg;
        let (xs, projected) = match self.qkv.merged() {
            Some(qkv) => xs.project(norm, qkv)?,
            None => {
                let (xs, normed) = xs.normed(norm)?;
                (xs, self.qkv.forward_joined(&normed)?)
            }
        };
        let (b, t, _) = projected.dims3()?;
        // Splitting the heads of the packed projections keeps everything after it a view, and lets one kernel rotate
        // queries and keys and write keys and values to the cache.
        let by_head = projected
            .reshape((b, t, heads + 2 * kv_heads, head_dim))?
            .transpose(1, 2)?;
        let (q, kv) = match kv {
            Some(kv) => kv.append_rotated(&by_head, kv_heads, (cos, sin), rotary_pairs)?,
            None => {
                let qkv = rotary_pairs.rotate(&by_head, cos, sin, heads + kv_heads)?;
                let kv = qkv.narrow(1, heads, 2 * kv_heads)?;
                (qkv.narrow(1, 0, heads)?, kv)
            }
        };
        let k = kv.narrow(1, 0, kv_heads)?;
        let v = kv.narrow(1, kv_heads, kv_heads)?;
        // A single query sees every key, no mask is needed. The softcapping of 1 means none.
        let ys = sdpa(&q, &k, &v, None, t > 1, self.scale, 1.)?;
        let ys = ys.transpose(1, 2)?.reshape((b, t, heads * head_dim))?;
        xs.add(&self.o_proj, &ys)
    }
}
