//! Codes for the k-quants: scales for the sub-blocks are searched for (`fit.rs`), themselves put into a few bits, and at last the
//! nearest codes are taken for what the scales then are.
//!
//! Bit for bit what ggml's reference encoder writes, with an importance matrix and without.

use half::f16;

use super::encode_legacy::{Encode, Importance};
use super::fit::{
    above_minimum, largest, largest_of, largest_with_sign, nearest, positive, sum, sum_of_squares,
    symmetric, symmetric_by_descent, Candidates, Fit, NEGLIGIBLE,
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

/// Weights of a sub-block: an element's importance counts more the further the element is from zero, measured by `spread`, a mean
/// square.
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

/// How such a format is searched without an importance matrix.
struct Search<const LEN: usize> {
    candidates: Candidates,
    weights: fn(&[f32; LEN]) -> [f32; LEN],
}

impl<const N: usize, const LEN: usize> AboveMinimum<N, LEN> {
    /// Codes in `0..=n`, scales and minima in `0..=limit`; `spread` times the mean square is the spread of weights.
    #[inline(always)]
    fn new(
        xs: &[f32; QK_K],
        importance: Option<Importance<QK_K>>,
        (n, limit): (i32, i32),
        spread: f32,
        search: &Search<LEN>,
    ) -> Self {
        let mut block = match importance {
            None => Self::plain(xs, (n, limit), search),
            Some(importance) => {
                let spread = spread * sum_of_squares(xs) / QK_K as f32;
                Self::weighted(xs, importance.weights, (n, limit), spread)
            }
        };
        block.nearest_codes(xs, n);
        block
    }

    /// The largest scale and the largest minimum get the last step.
    #[inline(always)]
    fn plain(xs: &[f32; QK_K], (n, limit): (i32, i32), search: &Search<LEN>) -> Self {
        let fits: [Fit<LEN>; N] = std::array::from_fn(|j| {
            let xs = part(xs, j);
            above_minimum(xs, &(search.weights)(xs), n, &search.candidates)
        });
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
    }

    /// Scales and minima are searched for as elements are, with the sums of their sub-blocks' weights.
    #[inline(always)]
    fn weighted(
        xs: &[f32; QK_K],
        importance: &[f32; QK_K],
        (n, limit): (i32, i32),
        spread: f32,
    ) -> Self {
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
    }

    /// The nearest codes for these scales. A sub-block without a scale keeps what was found for its own.
    #[inline(always)]
    fn nearest_codes(&mut self, xs: &[f32; QK_K], n: i32) {
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
    }
}

/// The codes of all sub-blocks.
#[inline(always)]
fn joined<const LEN: usize>(fits: &[Fit<LEN>]) -> [u8; QK_K] {
    std::array::from_fn(|i| fits[i / LEN].codes[i % LEN])
}

/// A super-block of 16 sub-blocks with codes of both signs before its bits are packed. Codes have `n` added, so that zero is the lowest.
struct Symmetric {
    d: f16,
    scales: [i8; 16],
    codes: [u8; QK_K],
}

impl Symmetric {
    const NOTHING: Self = Self {
        d: f16::ZERO,
        scales: [0; 16],
        codes: [0; QK_K],
    };

    /// Scales get steps in `-limit..limit`, and the one with the largest magnitude the first of them. None if that is below `least`.
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

    /// The nearest codes in `-n..n` for these scales. A sub-block without a scale keeps what was found for its own.
    #[inline(always)]
    fn nearest_codes(mut self, xs: &[f32; QK_K], n: i32) -> Self {
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
            return block.nearest_codes(xs, N);
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
        block.nearest_codes(xs, N)
    }

    #[inline(always)]
    fn q6k(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        const N: i32 = 32;
        let squares;
        let weights = match importance {
            Some(importance) => importance.weights,
            None => {
                squares = xs.map(|x| x * x);
                &squares
            }
        };
        let fits: [Fit<16>; 16] =
            std::array::from_fn(|j| symmetric(part(xs, j), part(weights, j), N));
        let block = Self::of(&fits, 128, NEGLIGIBLE);
        block.map_or(Self::NOTHING, |block| block.nearest_codes(xs, N))
    }
}

/// The lower two bits of 256 codes, as `BlockQ2K` has them.
#[inline(always)]
fn two_bits(codes: &[u8; QK_K]) -> [u8; QK_K / 4] {
    std::array::from_fn(|b| {
        let first = 128 * (b / 32) + b % 32;
        (0..4).fold(0, |byte, k| byte | (codes[first + 32 * k] & 3) << (2 * k))
    })
}

/// The lower nibbles of 256 codes, as `BlockQ4K` has them.
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

/// Larger elements weigh more, and all weigh something.
#[inline(always)]
fn magnitude_above_mean(xs: &[f32; 32]) -> [f32; 32] {
    let mean = (sum_of_squares(xs) / 32.).sqrt();
    xs.map(|x| mean + x.abs())
}

impl Encode<QK_K> for BlockQ2K {
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        const SEARCH: Search<16> = Search {
            candidates: Candidates::Q2K,
            weights: |xs| xs.map(f32::abs),
        };
        let block = AboveMinimum::<16, 16>::new(xs, importance, (3, 15), 1., &SEARCH);
        Self {
            scales: std::array::from_fn(|j| block.scales[j] | block.mins[j] << 4),
            qs: two_bits(&block.codes),
            d: block.d,
            dmin: block.dmin,
        }
    }
}

