//! The times of flow matching, from 1, noise, to 0: [arXiv 2210.02747](https://arxiv.org/abs/2210.02747).

/// A time from 0 to 1, moved to noise by `mu`: the ratio of noise to image grows by `exp(mu)`,
/// [arXiv 2403.03206](https://arxiv.org/abs/2403.03206).
pub fn shifted(time: f64, mu: f64) -> f64 {
    let factor = mu.exp();
    factor / (factor + (1. / time - 1.))
}

/// The times of `steps` steps, from 1 to 0, one more than steps: equally far from each other, or then moved by `mu`. No steps are the one
/// time 1.
pub fn schedule(steps: usize, mu: Option<f64>) -> Vec<f64> {
    let time = |left: usize| {
        let time = if steps == 0 {
            1.
        } else {
            left as f64 / steps as f64
        };
        mu.map_or(time, |mu| shifted(time, mu))
    };
    (0..=steps).rev().map(time).collect()
}

/// The shift of the times for an image of `len` patches: linear in `len`, through the points of `lens` and `shifts`.
pub fn shift_of(len: usize, lens: [usize; 2], shifts: [f64; 2]) -> f64 {
    let ([base_len, max_len], [base, max]) = (lens.map(|len| len as f64), shifts);
    let slope = (max - base) / (max_len - base_len);
    base + slope * (len as f64 - base_len)
}
