//! Linear layers: to and from the heads, and those of the feed-forward blocks.

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear, rms_norm, Activation, Linear, RmsNorm, VarBuilder};

use super::head_dim;
use crate::blocks::diffusion::NORM_EPS;
use crate::blocks::vision::VitMlp;

/// Queries, keys and values of tokens.
#[derive(Debug, Clone)]
pub struct Qkv {
    /// (batch, seq, heads * head_dim)
    pub q: Tensor,
    /// (batch, seq, heads * head_dim)
    pub k: Tensor,
    /// (batch, seq, heads, head_dim)
    pub v: Tensor,
}

/// A feed-forward block: two layers and GELU in its tanh form between them.
#[derive(Debug, Clone)]
pub struct Mlp {
    mlp: VitMlp,
}

impl Mlp {
    /// Loads `fc1` and `fc2`, between which there are `hidden_features`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(in_features: usize, hidden_features: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            mlp: VitMlp {
                up: linear(in_features, hidden_features, vb.pp("fc1"))?,
                down: linear(hidden_features, in_features, vb.pp("fc2"))?,
                activation: Activation::GeluPytorchTanh.into(),
            },
        })
    }
}

/// From (.., in_features) to the same shape.
impl Module for Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.mlp.forward(x)
    }
}

/// The layer to queries, keys and values of tokens that are not used after attention.
#[derive(Debug, Clone)]
pub struct QkvOnlyAttnProjections {
    qkv: Linear,
    /// The norms of queries and keys, by head.
    norms: Option<[RmsNorm; 2]>,
    head_dim: usize,
}

impl QkvOnlyAttnProjections {
    /// Loads `qkv`, and `ln_q` and `ln_k` if the file has them.
    ///
    /// # Errors
    /// If the heads do not divide `dim`, or a weight is missing or has another shape.
    pub fn new(dim: usize, num_heads: usize, vb: VarBuilder) -> Result<Self> {
        let head_dim = head_dim(dim, num_heads)?;
        let norm = |name| rms_norm(head_dim, NORM_EPS, vb.pp(name));
        let norms = if vb.contains_tensor("ln_k.weight") {
            Some([norm("ln_q")?, norm("ln_k")?])
        } else {
            None
        };
        Ok(Self {
            qkv: linear(dim, 3 * dim, vb.pp("qkv"))?,
            norms,
            head_dim,
        })
    }

    /// Queries, keys and values of `x`, (batch, seq, dim).
    ///
    /// # Errors
    /// If the shape, dtype or device does not match.
    pub fn pre_attention(&self, x: &Tensor) -> Result<Qkv> {
        let qkv = self.qkv.forward(x)?;
        let (b, t, size) = qkv.dims3()?;
        let heads = size / (3 * self.head_dim);
        let by_head = qkv.reshape((b, t, 3 * heads, self.head_dim))?;
        let part = |i| by_head.narrow(2, i * heads, heads);
        let normed = |i: usize| match &self.norms {
            Some(norms) => norms[i].forward(&part(i)?),
            None => part(i),
        };
        Ok(Qkv {
            q: normed(0)?.flatten_from(2)?,
            k: normed(1)?.flatten_from(2)?,
            v: part(2)?,
        })
    }
}

/// The layers to queries, keys and values, and from the heads.
#[derive(Debug, Clone)]
pub struct AttnProjections {
    qkv: QkvOnlyAttnProjections,
    proj: Linear,
}

impl AttnProjections {
    /// Loads `qkv` and `proj`, and `ln_q` and `ln_k` if the file has them.
    ///
    /// # Errors
    /// If the heads do not divide `dim`, or a weight is missing or has another shape.
    pub fn new(dim: usize, num_heads: usize, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            qkv: QkvOnlyAttnProjections::new(dim, num_heads, vb.clone())?,
            proj: linear(dim, dim, vb.pp("proj"))?,
        })
    }

    /// Queries, keys and values of `x`, (batch, seq, dim).
    ///
    /// # Errors
    /// If the shape, dtype or device does not match.
    pub fn pre_attention(&self, x: &Tensor) -> Result<Qkv> {
        self.qkv.pre_attention(x)
    }

    /// From what the heads give, (batch, seq, dim), to the same shape.
    ///
    /// # Errors
    /// If the shape, dtype or device does not match.
    pub fn post_attention(&self, x: &Tensor) -> Result<Tensor> {
        self.proj.forward(x)
    }
}
