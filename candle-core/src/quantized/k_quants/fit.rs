//! The search for scales: weighted least squares over candidates.
//!
//! For given codes the best scale (and minimum) is the solution of a linear least-squares problem; for a given scale the best codes are
//! the nearest ones. A search tries scales around the one at which the largest element gets the last code, solves for each the
//! linear problem, keeps the best, and then repeats the two steps in turn while that helps.

use super::utils::nearest_in;

/// Steps in turn after the search. Each lowers the error; more than a few no longer matter.
const STEPS: usize = 3;

/// Minimises `Σ w[i] (x[i] − s q[i])²` over the scale `s`, of either sign, and codes `q` in `-n..n`, for which it returns `s`.
///
/// `Q3K` and `Q6K` sub-blocks, and with weights `Q4_0` and `Q5_0`.
#[inline(always)]
pub(super) fn symmetric(xs: &[f32], weights: &[f32], n: i32) -> f32 {
    let largest = xs.iter().fold(0f32, |a, &x| if x.abs() > a.abs() { x } else { a });
    if !is_scale(largest) {
        return 0.;
    }
    // For codes rounded at `inverse`: Σ w x q and Σ w q². The best scale is their quotient, and the error that it leaves
    // Σ w x² − (Σ w x q)² / Σ w q².
    let fit = |inverse: f32| {
        let (mut xq, mut qq) = (0f32, 0f32);
        for (&x, &w) in xs.iter().zip(weights) {
            let q = nearest_in(x * inverse, -n, n - 1) as f32;
            xq += w * x * q;
            qq += w * q * q;
        }
        (xq * xq / qq, xq / qq)
    };
    let (mut best, mut scale) = (0f32, 0f32);
    // The largest element gets the code -n, or n - 1 on the other side, or one near these.
    let sides = if n <= 4 { &[-1f32, 1.][..] } else { &[-1.] };
    for side in sides {
        for step in -9..=9 {
            let (gain, new) = fit(side * (n as f32 + 0.1 * step as f32) / largest);
            // A NaN is not larger than anything.
            if gain > best {
                (best, scale) = (gain, new);
            }
        }
    }
    for _ in 0..STEPS {
        let (gain, new) = fit(1. / scale);
        if gain > best {
            (best, scale) = (gain, new);
        } else {
            break;
        }
    }
    scale
}

/// Minimises `Σ w[i] (x[i] − (s q[i] + m))²` over the scale `s ≥ 0`, the minimum `m`, and codes `q` in `0..=n`; returns `(s, m)`.
/// With `below_zero`, `m` is not above zero.
///
/// The k-quants with minima, and with weights `Q4_1` and `Q5_1`.
#[inline(always)]
pub(super) fn above_minimum(xs: &[f32], weights: &[f32], n: i32, below_zero: bool) -> (f32, f32) {
    let mut lowest = xs.iter().fold(f32::INFINITY, |a, &x| a.min(x));
    let highest = xs.iter().fold(f32::NEG_INFINITY, |a, &x| a.max(x));
    if below_zero {
        lowest = lowest.min(0.);
    }
    let range = highest - lowest;
    if !is_scale(range) {
        // All are equal (then that is the minimum), or there are infinities.
        return (0., if lowest.is_finite() { lowest } else { 0. });
    }
    let (mut w_sum, mut x_sum, mut xx_sum) = (0f32, 0f32, 0f32);
    for (&x, &w) in xs.iter().zip(weights) {
        let x = x - lowest;
        w_sum += w;
        x_sum += w * x;
        xx_sum += w * x * x;
    }
    // Everything below is relative to `lowest`, where the numbers are small and the sums exact enough.
    let fit = |inverse: f32, from: f32| {
        let (mut q_sum, mut qq, mut xq) = (0f32, 0f32, 0f32);
        for (&x, &w) in xs.iter().zip(weights) {
            let x = x - lowest;
            let q = nearest_in((x - from) * inverse, 0, n) as f32;
            q_sum += w * q;
            qq += w * q * q;
            xq += w * x * q;
        }
        let determinant = w_sum * qq - q_sum * q_sum;
        let mut s = (w_sum * xq - x_sum * q_sum) / determinant;
        let mut m = (qq * x_sum - q_sum * xq) / determinant;
        if below_zero && m + lowest > 0. {
            m = -lowest;
            s = (xq - m * q_sum) / qq;
        }
        // Σ w (x − s q − m)², multiplied out.
        let error = xx_sum + s * (s * qq + 2. * (m * q_sum - xq)) + m * (m * w_sum - 2. * x_sum);
        (error, s, m)
    };
    // A NaN is not smaller than anything.
    let better = |new: (f32, f32, f32), old: (f32, f32, f32)| new.1 > 0. && new.0 < old.0;
    let mut best = (f32::INFINITY, range / n as f32, 0f32);
    let (from, to) = if n <= 3 { (-12, 8) } else { (-10, 10) };
    for step in from..=to {
        let new = fit((n as f32 + 0.1 * step as f32) / range, 0.);
        if better(new, best) {
            best = new;
        }
    }
    for _ in 0..STEPS {
        let new = fit(1. / best.1, best.2);
        if !better(new, best) {
            break;
        }
        best = new;
    }
    (best.1, best.2 + lowest)
}

/// Whether a number can be divided by: not zero, not so small that its inverse overflows, not infinite, not NaN.
#[inline(always)]
fn is_scale(x: f32) -> bool {
    x.abs() > 1e-30 && x.is_finite()
}

/// The scale and the minimum with the smallest `Σ w (x − (s a − m b))²` for elements made of `a` and `b`, as `(s, m)`.
/// `None` where the problem has no single solution.
#[derive(Default)]
pub(super) struct TwoUnknowns {
    aa: f64,
    ab: f64,
    bb: f64,
    ax: f64,
    bx: f64,
}

impl TwoUnknowns {
    /// Adds an element.
    #[inline(always)]
    pub(super) fn add(&mut self, w: f32, x: f32, a: f32, b: f32) {
        let [w, x, a, b] = [w, x, a, b].map(f64::from);
        self.aa += w * a * a;
        self.ab += w * a * b;
        self.bb += w * b * b;
        self.ax += w * a * x;
        self.bx += w * b * x;
    }

    /// The solution for both.
    pub(super) fn solve(&self) -> Option<(f32, f32)> {
        if self.bb == 0. {
            let s = self.ax / self.aa;
            return s.is_finite().then_some((s as f32, 0.));
        }
        let determinant = self.aa * self.bb - self.ab * self.ab;
        if determinant <= 1e-9 * self.aa * self.bb {
            return None;
        }
        let s = (self.ax * self.bb - self.bx * self.ab) / determinant;
        let m = (self.ax * self.ab - self.bx * self.aa) / determinant;
        (s.is_finite() && m.is_finite()).then_some((s as f32, m as f32))
    }

    /// The error less `Σ w x²`, which does not depend on the solution.
    pub(super) fn error(&self, s: f32, m: f32) -> f64 {
        let (s, m) = (f64::from(s), f64::from(m));
        s * s * self.aa + m * m * self.bb
            - 2. * (s * m * self.ab + s * self.ax - m * self.bx)
    }
}
