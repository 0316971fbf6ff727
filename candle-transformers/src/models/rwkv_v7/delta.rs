//! The generalised delta rule: what a position removes from the state of a head, adds to it and reads from it.

use candle_core::{Device, Result, Tensor};

/// Positions that are computed together. After 16 at least e^-9.8 of the state is left, which f32 holds as well as its inverse.
const CHUNK: usize = 16;

/// The operands of the state's update, each `(b, h, t, n)`.
pub(super) struct Delta<'a> {
    /// The queries.
    pub(super) r: &'a Tensor,
    /// The keys under which values are added.
    pub(super) k: &'a Tensor,
    /// The values.
    pub(super) v: &'a Tensor,
    /// Minus the key whose value is replaced.
    pub(super) removed: &'a Tensor,
    /// The key whose value is replaced, and the fraction that is replaced.
    pub(super) replaced: &'a Tensor,
    /// The logarithm of what is left of the state, from -0.61 to 0.
    pub(super) decay: &'a Tensor,
}

impl Delta<'_> {
    /// `S = S e^decay + S removed replaced^T + v k^T` and `S r` for each position. `state` is `(b, h, n, n)`, values by keys, and becomes that
    /// after the last; the outputs are `(b, h, t, n)`.
    pub(super) fn run(&self, state: &mut Tensor) -> Result<Tensor> {
        match self.r.dim(2)? {
            1 => self.step(state),
            t => self.chunks(state, CHUNK.min(t)),
        }
    }

    /// The rule itself, for one position.
    fn step(&self, state: &mut Tensor) -> Result<Tensor> {
        let found = self.removed.matmul(&state.t()?)?;
        let values = Tensor::cat(&[&found, self.v], 2)?;
        let keys = Tensor::cat(&[self.replaced, self.k], 2)?;
        let decayed = state.broadcast_mul(&self.decay.exp()?)?;
        *state = (decayed + values.t()?.matmul(&keys)?)?;
        self.r.matmul(&state.t()?)
    }

    /// All positions, `len` at a time. With `c` for the sum of the decays up to a position, and `S` for the state before a chunk, the rule says:
    ///
    /// - what position `i` finds is `f_i = S z_i + sum over j < i of f_j (b_j z_i) + v_j (k_j z_i)`,
    /// - what it reads is `y_i = S r_i + sum over j <= i of f_j (b_j r_i) + v_j (k_j r_i)`,
    /// - the next state is `(S + sum over j of f_j b_j^T + v_j k_j^T) e^c`, with the last `c`,
    ///
    /// where `z = removed e^(c - decay)`, `r e^c`, `b = replaced e^-c` and `k e^-c`. The first line is a triangular system. Its solution is linear
    /// in `S`, so it is solved for all chunks at once, and from chunk to chunk there are four products and sums.
    fn chunks(&self, state: &mut Tensor, len: usize) -> Result<Tensor> {
        let (b, h, t, n) = self.r.dims4()?;
        let chunks = t.div_ceil(len);
        // Zeros leave the state as it is.
        let split = |xs: &Tensor| {
            let xs = xs.pad_with_zeros(2, 0, chunks * len - t)?;
            xs.reshape((b * h, chunks, len, n))
        };
        let (decay, v) = (split(self.decay)?, split(self.v)?);
        let left = decay.cumsum(2)?;
        let (shrunk, grown) = (left.exp()?, left.neg()?.exp()?);
        let z = (split(self.removed)? * (&left - decay)?.exp()?)?;
        let r = (split(self.r)? * &shrunk)?;
        let keys = [self.replaced, self.k].map(|xs| split(xs)? * &grown);
        let [replaced, k] = keys;
        let (replaced, k) = (replaced?, k?);

        let queries = Tensor::cat(&[&z, &r], 2)?;
        let keys = Tensor::cat(&[&replaced, &k], 2)?;
        let scores = queries.matmul(&keys.t()?)?;
        // Not a product with zeros: what is hidden may be infinite, since `grown` is.
        let seen = seen(len, self.r.device())?.broadcast_as(scores.shape())?;
        let scores = seen.where_cond(&scores, &scores.zeros_like()?)?;
        let block = |i: usize, j: usize| scores.narrow(2, i * len, len)?.narrow(3, j * len, len);

        // Two columns: what is multiplied with the state, and what is added to that.
        let found = Tensor::cat(&[&z, &block(0, 1)?.matmul(&v)?], 3)?;
        let found = solve(&block(0, 0)?, &found)?;
        let read = Tensor::cat(&[&r, &block(1, 1)?.matmul(&v)?], 3)?;
        let read = (read + block(1, 0)?.matmul(&found)?)?;
        let both = Tensor::cat(&[found, read], 2)?;
        let (by_state, besides) = (both.narrow(3, 0, n)?, both.narrow(3, n, n)?);
        let added = v.t()?.matmul(&k)?;
        let total = shrunk.narrow(2, len - 1, 1)?;

        let mut kept = state.reshape((b * h, n, n))?;
        let mut outputs = Vec::with_capacity(chunks);
        for i in 0..chunks {
            let at = |xs: &Tensor| xs.narrow(1, i, 1)?.squeeze(1);
            let both = (at(&by_state)?.matmul(&kept.t()?)? + at(&besides)?)?;
            outputs.push(both.narrow(1, len, len)?);
            let replaced = both.narrow(1, 0, len)?.t()?.matmul(&at(&replaced)?)?;
            let next = ((kept + at(&added)?)? + replaced)?;
            kept = next.broadcast_mul(&at(&total)?)?;
        }
        *state = kept.reshape((b, h, n, n))?;
        let outputs = Tensor::cat(&outputs, 1)?.narrow(1, 0, t)?;
        outputs.reshape((b, h, t, n))
    }
}

