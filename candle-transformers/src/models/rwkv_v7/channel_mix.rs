//! What follows the recurrence in a layer.

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{Linear, VarBuilder};

use super::{transposed, Config};

/// A token's matrix is of this size, squared.
const SIZE: usize = 32;

#[derive(Debug, Clone)]
pub(super) struct ChannelMix {
    /// The share of the token before, `(1, 1, hidden)`.
    mix: Tensor,
    key: Linear,
    value: Linear,
    deep: Option<DeepEmbed>,
}

/// A factor for each inner channel, by a matrix of the token.
#[derive(Debug, Clone)]
struct DeepEmbed {
    /// `(vocab, 32 * 32)`.
    table: Tensor,
    down: Linear,
    up: Linear,
    /// `(1, 1, inner)`.
    base: Tensor,
}

impl ChannelMix {
    /// `normed` are the embeddings that the tokens' matrices depend on, `(vocab, hidden)`; without, there are no such matrices.
    pub(super) fn load(cfg: &Config, normed: Option<&Tensor>, vb: VarBuilder) -> Result<Self> {
        let (hidden, inner) = (cfg.hidden_size, cfg.inner());
        let deep = match normed {
            Some(normed) => Some(DeepEmbed::load(cfg, normed, &vb)?),
            None => None,
        };
        Ok(Self {
            mix: vb.get((1, 1, hidden), "x_k")?,
            key: candle_nn::linear_no_bias(hidden, inner, vb.pp("key"))?,
            value: candle_nn::linear_no_bias(inner, hidden, vb.pp("value"))?,
            deep,
        })
    }

    /// From what a layer is given, `(b, t, hidden)`, what the tokens before were given, and the tokens, `(b * t)`.
    pub(super) fn forward(
        &self,
        xs: &Tensor,
        before: &Tensor,
        ids: Option<&Tensor>,
    ) -> Result<Tensor> {
        let mixed = (xs + (before - xs)?.broadcast_mul(&self.mix)?)?;
        let inner = self.key.forward(&mixed)?.relu()?.sqr()?;
        let inner = match (&self.deep, ids) {
            (Some(deep), Some(ids)) => (inner * deep.forward(xs, ids)?)?,
            (Some(_), None) => bail!("rwkv_v7: this version requires token_ids"),
            (None, _) => inner,
        };
        self.value.forward(&inner)
    }
}

impl DeepEmbed {
    fn load(cfg: &Config, normed: &Tensor, vb: &VarBuilder) -> Result<Self> {
        let (hidden, inner) = (cfg.hidden_size, cfg.inner());
        Ok(Self {
            table: table("s_emb", SIZE * SIZE, cfg, normed, vb)?,
            down: transposed(vb.get((hidden, SIZE), "s1")?)?,
            up: transposed(vb.get((SIZE, inner), "s2")?)?,
            base: vb.get((1, 1, inner), "s0")?,
        })
    }

    /// `(b, t, inner)`.
    fn forward(&self, xs: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let (b, t, _) = xs.dims3()?;
        let matrices = self.table.index_select(ids, 0)?;
        let matrices = matrices.reshape((b * t, SIZE, SIZE))?;
        let down = self.down.forward(xs)?.reshape((b * t, 1, SIZE))?;
        let ys = down.matmul(&matrices)?.reshape((b, t, SIZE))?;
        self.up.forward(&ys)?.broadcast_add(&self.base)
    }
}

/// A layer's vector for each token, `(vocab, size)`: a table plus a linear function of the normed embedding.
pub(super) fn table(
    name: &str,
    size: usize,
    cfg: &Config,
    normed: &Tensor,
    vb: &VarBuilder,
) -> Result<Tensor> {
    let table = vb.get((cfg.vocab_size, size), &format!("{name}.weight"))?;
    let from_embedding = vb.pp(format!("{name}_x"));
    let linear = candle_nn::linear_no_bias(cfg.hidden_size, size, from_embedding)?;
    table + linear.forward(normed)?
}
