//! Source indices and weights of resampling, shared by kernels and gradients, which have to agree to the last bit.

/// Nearest neighbours: the index among `size` elements for each of `target`, `floor(i * size / target)`.
pub(crate) fn nearest(size: usize, target: usize) -> Vec<usize> {
    let scale = size as f64 / target as f64;
    let index = |i: usize| ((i as f64 * scale) as usize).min(size - 1);
    (0..target).map(index).collect()
}

/// Two neighbours and the weight of the second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Mix {
    pub indices: [usize; 2],
    pub second: f64,
}

/// Linear interpolation: the mix of `size` elements for each of `target`, as in PyTorch's `interpolate(mode="bilinear")`.
/// `scale` replaces `target / size` unless corners are aligned.
pub(crate) fn linear(
    size: usize,
    target: usize,
    align_corners: bool,
    scale: Option<f64>,
) -> Vec<Mix> {
    let step = match scale {
        _ if align_corners && target <= 1 => 0.,
        _ if align_corners => (size - 1) as f64 / (target - 1) as f64,
        Some(scale) => 1. / scale,
        None => size as f64 / target as f64,
    };
    let mix = |i: usize| {
        let at = if align_corners {
            i as f64 * step
        } else {
            ((i as f64 + 0.5) * step - 0.5).max(0.)
        };
        let first = (at as usize).min(size - 1);
        Mix {
            indices: [first, (first + 1).min(size - 1)],
            second: (at - first as f64).clamp(0., 1.),
        }
    };
    (0..target).map(mix).collect()
}
