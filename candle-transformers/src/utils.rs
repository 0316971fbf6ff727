//! Masks, the repeat penalty and the repetition of key/value heads.

use candle_core::{bail, DType, Device, Result, Tensor};

/// Lowers the logits of tokens that were already used, after the CTRL paper
/// ([arXiv 1909.05858](https://arxiv.org/abs/1909.05858)): a logit `>= 0` is divided by `penalty`, a negative one
/// multiplied by it.
///
/// `logits` has shape `(vocab)`; the result has the same shape, is f32 and stays on the device (nothing is read back).
/// Each token of `context` counts once; ids outside the vocabulary are ignored. A penalty of 1 changes nothing.
///
/// # Errors
/// If `logits` is not one-dimensional or `penalty` is not a finite number above 0.
pub fn apply_repeat_penalty(logits: &Tensor, penalty: f32, context: &[u32]) -> Result<Tensor> {
    let vocab = logits.dims1()?;
    if !(penalty.is_finite() && penalty > 0.) {
        bail!("repeat penalty {penalty}: it must be a finite number above 0 (1 disables it)")
    }
    let logits = logits.to_dtype(DType::F32)?;
    let mut seen: Vec<u32> = context
        .iter()
        .copied()
        .filter(|&id| (id as usize) < vocab)
        .collect();
    seen.sort_unstable();
    // A duplicate would make the scatter below write one element twice.
    seen.dedup();
    if seen.is_empty() || penalty == 1. {
        return Ok(logits);
    }
    let ids = Tensor::new(seen.as_slice(), logits.device())?;
    let picked = logits.index_select(&ids, 0)?;
    let positive = picked.ge(0f32)?;
    let penalty = f64::from(penalty);
    let lowered = positive.where_cond(&(&picked / penalty)?, &(&picked * penalty)?)?;
    logits.scatter(&ids, &lowered, 0)
}

/// The causal mask of `seq_len` queries at positions `index_pos ..` over `index_pos + seq_len` keys: u8 of shape
/// `(seq_len, index_pos + seq_len)`, 1 where query `i` must **not** see key `j`, which is where `j > index_pos + i`.
///
/// # Errors
/// If the mask cannot be put on `device`.
pub fn build_causal_mask(seq_len: usize, index_pos: usize, device: &Device) -> Result<Tensor> {
    let mask = mask_values(seq_len, index_pos, |query, key| u8::from(key > query));
    Tensor::from_vec(mask, (seq_len, index_pos + seq_len), device)
}

/// The causal mask as a term to add to attention scores: 0 where a query sees a key, `-inf` elsewhere.
///
/// The shape is `(1, 1, tgt, tgt + offset)`, to be broadcast over batch and heads; query `i` is at position
/// `offset + i`. With a sliding window `sw`, keys more than `sw` positions back are hidden as well.
///
/// # Errors
/// If `dtype` is not a floating-point type, or the mask cannot be put on `device`.
pub fn build_additive_causal_mask(
    tgt: usize,
    offset: usize,
    sw: Option<usize>,
    device: &Device,
    dtype: DType,
) -> Result<Tensor> {
    if !dtype.is_float() {
        bail!("additive causal mask: {dtype:?} cannot hold -inf; use a floating-point dtype")
    }
    let mask = mask_values(tgt, offset, |query, key| {
        let visible = key <= query && sw.is_none_or(|window| query - key <= window);
        if visible {
            0f32
        } else {
            f32::NEG_INFINITY
        }
    });
    Tensor::from_vec(mask, (1, 1, tgt, tgt + offset), device)?.to_dtype(dtype)
}

/// `value(query position, key position)` for each query in `offset .. offset + queries` and each key before its end.
fn mask_values<T>(queries: usize, offset: usize, value: impl Fn(usize, usize) -> T) -> Vec<T> {
    let keys = offset + queries;
    let mut values = Vec::with_capacity(queries * keys);
    for query in offset..keys {
        values.extend((0..keys).map(|key| value(query, key)));
    }
    values
}

/// Repeats each key/value head `n_rep` times in a row: `(b, kv_heads, seq, head_dim)` to
/// `(b, kv_heads * n_rep, seq, head_dim)`.
///
/// [`candle_nn::ops::sdpa`] takes grouped heads as they are and needs no such copy.
///
/// # Errors
/// If `xs` does not have four dimensions or `n_rep` is 0.
pub fn repeat_kv(xs: Tensor, n_rep: usize) -> Result<Tensor> {
    match n_rep {
        0 => bail!("repeat_kv: n_rep is 0; it must be at least 1"),
        1 => Ok(xs),
        _ => {
            let (b, kv_heads, seq, head_dim) = xs.dims4()?;
            xs.unsqueeze(2)?
                .expand((b, kv_heads, n_rep, seq, head_dim))?
                .reshape((b, kv_heads * n_rep, seq, head_dim))
        }
    }
}
