//! The search for a sub-block's scale, as in ggml's reference encoder: files have the same bits.
//!
//! So the order of all float operations is part of the format here. Sums run over the elements in sequence, and a product of three is
//! evaluated from left to right; only independent work, such as that for different candidates, shares a vector.

/// Number of candidates that are tried at a time, one in each lane of a vector: sums over elements then stay in their lanes.
const LANES: usize = 8;

/// One number for each candidate.
type Lanes = [f32; LANES];

/// Magnitude below which there is no search: all elements get the lowest code, and the scale is zero.
pub(super) const NEGLIGIBLE: f32 = 1e-15;

/// A scale, the minimum in searches with minima, and the codes: codes of both signs with the offset added.
pub(super) struct Fit<const LEN: usize> {
    pub(super) scale: f32,
    pub(super) min: f32,
    pub(super) codes: [u8; LEN],
}

impl<const LEN: usize> Fit<LEN> {
    /// The lowest code for all elements.
    #[inline(always)]
    fn lowest(min: f32) -> Self {
        Self {
            scale: 0.,
            min,
            codes: [0; LEN],
        }
    }
}

#[inline(always)]
fn lanes(value: impl Fn(usize) -> f32) -> Lanes {
    std::array::from_fn(value)
}

/// The nearest integer, ties to even. It wraps around at magnitudes of 2^22, and a NaN returns a number near 0: ggml's does that too, and
/// small scales reach this range.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    // 1.5 * 2^23: the sum's last bit has the value one, and integers are its lower 23 bits less 2^22.
    const SHIFT: f32 = 12_582_912.;
    ((x + SHIFT).to_bits() & 0x7f_ffff) as i32 - 0x40_0000
}

/// [`nearest`], clamped to `lo..=hi`. A float, since it is multiplied by floats.
#[inline(always)]
fn code(x: f32, lo: f32, hi: f32) -> f32 {
    let x = nearest(x) as f32;
    let x = if x > lo { x } else { lo };
    if x < hi {
        x
    } else {
        hi
    }
}

/// The larger argument; the second for a NaN. One instruction, unlike `f32::max`.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b {
        a
    } else {
        b
    }
}

/// The maximum of `value` over the elements, and of `least`, in eight lanes.
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

/// The element with the largest magnitude, with its sign; the first of several.
#[inline(always)]
pub(super) fn largest(xs: &[f32]) -> f32 {
    let extremes = (largest_of(xs, 0., |x| x), largest_of(xs, 0., |x| -x));
    largest_with_sign(extremes, xs)
}

/// [`largest`] of elements whose maximum, and the maximum of the negated elements, are known.
#[inline(always)]
pub(super) fn largest_with_sign((above, below): (f32, f32), xs: &[f32]) -> f32 {
    if above > below {
        above
    } else if below > above {
        -below
    } else {
        // The same magnitude on both sides of zero.
        xs.iter()
            .fold(0f32, |a, &x| if x.abs() > a.abs() { x } else { a })
    }
}

