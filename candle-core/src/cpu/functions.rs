//! Functions of f32 (and one of f64) without branches or calls, so that loops over them are vectorised.
//!
//! Argument reduction is the usual one (Cody and Waite for `exp`, splitting off the exponent for `ln`). The coefficients are minimax fits
//! on the reduced range. No multiply-add is fused, so every CPU returns the same bits. The tests state each function's error, in units in
//! the last place.

/// `a` clamped to `lo..=hi`; a NaN stays NaN. `f32::clamp` does the same, but can panic.
#[inline(always)]
pub(super) fn limit(a: f32, lo: f32, hi: f32) -> f32 {
    let a = if a > hi { hi } else { a };
    if a < lo {
        lo
    } else {
        a
    }
}

/// `c[0] + c[1] x + c[2] x² + …`
#[inline(always)]
pub(super) fn polynomial<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum * x + c[i];
    }
    sum
}

/// `(exp(r) - 1 - r) / r²` for `|r| <= ln(2) / 2`.
const EXP: [f32; 5] = [
    0.5,
    0.166_665_18,
    0.041_666_206,
    0.008_368_89,
    0.001_395_048_9,
];

/// `ln(2)` in two parts, the first short enough for its products with small integers to be exact.
const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `e^x`, within 2 ulp; subnormal results too.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding it rounds to the nearest integer, in the lowest bits.
    const ROUND: f32 = 12_582_912.;
    let x = limit(x, -104., 89.);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let e = 1. + (r + r * r * polynomial(r, EXP));
    // In two steps, as 2^n alone may not be a normal number.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    e * power(half) * power(n.wrapping_sub(half))
}

/// `e^x` in f64, within 1 ulp; subnormal results too.
#[inline(always)]
pub(crate) fn exp_f64(x: f64) -> f64 {
    const ROUND: f64 = 6_755_399_441_055_744.;
    const LN_2: [f64; 2] = [0.6931471803691238, 1.9082149292705877e-10];
    // 1 / n! from n = 2: on the reduced range the next term is below a twentieth of an ulp.
    const EXP: [f64; 12] = [
        0.5,
        0.16666666666666666,
        0.041666666666666664,
        0.008333333333333333,
        0.001388888888888889,
        0.0001984126984126984,
        2.48015873015873e-05,
        2.7557319223985893e-06,
        2.755731922398589e-07,
        2.505210838544172e-08,
        2.08767569878681e-09,
        1.6059043836821613e-10,
    ];
    let x = if x > 710. { 710. } else { x };
    let x = if x < -746. { -746. } else { x };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let mut sum = EXP[11];
    for i in (0..11).rev() {
        sum = sum * r + EXP[i];
    }
    let e = 1. + (r + r * r * sum);
    // In two steps, as for f32; n is made positive, since vectors of 64-bit integers have no arithmetic shift.
    let n = shifted
        .to_bits()
        .wrapping_sub(ROUND.to_bits())
        .wrapping_add(2048);
    let half = n >> 1;
    let power = |n: u64| f64::from_bits(n.wrapping_sub(1) << 52);
    e * power(half) * power(n.wrapping_sub(half))
}

/// `e^x - 1`, within 4 ulp.
#[inline(always)]
pub(crate) fn exp_m1(x: f32) -> f32 {
    let near = x + x * x * polynomial(x, EXP);
    if x.abs() < 0.34 {
        near
    } else {
        exp(x) - 1.
    }
}

/// The natural logarithm, within 2 ulp; subnormal arguments too.
#[inline(always)]
pub(crate) fn ln(x: f32) -> f32 {
    // (ln(1 + f) - f + f²/2) / f³ for 1 + f between the roots of 1/2 and 2.
    const LN: [f32; 9] = [
        0.333_333_13,
        -0.250_000_1,
        0.200_021_2,
        -0.166_679_96,
        0.142_195_5,
        -0.124_055_915,
        0.118_881_75,
        -0.116_756_41,
        0.067_466_01,
    ];
    const ROOT_OF_HALF: u32 = 0x3F35_04F3;
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608. } else { x };
    let bits = scaled.to_bits();
    let exponent = (bits.wrapping_sub(ROOT_OF_HALF) as i32) >> 23;
    let f = f32::from_bits(bits.wrapping_sub((exponent << 23) as u32)) - 1.;
    let n = (exponent - if tiny { 23 } else { 0 }) as f32;
    let square = f * f;
    let small = square * f * polynomial(f, LN) + n * LN_2[1] - 0.5 * square;
    let ln = small + f + n * LN_2[0];
    let ln = if x == f32::INFINITY { x } else { ln };
    let ln = if x == 0. { f32::NEG_INFINITY } else { ln };
    // The comparison is false for a NaN.
    if x >= 0. {
        ln
    } else {
        f32::NAN
    }
}

