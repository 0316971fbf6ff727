//! A pre-norm decoder layer, as in Llama: [arXiv 2302.13971](https://arxiv.org/abs/2302.13971).

use candle_core::{Module, Result, Tensor};
use candle_nn::{rms_norm, RmsNorm, VarBuilder};

use super::{AttentionConfig, CausalSelfAttention, GatedMlp, GrowingKvCache, Residual, SparseMoe};

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

/// What follows attention in a decoder layer.
#[derive(Debug, Clone)]
pub enum FeedForward {
    /// One MLP for all tokens.
    Dense(GatedMlp),
    /// Several experts, of which each token uses some.
    Sparse(SparseMoe),
}

impl FeedForward {
    /// The stream `xs` with this block of its norm added to it.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward_residual(&self, xs: Residual, norm: &RmsNorm) -> Result<Residual> {
        match self {
            Self::Dense(mlp) => mlp.forward_residual(xs, norm),
            Self::Sparse(experts) => {
                let (xs, normed) = xs.normed(norm)?;
                Ok(xs.plus(experts.forward(&normed)?))
            }
        }
    }
}

impl Module for FeedForward {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dense(mlp) => mlp.forward(xs),
            Self::Sparse(experts) => experts.forward(xs),
        }
    }
}

/// `x += attention(norm(x)); x += mlp(norm(x))`.
#[derive(Debug, Clone)]
pub struct DecoderLayer {
    input_norm: RmsNorm,
    attention: CausalSelfAttention,
    post_attention_norm: RmsNorm,
    mlp: FeedForward,
}

impl DecoderLayer {
    /// A layer from its parts.
    pub fn new(
        input_norm: RmsNorm,
        attention: CausalSelfAttention,
        post_attention_norm: RmsNorm,
        mlp: FeedForward,
    ) -> Self {
        Self {
            input_norm,
            attention,
            post_attention_norm,
            mlp,
        }
    }

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
            mlp: FeedForward::Dense(GatedMlp::load(
                hidden_size,
                cfg.intermediate_size,
                vb.pp("mlp"),
            )?),
        })
    }

    /// Runs the layer on `xs`, whose sum is `(b, t, hidden_size)`; the rest as in [`CausalSelfAttention::forward`].
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        xs: Residual,
        cos: &Tensor,
        sin: &Tensor,
        kv: Option<&mut GrowingKvCache>,
    ) -> Result<Residual> {
        let xs = self.attention.forward(xs, &self.input_norm, cos, sin, kv)?;
        self.mlp.forward_residual(xs, &self.post_attention_norm)
    }
}
