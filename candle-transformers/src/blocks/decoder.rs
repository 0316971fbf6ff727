//! A decoder layer with norms before its two halves, as in Llama: [arXiv 2302.13971](https://arxiv.org/abs/2302.13971).

use candle_core::{Module, Result, Tensor};
use candle_nn::{rms_norm, RmsNorm, VarBuilder};

use super::{AttentionConfig, CausalSelfAttention, GatedMlp, GrowingKvCache};

/// The sizes of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecoderConfig {
    /// Of its attention; `hidden_size` there is that of the layer.
    pub attention: AttentionConfig,
    /// Inner size of the MLP.
    pub intermediate_size: usize,
    /// Added to the mean square in both norms.
    pub rms_norm_eps: f64,
}

/// `x += attention(norm(x)); x += mlp(norm(x))`.
#[derive(Debug, Clone)]
pub struct DecoderLayer {
    input_norm: RmsNorm,
    attention: CausalSelfAttention,
    post_attention_norm: RmsNorm,
    mlp: GatedMlp,
}

impl DecoderLayer {
    /// Loads `input_layernorm`, `self_attn`, `post_attention_layernorm` and `mlp` from `vb`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn load(cfg: DecoderConfig, vb: VarBuilder) -> Result<Self> {
        let hidden_size = cfg.attention.hidden_size;
        let norm = |name| rms_norm(hidden_size, cfg.rms_norm_eps, vb.pp(name));
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: CausalSelfAttention::load(cfg.attention, vb.pp("self_attn"))?,
            post_attention_norm: norm("post_attention_layernorm")?,
            mlp: GatedMlp::load(hidden_size, cfg.intermediate_size, vb.pp("mlp"))?,
        })
    }

    /// Runs the layer on `xs`, `(b, t, hidden_size)`; the rest as in [`CausalSelfAttention::forward`].
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not fit together.
    pub fn forward(
        &self,
        xs: &Tensor,
        cos: &Tensor,
        sin: &Tensor,
        kv: Option<&mut GrowingKvCache>,
    ) -> Result<Tensor> {
        let attended = self
            .attention
            .forward(&self.input_norm.forward(xs)?, cos, sin, kv)?;
        let xs = (xs + attended)?;
        let mlp = self.mlp.forward(&self.post_attention_norm.forward(&xs)?)?;
        xs + mlp
    }
}
