//! The former path of [`attention::cpu_flash`](crate::attention::cpu_flash).

use crate::attention::{flash_attn, AttnMask};
use candle_core::{Result, Tensor, WithDType};

/// [`flash_attn`] with `mask` added to the scores, or all keys visible without one.
///
/// # Errors
/// Those of [`flash_attn`].
#[deprecated(note = "use `candle_nn::attention::flash_attn`")]
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
    T: WithDType + num_traits::Float + 'static,
{
    let mask = match mask {
        Some(mask) => AttnMask::Mask(mask.clone()),
        None => AttnMask::None,
    };
    flash_attn::<T>(q, k, v, softmax_scale, mask, max_bias, softcap)
}
