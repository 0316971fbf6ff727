//! Encoders of the k-quants: search for the scales of the sub-blocks (`fit.rs`), quantise these to a few bits, and choose the nearest codes
//! for the quantised scales.
//!
//! The bits are those of ggml's reference encoder, with an importance matrix and without. The search of ggml's first version is here as
//! well: without an importance matrix Candle still uses it, and programs expect its values.

use half::f16;

use super::activations::magnitude;
use super::encode_legacy::{Encode, Importance};
use super::fit::{
    above_minimum, above_minimum_at_first, largest, largest_of, largest_with_sign, nearest,
    positive, sum, sum_of_squares, symmetric, symmetric_at_first, symmetric_by_descent, Candidates,
    Fit, NEGLIGIBLE,
};
use super::pack::{pack_scales_and_mins, pack_signed_scales};
use super::utils::f16_to_f32;
use super::*;

/// Sub-block `j` of `LEN` elements.
#[inline(always)]
fn part<const LEN: usize, T>(of: &[T; QK_K], j: usize) -> &[T; LEN] {
    let (parts, _) = of.as_chunks();
    &parts[j]
}

/// Weights of a sub-block: an element's importance counts more the further the element is from zero, in units of `spread`, a mean square.
#[inline(always)]
fn spread_weights<const LEN: usize>(
    xs: &[f32; LEN],
    importance: &[f32; LEN],
    spread: f32,
) -> [f32; LEN] {
    std::array::from_fn(|i| importance[i] * (spread + xs[i] * xs[i]).sqrt())
}

/// A super-block with minima before its bits are packed: `N` sub-blocks of `LEN` elements.
struct AboveMinimum<const N: usize, const LEN: usize> {
    d: f16,
    dmin: f16,
    scales: [u8; N],
    mins: [u8; N],
    codes: [u8; QK_K],
}

impl<const N: usize, const LEN: usize> AboveMinimum<N, LEN> {
    /// Quantises scales and minima so that the largest of each gets the last step.
    #[inline(always)]
    fn plain(
        xs: &[f32; QK_K],
        (n, limit): (i32, i32),
        fit: impl Fn(&[f32; LEN]) -> Fit<LEN>,
    ) -> Self {
        let fits: [Fit<LEN>; N] = std::array::from_fn(|j| fit(part(xs, j)));
        let steps = |values: [f32; N]| {
            let largest = largest_of(&values, 0., |x| x);
            let inverse = if largest > 0. {
                limit as f32 / largest
            } else {
                0.
            };
            let steps = values.map(|x| (nearest(inverse * x) as u8).min(limit as u8));
            (f16::from_f32(largest / limit as f32), steps)
        };
        let (d, scales) = steps(std::array::from_fn(|j| fits[j].scale));
        let (dmin, mins) = steps(std::array::from_fn(|j| -fits[j].min));
        Self {
            d,
            dmin,
            scales,
            mins,
            codes: joined(&fits),
        }
        .with_nearest_codes(xs, n)
    }

    /// The search of ggml's first version.
    #[inline(always)]
    fn at_first(xs: &[f32; QK_K], (n, limit): (i32, i32)) -> Self {
        Self::plain(xs, (n, limit), |xs| above_minimum_at_first(xs, n))
    }

    /// Searches for scales and minima as for elements, weighted by the sums of their sub-blocks' weights.
    #[inline(always)]
    fn weighted(
        xs: &[f32; QK_K],
        importance: &[f32; QK_K],
        (n, limit): (i32, i32),
        times_spread: f32,
    ) -> Self {
        let spread = times_spread * sum_of_squares(xs) / QK_K as f32;
        let mut sums = [0f32; N];
        let fits: [Fit<LEN>; N] = std::array::from_fn(|j| {
            let xs = part(xs, j);
            let weights = spread_weights(xs, part(importance, j), spread);
            sums[j] = sum(&weights);
            above_minimum(xs, &weights, n, &Candidates::WEIGHTED)
        });
        let scales = positive(&std::array::from_fn(|j| fits[j].scale), &sums, limit);
        let mins = positive(&std::array::from_fn(|j| -fits[j].min), &sums, limit);
        Self {
            d: f16::from_f32(scales.scale),
            dmin: f16::from_f32(mins.scale),
            scales: scales.codes,
            mins: mins.codes,
            codes: joined(&fits),
        }
        .with_nearest_codes(xs, n)
    }