/// The hyperbolic tangent, within 3 ulp.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // (tanh(x) / x - 1) / x², in x², for |x| < 0.625.
    const TANH: [f32; 5] = [
        -0.333_332_84,
        0.133_314_91,
        -0.053_743_497,
        0.020_650_579,
        -0.005_717_037,
    ];
    let a = x.abs();
    let square = a * a;
    let near = a + a * square * polynomial(square, TANH);
    let far = 1. - 2. / (exp(2. * a) + 1.);
    if a < 0.625 { near } else { far }.copysign(x)
}

/// `1 / (1 + e^-x)`, within 3 ulp.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1. / (1. + exp(-x))
}

/// `x / (1 + e^-x)`, within 4 ulp.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1. + exp(-x))
}

/// GELU in its tanh approximation, as `x * sigmoid(2 u)`, which does not cancel for negative `x`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    // sqrt(8 / pi)
    const SCALE: f32 = 1.595_769;
    x / (1. + exp(-SCALE * x * (1. + 0.044_715 * x * x)))
}

/// `erf(x) / x` in `x²`, for `|x| < 1`.
const ERF: [f32; 7] = [
    std::f32::consts::FRAC_2_SQRT_PI,
    -0.376_126_26,
    0.112_836,
    -0.026_854_444,
    0.005_189_535,
    -0.000_802_084_1,
    7.889_119e-5,
];

/// `erfc(a)` for `a >= 0.5`.
#[inline(always)]
fn erfc_far(a: f32) -> f32 {
    // erfc(a) * exp(a²), in 1 / (a + 1.5).
    const ERFCX: [f32; 10] = [
        -5.076_862e-6,
        0.564_461_2,
        0.840_040_9,
        1.068_318,
        -0.018_575_951,
        2.859_867_8,
        -13.220_837,
        19.627_552,
        -13.287_664,
        3.504_761_5,
    ];
    let a = limit(a, 0.5, 10.6);
    // a² is rounded, and its absolute error would become a relative error of the result. The upper half of a has an exact square.
    let upper = f32::from_bits(a.to_bits() & 0xFFFF_F000);
    let square = exp(-upper * upper) * exp((upper - a) * (upper + a));
    square * polynomial(1. / (a + 1.5), ERFCX)
}

/// The error function, within 4 ulp.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    let a = x.abs();
    let near = a * polynomial(a * a, ERF);
    let far = 1. - erfc_far(a);
    if a < 1. { near } else { far }.copysign(x)
}

