//! Attention of an image's positions to tokens.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{linear, Linear, VarBuilder};

use crate::blocks::vision::{heads, join_heads};
use crate::blocks::MergedLinear;

/// Attention of an image's positions to tokens.
#[derive(Debug)]
pub struct Attention {
    q: Linear,
    kv: MergedLinear<2>,
    out: Linear,
    heads: usize,
    head_dim: usize,
}

impl Attention {
    /// Loads `to_q`, `to_k`, `to_v` and `to_out.0`: `heads` heads of size `dim_head` for images and tokens of size `query_dim`. Attention
    /// is one fused op on every device, with `use_flash_attn` or without.
    ///
    /// # Errors
    /// There are no heads or they have no size, or a weight is missing or has another shape.
    pub fn new(
        query_dim: usize,
        heads: usize,
        dim_head: usize,
        use_flash_attn: bool,
        vb: VarBuilder,
    ) -> Result<Self> {
        let _ = use_flash_attn;
        if heads == 0 || dim_head == 0 {
            bail!("wuerstchen: {heads} heads of size {dim_head}; both must be at least 1")
        }
        let inner = heads * dim_head;
        let part = |name| linear(query_dim, inner, vb.pp(name));
        Ok(Self {
            q: part("to_q")?,
            kv: MergedLinear::new([part("to_k")?, part("to_v")?])?,
            out: linear(inner, query_dim, vb.pp("to_out").pp("0"))?,
            heads,
            head_dim: dim_head,
        })
    }

    /// From (batch, query_dim, height, width) to the same shape; `encoder_hidden_states` is (batch, tokens, query_dim).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, encoder_hidden_states: &Tensor) -> Result<Tensor> {
        let places = xs.flatten_from(2)?.transpose(1, 2)?;
        let q = heads(&self.q.forward(&places)?, self.heads)?;
        let [k, v] = self.kv.forward(encoder_hidden_states)?;
        let options = SdpaOptions {
            scale: 1. / (self.head_dim as f32).sqrt(),
            ..Default::default()
        };
        let (k, v) = (heads(&k, self.heads)?, heads(&v, self.heads)?);
        let ys = join_heads(&sdpa_with(&q, &k, &v, &options)?)?;
        let ys = self.out.forward(&ys)?.transpose(1, 2)?;
        ys.reshape(xs.shape())
    }
}
