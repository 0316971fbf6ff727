//! Attention in which contents and distances meet apart from each other.

use candle_core::{bail, DType, Module, Result, Tensor};
use candle_nn::ops::{sdpa_with, SdpaOptions};
use candle_nn::{layer_norm, linear, Linear, VarBuilder};

use super::Config;
use crate::blocks::encoder::dtype_of_scores;
use crate::blocks::{MergedLinear, Norm, Projection, Residual};

/// Attention whose scores have up to three parts: contents to contents, contents to distances (`c2p`), distances to contents (`p2c`).
#[derive(Debug, Clone)]
pub struct DebertaV2DisentangledSelfAttention {
    qkv: MergedLinear<3>,
    heads: usize,
    head_dim: usize,
    /// Vectors of distances to each side, if the model has any.
    span: Option<usize>,
    distances: Option<super::config::Distances>,
    shared: bool,
    pos_key: Option<Linear>,
    pos_query: Option<Linear>,
    c2p: bool,
    p2c: bool,
}

impl DebertaV2DisentangledSelfAttention {
    /// Loads `{query,key,value}_proj` and, where the configuration has distances with projections apart, `pos_key_proj` and
    /// `pos_query_proj`.
    ///
    /// # Errors
    /// If the heads do not divide the hidden size, or a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let (hidden, heads, head_dim) = (
            config.hidden_size,
            config.num_attention_heads,
            config.head_size()?,
        );
        let part = |name: &str| linear(hidden, heads * head_dim, vb.pp(name));
        let qkv = [part("query_proj")?, part("key_proj")?, part("value_proj")?];
        let (c2p, p2c) = (config.attends("c2p"), config.attends("p2c"));
        let shared = config.share_att_key.unwrap_or(false);
        let distances = config.distances();
        let of_distances = |wanted: bool, name| match wanted && !shared && distances.is_some() {
            true => part(name).map(Some),
            false => Ok(None),
        };
        Ok(Self {
            qkv: MergedLinear::new(qkv)?,
            heads,
            head_dim,
            span: distances.map(|distances| distances.span()),
            distances,
            shared,
            pos_key: of_distances(c2p, "pos_key_proj")?,
            pos_query: of_distances(p2c, "pos_query_proj")?,
            c2p,
            p2c,
        })
    }

    /// What each token takes from the others: (batch, queries, heads * head size).
    ///
    /// - `hidden_states` are (batch, keys, hidden_size). `query_states`, (batch, queries, hidden_size), attend to them; without them they
    ///   attend to themselves.
    /// - `attention_mask` broadcasts to (batch, heads, queries, keys), with 1 for what is seen and 0 for what is hidden. A query to which
    ///   everything is hidden takes 0.
    /// - `relative_pos` has the numbers of the distances, (queries, keys) or (1, queries, keys), that from a query to a key being the
    ///   negative of that from the key to the query; without it they are made.
    /// - `rel_embeddings` are the vectors of the distances, (2 * span, hidden_size); without them distances do not count.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(
        &self,
        hidden_states: &Tensor,
        attention_mask: &Tensor,
        query_states: Option<&Tensor>,
        relative_pos: Option<&Tensor>,
        rel_embeddings: Option<&Tensor>,
    ) -> Result<Tensor> {
        let [q, k, v] = self.qkv.forward(hidden_states)?;
        let q = match query_states {
            Some(states) => {
                let [q, _, _] = self.qkv.forward(states)?;
                q
            }
            None => q,
        };
        let (q, k, v) = (self.by_head(&q)?, self.by_head(&k)?, self.by_head(&v)?);
        // Each part of the scores has its share of the variance.
        let parts = 1 + usize::from(self.c2p) + usize::from(self.p2c);
        let scale = 1. / ((self.head_dim * parts) as f64).sqrt();
        // Before the products: those of 16-bit floats can be too large for them.
        let q = (q * scale)?;
        let mut bias = hidden_by(attention_mask, q.dtype())?;
        if let (Some(span), Some(rel_embeddings)) = (self.span, rel_embeddings) {
            let index = self.index(&q, &k, relative_pos, span)?;
            let vectors = rel_embeddings.narrow(0, 0, 2 * span)?.unsqueeze(0)?;
            let [pos_q, pos_k] = self.of_distances(&vectors)?;
            if let (true, Some(pos_k)) = (self.c2p, pos_k) {
                let scores = met(&q, &pos_k, &index)?;
                bias = bias.broadcast_add(&scores.to_dtype(bias.dtype())?)?;
            }
            if let (true, Some(pos_q)) = (self.p2c, pos_q) {
                let scores = met(&k, &(pos_q * scale)?, &index.t()?)?.transpose(2, 3)?;
                bias = bias.broadcast_add(&scores.to_dtype(bias.dtype())?)?;
            }
        }
        let options = SdpaOptions {
            bias: Some(&bias),
            ..SdpaOptions::default()
        };
        let ys = sdpa_with(&q, &k, &v, &options)?;
        let (b, heads, t, head_dim) = ys.dims4()?;
        ys.transpose(1, 2)?.reshape((b, t, heads * head_dim))
    }

    /// (batch, seq, heads * head_dim) to (batch, heads, seq, head_dim).
    fn by_head(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        xs.reshape((b, t, self.heads, self.head_dim))?
            .transpose(1, 2)
    }

    /// The distances as queries and as keys, of the vectors (1, 2 * span, hidden_size): (1, heads, 2 * span, head_dim) each.
    fn of_distances(&self, vectors: &Tensor) -> Result<[Option<Tensor>; 2]> {
        if self.shared {
            let [q, k, _] = self.qkv.forward(vectors)?;
            return Ok([Some(self.by_head(&q)?), Some(self.by_head(&k)?)]);
        }
        let project = |linear: &Option<Linear>| match linear {
            Some(linear) => self.by_head(&linear.forward(vectors)?).map(Some),
            None => Ok(None),
        };
        Ok([project(&self.pos_query)?, project(&self.pos_key)?])
    }

    /// The row of the table of distances for each query and key, (queries, keys) of u32.
    fn index(&self, q: &Tensor, k: &Tensor, given: Option<&Tensor>, span: usize) -> Result<Tensor> {
        let (queries, keys) = (q.dim(2)?, k.dim(2)?);
        let numbers = match (given, &self.distances) {
            (Some(given), _) => match *given.dims() {
                [a, b] | [1, a, b] if (a, b) == (queries, keys) => given.reshape((queries, keys))?,
                _ => bail!(
                    "debertav2: relative_pos is {:?}; for {queries} queries and {keys} keys it must be ({queries}, {keys})",
                    given.dims()
                ),
            },
            (None, Some(distances)) => {
                let numbers = distances.numbers(queries, keys);
                Tensor::from_vec(numbers, (queries, keys), q.device())?
            }
            (None, None) => bail!("debertav2: the model has no relative positions"),
        };
        (numbers.to_dtype(DType::F32)? + span as f64)?
            .clamp(0f32, (2 * span - 1) as f32)?
            .to_dtype(DType::U32)
    }
}