    /// The nearest codes for these scales. A sub-block without a scale keeps the codes that were found for its own scale.
    #[inline(always)]
    fn with_nearest_codes(mut self, xs: &[f32; QK_K], n: i32) -> Self {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        for j in 0..N {
            let scale = d * f32::from(self.scales[j]);
            if scale == 0. {
                continue;
            }
            let min = dmin * f32::from(self.mins[j]);
            let codes = self.codes[j * LEN..].iter_mut();
            for (q, x) in codes.zip(part::<LEN, _>(xs, j)) {
                *q = nearest((x + min) / scale).clamp(0, n) as u8;
            }
        }
        self
    }
}

/// The codes of all sub-blocks.
#[inline(always)]
fn joined<const LEN: usize>(fits: &[Fit<LEN>]) -> [u8; QK_K] {
    std::array::from_fn(|i| fits[i / LEN].codes[i % LEN])
}

/// A super-block of 16 sub-blocks with codes of both signs before its bits are packed. `n` is added to codes, so that zero is the lowest.
struct Symmetric {
    d: f16,
    scales: [i8; 16],
    codes: [u8; QK_K],
}

impl Symmetric {
    /// The codes of a `Q6K` are in `-Q6K..Q6K`.
    const Q6K: i32 = 32;

    const NOTHING: Self = Self {
        d: f16::ZERO,
        scales: [0; 16],
        codes: [0; QK_K],
    };

    /// Scales get steps in `-limit..limit`; the one with the largest magnitude gets the first. `None` if that magnitude is below `least`.
    #[inline(always)]
    fn of(fits: &[Fit<16>; 16], limit: i32, least: f32) -> Option<Self> {
        let scales: [f32; 16] = std::array::from_fn(|j| fits[j].scale);
        let largest = largest(&scales);
        if largest.abs() < least {
            return None;
        }
        let inverse = -limit as f32 / largest;
        Some(Self {
            d: f16::from_f32(1. / inverse),
            scales: scales.map(|s| nearest(inverse * s).clamp(-limit, limit - 1) as i8),
            codes: joined(fits),
        })
    }

    /// The nearest codes in `-n..n` for these scales. A sub-block without a scale keeps the codes that were found for its own scale.
    #[inline(always)]
    fn with_nearest_codes(mut self, xs: &[f32; QK_K], n: i32) -> Self {
        let d = f16_to_f32(self.d);
        for (j, &scale) in self.scales.iter().enumerate() {
            let scale = d * f32::from(scale);
            if scale == 0. {
                continue;
            }
            let codes = self.codes[16 * j..].iter_mut();
            for (q, x) in codes.zip(part::<16, _>(xs, j)) {
                *q = (nearest(x / scale).clamp(-n, n - 1) + n) as u8;
            }
        }
        self
    }

    #[inline(always)]
    fn q3k(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        const N: i32 = 4;
        const LIMIT: i32 = 32;
        let Some(importance) = importance else {
            let fits: [Fit<16>; 16] = std::array::from_fn(|j| symmetric_by_descent(part(xs, j), N));
            let block = Self::of(&fits, LIMIT, f32::MIN_POSITIVE).unwrap_or(Self {
                d: f16::ZERO,
                scales: [-LIMIT as i8; 16],
                codes: joined(&fits),
            });
            return block.with_nearest_codes(xs, N);
        };
        let spread = 2. * sum_of_squares(xs) / QK_K as f32;
        let mut sums = [0f32; 16];
        let fits: [Fit<16>; 16] = std::array::from_fn(|j| {
            let xs = part(xs, j);
            let weights = spread_weights(xs, part(importance.weights, j), spread);
            sums[j] = sum(&weights);
            symmetric(xs, &weights, N)
        });
        let scales = symmetric(&std::array::from_fn(|j| fits[j].scale), &sums, LIMIT);
        let block = Self {
            d: f16::from_f32(scales.scale),
            scales: scales.codes.map(|q| (i32::from(q) - LIMIT) as i8),
            codes: joined(&fits),
        };
        block.with_nearest_codes(xs, N)
    }