/// `(I - lower)^-1 xs` for matrices that are 0 on and above the diagonal. Powers of larger ones than 4 by 4 would lose digits, as their elements
/// grow before they cancel.
fn solve(lower: &Tensor, xs: &Tensor) -> Result<Tensor> {
    let len = lower.dim(2)?;
    if len <= 4 {
        let xs = (xs + lower.matmul(xs)?)?;
        return &xs + lower.matmul(lower)?.matmul(&xs)?;
    }
    let (half, rest) = (len / 2, len - len / 2);
    let block = |i, rows, j, columns| lower.narrow(2, i, rows)?.narrow(3, j, columns);
    let top = solve(&block(0, half, 0, half)?, &xs.narrow(2, 0, half)?)?;
    let below = (xs.narrow(2, half, rest)? + block(half, rest, 0, half)?.matmul(&top)?)?;
    let below = solve(&block(half, rest, half, rest)?, &below)?;
    Tensor::cat(&[top, below], 2)
}

/// 1 where a row sees a column, 0 elsewhere, `(2 * len, 2 * len)`: what is found sees the positions before, what is read also its own.
fn seen(len: usize, device: &Device) -> Result<Tensor> {
    let sees = |at: usize| {
        let (i, j) = (at / (2 * len), at % (2 * len) % len);
        if i < len {
            j < i
        } else {
            j <= i - len
        }
    };
    let seen: Vec<u8> = (0..4 * len * len).map(|at| sees(at).into()).collect();
    Tensor::from_vec(seen, (2 * len, 2 * len), device)
}

#[cfg(test)]
mod tests {
    use candle_core::{test_device, DType, Device, Result, Tensor};

    use super::Delta;

    /// Chunks give what the rule gives position by position: for random keys, and where each position replaces all of what the one before
    /// added and nothing decays, or as much as it can.
    fn chunks_are_steps(device: &Device) -> Result<()> {
        let (b, h, n) = (2, 3, 8);
        for t in [2, 3, 5, 15, 16, 17, 40] {
            for hard in [None, Some(0.), Some(-0.6065)] {
                let numbers = |seed: f64| {
                    let count = b * h * t * n;
                    let xs = Tensor::arange(0f32, count as f32, &Device::Cpu)?;
                    // Not a period of any size above.
                    let xs = ((xs * 1.618)? + seed)?.sqr()?.sin()?;
                    xs.reshape((b, h, t, n))?.to_device(device)
                };
                let (r, k, v) = (numbers(0.1)?, numbers(0.2)?, numbers(0.3)?);
                let key = numbers(0.4)?;
                let key = match hard {
                    None => key,
                    Some(_) => key.narrow(2, 0, 1)?.broadcast_as(k.shape())?.contiguous()?,
                };
                let length = key.sqr()?.sum_keepdim(3)?.sqrt()?;
                let key = key.broadcast_div(&length)?;
                let (decay, rate) = match hard {
                    None => ((numbers(0.5)?.abs()? * -0.6)?, numbers(0.6)?.abs()?),
                    Some(decay) => ((k.zeros_like()? + decay)?, k.ones_like()?),
                };
                let start = numbers(0.7)?.narrow(2, 0, 1)?;
                let start = start.broadcast_mul(&start.t()?.contiguous()?)?;

                let whole = Delta {
                    r: &r,
                    k: &k,
                    v: &v,
                    removed: &key.neg()?,
                    replaced: &(&key * rate)?,
                    decay: &decay,
                };
                let mut state = start.clone();
                let ys = whole.run(&mut state)?;
                let (mut each, mut stepped) = (Vec::new(), start);
                for i in 0..t {
                    let at = |xs: &Tensor| xs.narrow(2, i, 1)?.contiguous();
                    let step = Delta {
                        r: &at(whole.r)?,
                        k: &at(whole.k)?,
                        v: &at(whole.v)?,
                        removed: &at(whole.removed)?,
                        replaced: &at(whole.replaced)?,
                        decay: &at(whole.decay)?,
                    };
                    each.push(step.step(&mut stepped)?);
                }
                for (found, expected) in [(ys, Tensor::cat(&each, 2)?), (state, stepped)] {
                    assert_eq!(found.dims(), expected.dims());
                    let off = (found - &expected)?.abs()?.flatten_all()?.max(0)?;
                    let size = expected.abs()?.flatten_all()?.max(0)?;
                    let numbers = Tensor::stack(&[off, size], 0)?.to_dtype(DType::F32)?;
                    let numbers = numbers.to_vec1::<f32>()?;
                    // Sums in another order.
                    assert!(
                        numbers[0] <= 2e-5 * numbers[1],
                        "{t}, {hard:?}: {numbers:?}"
                    );
                }
            }
        }
        Ok(())
    }
    test_device!(chunks_are_steps);
}
