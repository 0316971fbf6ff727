//! Attention over packed sequences of different lengths.

use super::attend::{attend, AttnWindow, Rules};
use crate::ops::zeros_of;
use candle_core::{bail, DType, Result, Tensor};

/// Attention of packed sequences, each over its own keys.
///
/// - `q` is (total_q, heads, head_dim), `k` and `v` are (total_k, kv_heads, head_dim); `heads` is a multiple of `kv_heads`.
/// - `seqlens_q` and `seqlens_k`, integers of shape (sequences), are the lengths of the sequences, which add up to the totals. They are
///   read back to the host.
/// - Positions are aligned so that a sequence's last query is at its last key.
/// - `causal` hides the keys after a query's position, `window_size_left` and `window_size_right` those further away than that; with a
///   `window_size_left` alone the other one is 0, as in Candle.
/// - `alibi_slopes`, one for each head, times the distance are subtracted from the scores; see <https://arxiv.org/abs/2108.12409>.
///
/// The result is (total_q, heads, head_dim), 0 for a query that sees no key.
///
/// # Errors
/// The shapes, lengths or dtypes do not match.
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_unfused(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    alibi_slopes: Option<&Tensor>,
    seqlens_q: &Tensor,
    seqlens_k: &Tensor,
    _max_seqlen_q: usize,
    _max_seqlen_k: usize,
    softmax_scale: f32,
    causal: bool,
    window_size_left: Option<usize>,
    window_size_right: Option<usize>,
) -> std::result::Result<Tensor, candle_core::Error> {
    let (total_q, heads, _) = q.dims3()?;
    let (total_k, _, _) = k.dims3()?;
    let (_, _, v_dim) = v.dims3()?;
    let lens_q = lengths("queries", seqlens_q, total_q)?;
    let lens_k = lengths("keys", seqlens_k, total_k)?;
    if lens_q.len() != lens_k.len() {
        bail!(
            "flash_attn_varlen: {} query sequences but {} key sequences",
            lens_q.len(),
            lens_k.len()
        )
    }
    let slopes = match alibi_slopes {
        None => None,
        Some(slopes) if slopes.dims() == [heads] => {
            Some(slopes.to_dtype(DType::F32)?.to_device(q.device())?)
        }
        Some(slopes) => bail!(
            "flash_attn_varlen: ALiBi slopes of shape {:?} for {heads} heads",
            slopes.dims()
        ),
    };
    let rules = Rules {
        scale: softmax_scale,
        softcap: None,
        window: AttnWindow {
            left: window_size_left,
            right: if causal {
                Some(0)
            } else {
                window_size_right.or(window_size_left.map(|_| 0))
            },
            ..AttnWindow::default()
        },
        mask: None,
        slopes,
    };
    let (mut start_q, mut start_k) = (0, 0);
    let mut outputs = Vec::with_capacity(lens_q.len());
    for (len_q, len_k) in lens_q.into_iter().zip(lens_k) {
        let sequence =
            |t: &Tensor, start, len| t.narrow(0, start, len)?.transpose(0, 1)?.unsqueeze(0);
        outputs.push(if len_q == 0 || len_k == 0 {
            zeros_of((len_q, heads, v_dim), q, &[q, k, v])?
        } else {
            let q = sequence(q, start_q, len_q)?;
            let (k, v) = (sequence(k, start_k, len_k)?, sequence(v, start_k, len_k)?);
            attend(&q, &k, &v, &rules)?.squeeze(0)?.transpose(0, 1)?
        });
        start_q += len_q;
        start_k += len_k;
    }
    if outputs.is_empty() {
        zeros_of((0, heads, v_dim), q, &[q, k, v])
    } else {
        Tensor::cat(&outputs, 0)
    }
}

/// The lengths of sequences that add up to `total`.
fn lengths(what: &str, t: &Tensor, total: usize) -> Result<Vec<usize>> {
    let lengths = t.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    let sum = lengths.iter().try_fold(0usize, |sum, &len| {
        usize::try_from(len)
            .ok()
            .and_then(|len| sum.checked_add(len))
    });
    if sum != Some(total) {
        bail!("flash_attn_varlen: sequences of {lengths:?} {what}, but there are {total} {what}")
    }
    Ok(lengths.into_iter().map(|len| len as usize).collect())
}