impl Encode<QK_K> for BlockQ3K {
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        let block = Symmetric::q3k(xs, importance);
        Self {
            hmask: one_bit::<2>(&block.codes),
            qs: two_bits(&block.codes),
            scales: pack_signed_scales(&block.scales),
            d: block.d,
        }
    }
}

impl Encode<QK_K> for BlockQ4K {
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        const SEARCH: Search<32> = Search {
            candidates: Candidates::Q4K,
            weights: magnitude_above_mean,
        };
        let block = AboveMinimum::<8, 32>::new(xs, importance, (15, 63), 2., &SEARCH);
        Self {
            d: block.d,
            dmin: block.dmin,
            scales: pack_scales_and_mins(&block.scales, &block.mins),
            qs: four_bits(&block.codes),
        }
    }
}

impl Encode<QK_K> for BlockQ5K {
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        const SEARCH: Search<32> = Search {
            candidates: Candidates::Q5K,
            weights: magnitude_above_mean,
        };
        let block = AboveMinimum::<8, 32>::new(xs, importance, (31, 63), 2., &SEARCH);
        Self {
            d: block.d,
            dmin: block.dmin,
            scales: pack_scales_and_mins(&block.scales, &block.mins),
            qh: one_bit::<4>(&block.codes),
            qs: four_bits(&block.codes),
        }
    }
}

impl Encode<QK_K> for BlockQ6K {
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], importance: Option<Importance<QK_K>>) -> Self {
        let block = Symmetric::q6k(xs, importance);
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

impl Encode<QK_K> for BlockQ8K {
    /// The element with the largest magnitude gets the code -127, so that every code can change its sign.
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], _importance: Option<Importance<QK_K>>) -> Self {
        let largest = largest_with_sign(S::extremes(xs), xs);
        if largest == 0. {
            return Self::zeros();
        }
        let by = -127. / largest;
        let (mut qs, mut bsums) = ([0; QK_K], [0; QK_K / 16]);
        let (parts, _) = xs.as_chunks::<32>();
        for (i, part) in parts.iter().enumerate() {
            let codes = S::codes::<false>(part, by);
            qs[32 * i..][..32].copy_from_slice(&codes);
            bsums[2 * i..][..2].copy_from_slice(&S::sums_of_halves(&codes));
        }
        Self {
            d: 1. / by,
            qs,
            bsums,
        }
    }
}