/// `1 - erf(x)`, within 16 ulp.
#[inline(always)]
pub(crate) fn erfc(x: f32) -> f32 {
    let a = x.abs();
    let near = 1. - x * polynomial(x * x, ERF);
    let far = erfc_far(a);
    let far = if x < 0. { 2. - far } else { far };
    if a < 0.5 {
        near
    } else {
        far
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 4999th f32, and the values around which a function changes its formula.
    fn arguments() -> impl Iterator<Item = f32> {
        let edges = [
            0.,
            -0.,
            f32::MIN_POSITIVE,
            f32::from_bits(1),
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
            0.34,
            0.5,
            0.625,
            1.,
            88.722_84,
            -87.336_55,
            -103.972_08,
            10.054,
        ];
        let edges = edges.into_iter().flat_map(|v| [v, -v]);
        edges.chain((0..u32::MAX / 4999).map(|i| f32::from_bits(i * 4999)))
    }

    /// The largest error in units in the last place (of the least normal number, below that).
    fn worst(f: fn(f32) -> f32, exact: fn(f64) -> f64, within: impl Fn(f32) -> bool) -> f64 {
        let mut worst = 0f64;
        for x in arguments().filter(|&x| within(x)) {
            let (got, exact) = (f(x), exact(f64::from(x)));
            let rounded = exact as f32;
            if rounded.is_nan() || got.is_nan() {
                assert!(
                    rounded.is_nan() && got.is_nan(),
                    "f({x}) = {got}, not {exact}"
                );
                continue;
            }
            if got == rounded {
                continue;
            }
            let exponent = rounded
                .abs()
                .clamp(f32::MIN_POSITIVE, f32::MAX)
                .log2()
                .floor();
            let ulp = 2f64.powi(exponent as i32 - 23);
            let got = if got.is_infinite() {
                2f64.powi(128).copysign(got.into())
            } else {
                got.into()
            };
            let exact = exact.clamp(-(2f64.powi(128)), 2f64.powi(128));
            let error = (got - exact).abs() / ulp;
            assert!(error < 64., "f({x}) = {got}, not {exact}: {error} ulp");
            worst = worst.max(error);
        }
        worst
    }

    #[test]
    fn errors_are_what_is_stated() {
        let all = |_| true;
        for (name, limit, error) in [
            ("exp", 2., worst(exp, f64::exp, all)),
            ("exp_m1", 4., worst(exp_m1, f64::exp_m1, all)),
            ("ln", 2., worst(ln, f64::ln, all)),
            ("tanh", 3., worst(tanh, f64::tanh, all)),
            (
                "sigmoid",
                3.,
                worst(sigmoid, |x| 1. / (1. + (-x).exp()), |x| x > -87.),
            ),
            (
                "silu",
                4.,
                worst(silu, |x| x / (1. + (-x).exp()), |x| x > -87.),
            ),
            ("erf", 4., worst(erf, libm::erf, all)),
            ("erfc", 16., worst(erfc, libm::erfc, all)),
        ] {
            assert!(error <= limit, "{name}: {error} ulp");
            println!("{name}: {error:.2} ulp");
        }
    }

    #[test]
    fn exp_of_f64() {
        let edges = [0., 1e-300, 709.78, 709.79, -708.4, -745.1, -745.2, 1e308];
        let edges = edges.into_iter().flat_map(|v| [v, -v]);
        let spread = (0..200_000).map(|i| (f64::from(i) - 1e5) * 7.4321e-3);
        let small = (0..1000).map(|i| (f64::from(i) - 500.) * 1.234e-3);
        let mut worst = 0f64;
        for x in edges.chain(spread).chain(small) {
            let (got, exact) = (exp_f64(x), x.exp());
            if got != exact {
                let ulp = exact.abs().max(f64::MIN_POSITIVE).log2().floor() - 52.;
                worst = worst.max((got - exact).abs() / ulp.exp2());
            }
        }
        // The reference itself may be off by one in the last place.
        assert!(worst <= 1., "{worst} ulp");
        assert_eq!(exp_f64(f64::INFINITY), f64::INFINITY);
        assert_eq!(exp_f64(f64::NEG_INFINITY), 0.);
        assert!(exp_f64(f64::NAN).is_nan());
    }

    #[test]
    fn signs_and_ends() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.);
        assert_eq!(exp(89.), f32::INFINITY);
        assert_eq!(ln(0.), f32::NEG_INFINITY);
        assert_eq!(ln(-0.), f32::NEG_INFINITY);
        assert!(ln(-1.).is_nan() && ln(f32::NEG_INFINITY).is_nan());
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(tanh(-0.).is_sign_negative() && erf(-0.).is_sign_negative());
        assert_eq!([tanh(f32::INFINITY), erf(f32::NEG_INFINITY)], [1., -1.]);
        assert_eq!([erfc(f32::INFINITY), erfc(f32::NEG_INFINITY)], [0., 2.]);
        assert_eq!(
            [gelu_tanh(0.), gelu_tanh(100.), gelu_tanh(-1e30)],
            [0., 100., 0.]
        );
        assert!(silu(f32::NAN).is_nan() && gelu_tanh(f32::NAN).is_nan());
    }
}
