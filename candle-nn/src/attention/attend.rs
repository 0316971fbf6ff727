//! Shared by the functions of this module: windows, masks and ALiBi as a call of `sdpa`.

use crate::ops::{sdpa, sdpa_with};
use candle_core::{Device, Result, Tensor};

/// The window of keys that a query attends to.
#[derive(Clone, Copy, Default)]
pub(super) struct AttnWindow {
    /// The position of the first query.
    pub(super) offset: i64,
    /// How far back a query sees; without it to the first key.
    pub(super) left: Option<usize>,
    /// How far ahead a query sees, 0 being causal; without it to the last key.
    pub(super) right: Option<usize>,
}

impl AttnWindow {
    /// Whether the query sees the key.
    fn sees(&self, query: usize, key: usize) -> bool {
        let ahead = self.ahead(query, key);
        let within = |limit: Option<usize>, distance: i64| {
            limit.is_none_or(|limit| distance <= limit as i64)
        };
        within(self.left, -ahead) && within(self.right, ahead)
    }

    /// How far the key lies ahead of the query.
    fn ahead(&self, query: usize, key: usize) -> i64 {
        key as i64 - self.offset - query as i64
    }
}

/// Options of attention beyond those of [`sdpa`].
pub(super) struct Rules {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) window: AttnWindow,
    /// What is added to the scores; broadcasts to (batch, heads, queries, keys).
    pub(super) mask: Option<Tensor>,
    /// ALiBi slopes, one per head: a key's score is reduced by its slope times the distance from the query; see
    /// <https://arxiv.org/abs/2108.12409>.
    pub(super) slopes: Option<Vec<f32>>,
}

/// Attention of `q` (batch, heads, queries, head_dim) over `k` (batch, kv_heads, keys, head_dim) and `v` (batch, kv_heads, keys, v_dim);
/// gives (batch, heads, queries, v_dim).
///
/// A query that sees no key gets 0.
pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, rules: &Rules) -> Result<Tensor> {
    let (_, _, queries, _) = q.dims4()?;
    let (_, _, keys, _) = k.dims4()?;
    let window = &rules.window;
    // Supported by the fused kernel: all keys, or causal with the last query at the last key.
    let causal = window.right == Some(0) && window.offset == keys as i64 - queries as i64;
    let seen_as_is = window.left.is_none() && (window.right.is_none() || causal && queries <= keys);
    let capped_as_is = rules.softcap != Some(1.);
    if seen_as_is && capped_as_is && rules.mask.is_none() && rules.slopes.is_none() {
        let cap = rules.softcap.unwrap_or(1.);
        return sdpa(q, k, v, None, causal, rules.scale, cap);
    }
    let by_position = by_position(rules, queries, keys, q.device())?;
    let bias = match (by_position, &rules.mask) {
        (Some(bias), Some(mask)) => Some(bias.broadcast_add(&mask.to_dtype(bias.dtype())?)?),
        (Some(bias), None) => Some(bias),
        (None, mask) => mask.clone(),
    };
    let out = sdpa_with(q, k, v, bias.as_ref(), rules.scale, rules.softcap)?;
    let blind = (0..queries).filter(|&i| (0..keys).all(|j| !window.sees(i, j)));
    let blind: Vec<usize> = blind.collect();
    if blind.is_empty() {
        return Ok(out);
    }
    let seeing = (0..queries).map(|i| u8::from(!blind.contains(&i)));
    let seeing = Tensor::from_iter(seeing, q.device())?.reshape((queries, 1))?;
    seeing
        .broadcast_as(out.shape())?
        .where_cond(&out, &out.zeros_like()?)
}

/// The bias by position: (1, queries, keys), or (heads, queries, keys) with slopes; `None` for nothing.
fn by_position(
    rules: &Rules,
    queries: usize,
    keys: usize,
    device: &Device,
) -> Result<Option<Tensor>> {
    let window = &rules.window;
    if window.left.is_none() && window.right.is_none() && rules.slopes.is_none() {
        return Ok(None);
    }
    let slopes = rules.slopes.as_deref().unwrap_or(&[0.]);
    let mut bias = Vec::with_capacity(slopes.len() * queries * keys);
    for slope in slopes {
        for query in 0..queries {
            bias.extend((0..keys).map(|key| {
                if window.sees(query, key) {
                    -slope * window.ahead(query, key).unsigned_abs() as f32
                } else {
                    f32::NEG_INFINITY
                }
            }));
        }
    }
    Tensor::from_vec(bias, (slopes.len(), queries, keys), device).map(Some)
}

/// The slopes of ALiBi for `heads` heads, a geometric series that ends at `2^-max_bias`; none for a `max_bias` of 0.
pub(super) fn slopes(max_bias: Option<f32>, heads: usize) -> Option<Vec<f32>> {
    let max_bias = max_bias.filter(|&bias| bias > 0.)?;
    let steps = heads.next_power_of_two() as f32;
    let slope = |head: usize| 2f32.powf(-max_bias * (head + 1) as f32 / steps);
    Some((0..heads).map(slope).collect())
}