/// Products of `xs`, (batch, heads, n, head_dim), with the distances that `index` names, (n, m), of the vectors (1, heads, 2 * span,
/// head_dim): (batch, heads, n, m).
fn met(xs: &Tensor, vectors: &Tensor, index: &Tensor) -> Result<Tensor> {
    let (b, heads, _, _) = xs.dims4()?;
    let (n, m) = index.dims2()?;
    let all = xs.contiguous()?.broadcast_matmul(&vectors.t()?)?;
    let index = index.broadcast_as((b, heads, n, m))?.contiguous()?;
    all.gather(&index, 3)
}

/// What a mask with 1 for what is seen adds to the scores. An infinity: the heads give 0 where all is hidden.
fn hidden_by(mask: &Tensor, model: DType) -> Result<Tensor> {
    let dtype = dtype_of_scores(model);
    let hidden = mask.to_dtype(dtype)?.lt(1f64)?;
    let zeros = hidden.to_dtype(dtype)?.zeros_like()?;
    let least = Tensor::full(f32::NEG_INFINITY, hidden.shape(), hidden.device())?;
    hidden.where_cond(&least.to_dtype(dtype)?, &zeros)
}

/// A linear layer whose result is added to what came before and normed.
#[derive(Debug, Clone)]
pub(super) struct AddNorm {
    dense: Projection,
    norm: Norm,
}

impl AddNorm {
    pub(super) fn load(in_dim: usize, vb: VarBuilder, config: &Config) -> Result<Self> {
        let hidden = config.hidden_size;
        Ok(Self {
            dense: linear(in_dim, hidden, vb.pp("dense"))?.into(),
            norm: layer_norm(hidden, config.layer_norm_eps, vb.pp("LayerNorm"))?.into(),
        })
    }

    pub(super) fn forward(&self, xs: &Tensor, before: &Tensor) -> Result<Tensor> {
        let sum = Residual::new(before.clone()).add(&self.dense, xs)?;
        let (_, normed) = sum.normed(Some(&self.norm))?;
        Ok(normed)
    }
}

/// The layer that joins the heads, with its residual and norm.
#[derive(Debug, Clone)]
pub struct DebertaV2SelfOutput(AddNorm);

impl DebertaV2SelfOutput {
    /// Loads `dense` and `LayerNorm`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        AddNorm::load(config.hidden_size, vb, config).map(Self)
    }

    /// From the heads' output and what they were given, (batch, seq, hidden_size) both, to the same shape.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not match.
    pub fn forward(&self, hidden_states: &Tensor, input_tensor: &Tensor) -> Result<Tensor> {
        self.0.forward(hidden_states, input_tensor)
    }
}

/// Attention with its residual and norm.
#[derive(Debug, Clone)]
pub struct DebertaV2Attention {
    attention: DebertaV2DisentangledSelfAttention,
    output: DebertaV2SelfOutput,
}

impl DebertaV2Attention {
    /// Loads `attention.self` and `attention.output`.
    ///
    /// # Errors
    /// Those of [`DebertaV2DisentangledSelfAttention::load`].
    pub fn load(vb: VarBuilder, config: &Config) -> Result<Self> {
        let vb = vb.pp("attention");
        Ok(Self {
            attention: DebertaV2DisentangledSelfAttention::load(vb.pp("self"), config)?,
            output: DebertaV2SelfOutput::load(vb.pp("output"), config)?,
        })
    }

    /// Arguments as for [`DebertaV2DisentangledSelfAttention::forward`].
    pub(super) fn forward(
        &self,
        hidden_states: &Tensor,
        attention_mask: &Tensor,
        query_states: Option<&Tensor>,
        relative_pos: Option<&Tensor>,
        rel_embeddings: Option<&Tensor>,
    ) -> Result<Tensor> {
        let ys = self.attention.forward(
            hidden_states,
            attention_mask,
            query_states,
            relative_pos,
            rel_embeddings,
        )?;
        self.output
            .forward(&ys, query_states.unwrap_or(hidden_states))
    }
}
