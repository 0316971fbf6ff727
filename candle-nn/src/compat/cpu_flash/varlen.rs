//! Packed sequences.

use candle_core::{Result, Tensor};

/// [`flash_attn_varlen_unfused`](crate::attention::flash_attn_varlen_unfused) by the name of Candle's CPU kernel; on every device.
///
/// # Errors
/// Those of [`flash_attn_varlen_unfused`](crate::attention::flash_attn_varlen_unfused).
#[allow(clippy::too_many_arguments)]
pub fn flash_attn_varlen_cpu(
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
    window_left: Option<usize>,
    window_right: Option<usize>,
) -> Result<Tensor> {
    crate::attention::flash_attn_varlen_unfused(
        q,
        k,
        v,
        alibi_slopes,
        seqlens_q,
        seqlens_k,
        _max_seqlen_q,
        _max_seqlen_k,
        softmax_scale,
        causal,
        window_left,
        window_right,
    )
}