    #[inline(always)]
    fn q6k(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        let squares;
        let weights = match importance {
            Some(importance) => importance.weights,
            None => {
                squares = xs.map(|x| x * x);
                &squares
            }
        };
        Self::q6k_of(
            xs,
            &std::array::from_fn(|j| symmetric(part(xs, j), part(weights, j), Self::Q6K)),
        )
    }

    /// The search of ggml's first version.
    #[inline(always)]
    fn q6k_at_first(xs: &[f32; QK_K]) -> Self {
        Self::q6k_of(
            xs,
            &std::array::from_fn(|j| symmetric_at_first(part(xs, j), Self::Q6K)),
        )
    }

    #[inline(always)]
    fn q6k_of(xs: &[f32; QK_K], fits: &[Fit<16>; 16]) -> Self {
        let block = Self::of(fits, 128, NEGLIGIBLE);
        block.map_or(Self::NOTHING, |block| {
            block.with_nearest_codes(xs, Self::Q6K)
        })
    }
}

/// The lower two bits of 256 codes, in the layout of `BlockQ2K`.
#[inline(always)]
fn two_bits(codes: &[u8; QK_K]) -> [u8; QK_K / 4] {
    std::array::from_fn(|b| {
        let first = 128 * (b / 32) + b % 32;
        (0..4).fold(0, |byte, k| byte | (codes[first + 32 * k] & 3) << (2 * k))
    })
}

/// The lower nibbles of 256 codes, in the layout of `BlockQ4K`.
#[inline(always)]
fn four_bits(codes: &[u8; QK_K]) -> [u8; QK_K / 2] {
    std::array::from_fn(|b| {
        let first = 64 * (b / 32) + b % 32;
        codes[first] & 15 | codes[first + 32] << 4
    })
}

/// Bit `BIT` of 256 codes: bit `j` of byte `b` is that of element `32 j + b`.
#[inline(always)]
fn one_bit<const BIT: u8>(codes: &[u8; QK_K]) -> [u8; QK_K / 8] {
    std::array::from_fn(|b| (0..8).fold(0, |byte, j| byte | ((codes[32 * j + b] >> BIT) & 1) << j))
}

/// Weights that grow with an element's magnitude and are never zero.
#[inline(always)]
fn magnitude_above_mean(xs: &[f32; 32]) -> [f32; 32] {
    let mean = (sum_of_squares(xs) / 32.).sqrt();
    xs.map(|x| mean + x.abs())
}

/// Encoders of sub-blocks with minima: codes in `0..=$n`, scales and minima in `0..=$limit`; the weights without an importance matrix, and
/// with one the spread in units of the mean square.
macro_rules! with_minima {
    ($ty:ident, [$parts:literal; $len:literal], ($n:literal, $limit:literal), $candidates:ident, $weights:expr, $spread:literal, |$block:ident| $packed:expr) => {
        impl $ty {
            #[inline(always)]
            fn packed($block: AboveMinimum<$parts, $len>) -> Self {
                $packed
            }
        }

        impl Encode<QK_K> for $ty {
            #[inline(always)]
            fn encode<S: Simd>(
                _: S,
                xs: &[f32; QK_K],
                importance: Option<Importance<QK_K>>,
            ) -> Self {
                Self::packed(match importance {
                    Some(importance) => {
                        AboveMinimum::weighted(xs, importance.weights, ($n, $limit), $spread)
                    }
                    None => AboveMinimum::plain(xs, ($n, $limit), |xs| {
                        above_minimum(xs, &$weights(xs), $n, &Candidates::$candidates)
                    }),
                })
            }

            #[inline(always)]
            fn encode_as_at_first<S: Simd>(_: S, xs: &[f32; QK_K]) -> Self {
                Self::packed(AboveMinimum::at_first(xs, ($n, $limit)))
            }
        }
    };
}

