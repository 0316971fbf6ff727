//! Codes for the k-quants: scales for the sub-blocks are searched for (`fit.rs`), themselves put into a few bits, and at last the
//! super-block's scale is solved for again with all codes known.

use half::f16;

use super::encode_legacy::Encode;
use super::fit::{self, inverse, largest, largest_with_sign, range, TwoUnknowns};
use super::pack::{pack_scales_and_mins, pack_signed_scales};
use super::utils::{f16_to_f32, nearest_in};
use super::*;

/// All weights alike.
const EQUAL: [f32; QK_K] = [1.; QK_K];

/// Sub-block `j` of `LEN` elements.
#[inline(always)]
fn part<const LEN: usize>(of: &[f32; QK_K], j: usize) -> &[f32; LEN] {
    let (parts, _) = of.as_chunks();
    &parts[j]
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
    /// Codes in `0..=n`, scales and minima in `0..=limit`.
    #[inline(always)]
    fn new(xs: &[f32; QK_K], weights: &[f32; QK_K], n: i32, limit: i32) -> Self {
        let (mut scales, mut mins) = ([0f32; N], [0f32; N]);
        for j in 0..N {
            let (scale, min) = fit::above_minimum::<LEN>(part(xs, j), part(weights, j), n, true);
            (scales[j], mins[j]) = (scale, -min);
        }
        let (_, largest) = range(&scales);
        let (_, largest_min) = range(&mins);
        let mut block = Self {
            d: f16::from_f32(largest / limit as f32),
            dmin: f16::from_f32(largest_min / limit as f32),
            scales: [0; N],
            mins: [0; N],
            codes: [0; QK_K],
        };
        let (by, min_by) = (
            inverse(f16_to_f32(block.d)),
            inverse(f16_to_f32(block.dmin)),
        );
        block.scales = scales.map(|s| nearest_in(s * by, 0, limit) as u8);
        block.mins = mins.map(|m| nearest_in(m * min_by, 0, limit) as u8);
        block.best_neighbours(xs, weights, n, limit);
        block.nearest_codes(xs, n);
        block.solve_again(xs, weights, n);
        block
    }

    /// The scale and the minimum that the codes of sub-block `j` stand for.
    #[inline(always)]
    fn values(&self, scale: u8, min: u8) -> (f32, f32) {
        (
            f16_to_f32(self.d) * f32::from(scale),
            -f16_to_f32(self.dmin) * f32::from(min),
        )
    }

    /// Scales and minima were rounded each for itself; together a neighbour may fit better.
    #[inline(always)]
    fn best_neighbours(&mut self, xs: &[f32; QK_K], weights: &[f32; QK_K], n: i32, limit: i32) {
        // One step in either, and in both where the second takes back what the first adds. The last is two such steps.
        const STEPS: [(i32, i32); 8] = [
            (0, 0),
            (1, 0),
            (-1, 0),
            (0, 1),
            (0, -1),
            (1, 1),
            (-1, -1),
            (1, 2),
        ];
        for j in 0..N {
            let (scale, min) = (i32::from(self.scales[j]), i32::from(self.mins[j]));
            let near = STEPS.map(|(scale_step, min_step)| {
                let step = |from: i32, by: i32| (from + by).clamp(0, limit) as u8;
                (step(scale, scale_step), step(min, min_step))
            });
            let values = near.map(|(scale, min)| self.values(scale, min));
            let best = fit::best_of::<LEN>(part(xs, j), part(weights, j), values, (0, n));
            (self.scales[j], self.mins[j]) = near[best];
        }
    }

    /// The nearest codes for these scales.
    #[inline(always)]
    fn nearest_codes(&mut self, xs: &[f32; QK_K], n: i32) {
        for j in 0..N {
            let (s, m) = self.values(self.scales[j], self.mins[j]);
            let (by, xs) = (inverse(s), part::<LEN>(xs, j));
            for (q, x) in self.codes[j * LEN..(j + 1) * LEN].iter_mut().zip(xs) {
                *q = nearest_in((x - m) * by, 0, n) as u8;
            }
        }
    }

    /// Solves for the two scales of the super-block, and takes the solution and its nearest codes if the error is smaller.
    #[inline(always)]
    fn solve_again(&mut self, xs: &[f32; QK_K], weights: &[f32; QK_K], n: i32) {
        let mut sums = TwoUnknowns::default();
        for j in 0..N {
            let (scale, min) = (f32::from(self.scales[j]), f32::from(self.mins[j]));
            let code = |i: usize| f32::from(self.codes[j * LEN + i]);
            sums.add::<LEN>(part(xs, j), part(weights, j), code, scale, min);
        }
        let Some((d, dmin)) = sums.solve() else {
            return;
        };
        if d <= 0. || dmin < 0. {
            return;
        }
        let (d, dmin) = (f16::from_f32(d), f16::from_f32(dmin));
        let error = |d, dmin| sums.error(f16_to_f32(d), f16_to_f32(dmin));
        if error(d, dmin) < error(self.d, self.dmin) {
            (self.d, self.dmin) = (d, dmin);
            self.nearest_codes(xs, n);
        }
    }
}

