//! The recurrence of a layer.

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::ops::sigmoid;
use candle_nn::{LayerNorm, Linear, VarBuilder};

use super::delta::Delta;
use super::{transposed, Config};
use crate::blocks::recurrence::wide;

/// The vectors that are mixed with the last token's, in this order.
const MIXES: [&str; 6] = ["x_r", "x_w", "x_k", "x_v", "x_a", "x_g"];

/// The mixer that reads and corrects the state.
#[derive(Debug, Clone)]
pub(super) struct TimeMix {
    /// The share of the token before, `(6, 1, 1, hidden)`.
    mixes: Tensor,
    receptance: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    decay: LowRank,
    /// Fraction of the state's value of a key that is replaced.
    rate: LowRank,
    /// Fraction of the first layer's value that is mixed in; `None` in that layer.
    residual: Option<LowRank>,
    gate: [Linear; 2],
    /// Factors that make the removed key of the key, `(heads, 1, size)`.
    removed: Tensor,
    /// Degree to which the rate scales the added key, `(heads, 1, size)`.
    scaled: Tensor,
    /// The share of a token's value that it reads itself, `(heads, 1, size)`.
    own: Tensor,
    /// The norm of each head, without weights.
    norm: LayerNorm,
    /// `(heads, 1, size)`.
    norm_weight: Tensor,
    norm_bias: Tensor,
    heads: usize,
    size: usize,
}

/// A number for each channel, and what the token adds to it.
#[derive(Debug, Clone)]
struct LowRank {
    base: Tensor,
    down: Linear,
    up: Linear,
}

impl TimeMix {
    pub(super) fn load(cfg: &Config, index: usize, vb: VarBuilder) -> Result<Self> {
        let (hidden, heads, size) = (cfg.hidden_size, cfg.heads()?, cfg.head_size);
        let wide = wide(vb.dtype());
        let mixes = MIXES.iter().map(|name| vb.get((1, 1, hidden), name));
        let by_head = |xs: Tensor| xs.reshape((heads, 1, size))?.to_dtype(wide);
        let channels = |name| by_head(vb.get((1, 1, hidden), name)?);
        let linear = |name| candle_nn::linear_no_bias(hidden, hidden, vb.pp(name));
        let residual = match index {
            // Files may have one there; it is not used.
            0 => None,
            _ => Some(LowRank::load("v", hidden, &vb)?),
        };
        Ok(Self {
            mixes: Tensor::stack(&mixes.collect::<Result<Vec<_>>>()?, 0)?,
            receptance: linear("receptance")?,
            key: linear("key")?,
            value: linear("value")?,
            output: linear("output")?,
            decay: LowRank::load("w", hidden, &vb)?,
            rate: LowRank::load("a", hidden, &vb)?,
            residual,
            gate: low_rank("g", hidden, &vb)?,
            removed: channels("k_k")?,
            scaled: channels("k_a")?,
            own: by_head(vb.get((heads, size), "r_k")?)?,
            norm: LayerNorm::new_no_bias(Tensor::ones(size, wide, vb.device())?, 64e-5),
            norm_weight: by_head(vb.get(hidden, "ln_x.weight")?)?,
            norm_bias: by_head(vb.get(hidden, "ln_x.bias")?)?,
            heads,
            size,
        })
    }

    /// Those of what is kept of a sequence.
    pub(super) fn state_sizes(&self) -> [usize; 3] {
        [self.heads, self.size, self.size]
    }