/// The smallest and the largest element; of zeros with different signs the first is the smallest.
#[inline(always)]
pub(super) fn range(xs: &[f32]) -> (f32, f32) {
    let mut lowest = -largest_of(xs, f32::NEG_INFINITY, |x| -x);
    if lowest == 0. {
        lowest = xs.iter().copied().find(|&x| x == 0.).unwrap_or(lowest);
    }
    (lowest, largest_of(xs, f32::NEG_INFINITY, |x| x))
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

/// The sum, from the first to the last.
#[inline(always)]
pub(super) fn sum(xs: &[f32]) -> f32 {
    xs.iter().fold(0., |sum, x| sum + x)
}

/// The sum of squares, from the first to the last.
#[inline(always)]
pub(super) fn sum_of_squares(xs: &[f32]) -> f32 {
    xs.iter().fold(0., |sum, x| sum + x * x)
}

/// Number of rounds in which the searches of ggml's first encoder solve for a scale again.
const FIRST_ROUNDS: (usize, usize) = (5, 3);

/// Like [`above_minimum`] without weights, by rounds of nearest codes, the best scale for them, then the best minimum.
///
/// The search of ggml's first version, which Candle uses.
#[inline(always)]
pub(super) fn above_minimum_at_first<const LEN: usize>(xs: &[f32; LEN], n: i32) -> Fit<LEN> {
    let (lowest, highest) = range(xs);
    let mut min = if lowest > 0. { 0. } else { lowest };
    if highest <= min {
        return Fit::lowest(min);
    }
    let mut inverse = n as f32 / (highest - min);
    let mut scale = 1. / inverse;
    let mut codes = [0f32; LEN];
    for _ in 0..FIRST_ROUNDS.0 {
        let (mut xq, mut qq, mut changed) = (0f32, 0f32, false);
        for (&x, last) in xs.iter().zip(&mut codes) {
            let q = code(inverse * (x - min), 0., n as f32);
            changed |= q != *last;
            *last = q;
            xq += (x - min) * q;
            qq += q * q;
        }
        scale = xq / qq;
        let off = (xs.iter().zip(&codes)).fold(0f32, |sum, (&x, &q)| sum + (x - scale * q));
        min = off / LEN as f32;
        if min > 0. {
            min = 0.;
        }
        inverse = 1. / scale;
        if !changed {
            break;
        }
    }
    Fit {
        scale,
        min,
        codes: codes.map(|q| q as u8),
    }
}

/// Like [`symmetric`] with squares as weights, by rounds of nearest codes and their best scale, then by descent.
///
/// The search of ggml's first version, which Candle uses.
#[inline(always)]
pub(super) fn symmetric_at_first<const LEN: usize>(xs: &[f32; LEN], n: i32) -> Fit<LEN> {
    let largest = largest(xs);
    if largest.abs() < NEGLIGIBLE {
        return Fit::lowest(0.);
    }
    let weights = xs.map(|x| x * x);
    let mut best = Descent::new(xs, &weights, -n as f32 / largest, (-n, n - 1));
    for _ in 0..FIRST_ROUNDS.1 {
        let next = Descent::new(xs, &weights, 1. / best.scale(), (-n, n - 1));
        let gain = best.scale() * best.xq;
        if next.codes == best.codes || next.qq == 0. || next.xq * next.xq <= gain * next.qq {
            break;
        }
        best = next;
    }
    best.run(false);
    Fit {
        scale: best.scale(),
        min: 0.,
        codes: best.codes.map(|q| (q + n) as u8),
    }
}

/// Range of [`symmetric`]'s candidates, in tenths: the largest element gets the code `-n`, or up to nine tenths more or less.
const SYMMETRIC_STEPS: i32 = 9;

/// Minimises `Σ w[i] (x[i] − s q[i])²` over the scale `s`, of either sign, and codes `q` in `-n..n`. The returned codes have `n` added.
///
/// For sub-blocks of `Q6K`; with an importance matrix also those of `Q3K` and its scales, and `Q4_0` and `Q5_0`.
#[inline(always)]
pub(super) fn symmetric<const LEN: usize>(
    xs: &[f32; LEN],
    weights: &[f32; LEN],
    n: i32,
) -> Fit<LEN> {
    let largest = largest(xs);
    if largest.abs() < NEGLIGIBLE {
        return Fit::lowest(0.);
    }
    let (lo, hi) = (-n as f32, (n - 1) as f32);
    // For codes `q` the best scale is Σ w x q / Σ w q².
    let sums = |inverse: Lanes| {
        let (mut xq, mut qq) = ([0f32; LANES], [0f32; LANES]);
        for (&x, &w) in xs.iter().zip(weights) {
            let wx = w * x;
            for l in 0..LANES {
                let q = code(inverse[l] * x, lo, hi);
                xq[l] += wx * q;
                qq[l] += w * q * q;
            }
        }
        (xq, qq)
    };
    // The plain scale is tried first, then the others in ascending order.
    let steps = |i: i32| match i - SYMMETRIC_STEPS {
        _ if i == 0 => 0,
        step if step <= 0 => step - 1,
        step => step,
    };
    let inverse = |i: i32| -(n as f32 + 0.1 * steps(i) as f32) / largest;
    let (mut scale, mut gain, mut best) = (0f32, 0f32, inverse(0));
    for first in (0..=2 * SYMMETRIC_STEPS).step_by(LANES) {
        let tried = lanes(|l| inverse(first + l as i32));
        let (xq, qq) = sums(tried);
        for l in 0..LANES {
            let i = first + l as i32;
            let better = if i == 0 {
                qq[l] != 0.
            } else {
                i <= 2 * SYMMETRIC_STEPS && qq[l] > 0. && xq[l] * xq[l] > gain * qq[l]
            };
            if better {
                scale = xq[l] / qq[l];
                gain = scale * xq[l];
                best = tried[l];
            }
        }
    }
    Fit {
        scale,
        min: 0.,
        codes: xs.map(|x| (code(best * x, lo, hi) as i32 + n) as u8),
    }
}

/// Maximum number of passes of a descent over all elements.
const DESCENTS: usize = 5;

/// Coordinate descent over codes: each gets the value that is best if all others stay, and the scale is solved for again.
struct Descent<'a, const LEN: usize> {
    xs: &'a [f32; LEN],
    weights: &'a [f32; LEN],
    /// The lowest and the last code.
    range: (i32, i32),
    codes: [i32; LEN],
    /// Σ w x q
    xq: f32,
    /// Σ w q²
    qq: f32,
}

