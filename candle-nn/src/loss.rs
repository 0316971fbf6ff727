//! Loss functions, averaged over the batch. Floats of 16 bits are f32 until the end: sums and squares may be too large for them, though the
//! mean is not.

use crate::ops::{compute_dtype, log_softmax};
use candle_core::{bail, Error, Result, Tensor};

/// Both sides in the dtype to compute in, which needs one dtype of both.
fn wide(inp: &Tensor, target: &Tensor, op: &'static str) -> Result<(Tensor, Tensor)> {
    let dtype = inp.dtype();
    if dtype != target.dtype() {
        return Err(Error::DTypeMismatchBinaryOp {
            lhs: dtype,
            rhs: target.dtype(),
            op,
        }
        .bt());
    }
    let wide = compute_dtype(dtype);
    Ok((inp.to_dtype(wide)?, target.to_dtype(wide)?))
}

/// The mean of `-inp[i, target[i]]`: the negative log-likelihood, for `inp` (n, classes) of log-probabilities and `target` (n) of
/// classes, in dtype u8, u32 or i64.
///
/// # Errors
/// The shapes are others, or a class is not below `classes`.
pub fn nll(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    let &[n] = target.dims() else {
        bail!(
            "nll: the target has shape {:?}; it must have one dimension",
            target.dims()
        )
    };
    match *inp.dims() {
        [inputs, _] if inputs == n => {}
        [inputs, _] => bail!("nll: {inputs} inputs but {n} targets"),
        _ => bail!(
            "nll: the input has shape {:?}; it must have two dimensions",
            inp.dims()
        ),
    }
    let chosen = inp.gather(&target.unsqueeze(1)?, 1)?;
    let sum = chosen.to_dtype(compute_dtype(inp.dtype()))?.sum_all()?;
    sum.affine(-1. / n as f64, 0.)?.to_dtype(inp.dtype())
}

/// [`nll`] of the [`log_softmax`] of `inp`, which is (n, classes) and may hold any numbers; `target` is (n).
///
/// # Errors
/// Those of [`nll`].
///
/// ```
/// # use candle_core::{Device, Tensor};
/// # fn main() -> candle_core::Result<()> {
/// let logits = Tensor::new(&[[0f32, 0.], [1000., 0.]], &Device::Cpu)?;
/// let loss = candle_nn::loss::cross_entropy(&logits, &Tensor::new(&[1u32, 0], &Device::Cpu)?)?;
/// assert!((loss.to_scalar::<f32>()? - 2f32.ln() / 2.).abs() < 1e-6);
/// # Ok(())
/// # }
/// ```
pub fn cross_entropy(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    if inp.rank() != 2 {
        bail!(
            "cross_entropy: the input has shape {:?}; it must have two dimensions",
            inp.dims()
        )
    }
    let wide = inp.to_dtype(compute_dtype(inp.dtype()))?;
    nll(&log_softmax(&wide, 1)?, target)?.to_dtype(inp.dtype())
}

/// The mean of the squared differences.
///
/// # Errors
/// The shapes or dtypes differ.
pub fn mse(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    let (wide, target) = wide(inp, target, "mse")?;
    let mean = (wide - target)?.sqr()?.mean_all()?;
    mean.to_dtype(inp.dtype())
}

/// The mean of `-(t * ln(p) + (1 - t) * ln(1 - p))` with `p = sigmoid(inp)`, for targets `t` between 0 and 1. Finite for any finite
/// input, and so is its gradient.
///
/// # Errors
/// The shapes or dtypes differ, or the dtype is not a float.
pub fn binary_cross_entropy_with_logit(inp: &Tensor, target: &Tensor) -> Result<Tensor> {
    // ln(1 + exp(x)) - t x, with max(x, 0) moved out of the logarithm. The gradients of the two terms cancel, so max(x, 0) is detached.
    let (wide, target) = wide(inp, target, "binary_cross_entropy_with_logit")?;
    let shift = wide.detach().relu()?;
    let log_sum = ((&wide - &shift)?.exp()? + shift.neg()?.exp()?)?.log()?;
    let mean = ((log_sum + shift)? - (wide * target)?)?.mean_all()?;
    mean.to_dtype(inp.dtype())
}

/// The mean of the Huber loss: half the squared difference up to `delta`, and `delta * (|difference| - delta / 2)` from there on; see
/// <https://doi.org/10.1214/aoms/1177703732>.
///
/// # Errors
/// The shapes or dtypes differ.
pub fn huber(inp: &Tensor, target: &Tensor, delta: f64) -> Result<Tensor> {
    if inp.dims() != target.dims() {
        bail!(
            "huber: the input has shape {:?}, but the target has {:?}",
            inp.dims(),
            target.dims()
        )
    }
    let (wide, target) = wide(inp, target, "huber")?;
    let difference = (wide - target)?;
    let size = difference.abs()?;
    let squared = (difference.sqr()? * 0.5)?;
    let straight = ((&size * delta)? - 0.5 * delta * delta)?;
    let mean = size
        .le(delta)?
        .where_cond(&squared, &straight)?
        .mean_all()?;
    mean.to_dtype(inp.dtype())
}
