//! The search for scales: weighted least squares over candidates.
//!
//! For given codes the best scale (and minimum) is the solution of a linear least-squares problem; for a given scale the best codes are
//! the nearest ones. A search tries scales around the one at which the largest element gets the last code, solves for each the
//! linear problem, and then does the two steps once more from each solution. Candidates are tried eight at a time.

/// Candidates that are tried at a time, one in each lane of a vector: sums over elements then stay in their lanes.
const LANES: usize = 8;

/// Groups of candidates for a scale and a minimum.
const GROUPS: usize = 2;

/// One number for each candidate.
type Lanes = [f32; LANES];

#[inline(always)]
fn lanes(value: impl Fn(usize) -> f32) -> Lanes {
    std::array::from_fn(value)
}

/// The nearest whole number in `lo..=hi`, as [`nearest_in`](super::utils::nearest_in) but a float: it is multiplied with floats.
#[inline(always)]
fn code(x: f32, lo: f32, hi: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.;
    let x = if x > lo { x } else { lo };
    let x = if x < hi { x } else { hi };
    (x + SHIFT) - SHIFT
}

/// Sums of terms over `LEN` elements, a multiple of 8. Eight lanes, so that vector instructions can have them.
#[allow(
    clippy::needless_range_loop,
    reason = "lanes are the inner index, which is what makes them vectors"
)]
#[inline(always)]
fn sums<const LEN: usize, const K: usize>(term: impl Fn(usize) -> [f32; K]) -> [f32; K] {
    let mut lanes = [[0f32; 8]; K];
    for first in (0..LEN).step_by(8) {
        for lane in 0..8 {
            let terms = term(first + lane);
            for k in 0..K {
                lanes[k][lane] += terms[k];
            }
        }
    }
    lanes.map(|[a, b, c, d, e, f, g, h]| ((a + e) + (b + f)) + ((c + g) + (d + h)))
}

/// The larger one; the second for a NaN. One instruction, unlike `f32::max`.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b {
        a
    } else {
        b
    }
}

/// The largest of what `value` makes of the elements, and of `least`, in eight lanes.
#[inline(always)]
pub(super) fn largest_of(xs: &[f32], least: f32, value: impl Fn(f32) -> f32) -> f32 {
    let (eights, rest) = xs.as_chunks::<LANES>();
    let mut lanes = [least; LANES];
    for eight in eights {
        for (lane, &x) in lanes.iter_mut().zip(eight) {
            *lane = larger(value(x), *lane);
        }
    }
    let all = lanes.iter().copied().chain(rest.iter().map(|&x| value(x)));
    all.fold(least, |a, x| larger(x, a))
}

/// The element with the largest magnitude, with its sign; of several the first.
#[inline(always)]
pub(super) fn largest(xs: &[f32]) -> f32 {
    let extremes = (largest_of(xs, 0., |x| x), largest_of(xs, 0., |x| -x));
    largest_with_sign(extremes, xs)
}

/// [`largest`] of elements of which the largest and the largest negated one are known.
#[inline(always)]
pub(super) fn largest_with_sign((above, below): (f32, f32), xs: &[f32]) -> f32 {
    if above > below {
        above
    } else if below > above {
        -below
    } else {
        // The same on both sides of zero.
        xs.iter()
            .fold(0f32, |a, &x| if x.abs() > a.abs() { x } else { a })
    }
}

/// The smallest and the largest element.
#[inline(always)]
pub(super) fn range(xs: &[f32]) -> (f32, f32) {
    (
        -largest_of(xs, f32::NEG_INFINITY, |x| -x),
        largest_of(xs, f32::NEG_INFINITY, |x| x),
    )
}

/// `1 / d`, and 0 for 0.
#[inline(always)]
pub(super) fn inverse(d: f32) -> f32 {
    if d == 0. {
        0.
    } else {
        1. / d
    }
}

/// Whether a number can be divided by: not zero, not so small that its inverse overflows, not infinite, not NaN.
#[inline(always)]
fn is_scale(x: f32) -> bool {
    x.abs() > 1e-30 && x.is_finite()
}

