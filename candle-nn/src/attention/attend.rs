//! Shared by the functions of this module: windows, masks and ALiBi as a call of [`ops::sdpa`](crate::ops::sdpa)'s kernels.

use crate::ops;
use candle_core::{DType, Device, Result, Tensor};

/// The window of keys that a query attends to.
#[derive(Clone, Copy, Default)]
pub(super) struct AttnWindow {
    /// The position of the first query; without it, the last query is at the last key.
    pub(super) offset: Option<usize>,
    /// Number of earlier keys that a query sees; `None` for all.
    pub(super) left: Option<usize>,
    /// Number of later keys that a query sees; 0 is causal, `None` means all.
    pub(super) right: Option<usize>,
}

/// Options of attention.
pub(super) struct Rules {
    pub(super) scale: f32,
    pub(super) softcap: Option<f32>,
    pub(super) window: AttnWindow,
    /// Added to the scores; broadcasts to (batch, heads, queries, keys).
    pub(super) mask: Option<Tensor>,
    /// ALiBi slopes, one per head: a key's score is reduced by its slope times the distance from the query; see
    /// <https://arxiv.org/abs/2108.12409>.
    pub(super) slopes: Option<Tensor>,
}

/// Attention of `q` (batch, heads, queries, head_dim) over `k` (batch, kv_heads, keys, head_dim) and `v` (batch, kv_heads, keys, v_dim);
/// gives (batch, heads, queries, v_dim).
///
/// A query that sees no key gets 0.
pub(super) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, rules: &Rules) -> Result<Tensor> {
    let (batch, _, queries, _) = q.dims4()?;
    let (_, _, keys, _) = k.dims4()?;
    let window = &rules.window;
    let by_position = window.left.is_some() || window.right.is_some() || rules.slopes.is_some();
    let starts = match window.offset {
        Some(offset) if by_position && offset + queries != keys => {
            let offset = u32::try_from(offset).map_err(candle_core::Error::wrap)?;
            Some(Tensor::full(offset, batch, q.device())?)
        }
        _ => None,
    };
    let rules = ops::Rules {
        scale: rules.scale,
        softcap: rules.softcap,
        left: window.left,
        right: window.right,
        bias: rules.mask.as_ref(),
        slopes: rules.slopes.as_ref(),
        sinks: None,
        starts: starts.as_ref(),
        lens: None,
        paged: None,
    };
    ops::attend(q, k, v, &rules)
}

/// The slopes of ALiBi for `heads` heads, a geometric series that ends at `2^-max_bias`; none for a `max_bias` of 0.
pub(super) fn slopes(
    max_bias: Option<f32>,
    heads: usize,
    device: &Device,
) -> Result<Option<Tensor>> {
    let Some(max_bias) = max_bias.filter(|&bias| bias > 0.) else {
        return Ok(None);
    };
    let steps = heads.next_power_of_two() as f32;
    let slope = |head: usize| 2f32.powf(-max_bias * (head + 1) as f32 / steps);
    let slopes = Tensor::from_iter((0..heads).map(slope), device)?;
    slopes.to_dtype(DType::F32).map(Some)
}
