//! Codes for the k-quants: scales for the sub-blocks are searched for (`fit.rs`), themselves put into a few bits, and at last the
//! super-block's scale is solved for again with all codes known.

use half::f16;

use super::encode_legacy::Encode;
use super::fit::{self, TwoUnknowns};
use super::pack::{pack_scales_and_mins, pack_signed_scales};
use super::utils::{f16_to_f32, nearest, nearest_in};
use super::*;

/// All weights alike.
const EQUAL: [f32; QK_K] = [1.; QK_K];

/// `1 / d`, and 0 for 0.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0. {
        0.
    } else {
        1. / d
    }
}

/// A super-block with minima before its bits are packed: `N` sub-blocks.
struct AboveMinimum<const N: usize> {
    d: f16,
    dmin: f16,
    scales: [u8; N],
    mins: [u8; N],
    codes: [u8; QK_K],
}

impl<const N: usize> AboveMinimum<N> {
    const LEN: usize = QK_K / N;

    /// Codes in `0..=n`, scales and minima in `0..=limit`.
    #[inline(always)]
    fn new(xs: &[f32], weights: Option<&[f32]>, n: i32, limit: i32) -> Self {
        let weights = weights.unwrap_or(&EQUAL);
        let (mut scales, mut mins) = ([0f32; N], [0f32; N]);
        for j in 0..N {
            let part = j * Self::LEN..(j + 1) * Self::LEN;
            let (scale, min) = fit::above_minimum(&xs[part.clone()], &weights[part], n, true);
            (scales[j], mins[j]) = (scale, -min);
        }
        let largest = |of: &[f32; N]| of.iter().fold(0f32, |a, &s| a.max(s));
        let d = f16::from_f32(largest(&scales) / limit as f32);
        let dmin = f16::from_f32(largest(&mins) / limit as f32);
        let (by, min_by) = (inverse(f16_to_f32(d)), inverse(f16_to_f32(dmin)));
        let mut block = Self {
            d,
            dmin,
            scales: scales.map(|s| nearest_in(s * by, 0, limit) as u8),
            mins: mins.map(|m| nearest_in(m * min_by, 0, limit) as u8),
            codes: [0; QK_K],
        };
        block.nearest_codes(xs, n);
        block.refine(xs, weights, n);
        block
    }

