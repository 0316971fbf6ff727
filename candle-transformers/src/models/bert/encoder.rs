//! The layers between the embeddings and what a model is used for.

use candle_core::{Module, Result, Tensor};
use candle_nn::{layer_norm, linear, ops::sdpa, Activation, LayerNorm, Linear, VarBuilder};

use super::Config;
use crate::blocks::MergedLinear;

/// A linear layer whose result is added to what came before and normed: the end of attention and of the feed-forward block.
#[derive(Debug, Clone)]
struct AddNorm {
    dense: Linear,
    norm: LayerNorm,
}

impl AddNorm {
    fn load(in_dim: usize, vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        Ok(Self {
            dense: linear(in_dim, hidden, vb.pp("dense"))?,
            norm: layer_norm(hidden, config.layer_norm_eps, vb.pp("LayerNorm"))?,
        })
    }

    fn forward(&self, xs: &Tensor, before: &Tensor) -> Result<Tensor> {
        self.norm.forward(&(self.dense.forward(xs)? + before)?)
    }
}

/// Attention of every token to every token that the mask shows, and its residual.
#[derive(Debug, Clone)]
struct BertAttention {
    qkv: MergedLinear<3>,
    output: AddNorm,
    heads: usize,
    head_dim: usize,
}

impl BertAttention {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, head_dim) = (config.hidden_size, config.head_dim()?);
        let part = |name| linear(hidden, hidden, vb.pp("self").pp(name));
        Ok(Self {
            qkv: MergedLinear::new([part("query")?, part("key")?, part("value")?])?,
            output: AddNorm::load(hidden, vb.pp("output"), config)?,
            heads: config.num_attention_heads,
            head_dim,
        })
    }

    /// `mask` is added to the scores, (batch, heads, seq, seq) or what broadcasts to it.
    fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (b, t, hidden) = xs.dims3()?;
        let (heads, head_dim) = (self.heads, self.head_dim);
        let by_head = self
            .qkv
            .forward_joined(xs)?
            .reshape((b, t, 3 * heads, head_dim))?
            .transpose(1, 2)?;
        let part = |i| by_head.narrow(1, i * heads, heads);
        let scale = 1. / (head_dim as f32).sqrt();
        // The softcapping of 1 means none.
        let ys = sdpa(&part(0)?, &part(1)?, &part(2)?, mask, false, scale, 1.)?;
        let ys = ys.transpose(1, 2)?.reshape((b, t, hidden))?;
        self.output.forward(&ys, xs)
    }
}

/// Attention and a feed-forward block, each normed after its residual.
#[derive(Debug, Clone)]
pub struct BertLayer {
    attention: BertAttention,
    intermediate: Linear,
    act: Activation,
    output: AddNorm,
}

impl BertLayer {
    fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            attention: BertAttention::load(vb.pp("attention"), config)?,
            intermediate: linear(hidden, inner, vb.pp("intermediate").pp("dense"))?,
            act: config.hidden_act.into(),
            output: AddNorm::load(inner, vb.pp("output"), config)?,
        })
    }

    fn forward(&self, xs: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let xs = self.attention.forward(xs, mask)?;
        let inner = self.act.forward(&self.intermediate.forward(&xs)?)?;
        self.output.forward(&inner, &xs)
    }
}

/// All layers.
#[derive(Debug, Clone)]
pub struct BertEncoder {
    /// In the order in which they run.
    pub layers: Vec<BertLayer>,
}

impl BertEncoder {
    /// Loads the weights of `layer.N`: `attention.self.{query,key,value}`, `attention.output.{dense,LayerNorm}`,
    /// `intermediate.dense`, `output.{dense,LayerNorm}`.
    ///
    /// # Errors
    /// If the heads do not divide the hidden size, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let layers = (0..config.num_hidden_layers)
            .map(|i| BertLayer::load(vb.pp("layer").pp(i), config))
            .collect::<Result<_>>()?;
        Ok(Self { layers })
    }

    /// From (batch, seq, hidden_size) to the same shape. `attention_mask` is added to the scores of attention: it broadcasts to
    /// (batch, heads, seq, seq), and is 0 where a token may be attended to and very negative where it is hidden.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, hidden_states: &Tensor, attention_mask: &Tensor) -> Result<Tensor> {
        self.run(hidden_states.clone(), Some(attention_mask))
    }

    pub(super) fn run(&self, mut xs: Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        for layer in &self.layers {
            xs = layer.forward(&xs, mask)?;
        }
        Ok(xs)
    }
}
