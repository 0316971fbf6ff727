//! Numbers at even distances, and numbers between those of a table.

use candle_core::{Device, Result, Tensor};

/// `steps` numbers from `start` to `stop`, both among them, at even distances.
pub(super) fn points(start: f64, stop: f64, steps: usize) -> Vec<f64> {
    // A single point has no distance to the next one.
    let delta = (stop - start) / steps.saturating_sub(1).max(1) as f64;
    (0..steps).map(|i| start + i as f64 * delta).collect()
}

/// `steps` numbers from `start` to `stop`, both among them, at even distances: (steps) of f64 on the CPU. One step is `start` alone.
///
/// # Errors
/// The tensor cannot be made.
pub fn linspace(start: f64, stop: f64, steps: usize) -> Result<Tensor> {
    Tensor::from_vec(points(start, stop, steps), steps, &Device::Cpu)
}

/// Linear interpolation at `x` between the points (`xp`, `fp`), with `xp` ascending. NaN outside the points and between two with equal
/// `xp`; points without a partner are ignored.
///
/// ```
/// use candle_transformers::models::stable_diffusion::utils::interp;
/// let values = interp(&[0.5, 2., 3.], &[0., 1., 2.], &[0., 10., 30.]);
/// assert_eq!(values[..2], [5., 30.]);
/// assert!(values[2].is_nan());
/// ```
pub fn interp(x: &[f64], xp: &[f64], fp: &[f64]) -> Vec<f64> {
    let len = xp.len().min(fp.len());
    let (xp, fp) = (&xp[..len], &fp[..len]);
    let value = |&x: &f64| {
        let (Some(&first), Some(&last)) = (xp.first(), xp.last()) else {
            return f64::NAN;
        };
        if !(first..=last).contains(&x) {
            return f64::NAN;
        }
        if len == 1 {
            return fp[0];
        }
        let left = xp.partition_point(|&place| place < x).saturating_sub(1);
        let left = left.min(len - 2);
        let width = xp[left + 1] - xp[left];
        if width > 0. {
            fp[left] + (x - xp[left]) / width * (fp[left + 1] - fp[left])
        } else {
            f64::NAN
        }
    };
    x.iter().map(value).collect()
}