impl<'a, const LEN: usize> Descent<'a, LEN> {
    /// Starts from the codes nearest to `inverse * x`.
    #[inline(always)]
    fn new(xs: &'a [f32; LEN], weights: &'a [f32; LEN], inverse: f32, range: (i32, i32)) -> Self {
        let codes = xs.map(|x| nearest(inverse * x).clamp(range.0, range.1));
        let (mut xq, mut qq) = (0f32, 0f32);
        for ((x, w), &q) in xs.iter().zip(weights).zip(&codes) {
            let q = q as f32;
            xq += w * x * q;
            qq += w * q * q;
        }
        Self {
            xs,
            weights,
            range,
            codes,
            xq,
            qq,
        }
    }

    /// Changes codes while that reduces the error. The two callers differ in whether the sum of squares without an element must be above
    /// zero before it is a divisor.
    #[inline(always)]
    fn run(&mut self, others_needed: bool) {
        for _ in 0..DESCENTS {
            let mut changed = false;
            for i in 0..LEN {
                changed |= self.change(i, others_needed);
            }
            if !changed {
                break;
            }
        }
    }

    #[inline(always)]
    fn change(&mut self, i: usize, others_needed: bool) -> bool {
        let (x, w, q) = (self.xs[i], self.weights[i], self.codes[i] as f32);
        let mut xq = self.xq - w * x * q;
        let mut qq = self.qq - w * q * q;
        if !(xq > 0. && (qq > 0. || !others_needed)) {
            return false;
        }
        let new = nearest(x * qq / xq).clamp(self.range.0, self.range.1);
        if new == self.codes[i] {
            return false;
        }
        let q = new as f32;
        xq += w * x * q;
        qq += w * q * q;
        let better = (qq > 0. || others_needed) && xq * xq * self.qq > self.xq * self.xq * qq;
        if better {
            (self.codes[i], self.xq, self.qq) = (new, xq, qq);
        }
        better
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        if self.qq > 0. {
            self.xq / self.qq
        } else {
            0.
        }
    }
}

/// Like [`symmetric`] with squares as weights, by descent from the scale at which the largest element gets `-n`.
///
/// For sub-blocks of `Q3K`.
#[inline(always)]
pub(super) fn symmetric_by_descent<const LEN: usize>(xs: &[f32; LEN], n: i32) -> Fit<LEN> {
    let largest = largest(xs);
    if largest.abs() < NEGLIGIBLE {
        return Fit::lowest(0.);
    }
    let weights = xs.map(|x| x * x);
    let mut descent = Descent::new(xs, &weights, -n as f32 / largest, (-n, n - 1));
    descent.run(false);
    Fit {
        scale: descent.scale(),
        min: 0.,
        codes: descent.codes.map(|q| (q + n) as u8),
    }
}

