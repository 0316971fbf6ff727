//! Attention as tensor ops: for gradients, and as the judge of the kernels.

use super::{Dims, Rules};
use crate::ops::{compute_dtype, softmax_last_dim};
use candle_core::{DType, Result, Tensor, D};

/// Products, bias and softmax over all keys, in f32 for 16-bit inputs.
pub(super) fn plain(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    rules: &Rules<'_>,
    dims: &Dims,
) -> Result<Tensor> {
    let dtype = compute_dtype(dims.dtype);
    let (q, k, v) = (q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?);
    // The heads of a group share their keys, so their queries are rows of one product, and keys are not repeated.
    let Dims {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        ..
    } = *dims;
    let rows = heads / kv_heads * queries;
    let q = q.reshape((batch, kv_heads, rows, dims.head_dim))?;
    let scores = (q.matmul(&k.transpose(2, 3)?)? * f64::from(rules.scale))?;
    let mut scores = scores.reshape((batch, heads, queries, keys))?;
    if let Some(cap) = rules.softcap {
        let cap = f64::from(cap);
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(bias) = rules.bias {
        scores = scores.broadcast_add(&bias.to_dtype(dtype)?)?;
    }
    if let Some(bias) = by_position(rules, dims, dtype, &scores)? {
        scores = scores.broadcast_add(&bias)?;
    }
    let weights = if rules.can_hide_all(dims) || rules.sinks.is_some() {
        softmax_of_seen(&scores, rules.sinks)?
    } else {
        softmax_last_dim(&scores)?
    };
    weights
        .reshape((batch, kv_heads, rows, keys))?
        .matmul(&v)?
        .reshape(dims.output())?
        .to_dtype(dims.dtype)
}

/// The position-dependent part of the scores: ALiBi slopes, and -infinity for hidden keys. Broadcasts to (batch, heads, queries, keys);
/// `None` if there is none. Computed on the device of `scores`, exact up to 2^24 positions.
fn by_position(
    rules: &Rules<'_>,
    dims: &Dims,
    dtype: DType,
    scores: &Tensor,
) -> Result<Option<Tensor>> {
    let device = scores.device();
    let count = |n: usize| Tensor::arange(0f32, n as f32, device)?.to_dtype(dtype);
    let keys = count(dims.keys)?.reshape((1, 1, 1, dims.keys))?;
    let mut hidden: Option<Tensor> = None;
    let mut hide = |found: Tensor| -> Result<()> {
        let found = found.to_dtype(dtype)?;
        hidden = Some(match &hidden {
            Some(hidden) => hidden.broadcast_add(&found)?,
            None => found,
        });
        Ok(())
    };
    let mut bias = None;
    let by_distance = rules.slopes.is_some()
        || rules.left.is_some()
        || rules.right.is_some_and(|_| !rules.sees_to_end(dims));
    if by_distance {
        let queries = count(dims.queries)?.reshape((1, 1, dims.queries, 1))?;
        let ahead = keys.broadcast_sub(&queries)?;
        let ahead = match rules.starts {
            Some(starts) => {
                let starts = starts.reshape((dims.batch, 1, 1, 1))?.to_dtype(dtype)?;
                ahead.broadcast_sub(&starts)?
            }
            None => (ahead - (dims.keys as f64 - dims.queries as f64))?,
        };
        if let Some(right) = rules.right {
            hide(ahead.gt(right as f64)?)?;
        }
        if let Some(left) = rules.left {
            hide(ahead.lt(-(left as f64))?)?;
        }
        if let Some(slopes) = rules.slopes {
            let slopes = slopes.reshape((1, dims.heads, 1, 1))?.to_dtype(dtype)?;
            bias = Some(ahead.abs()?.neg()?.broadcast_mul(&slopes)?);
        }
    }
    if let Some(lens) = rules.lens {
        let lens = lens.reshape((dims.batch, 1, 1, 1))?.to_dtype(dtype)?;
        hide(keys.broadcast_ge(&lens)?)?;
    }
    if let Some(hidden) = hidden {
        let mask = hidden.gt(0.)?;
        let never = Tensor::full(f32::NEG_INFINITY, (), device)?.to_dtype(dtype)?;
        let mask = mask.where_cond(&never.broadcast_as(mask.shape())?, &hidden.zeros_like()?)?;
        bias = Some(match bias {
            Some(bias) => bias.broadcast_add(&mask)?,
            None => mask,
        });
    }
    Ok(bias)
}

/// Softmax along the last dimension of scores, where -infinity hides a key; 0 if all keys are hidden. A head's sink adds to the sum but has
/// no weight in the result.
fn softmax_of_seen(scores: &Tensor, sinks: Option<&Tensor>) -> Result<Tensor> {
    // The maximum cancels out, so no gradient goes through it.
    let most = scores.detach().max_keepdim(D::Minus1)?;
    let most = most.maximum(f64::from(f32::MIN))?;
    let Some(sinks) = sinks else {
        let exp = scores.broadcast_sub(&most)?.exp()?;
        // The sum of a row that sees a key is 1 or more.
        let sum = exp.sum_keepdim(D::Minus1)?.maximum(0.5)?;
        return exp.broadcast_div(&sum);
    };
    let sinks = sinks.reshape(((), 1, 1))?.to_dtype(scores.dtype())?;
    let most = most.broadcast_maximum(&sinks.detach())?;
    let exp = scores.broadcast_sub(&most)?.exp()?;
    let sink = most.neg()?.broadcast_add(&sinks)?.exp()?;
    exp.broadcast_div(&(exp.sum_keepdim(D::Minus1)? + sink)?)
}