with_minima!(
    BlockQ2K,
    [16; 16],
    (3, 15),
    Q2K,
    |xs: &[f32; 16]| xs.map(f32::abs),
    1.,
    |block| Self {
        scales: std::array::from_fn(|j| block.scales[j] | block.mins[j] << 4),
        qs: two_bits(&block.codes),
        d: block.d,
        dmin: block.dmin,
    }
);

with_minima!(
    BlockQ4K,
    [8; 32],
    (15, 63),
    Q4K,
    magnitude_above_mean,
    2.,
    |block| Self {
        d: block.d,
        dmin: block.dmin,
        scales: pack_scales_and_mins(&block.scales, &block.mins),
        qs: four_bits(&block.codes),
    }
);

with_minima!(
    BlockQ5K,
    [8; 32],
    (31, 63),
    Q5K,
    magnitude_above_mean,
    2.,
    |block| Self {
        d: block.d,
        dmin: block.dmin,
        scales: pack_scales_and_mins(&block.scales, &block.mins),
        qh: one_bit::<4>(&block.codes),
        qs: four_bits(&block.codes),
    }
);

impl Encode<QK_K> for BlockQ3K {
    #[inline(always)]
    fn encode<S: Simd>(_: S, xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        let block = Symmetric::q3k(xs, importance);
        Self {
            hmask: one_bit::<2>(&block.codes),
            qs: two_bits(&block.codes),
            scales: pack_signed_scales(&block.scales),
            d: block.d,
        }
    }
}

impl BlockQ6K {
    #[inline(always)]
    fn packed(block: &Symmetric) -> Self {
        let (codes, upper) = (&block.codes, block.codes.map(|q| q >> 4));
        Self {
            ql: std::array::from_fn(|b| {
                let first = 128 * (b / 64) + b % 64;
                codes[first] & 15 | codes[first + 64] << 4
            }),
            qh: two_bits(&upper),
            scales: block.scales,
            d: block.d,
        }
    }
}

impl Encode<QK_K> for BlockQ6K {
    #[inline(always)]
    fn encode<S: Simd>(_: S, xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        Self::packed(&Symmetric::q6k(xs, importance))
    }

    #[inline(always)]
    fn encode_as_at_first<S: Simd>(_: S, xs: &[f32; QK_K]) -> Self {
        Self::packed(&Symmetric::q6k_at_first(xs))
    }
}

impl Encode<QK_K> for BlockQ8K {
    /// The element with the largest magnitude gets the code -127, so that every code can change its sign. A non-finite one makes the scale
    /// a NaN: products with the block must not look like those of numbers.
    #[inline(always)]
    fn encode<S: Simd>(s: S, xs: &[f32; QK_K], _importance: Option<Importance<QK_K>>) -> Self {
        let largest = largest_with_sign(s.extremes(xs), xs);
        if !magnitude(xs).is_finite() {
            return Self {
                d: f32::NAN,
                ..GgmlType::zeros()
            };
        }
        if largest == 0. {
            return GgmlType::zeros();
        }
        let by = -127. / largest;
        let (mut qs, mut bsums) = ([0; QK_K], [0; QK_K / 16]);
        let (parts, _) = xs.as_chunks::<32>();
        for (i, part) in parts.iter().enumerate() {
            let codes = s.codes::<false>(part, by);
            qs[32 * i..][..32].copy_from_slice(&codes);
            bsums[2 * i..][..2].copy_from_slice(&s.sums_of_halves(&codes));
        }
        Self {
            d: 1. / by,
            qs,
            bsums,
        }
    }
}
