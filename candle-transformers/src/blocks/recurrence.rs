//! Recurrences over a sequence, some positions at a time: what a position adds to a state that decays, and reads from it.

use candle_core::{bail, DType, Device, Result, Tensor, D};

/// Default number of positions that are computed together.
pub(crate) const CHUNK: usize = 16;

/// `ln(1 + e^x)`, which for large `x` is `x`.
pub(crate) fn softplus(xs: &Tensor) -> Result<Tensor> {
    xs.relu()? + (xs.abs()?.neg()?.exp()? + 1.)?.log()?
}

/// The dtype that sums of many numbers are computed in, such as recurrences: 16 bits are too coarse, and squares leave the range of f16.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// The positions before those of `xs`, `(b, t, c)`: `before`, `(b, c)`, and all but the last.
pub(crate) fn shifted(xs: &Tensor, before: &Tensor) -> Result<Tensor> {
    let t = xs.dim(1)?;
    let before = before.unsqueeze(1)?;
    match t {
        1 => Ok(before),
        _ => Tensor::cat(&[&before, &xs.narrow(1, 0, t - 1)?], 1),
    }
}

/// The last position of `(b, t, c)`: `(b, c)`.
pub(crate) fn last(xs: &Tensor) -> Result<Tensor> {
    match xs.dim(1)? {
        0 => bail!("no tokens; at least one is required"),
        t => xs.narrow(1, t - 1, 1)?.squeeze(1)?.contiguous(),
    }
}

/// A causal convolution of each channel: `xs`, `(b, c, t)`, follows what `state`, `(b, c, k - 1)`, holds, and `weight` is `(c, k)`. Gives
/// `(b, c, t)` and the next state.
pub(crate) fn causal_conv(
    xs: &Tensor,
    state: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (channels, k) = weight.dims2()?;
    let t = xs.dim(2)?;
    let all = Tensor::cat(&[state, xs], 2)?;
    let ys = match t {
        1 => all.broadcast_mul(weight)?.sum_keepdim(2)?,
        _ => all.conv1d(&weight.reshape((channels, 1, k))?, 0, 1, 1, channels)?,
    };
    let ys = match bias {
        Some(bias) => ys.broadcast_add(&bias.reshape((1, channels, 1))?)?,
        None => ys,
    };
    Ok((ys, all.narrow(2, t, k - 1)?.contiguous()?))
}

/// The queries, keys, values and decays of the positions.
pub(crate) struct Linear<'a> {
    /// The queries, `(b, h, t, n)`.
    pub(crate) q: &'a Tensor,
    /// The keys under which values are added, `(b, h, t, n)`.
    pub(crate) k: &'a Tensor,
    /// The values, `(b, h, t, m)`.
    pub(crate) v: &'a Tensor,
    /// The logarithm of what is left of the state at each position, not above 0: `(b, h, t, n)`, or the same for all, `(b, h, t, 1)`.
    pub(crate) decay: &'a Tensor,
    /// A position reads the state before it decays, and this share of the position's value, `(h, 1, n)`. Without, it reads the state after.
    pub(crate) own: Option<&'a Tensor>,
}

impl Linear<'_> {
    /// `S = e^decay S + k v^T` and `q S` for each position, in chunks of `chunk` positions. `state` is `(b, h, n, m)`, and becomes that after the
    /// last; the outputs are `(b, h, t, m)`.
    pub(crate) fn run(&self, state: &mut Tensor, chunk: usize) -> Result<Tensor> {
        let t = self.q.dim(2)?;
        if chunk == 0 || t == 0 {
            bail!("a recurrence over {t} positions in chunks of {chunk}; both must be at least 1")
        }
        let mut outputs = Vec::with_capacity(t.div_ceil(chunk));
        for start in (0..t).step_by(chunk) {
            let len = chunk.min(t - start);
            let part = |xs: &Tensor| xs.narrow(2, start, len)?.contiguous();
            let (q, k, v) = (part(self.q)?, part(self.k)?, part(self.v)?);
            outputs.push(self.chunk(&q, &k, &v, &part(self.decay)?, state)?);
        }
        Tensor::cat(&outputs, 2)
    }

    fn chunk(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        decay: &Tensor,
        state: &mut Tensor,
    ) -> Result<Tensor> {
        let len = q.dim(2)?;
        // What is left, at each position, of what was there before the chunk.
        let left = match len {
            1 => decay.clone(),
            _ => decay.cumsum(2)?,
        };
        let read = match self.own {
            Some(_) => (&left - decay)?,
            None => left.clone(),
        };
        let mut ys = q.broadcast_mul(&read.exp()?)?.matmul(state)?;
        if let Some(own) = self.own {
            let share = (q.broadcast_mul(own)? * k)?.sum_keepdim(D::Minus1)?;
            ys = (ys + v.broadcast_mul(&share)?)?;
        }
        if self.own.is_none() || len > 1 {
            let scores = self.scores(q, k, &read, &left)?;
            ys = (ys + scores.matmul(v)?)?;
        }
        let total = left.narrow(2, len - 1, 1)?;
        let kept = k.broadcast_mul(&total.broadcast_sub(&left)?.exp()?)?;
        let added = kept.transpose(2, 3)?.contiguous()?.matmul(v)?;
        let decayed = state.broadcast_mul(&total.transpose(2, 3)?.exp()?)?;
        *state = (decayed + added)?;
        Ok(ys)
    }

    /// The weight of the value that `j` adds in the result of position `i`, `(b, h, len, len)`.
    fn scores(&self, q: &Tensor, k: &Tensor, read: &Tensor, left: &Tensor) -> Result<Tensor> {
        let len = q.dim(2)?;
        let hidden = self.hidden(len, q.dtype(), q.device())?;
        if left.dim(3)? == 1 {
            let between = read.broadcast_sub(&left.transpose(2, 3)?)?;
            let share = between.broadcast_add(&hidden)?.exp()?;
            return q.matmul(&k.transpose(2, 3)?.contiguous()?)? * share;
        }
        let between = read.unsqueeze(3)?.broadcast_sub(&left.unsqueeze(2)?)?;
        let share = between.broadcast_add(&hidden.unsqueeze(2)?)?.exp()?;
        let products = q.unsqueeze(3)?.broadcast_mul(&k.unsqueeze(2)?)?;
        (products * share)?.sum(D::Minus1)
    }

    /// 0 where position `i` reads what `j` adds, minus infinity elsewhere.
    fn hidden(&self, len: usize, dtype: DType, device: &Device) -> Result<Tensor> {
        let reads = |i: usize, j: usize| match self.own {
            Some(_) => j < i,
            None => j <= i,
        };
        let hidden: Vec<f32> = (0..len * len)
            .map(|at| {
                if reads(at / len, at % len) {
                    0.
                } else {
                    f32::NEG_INFINITY
                }
            })
            .collect();
        Tensor::from_vec(hidden, (len, len), device)?.to_dtype(dtype)
    }
}