/// Minimises `Σ w[i] (x[i] − s q[i])²` over the scale `s ≥ 0` and codes `q` in `0..=n`, for non-negative elements.
///
/// For the scales of sub-blocks, and their minima, with an importance matrix.
#[inline(always)]
pub(super) fn positive<const LEN: usize>(
    xs: &[f32; LEN],
    weights: &[f32; LEN],
    n: i32,
) -> Fit<LEN> {
    let largest = largest_of(xs, 0., |x| x);
    if largest < NEGLIGIBLE {
        return Fit::lowest(0.);
    }
    let error = |inverse: f32| {
        let scale = 1. / inverse;
        let off = |x: f32| x - scale * nearest(inverse * x).min(n) as f32;
        let terms = xs.iter().zip(weights).map(|(&x, &w)| w * off(x) * off(x));
        terms.fold(0f32, |sum, term| sum + term)
    };
    let mut inverse = n as f32 / largest;
    let mut least = error(inverse);
    for step in [-4, -3, -2, -1, 1, 2, 3, 4] {
        let tried = (0.1 * step as f32 + n as f32) / largest;
        let error = error(tried);
        if error < least {
            (least, inverse) = (error, tried);
        }
    }
    let mut descent = Descent::new(xs, weights, inverse, (i32::MIN, n));
    descent.run(true);
    Fit {
        scale: descent.scale(),
        min: 0.,
        codes: descent.codes.map(|q| q as u8),
    }
}

/// The candidates of [`above_minimum`]: the range is divided by `n + first + i * step`, for `i` in `0..count`.
pub(super) struct Candidates {
    first: f32,
    step: f32,
    count: usize,
    /// Whether errors count by their magnitude instead of their square.
    absolute: bool,
    /// Whether elements beyond the range of codes get the last code. Otherwise those far beyond it wrap around.
    saturating: bool,
}

impl Candidates {
    pub(super) const Q2K: Self = Self::of(-0.5, 16, true);
    pub(super) const Q4K: Self = Self::of(-1., 21, false);
    pub(super) const Q5K: Self = Self::of(-0.5, 16, false);
    /// The candidates with an importance matrix, for every format.
    pub(super) const WEIGHTED: Self = Self {
        first: -0.9,
        step: 0.05,
        count: 37,
        absolute: false,
        saturating: true,
    };

    const fn of(first: f32, count: usize, absolute: bool) -> Self {
        Self {
            first,
            step: 0.1,
            count,
            absolute,
            saturating: false,
        }
    }
}

/// Elements for which a scale and a minimum are searched, and sums that are computed once.
struct Weighted<'a, const LEN: usize> {
    xs: &'a [f32; LEN],
    weights: &'a [f32; LEN],
    /// The last code.
    n: f32,
    candidates: &'a Candidates,
    /// Σ w
    w_sum: f32,
    /// Σ w x
    x_sum: f32,
}

/// Solutions for the codes of some candidates.
struct Solutions {
    errors: Lanes,
    scales: Lanes,
    mins: Lanes,
}

