//! With a mask.

use crate::attention::AttnMask;
use candle_core::{bail, DType, Result, Tensor, WithDType};
use half::{bf16, f16};

/// [`flash_attn`](super::flash_attn) with `mask` added to the scores, or all keys visible without one.
///
/// # Errors
/// Those of [`flash_attn`](super::flash_attn), or `T` is not a float.
pub fn run_flash_attn_cpu<T>(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Option<&Tensor>,
    softmax_scale: f32,
    max_bias: Option<f32>,
    softcap: Option<f32>,
) -> Result<Tensor>
where
    T: WithDType,
{
    let mask = match mask {
        Some(mask) => AttnMask::Mask(mask.clone()),
        None => AttnMask::None,
    };
    // `T` is not known to be a float here, so the call is chosen by its dtype.
    let run = match T::DTYPE {
        DType::F32 => super::flash_attn::<f32>,
        DType::F64 => super::flash_attn::<f64>,
        DType::F16 => super::flash_attn::<f16>,
        DType::BF16 => super::flash_attn::<bf16>,
        dtype => bail!("flash_attn: {} is not a float", dtype.as_str()),
    };
    run(q, k, v, softmax_scale, mask, max_bias, softcap)
}