    /// From what a layer is given, `(b, t, hidden)`, and what the tokens before were given. `first` are the values of the first layer,
    /// which sets them. `kv` is the state, `(b, heads, size, size)`.
    pub(super) fn forward(
        &self,
        xs: &Tensor,
        before: &Tensor,
        kv: &mut Tensor,
        first: &mut Option<Tensor>,
    ) -> Result<Tensor> {
        let (b, t, hidden) = xs.dims3()?;
        let delta = (before - xs)?.unsqueeze(0)?;
        let mixed = delta.broadcast_mul(&self.mixes)?;
        let mixed = mixed.broadcast_add(&xs.unsqueeze(0)?)?;
        let [for_r, for_w, for_k, for_v, for_a, for_g] = [0, 1, 2, 3, 4, 5].map(|i| mixed.get(i));

        let for_v = for_v?;
        let value = self.value.forward(&for_v)?;
        let value = match (&self.residual, &*first) {
            (Some(residual), Some(first)) => {
                let share = sigmoid(&residual.forward(&for_v, |xs| Ok(xs.clone()))?)?;
                (&value + ((first - &value)? * share)?)?
            }
            _ => first.insert(value).clone(),
        };
        let decay = self.decay.forward(&for_w?, Tensor::tanh)?;
        let rate = self.rate.forward(&for_a?, |xs| Ok(xs.clone()))?;
        let [down, up] = &self.gate;
        let gate = up.forward(&sigmoid(&down.forward(&for_g?)?)?)?;

        let wide = wide(xs.dtype());
        let by_head = |xs: &Tensor| {
            let xs = xs.reshape((b, t, self.heads, self.size))?;
            xs.transpose(1, 2)?.contiguous()?.to_dtype(wide)
        };
        let r = by_head(&self.receptance.forward(&for_r?)?)?;
        let key = by_head(&self.key.forward(&for_k?)?)?;
        let v = by_head(&value)?;
        let rate = sigmoid(&by_head(&rate)?)?;
        // From e^-0.61 to 1 of the state is left.
        let decay = (sigmoid(&by_head(&decay)?)? * -(-0.5f64).exp())?;

        let removed = key.broadcast_mul(&self.removed)?;
        let length = (removed.sqr()?.sum_keepdim(D::Minus1)?.sqrt()? + 1e-12)?;
        let removed = removed.broadcast_div(&length)?;
        let scale = ((&rate - 1.)?.broadcast_mul(&self.scaled)? + 1.)?;
        let k = (key * scale)?;
        let delta = Delta {
            r: &r,
            k: &k,
            v: &v,
            removed: &removed.neg()?,
            replaced: &(&removed * rate)?,
            decay: &decay,
        };
        let ys = self.norm.forward(&delta.run(kv)?)?;
        let ys = ys.broadcast_mul(&self.norm_weight)?;
        let ys = ys.broadcast_add(&self.norm_bias)?;
        let own = (r * k)?.broadcast_mul(&self.own)?.sum_keepdim(D::Minus1)?;
        let ys = (ys + v.broadcast_mul(&own)?)?;
        let ys = ys.transpose(1, 2)?.reshape((b, t, hidden))?;
        self.output.forward(&(ys.to_dtype(xs.dtype())? * gate)?)
    }
}

impl LowRank {
    fn load(name: &str, hidden: usize, vb: &VarBuilder) -> Result<Self> {
        let [down, up] = low_rank(name, hidden, vb)?;
        Ok(Self {
            base: vb.get((1, 1, hidden), &format!("{name}0"))?,
            down,
            up,
        })
    }

    fn forward(&self, xs: &Tensor, between: fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let ys = self.up.forward(&between(&self.down.forward(xs)?)?)?;
        ys.broadcast_add(&self.base)
    }
}

/// Two matrices, `(hidden, rank)` and `(rank, hidden)`. The first says what the rank is.
fn low_rank(name: &str, hidden: usize, vb: &VarBuilder) -> Result<[Linear; 2]> {
    let down = vb.get_unchecked(&format!("{name}1"))?;
    let rank = match down.dims() {
        [rows, rank] if *rows == hidden && *rank > 0 => *rank,
        dims => bail!(
            "rwkv_v7: tensor {}.{name}1 has shape {dims:?}, but the model expects {hidden} rows",
            vb.prefix()
        ),
    };
    let up = vb.get((rank, hidden), &format!("{name}2"))?;
    Ok([transposed(down)?, transposed(up)?])
}
