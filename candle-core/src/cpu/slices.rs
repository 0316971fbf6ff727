//! Functions of whole slices of f32, for kernels outside of this crate: vectorised for the CPU at run time.
//!
//! Not in Candle's interface. Slices of 16-bit floats are widened, processed and narrowed again.

use half::{bf16, f16};

use super::functions;
use super::half_floats::HalfFloat;
use super::simd::{joined, multiversioned, LANES};

/// Folds the lanes and the remainder with `f`.
#[inline(always)]
fn fold(lanes: [f32; LANES], rest: impl Iterator<Item = f32>, f: impl Fn(f32, f32) -> f32) -> f32 {
    rest.fold(joined(lanes, &f), f)
}

multiversioned! {
    /// The greatest element; negative infinity for an empty slice. NaN is skipped.
    pub fn max[](xs: &[f32]) -> f32 {
        let greater = |l: f32, r: f32| if r > l { r } else { l };
        let mut lanes = [f32::NEG_INFINITY; LANES];
        let (chunks, rest) = xs.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = greater(lanes[i], chunk[i]);
            }
        }
        fold(lanes, rest.iter().copied(), greater)
    }

    /// The sum of the elements.
    pub fn sum[](xs: &[f32]) -> f32 {
        let mut lanes = [0f32; LANES];
        let (chunks, rest) = xs.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += chunk[i];
            }
        }
        fold(lanes, rest.iter().copied(), |l, r| l + r)
    }

    /// The sum of products, over the shorter of the two.
    pub fn dot[](xs: &[f32], ys: &[f32]) -> f32 {
        let mut lanes = [0f32; LANES];
        let (x_chunks, x_rest) = xs.as_chunks::<LANES>();
        let (y_chunks, y_rest) = ys.as_chunks::<LANES>();
        for (x, y) in x_chunks.iter().zip(y_chunks) {
            for i in 0..LANES {
                lanes[i] += x[i] * y[i];
            }
        }
        let rest = x_rest.iter().zip(y_rest).map(|(x, y)| x * y);
        fold(lanes, rest, |l, r| l + r)
    }

    /// `ys = exp(xs - shift)`, over the shorter of the two.
    pub fn exp_less[](shift: f32, xs: &[f32], ys: &mut [f32]) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = functions::exp(x - shift);
        }
    }

    /// `ys = 1 / (1 + exp(-xs))`, over the shorter of the two.
    pub fn sigmoid[](xs: &[f32], ys: &mut [f32]) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = functions::sigmoid(x);
        }
    }

    /// GELU with the exact distribution function of the normal distribution, over the shorter of the two.
    pub fn gelu_erf[](xs: &[f32], ys: &mut [f32]) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = 0.5 * x * functions::erfc(-x * std::f32::consts::FRAC_1_SQRT_2);
        }
    }

    /// GELU in its tanh approximation, over the shorter of the two.
    pub fn gelu_tanh[](xs: &[f32], ys: &mut [f32]) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = functions::gelu_tanh(x);
        }
    }

    /// `ys = xs * by`, over the shorter of the two.
    pub fn scale[](by: f32, xs: &[f32], ys: &mut [f32]) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = x * by;
        }
    }

    /// `ys += xs * by`, over the shorter of the two.
    pub fn add_scaled[](by: f32, xs: &[f32], ys: &mut [f32]) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y += x * by;
        }
    }

    /// `xs = cap * tanh(xs / cap)`
    pub fn soft_cap[](cap: f32, xs: &mut [f32]) {
        for x in xs {
            *x = cap * functions::tanh(*x / cap);
        }
    }
}

/// `dst = src`, over the shorter of the two.
pub fn widen_f16(src: &[f16], dst: &mut [f32]) {
    HalfFloat::widen(src, dst);
}

/// `dst = src`, over the shorter of the two.
pub fn widen_bf16(src: &[bf16], dst: &mut [f32]) {
    HalfFloat::widen(src, dst);
}

/// `dst = src` rounded to nearest, ties to even; over the shorter of the two.
pub fn narrow_f16(src: &[f32], dst: &mut [f16]) {
    HalfFloat::narrow(src, dst);
}

/// `dst = src` rounded to nearest, ties to even; over the shorter of the two.
pub fn narrow_bf16(src: &[f32], dst: &mut [bf16]) {
    HalfFloat::narrow(src, dst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_around_a_register() {
        for len in [0usize, 1, 7, 8, 9, 31, 32, 33, 100] {
            let xs: Vec<f32> = (0..len).map(|i| (i * 7 % 13) as f32 - 6.).collect();
            let exact: f64 = xs.iter().map(|&x| f64::from(x)).sum();
            assert_eq!(f64::from(sum(&xs)), exact);
            let exact: f64 = xs.iter().map(|&x| f64::from(x).powi(2)).sum();
            assert_eq!(f64::from(dot(&xs, &xs)), exact);
            let exact = xs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(max(&xs), exact);
            let mut ys = vec![0.; len];
            exp_less(6., &xs, &mut ys);
            assert!(xs
                .iter()
                .zip(&ys)
                .all(|(x, y)| (y / (x - 6.).exp() - 1.).abs() < 3e-7));
        }
        assert_eq!(max(&[f32::NAN, 1.]), 1.);
        let mut ys = [1., 2., 3.];
        add_scaled(2., &[10., 20.], &mut ys);
        assert_eq!(ys, [21., 42., 3.]);
        soft_cap(20., &mut ys);
        for (y, x) in ys.iter().zip([21f32, 42., 3.]) {
            assert!((y / (20. * (x / 20.).tanh()) - 1.).abs() < 3e-7);
        }
        assert!(sum(&[f32::NAN, 1.]).is_nan());
    }
}