    /// The nearest codes for these scales.
    #[inline(always)]
    fn nearest_codes(&mut self, xs: &[f32], n: i32) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        for j in 0..N {
            let by = inverse(d * f32::from(self.scales[j]));
            let min = dmin * f32::from(self.mins[j]);
            for i in j * Self::LEN..(j + 1) * Self::LEN {
                self.codes[i] = nearest_in((xs[i] + min) * by, 0, n) as u8;
            }
        }
    }

    /// Solves for the two scales of the super-block, and takes the solution and its nearest codes if the error is smaller.
    #[inline(always)]
    fn refine(&mut self, xs: &[f32], weights: &[f32], n: i32) {
        let mut sums = TwoUnknowns::default();
        for i in 0..QK_K {
            let j = i / Self::LEN;
            let a = f32::from(self.scales[j]) * f32::from(self.codes[i]);
            sums.add(weights[i], xs[i], a, f32::from(self.mins[j]));
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
    fn new(xs: &[f32], weights: Option<&[f32]>, n: i32, limit: i32) -> Self {
        let weights = weights.unwrap_or(&EQUAL);
        let mut scales = [0f32; 16];
        for (j, scale) in scales.iter_mut().enumerate() {
            let part = j * 16..(j + 1) * 16;
            *scale = fit::symmetric(&xs[part.clone()], &weights[part], n);
        }
        let largest = scales.iter().fold(0f32, |a, &s| if s.abs() > a.abs() { s } else { a });
        let d = f16::from_f32(largest / -limit as f32);
        let by = inverse(f16_to_f32(d));
        let mut block = Self {
            d,
            scales: scales.map(|s| nearest_in(s * by, -limit, limit - 1) as i8),
            codes: [0; QK_K],
        };
        block.nearest_codes(xs, n);
        block.refine(xs, weights, n);
        block
    }

    /// The nearest codes for these scales.
    #[inline(always)]
    fn nearest_codes(&mut self, xs: &[f32], n: i32) {
        let d = f16_to_f32(self.d);
        for (j, &scale) in self.scales.iter().enumerate() {
            let by = inverse(d * f32::from(scale));
            for i in 16 * j..16 * (j + 1) {
                self.codes[i] = nearest_in(xs[i] * by, -n, n - 1) as i8;
            }
        }
    }

    /// Solves for the scale of the super-block, and takes the solution and its nearest codes if the error is smaller.
    #[inline(always)]
    fn refine(&mut self, xs: &[f32], weights: &[f32], n: i32) {
        let mut sums = TwoUnknowns::default();
        for i in 0..QK_K {
            let a = f32::from(self.scales[i / 16]) * f32::from(self.codes[i]);
            sums.add(weights[i], xs[i], a, 0.);
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
    std::array::from_fn(|b| {
        (0..8).fold(0, |byte, j| byte | ((codes[32 * j + b] >> BIT) & 1) << j)
    })
}

impl Encode for BlockQ2K {
    #[inline(always)]
    fn encode(xs: &[f32], weights: Option<&[f32]>) -> Self {
        let block = AboveMinimum::<16>::new(xs, weights, 3, 15);
        Self {
            scales: std::array::from_fn(|j| block.scales[j] | block.mins[j] << 4),
            qs: two_bits(&block.codes),
            d: block.d,
            dmin: block.dmin,
        }
    }
}

impl Encode for BlockQ3K {
    #[inline(always)]
    fn encode(xs: &[f32], weights: Option<&[f32]>) -> Self {
        let block = Symmetric::new(xs, weights, 4, 32);
        let codes = block.codes.map(|q| (q + 4) as u8);
        Self {
            hmask: one_bit::<2>(&codes),
            qs: two_bits(&codes),
            scales: pack_signed_scales(&block.scales),
            d: block.d,
        }
    }
}

impl Encode for BlockQ4K {
    #[inline(always)]
    fn encode(xs: &[f32], weights: Option<&[f32]>) -> Self {
        let block = AboveMinimum::<8>::new(xs, weights, 15, 63);
        Self {
            d: block.d,
            dmin: block.dmin,
            scales: pack_scales_and_mins(&block.scales, &block.mins),
            qs: four_bits(&block.codes),
        }
    }
}

impl Encode for BlockQ5K {
    #[inline(always)]
    fn encode(xs: &[f32], weights: Option<&[f32]>) -> Self {
        let block = AboveMinimum::<8>::new(xs, weights, 31, 63);
        Self {
            d: block.d,
            dmin: block.dmin,
            scales: pack_scales_and_mins(&block.scales, &block.mins),
            qh: one_bit::<4>(&block.codes),
            qs: four_bits(&block.codes),
        }
    }
}

impl Encode for BlockQ6K {
    #[inline(always)]
    fn encode(xs: &[f32], weights: Option<&[f32]>) -> Self {
        let block = Symmetric::new(xs, weights, 32, 128);
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

impl Encode for BlockQ8K {
    /// The element with the largest magnitude gets the code -127, so that every code can change its sign.
    #[inline(always)]
    fn encode(xs: &[f32], _weights: Option<&[f32]>) -> Self {
        let largest = xs.iter().fold(0f32, |a, &x| if x.abs() > a.abs() { x } else { a });
        if largest == 0. {
            return Self::zeros();
        }
        let by = -127. / largest;
        let mut qs = [0; QK_K];
        for (q, &x) in qs.iter_mut().zip(xs) {
            *q = nearest((by * x).clamp(-127., 127.)) as i8;
        }
        let sum = |j: usize| qs[16 * j..16 * (j + 1)].iter().map(|&q| i16::from(q)).sum();
        Self {
            d: 1. / by,
            qs,
            bsums: std::array::from_fn(sum),
        }
    }
}