impl<const LEN: usize> Weighted<'_, LEN> {
    #[inline(always)]
    fn code(&self, inverse: f32, x: f32, min: f32) -> f32 {
        let x = inverse * (x - min);
        if !self.candidates.saturating {
            return code(x, 0., self.n);
        }
        let x = if x > 0. { x } else { 0. };
        code(if x < self.n { x } else { self.n }, 0., self.n)
    }

    /// The weight of an element's error.
    #[inline(always)]
    fn error(&self, off: f32) -> f32 {
        if self.candidates.absolute {
            off.abs()
        } else {
            off * off
        }
    }

    /// The scale and the minimum that are best for the codes nearest to `inverse (x − min)`, with the minimum at most zero. Without a
    /// unique solution, the error is a NaN.
    #[inline(always)]
    fn solve(&self, inverse: Lanes, min: f32) -> Solutions {
        let (mut q_sum, mut qq, mut xq) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        let mut codes = [[0f32; LANES]; LEN];
        for ((&x, &w), codes) in self.xs.iter().zip(self.weights).zip(&mut codes) {
            for l in 0..LANES {
                let q = self.code(inverse[l], x, min);
                let wq = w * q;
                q_sum[l] += wq;
                qq[l] += wq * q;
                xq[l] += wq * x;
                codes[l] = q;
            }
        }
        let (mut scales, mut mins, mut solvable) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for l in 0..LANES {
            let determinant = self.w_sum * qq[l] - q_sum[l] * q_sum[l];
            let scale = (self.w_sum * xq[l] - self.x_sum * q_sum[l]) / determinant;
            let min = (qq[l] * self.x_sum - q_sum[l] * xq[l]) / determinant;
            let above = min > 0.;
            scales[l] = if above { xq[l] / qq[l] } else { scale };
            mins[l] = if above { 0. } else { min };
            solvable[l] = if determinant > 0. { 0. } else { f32::NAN };
        }
        let mut errors = [0f32; LANES];
        for ((&x, &w), codes) in self.xs.iter().zip(self.weights).zip(&codes) {
            for l in 0..LANES {
                errors[l] += w * self.error(scales[l] * codes[l] + mins[l] - x);
            }
        }
        Solutions {
            errors: lanes(|l| errors[l] + solvable[l]),
            scales,
            mins,
        }
    }
}

/// Minimises the weighted errors of `s q[i] + m` over the scale `s ≥ 0`, the minimum `m ≤ 0`, and codes `q` in `0..=n`.
///
/// For the k-quants with minima, and with an importance matrix for `Q4_1` and `Q5_1`.
#[inline(always)]
pub(super) fn above_minimum<const LEN: usize>(
    xs: &[f32; LEN],
    weights: &[f32; LEN],
    n: i32,
    candidates: &Candidates,
) -> Fit<LEN> {
    let (lowest, highest) = range(xs);
    let mut min = if lowest > 0. { 0. } else { lowest };
    if highest <= min {
        return Fit::lowest(min);
    }
    let mut x_sum = 0f32;
    for (&x, &w) in xs.iter().zip(weights) {
        x_sum += w * x;
    }
    let these = Weighted {
        xs,
        weights,
        n: n as f32,
        candidates,
        w_sum: sum(weights),
        x_sum,
    };
    let mut inverse = n as f32 / (highest - min);
    let mut scale = 1. / inverse;
    // The minimum from which the best codes were rounded, not the one that is best for them.
    let mut from = min;
    let mut least = 0f32;
    for (&x, &w) in xs.iter().zip(weights) {
        let q = code(inverse * (x - min), 0., n as f32);
        least += w * these.error(scale * q + min - x);
    }
    let mut plain = true;
    let mut next = 0;
    while next < candidates.count {
        let divided = |i: usize| candidates.first + candidates.step * i as f32 + n as f32;
        let tried = lanes(|l| divided(next + l) / (highest - min));
        let solutions = these.solve(tried, min);
        let count = LANES.min(candidates.count - next);
        // The candidates after the first better one start from its minimum, so these are tried again.
        let better = (0..count).find(|&l| solutions.errors[l] < least);
        let Some(l) = better else {
            next += count;
            continue;
        };
        (from, inverse, plain) = (min, tried[l], false);
        (least, scale, min) = (solutions.errors[l], solutions.scales[l], solutions.mins[l]);
        next += l + 1;
    }
    let codes = xs.map(|x| {
        if plain {
            code(inverse * (x - from), 0., n as f32)
        } else {
            these.code(inverse, x, from)
        }
    });
    Fit {
        scale,
        min,
        codes: codes.map(|q| q as u8),
    }
}