/// Minimises `Σ w[i] (x[i] − s q[i])²` over the scale `s`, of either sign, and codes `q` in `-n..n`, and returns `s`.
///
/// `Q3K` and `Q6K` sub-blocks, and with weights `Q4_0` and `Q5_0`.
#[inline(always)]
pub(super) fn symmetric<const LEN: usize>(xs: &[f32; LEN], weights: &[f32; LEN], n: i32) -> f32 {
    let largest = largest(xs);
    if !is_scale(largest) {
        return 0.;
    }
    let (lo, hi) = (-n as f32, (n - 1) as f32);
    // With the codes rounded at `inverse`, the best scale is Σ w x q / Σ w q², and leaves the error
    // Σ w x² − (Σ w x q)² / Σ w q².
    let fit = |inverse: Lanes| {
        let (mut xq, mut qq) = ([0f32; LANES], [0f32; LANES]);
        for (&x, &w) in xs.iter().zip(weights) {
            for l in 0..LANES {
                let q = code(x * inverse[l], lo, hi);
                let wq = w * q;
                xq[l] += wq * x;
                qq[l] += wq * q;
            }
        }
        (lanes(|l| xq[l] * xq[l] / qq[l]), lanes(|l| xq[l] / qq[l]))
    };
    let (mut gains, mut scales) = ([0f32; LANES], [0f32; LANES]);
    // The largest element gets the code -n, or one near it; with few codes it may do better on the shorter side.
    let sides = if n <= 4 { &[-1f32, 1.][..] } else { &[-1.] };
    for round in 0..=sides.len() {
        let (gain, scale) = fit(match sides.get(round) {
            Some(side) => lanes(|l| side * (n as f32 + 0.3 * (l as f32 - 3.5)) / largest),
            // Once more from the best solution of each lane.
            None => lanes(|l| 1. / scales[l]),
        });
        for l in 0..LANES {
            // A NaN is not larger than anything.
            let better = gain[l] > gains[l];
            gains[l] = if better { gain[l] } else { gains[l] };
            scales[l] = if better { scale[l] } else { scales[l] };
        }
    }
    let (mut best, mut scale) = (0f32, 0f32);
    for l in 0..LANES {
        if gains[l] > best {
            (best, scale) = (gains[l], scales[l]);
        }
    }
    scale
}

/// Minimises `Σ w[i] (x[i] − (s q[i] + m))²` over the scale `s ≥ 0`, the minimum `m`, and codes `q` in `0..=n`; returns `(s, m)`.
/// With `below_zero`, `m` is not above zero.
///
/// The k-quants with minima, and with weights `Q4_1` and `Q5_1`.
#[inline(always)]
pub(super) fn above_minimum<const LEN: usize>(
    xs: &[f32; LEN],
    weights: &[f32; LEN],
    n: i32,
    below_zero: bool,
) -> (f32, f32) {
    let (mut lowest, highest) = range(xs);
    if below_zero {
        lowest = lowest.min(0.);
    }
    let range = highest - lowest;
    if !is_scale(range) {
        // All are equal (then that is the minimum), or there are infinities.
        return (0., if lowest.is_finite() { lowest } else { 0. });
    }
    // Everything below is relative to `lowest`, where the numbers are small and the sums exact enough.
    let xs = xs.map(|x| x - lowest);
    let [w_sum, x_sum, xx] = sums::<LEN, 3>(|i| {
        let wx = weights[i] * xs[i];
        [weights[i], wx, wx * xs[i]]
    });
    let fit = |inverse: Lanes, from: Lanes| {
        let (mut q_sum, mut qq, mut xq) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for (&x, &w) in xs.iter().zip(weights) {
            for l in 0..LANES {
                let q = code((x - from[l]) * inverse[l], 0., n as f32);
                let wq = w * q;
                q_sum[l] += wq;
                qq[l] += wq * q;
                xq[l] += wq * x;
            }
        }
        let (mut error, mut scale, mut min) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for l in 0..LANES {
            let (q_sum, qq, xq) = (q_sum[l], qq[l], xq[l]);
            let by = 1. / (w_sum * qq - q_sum * q_sum);
            let (s, m) = (
                (w_sum * xq - x_sum * q_sum) * by,
                (qq * x_sum - q_sum * xq) * by,
            );
            let above = below_zero && m + lowest > 0.;
            let m = if above { -lowest } else { m };
            let s = if above { (xq - m * q_sum) / qq } else { s };
            // Σ w (x − s q − m)², multiplied out.
            error[l] = xx + s * (s * qq + 2. * (m * q_sum - xq)) + m * (m * w_sum - 2. * x_sum);
            (scale[l], min[l]) = (s, m);
        }
        (error, scale, min)
    };
    let mut errors = [f32::INFINITY; LANES];
    let (mut scales, mut mins) = ([range / n as f32; LANES], [0f32; LANES]);
    for round in 0..=GROUPS {
        let step = |l: usize| (round * LANES + l) as f32 - (GROUPS * LANES - 1) as f32 / 2.;
        let (error, scale, min) = if round < GROUPS {
            fit(
                lanes(|l| (n as f32 + 0.12 * step(l)) / range),
                [0f32; LANES],
            )
        } else {
            // Once more from the best solution of each lane.
            fit(lanes(|l| 1. / scales[l]), mins)
        };
        for l in 0..LANES {
            // A NaN is not smaller than anything.
            let better = scale[l] > 0. && error[l] < errors[l];
            errors[l] = if better { error[l] } else { errors[l] };
            scales[l] = if better { scale[l] } else { scales[l] };
            mins[l] = if better { min[l] } else { mins[l] };
        }
    }
    let mut best = (f32::INFINITY, scales[0], mins[0]);
    for l in 0..LANES {
        if errors[l] < best.0 {
            best = (errors[l], scales[l], mins[l]);
        }
    }
    (best.1, best.2 + lowest)
}

