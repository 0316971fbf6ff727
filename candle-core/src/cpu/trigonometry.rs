//! Sine and cosine of f32, vectorised unless an argument is very large.

use super::functions::polynomial;
use super::simd::multiversioned;

/// Bound below which [`near`] reduces arguments to a quarter period. Larger arguments, whose neighbouring floats are more than a sixteenth
/// of a period apart, use the standard library.
const NEAR: f32 = 1_048_576.;

/// Arguments per chunk: all arguments of a chunk use the same path.
const CHUNK: usize = 256;

/// π / 2 in two parts, the first short enough for its products with integers below 2^20 to be exact.
const QUARTER_TURN: [f64; 2] = [1.5707963267341256, 6.077100506506192e-11];

/// `(sin(r) - r) / r³` in `r²`, for `|r| <= π / 4`.
const SIN: [f32; 3] = [-0.166_666_55, 0.008_332_178, -0.000_195_172_34];

/// `(cos(r) - 1 + r² / 2) / r⁴` in `r²`, for `|r| <= π / 4`.
const COS: [f32; 3] = [0.041_666_646, -0.001_388_731_5, 2.443_308_2e-5];

/// The sine of `x` plus `quarters` quarter periods, for `|x| <` [`NEAR`], within 2 ulp.
#[inline(always)]
fn near(x: f32, quarters: u32) -> f32 {
    // Adding it rounds to the nearest integer, in the lowest bits.
    const ROUND: f64 = 6_755_399_441_055_744.;
    // In f64: near a multiple of π most digits cancel.
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * QUARTER_TURN[0] - n * QUARTER_TURN[1]) as f32;
    let quadrant = (shifted.to_bits() as u32).wrapping_add(quarters);
    let square = r * r;
    // The sum alone would lose the sign of -0.
    let sin = (r + r * square * polynomial(square, SIN)).copysign(r);
    let cos = 1. - 0.5 * square + square * square * polynomial(square, COS);
    let v = if quadrant & 1 == 0 { sin } else { cos };
    f32::from_bits(v.to_bits() ^ (quadrant & 2) << 30)
}

/// The sine, within 2 ulp.
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    if x.abs() < NEAR {
        near(x, 0)
    } else {
        x.sin()
    }
}

/// The cosine, within 2 ulp.
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    if x.abs() < NEAR {
        near(x, 1)
    } else {
        x.cos()
    }
}

multiversioned! {
    fn all_near[](xs: &[f32]) -> bool {
        xs.iter().fold(true, |all, x| all & (x.abs() < NEAR))
    }

    fn near_slice[](xs: &[f32], ys: &mut [f32], quarters: u32) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = near(x, quarters);
        }
    }
}

/// Vectorised for chunks without very large arguments; `each` for the others.
fn by_chunks(xs: &[f32], ys: &mut [f32], quarters: u32, each: fn(f32) -> f32) {
    for (xs, ys) in xs.chunks(CHUNK).zip(ys.chunks_mut(CHUNK)) {
        if all_near(xs) {
            near_slice(xs, ys, quarters);
        } else {
            ys.iter_mut().zip(xs).for_each(|(y, &x)| *y = each(x));
        }
    }
}

/// `ys = sin(xs)`, over the shorter of the two.
pub(crate) fn sin_slice(xs: &[f32], ys: &mut [f32]) {
    by_chunks(xs, ys, 0, sin);
}

/// `ys = cos(xs)`, over the shorter of the two.
pub(crate) fn cos_slice(xs: &[f32], ys: &mut [f32]) {
    by_chunks(xs, ys, 1, cos);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error in units in the last place of the exact value.
    fn error(got: f32, exact: f64) -> f64 {
        let exponent = exact.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
        (f64::from(got) - exact).abs() / (exponent - 23.).exp2()
    }

    #[test]
    fn errors_are_what_is_stated() {
        // Multiples of a quarter period, where digits cancel; all exponents; and values spread over the reduced range.
        let turns = (0..2000).map(|i| (f64::from(i * 331) * std::f64::consts::FRAC_PI_2) as f32);
        let bits = (0..NEAR.to_bits() / 4999).map(|i| f32::from_bits(i * 4999));
        let spread = (0..100_000).map(|i| i as f32 * 10.3337);
        for x in turns.chain(bits).chain(spread).flat_map(|x| [x, -x]) {
            let wide = f64::from(x);
            let (s, c) = (error(sin(x), wide.sin()), error(cos(x), wide.cos()));
            assert!(s <= 2. && c <= 2., "{x}: {s} and {c} ulp");
        }
    }

    #[test]
    fn slices_with_arguments_of_all_kinds() {
        let ends = [
            f32::NAN,
            f32::INFINITY,
            f32::MAX,
            -NEAR,
            NEAR,
            0.,
            -0.,
            1e-42,
        ];
        for len in [0, 1, 7, 9, CHUNK, CHUNK + 1, 3 * CHUNK] {
            for at in [0, len / 2, len.saturating_sub(1)] {
                for end in ends {
                    let mut xs: Vec<f32> = (0..len).map(|i| i as f32 * 0.7 - 99.).collect();
                    if let Some(x) = xs.get_mut(at) {
                        *x = end;
                    }
                    let (mut s, mut c) = (vec![9.; len], vec![9.; len]);
                    sin_slice(&xs, &mut s);
                    cos_slice(&xs, &mut c);
                    for (i, &x) in xs.iter().enumerate() {
                        let same =
                            |l: f32, r: f32| l.to_bits() == r.to_bits() || l.is_nan() && r.is_nan();
                        assert!(same(s[i], sin(x)) && same(c[i], cos(x)), "{x}");
                    }
                }
            }
        }
        assert!(sin(-0.).is_sign_negative() && sin(f32::INFINITY).is_nan());
        assert_eq!(sin(1e30), 1e30f32.sin());
    }
}