/// A super-block of 16 sub-blocks with codes of both signs before its bits are packed.
struct Symmetric {
    d: f16,
    scales: [i8; 16],
    codes: [i8; QK_K],
}

impl Symmetric {
    /// Codes in `-n..n`, scales in `-limit..limit`.
    #[inline(always)]
    fn new(xs: &[f32; QK_K], weights: &[f32; QK_K], n: i32, limit: i32) -> Self {
        let scales: [f32; 16] =
            std::array::from_fn(|j| fit::symmetric::<16>(part(xs, j), part(weights, j), n));
        let d = f16::from_f32(largest(&scales) / -limit as f32);
        let by = inverse(f16_to_f32(d));
        let mut block = Self {
            d,
            scales: scales.map(|s| nearest_in(s * by, -limit, limit - 1) as i8),
            codes: [0; QK_K],
        };
        block.best_neighbours(xs, weights, n, limit);
        block.nearest_codes(xs, n);
        block.solve_again(xs, weights, n);
        block
    }

    /// A rounded scale's neighbour may fit better, as its codes are other ones.
    #[inline(always)]
    fn best_neighbours(&mut self, xs: &[f32; QK_K], weights: &[f32; QK_K], n: i32, limit: i32) {
        let d = f16_to_f32(self.d);
        for j in 0..16 {
            let scale = i32::from(self.scales[j]);
            let near = [0, 1, -1, 2, -2, 3, -3, 4].map(|by| (scale + by).clamp(-limit, limit - 1));
            let values = near.map(|scale| (d * scale as f32, 0.));
            let best = fit::best_of::<16>(part(xs, j), part(weights, j), values, (-n, n - 1));
            self.scales[j] = near[best] as i8;
        }
    }

    /// The nearest codes for these scales.
    #[inline(always)]
    fn nearest_codes(&mut self, xs: &[f32; QK_K], n: i32) {
        let d = f16_to_f32(self.d);
        for (j, &scale) in self.scales.iter().enumerate() {
            let (by, xs) = (inverse(d * f32::from(scale)), part::<16>(xs, j));
            for (q, x) in self.codes[16 * j..16 * (j + 1)].iter_mut().zip(xs) {
                *q = nearest_in(x * by, -n, n - 1) as i8;
            }
        }
    }

    /// Solves for the scale of the super-block, and takes the solution and its nearest codes if the error is smaller.
    #[inline(always)]
    fn solve_again(&mut self, xs: &[f32; QK_K], weights: &[f32; QK_K], n: i32) {
        let mut sums = TwoUnknowns::default();
        for (j, &scale) in self.scales.iter().enumerate() {
            let code = |i: usize| f32::from(self.codes[16 * j + i]);
            sums.add::<16>(part(xs, j), part(weights, j), code, f32::from(scale), 0.);
        }
        let Some((d, _)) = sums.solve() else {
            return;
        };
        let d = f16::from_f32(d);
        let error = |d| sums.error(f16_to_f32(d), 0.);
        if error(d) < error(self.d) {
            self.d = d;
            self.nearest_codes(xs, n);
        }
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

impl Encode<QK_K> for BlockQ2K {
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], weights: Option<&[f32; QK_K]>) -> Self {
        let block = AboveMinimum::<16, 16>::new(xs, weights.unwrap_or(&EQUAL), 3, 15);
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
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], weights: Option<&[f32; QK_K]>) -> Self {
        let block = Symmetric::new(xs, weights.unwrap_or(&EQUAL), 4, 32);
        let codes = block.codes.map(|q| (q + 4) as u8);
        Self {
            hmask: one_bit::<2>(&codes),
            qs: two_bits(&codes),
            scales: pack_signed_scales(&block.scales),
            d: block.d,
        }
    }
}

impl Encode<QK_K> for BlockQ4K {
    #[inline(always)]
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], weights: Option<&[f32; QK_K]>) -> Self {
        let block = AboveMinimum::<8, 32>::new(xs, weights.unwrap_or(&EQUAL), 15, 63);
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
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], weights: Option<&[f32; QK_K]>) -> Self {
        let block = AboveMinimum::<8, 32>::new(xs, weights.unwrap_or(&EQUAL), 31, 63);
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
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], weights: Option<&[f32; QK_K]>) -> Self {
        let block = Symmetric::new(xs, weights.unwrap_or(&EQUAL), 32, 128);
        let codes = block.codes.map(|q| (q + 32) as u8);
        let upper = codes.map(|q| q >> 4);
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
    unsafe fn encode<S: Simd>(xs: &[f32; QK_K], _weights: Option<&[f32; QK_K]>) -> Self {
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