/// The first of eight pairs of a scale and a minimum `(s, m)` with the smallest `Σ w[i] (x[i] − (s q[i] + m))²`, where the codes `q`
/// are the nearest ones in `lo..=hi`.
#[inline(always)]
pub(super) fn best_of<const LEN: usize>(
    xs: &[f32; LEN],
    weights: &[f32; LEN],
    pairs: [(f32, f32); LANES],
    (lo, hi): (i32, i32),
) -> usize {
    let (s, m) = (lanes(|l| pairs[l].0), lanes(|l| pairs[l].1));
    let by = s.map(inverse);
    let mut errors = [0f32; LANES];
    for (&x, &w) in xs.iter().zip(weights) {
        for l in 0..LANES {
            let x = x - m[l];
            let off = x - s[l] * code(x * by[l], lo as f32, hi as f32);
            errors[l] += w * off * off;
        }
    }
    let mut best = 0;
    for l in 1..LANES {
        if errors[l] < errors[best] {
            best = l;
        }
    }
    best
}

/// The scale and the minimum with the smallest `Σ w (x − (s a − m b))²` for elements made of `a` and `b`.
#[derive(Default)]
pub(super) struct TwoUnknowns {
    aa: f64,
    ab: f64,
    bb: f64,
    ax: f64,
    bx: f64,
}

impl TwoUnknowns {
    /// Adds elements that share `b`: `a` is `scale` times their codes.
    #[inline(always)]
    pub(super) fn add<const LEN: usize>(
        &mut self,
        xs: &[f32; LEN],
        weights: &[f32; LEN],
        codes: impl Fn(usize) -> f32,
        scale: f32,
        b: f32,
    ) {
        let [w, x, q, qq, xq] = sums::<LEN, 5>(|i| {
            let (w, x, q) = (weights[i], xs[i], codes(i));
            [w, w * x, w * q, w * q * q, w * x * q]
        })
        .map(f64::from);
        let (scale, b) = (f64::from(scale), f64::from(b));
        self.aa += scale * scale * qq;
        self.ab += scale * b * q;
        self.bb += b * b * w;
        self.ax += scale * xq;
        self.bx += b * x;
    }

    /// The solution `(s, m)`, or `None` where there is no single one.
    pub(super) fn solve(&self) -> Option<(f32, f32)> {
        let (s, m) = if self.bb == 0. {
            (self.ax / self.aa, 0.)
        } else {
            let determinant = self.aa * self.bb - self.ab * self.ab;
            if determinant <= 1e-9 * self.aa * self.bb {
                return None;
            }
            (
                (self.ax * self.bb - self.bx * self.ab) / determinant,
                (self.ax * self.ab - self.bx * self.aa) / determinant,
            )
        };
        (s.is_finite() && m.is_finite()).then_some((s as f32, m as f32))
    }

    /// The error less `Σ w x²`, which does not depend on the solution.
    pub(super) fn error(&self, s: f32, m: f32) -> f64 {
        let (s, m) = (f64::from(s), f64::from(m));
        s * s * self.aa + m * m * self.bb - 2. * (s * m * self.ab + s * self.ax - m * self.bx)
    }
}
