//! Drawing from logits on their device.

mod changes;
mod draw;

pub use changes::{changed, Change, Changes};
pub use draw::{draw, draw_row, draw_with, Draw};

use candle_core::{shape::Dim, DType, Result, Tensor};

/// Draws an index along `dim` with the probabilities `softmax(logits / temperature)`, without leaving the device: the largest
/// of the logits with Gumbel noise added. At a temperature of 0 or below it is the index of the largest logit.
///
/// # Errors
/// `dim` is out of range or has no elements, or the logits are not of a float dtype.
pub fn gumbel_softmax<D: Dim>(logits: &Tensor, temperature: f64, dim: D) -> Result<Tensor> {
    if temperature <= 0. {
        return logits.argmax(dim);
    }
    let logits = logits.to_dtype(DType::F32)?;
    // The bounds keep both logarithms finite. They are the f32 numbers nearest to 0 and 1.
    let uniform = logits.rand_like(1e-7, 1. - 1e-7)?;
    let noise = uniform.log()?.neg()?.log()?.neg()?;
    (logits + (noise * temperature)?)?.argmax(dim)
}
