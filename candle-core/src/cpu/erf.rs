//! The error function, its complement and their inverses.

use std::f64::consts::{FRAC_2_SQRT_PI, PI};

/// `erf(x)` in double precision.
pub fn erf_f64(x: f64) -> f64 {
    libm::erf(x)
}

/// `erf(x)` in single precision.
pub fn erf_f32(x: f32) -> f32 {
    libm::erff(x)
}

/// `1 - erf(x)` in double precision, without the cancellation for large `x`.
pub fn erfc_f64(x: f64) -> f64 {
    libm::erfc(x)
}

/// `1 - erf(x)` in single precision, without the cancellation for large `x`.
pub fn erfc_f32(x: f32) -> f32 {
    libm::erfcf(x)
}

/// The `y` with `erf(y) = x`: infinite at -1 and 1, NaN outside of them.
pub fn erf_inv(x: f64) -> f64 {
    if x.abs() > 0.5 {
        // Exact, as 1 and x are within a factor of two.
        return erfc_inv(1. - x.abs()).copysign(x);
    }
    if x == 0. || x.is_nan() {
        return x;
    }
    let mut y = estimate((1. - x) * (1. + x)).copysign(x);
    for _ in 0..3 {
        // Halley's step; the second derivative of erf is -2y times its first.
        let newton = (erf_f64(y) - x) / (FRAC_2_SQRT_PI * (-y * y).exp());
        y -= newton / (1. + y * newton);
    }
    y
}

/// The `y` with `1 - erf(y) = x`: infinite at 0 and 2, NaN outside of them.
pub fn erfc_inv(x: f64) -> f64 {
    if x.is_nan() || !(0. ..=2.).contains(&x) {
        return f64::NAN;
    }
    if x == 0. {
        return f64::INFINITY;
    }
    if x > 1. {
        return -erfc_inv(2. - x);
    }
    if x >= 0.5 {
        return erf_inv(1. - x);
    }
    // Newton's steps on the logarithm, which is concave and nearly parabolic: they converge from any start, however small x is.
    let mut y = estimate(x * (2. - x));
    for _ in 0..5 {
        let erfc = erfc_f64(y);
        if erfc == 0. {
            break;
        }
        let slope = -FRAC_2_SQRT_PI * (-y * y).exp() / erfc;
        y -= (erfc.ln() - x.ln()) / slope;
    }
    y
}

/// Winitzki's estimate of the inverse, good to 0.2%; takes `1 - erf(y)^2`.
fn estimate(one_minus_square: f64) -> f64 {
    const A: f64 = 0.147;
    let ln = one_minus_square.ln();
    let half = 2. / (PI * A) + ln / 2.;
    ((half * half - ln / A).sqrt() - half).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_matches_the_tables() {
        // Abramowitz and Stegun, table 7.1.
        for (x, expected) in [
            (0., 0.),
            (0.5, 0.5204998778),
            (1., 0.8427007929),
            (1.5, 0.9661051465),
            (2., 0.9953222650),
        ] {
            assert!((erf_f64(x) - expected).abs() < 1e-10, "erf({x})");
            assert!((erf_f64(-x) + expected).abs() < 1e-10, "erf(-{x})");
            assert!((erfc_f64(x) - (1. - expected)).abs() < 1e-10, "erfc({x})");
            assert!((f64::from(erf_f32(x as f32)) - expected).abs() < 1e-6);
            assert!((f64::from(erfc_f32(x as f32)) - (1. - expected)).abs() < 1e-6);
        }
    }

    #[test]
    fn inverses_undo() {
        for x in [1e-300, 1e-20, 0.1, 0.3, 0.499, 0.5, 0.501, 0.9, 0.999999] {
            let back = erf_f64(erf_inv(x));
            assert!((back - x).abs() <= 4e-16 * x.max(1e-300), "erf {x}: {back}");
            assert_eq!(erf_inv(-x), -erf_inv(x));
            let back = erfc_f64(erfc_inv(x));
            // The condition number of erfc is about 2y^2, some 1400 at 1e-300.
            assert!((back - x).abs() <= 1e-12 * x, "erfc {x}: {back}");
        }
        assert_eq!(erf_inv(1.), f64::INFINITY);
        assert_eq!(erf_inv(-1.), f64::NEG_INFINITY);
        assert_eq!(erfc_inv(2.), f64::NEG_INFINITY);
        assert_eq!(erfc_inv(1.), 0.);
        assert!(erf_inv(1.1).is_nan() && erfc_inv(-0.1).is_nan());
    }
}
