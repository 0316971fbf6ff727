//! The attention in parallel with the recurrence: one head, whose keys and values are made of few numbers per token and of its embedding.

use candle_core::{Module, Result, Tensor};
use candle_nn::ops::sdpa;
use candle_nn::{LayerNorm, Linear, VarBuilder};

use super::channel_mix::table;
use super::state::{kept, rows};
use super::{transposed, Config, DeaState};
use crate::blocks::recurrence::{last, shifted};

/// Size of queries and keys.
pub(super) const QUERY: usize = 256;
/// Size of the cached vector of a token, for its key and for its value.
pub(super) const RANK: usize = 32;

#[derive(Debug, Clone)]
pub(super) struct Attention {
    query: Linear,
    /// The share of the query before, `(1, 1, 256)`.
    mix: Tensor,
    norm: LayerNorm,
    key: Cached,
    value: Cached,
}

/// The layers that compute keys, or values, from cached vectors.
#[derive(Debug, Clone)]
struct Cached {
    down: Linear,
    up: Linear,
    /// A factor for each token, `(vocab, size)`.
    table: Tensor,
    /// The share of the token before, `(1, 1, size)`.
    mix: Tensor,
    norm: LayerNorm,
    size: usize,
}

impl Attention {
    pub(super) fn load(cfg: &Config, normed: &Tensor, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            query: candle_nn::linear_no_bias(cfg.hidden_size, QUERY, vb.pp("qq"))?,
            mix: vb.get((1, 1, QUERY), "x_q")?,
            norm: candle_nn::layer_norm(QUERY, 1e-5, vb.pp("lnq"))?,
            key: Cached::load("k", QUERY, cfg, normed, &vb)?,
            value: Cached::load("v", cfg.hidden_size, cfg, normed, &vb)?,
        })
    }

    /// From the stream, `(b, t, hidden)`, and what layer `index` keeps of the tokens before. `context` are all tokens, `(b, seq)`. Gives
    /// `(b, t, hidden)`, and what is then kept: for keys, for values and of the query.
    pub(super) fn forward(
        &self,
        xs: &Tensor,
        dea: &DeaState,
        index: usize,
        context: &Tensor,
    ) -> Result<(Tensor, [Tensor; 3])> {
        let (k_cache, v_cache) = (&dea.k_cache[index], &dea.v_cache[index]);
        let q_prev = &dea.q_prev[index];
        let b = xs.dim(0)?;
        let q = self.query.forward(xs)?;
        let before = rows(q_prev, b, &[QUERY])?.to_dtype(xs.dtype())?;
        let q_after = kept(&last(&q)?, q_prev)?;
        let before = shifted(&q, &before)?;
        let q = (&q + (before - &q)?.broadcast_mul(&self.mix)?)?;
        let q = self.norm.forward(&q)?;

        let key_parts = self.key.parts(xs, k_cache, context)?;
        let value_parts = self.value.parts(xs, v_cache, context)?;
        let k = self.key.up.forward(&key_parts)?;
        let k = self.key.finish(&k, context)?;
        let v = self.value.up.forward(&value_parts)?.tanh()?;
        let v = self.value.finish(&v, context)?;
        let [q, k, v] = [q, k, v].map(|xs| xs.unsqueeze(1));
        // Scores divided by the root of their size, then capped at 64.
        let ys = sdpa(&q?, &k?, &v?, None, true, 1. / 16., 64.)?;
        let after = [
            kept(&key_parts, k_cache)?,
            kept(&value_parts, v_cache)?,
            q_after,
        ];
        Ok((ys.squeeze(1)?, after))
    }
}

impl Cached {
    fn load(
        part: &str,
        size: usize,
        cfg: &Config,
        normed: &Tensor,
        vb: &VarBuilder,
    ) -> Result<Self> {
        Ok(Self {
            down: transposed(vb.get((cfg.hidden_size, RANK), &format!("{part}1"))?)?,
            up: transposed(vb.get((RANK, size), &format!("{part}2"))?)?,
            table: table(&format!("{part}_emb"), size, cfg, normed, vb)?,
            mix: vb.get((1, 1, size), &format!("x_{part}"))?,
            norm: candle_nn::layer_norm(size, 1e-5, vb.pp(format!("ln{part}")))?,
            size,
        })
    }

    /// The cached vectors of all tokens, `(b, seq, 32)`.
    fn parts(&self, xs: &Tensor, before: &Tensor, context: &Tensor) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let seen = context.dim(1)? - t;
        let now = self.down.forward(xs)?;
        match seen {
            0 => Ok(now),
            _ => {
                let before = rows(before, b, &[seen, RANK])?.to_dtype(xs.dtype())?;
                Tensor::cat(&[&before, &now], 1)
            }
        }
    }

    /// With the tokens' factors, mixed with the token before (the first has none), and normed: `(b, seq, size)`.
    fn finish(&self, xs: &Tensor, context: &Tensor) -> Result<Tensor> {
        let (b, seq) = context.dims2()?;
        let factors = self.table.index_select(&context.flatten_all()?, 0)?;
        let xs = (xs * factors.reshape((b, seq, self.size))?)?;
        let none = Tensor::zeros((b, self.size), xs.dtype(), xs.device())?;
        let before = shifted(&xs, &none)?;
        let xs = (&xs + (before - &xs)?.broadcast_mul(&self.mix)?)?;
        self.norm.forward(&xs)
    }
}
