//! Causal attention.

use crate::attention::AttnMask;
use crate::ops::softmax_into;
use candle_core::cpu::slices;
use candle_core::{bail, Device, Result, Tensor, WithDType};
use rayon::prelude::*;

/// [`flash_attn`](super::flash_attn) with [`AttnMask::Causal`].
///
/// # Errors
/// Those of [`flash_attn`](super::flash_attn).
pub fn run_causal_attn_cpu<T>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    softmax_scale: f32,
    kv_offset: usize,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor>
where
    T: WithDType + num_traits::Float,
{
    let mask = AttnMask::causal_with_offset(kv_offset);
    super::flash_attn::<T>(q, k, v, softmax_scale, mask, max_bias, softcap)
}

/// Attention of one token over interleaved keys and values, as in
/// [`RawInterleavedKvCache`](crate::kv_cache::RawInterleavedKvCache), on the CPU.
///
/// `q_data` is (h_q, d), `kv_data` (kv_len, h_kv, 2, d); `h_q` is a multiple of `h_kv`. The result is (h_q, 1, d).
///
/// # Errors
/// A slice is shorter than that, the heads cannot be grouped, or there are no keys.
pub fn causal_decode_f32_interleaved(
    q_data: &[f32],
    kv_data: &[f32],
    h_q: usize,
    h_kv: usize,
    d: usize,
    kv_len: usize,
    scale: f32,
) -> Result<Tensor> {
    let token = h_kv * 2 * d;
    if q_data.len() < h_q * d || kv_data.len() < kv_len * token {
        bail!(
            "attention: {} query elements for {h_q} heads of {d}, and {} key and value elements for {kv_len} tokens of {h_kv} heads",
            q_data.len(),
            kv_data.len()
        )
    }
    if h_kv == 0 || !h_q.is_multiple_of(h_kv) {
        bail!("attention: {h_q} query heads cannot be grouped over {h_kv} key heads")
    }
    if kv_len == 0 {
        bail!("attention: no keys to attend to")
    }
    let mut out = vec![0f32; h_q * d];
    if d > 0 {
        let heads = out.par_chunks_mut(d).zip(q_data.par_chunks(d)).enumerate();
        heads.for_each(|(head, (out, q))| {
            let first = head / (h_q / h_kv) * 2 * d;
            let tokens = || {
                kv_data
                    .chunks_exact(token)
                    .take(kv_len)
                    .map(|kv| &kv[first..first + 2 * d])
            };
            let scores: Vec<f32> = tokens()
                .map(|kv| slices::dot(q, &kv[..d]) * scale)
                .collect();
            let mut weights = vec![0f32; kv_len];
            softmax_into(&scores, &mut weights);
            for (kv, weight) in tokens().zip(weights) {
                for (out, v) in out.iter_mut().zip(&kv[d..]) {
                    *out += weight * v;
                }
            }
        });
    }
    Tensor::from_vec(out, (h_q, 1, d), &Device::Cpu)
}
