//! Attention over batches.

use super::attend::{attend, slopes, AttnWindow, Rules};
use super::AttnMask;
use candle_core::{bail, Result, Tensor, WithDType};

/// `softmax(q k^T * softmax_scale + mask) v` for each head.
///
/// - `q` is (batch, queries, heads, head_dim), `k` (batch, keys, kv_heads, head_dim), `v` (batch, keys, kv_heads, v_dim), all of them of
///   dtype `T`; any layouts. `heads` is a multiple of `kv_heads`. The result is (batch, heads, queries, v_dim).
/// - `softcap` replaces a scaled score `s` by `softcap * tanh(s / softcap)`.
/// - `max_bias` gives each head a slope, in a geometric series that ends at `2^-max_bias` (ALiBi, see <https://arxiv.org/abs/2108.12409>).
///   Causal attention subtracts it from the scores times the distance of query and key; a mask is multiplied by it.
/// - A single query under [`AttnMask::Causal`] sees all keys, whatever its offset: it is the last token.
///
/// ```
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::attention::{flash_attn, AttnMask};
/// # fn main() -> candle_core::Result<()> {
/// let q = Tensor::zeros((1, 3, 4, 8), DType::F32, &Device::Cpu)?;
/// let kv = Tensor::ones((1, 5, 2, 8), DType::F32, &Device::Cpu)?;
/// let mask = AttnMask::causal_with_offset(2);
/// let out = flash_attn::<f32>(&q, &kv, &kv, 0.35, mask, None, None)?;
/// assert_eq!(out.dims(), &[1, 4, 3, 8]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The shapes do not match, or a dtype is not `T`.
pub fn flash_attn<T>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    attn_mask: AttnMask,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor>
where
    T: WithDType + num_traits::Float,
{
    for (what, t) in [("q", q), ("k", k), ("v", v)] {
        if t.dtype() != T::DTYPE {
            bail!(
                "flash_attn: {what} is {}, but the call is for {}",
                t.dtype().as_str(),
                T::DTYPE.as_str()
            )
        }
    }
    let (_, queries, heads, _) = q.dims4()?;
    let slopes = slopes(max_bias, heads, q.device())?;
    let (window, mask, slopes) = match attn_mask {
        AttnMask::None => (AttnWindow::default(), None, None),
        AttnMask::Causal { kv_offset } => {
            let window = AttnWindow {
                offset: (queries != 1).then_some(kv_offset),
                right: Some(0),
                ..AttnWindow::default()
            };
            (window, None, slopes)
        }
        AttnMask::Mask(mask) => (AttnWindow::default(), Some(scaled(mask, slopes)?), None),
    };
    let rules = Rules {
        scale: softmax_scale,
        softcap: softcap.filter(|&cap| cap != 0.),
        window,
        mask,
        slopes,
    };
    let heads_first = |t: &Tensor| t.transpose(1, 2);
    attend(&heads_first(q)?, &heads_first(k)?, &heads_first(v)?, &rules)
}

/// `mask` in a shape that broadcasts to (batch, heads, queries, keys), times the heads' slopes.
fn scaled(mask: Tensor, slopes: Option<Tensor>) -> Result<Tensor> {
    let mask = match mask.rank() {
        3 => mask.unsqueeze(1)?,
        _ => mask,
    };
    let Some(slopes) = slopes else {
        return Ok(mask);
    };
    let slopes = slopes.reshape(((), 1, 1))?;
    mask.broadcast_mul(&slopes.to_dtype(mask.dtype())?)
}
