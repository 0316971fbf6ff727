//! Dequantisation of blocks. The order of the multiplications is part of the formats: it determines the last bit.

use super::pack::{scales_and_mins, signed_scales};
use super::utils::f16_to_f32;
use super::*;

/// A block that can be decoded.
pub(crate) trait Decode {
    /// Writes the elements of the block, `ys.len()` of them.
    fn decode(&self, ys: &mut [f32]);
}

/// The values of 32 codes.
#[inline(always)]
fn values<T: Copy>(ys: &mut [f32], codes: &[T; 32], value: impl Fn(T) -> f32) {
    for (y, &q) in ys.iter_mut().zip(codes) {
        *y = value(q);
    }
}

/// 32 nibbles: the low ones, then the high ones.
#[inline(always)]
fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// 32 codes of 5 bits.
#[inline(always)]
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let (low, high) = (nibbles(qs), u32::from_le_bytes(qh));
    std::array::from_fn(|i| low[i] | ((high >> i) as u8 & 1) << 4)
}

impl Decode for BlockQ4_0 {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let d = f16_to_f32(self.d);
        values(ys, &nibbles(&self.qs), |q| f32::from(q as i8 - 8) * d);
    }
}

impl Decode for BlockQ4_1 {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let (d, m) = (f16_to_f32(self.d), f16_to_f32(self.m));
        values(ys, &nibbles(&self.qs), |q| f32::from(q) * d + m);
    }
}

impl Decode for BlockQ5_0 {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let d = f16_to_f32(self.d);
        let codes = five_bits(&self.qs, self.qh);
        values(ys, &codes, |q| f32::from(q as i8 - 16) * d);
    }
}

impl Decode for BlockQ5_1 {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let (d, m) = (f16_to_f32(self.d), f16_to_f32(self.m));
        let codes = five_bits(&self.qs, self.qh);
        values(ys, &codes, |q| f32::from(q) * d + m);
    }
}

impl Decode for BlockQ8_0 {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let d = f16_to_f32(self.d);
        values(ys, &self.qs, |q| f32::from(q) * d);
    }
}

impl Decode for BlockQ8_1 {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let d = f16_to_f32(self.d);
        values(ys, &self.qs, |q| f32::from(q) * d);
    }
}

/// The values of 256 codes in sub-blocks of `LEN`: `value` takes the index of the sub-block and returns the function
/// from codes to values; `code` takes the index of a run of 32 elements and the index within it.
#[inline(always)]
fn sub_blocks<const LEN: usize, V: Fn(f32) -> f32>(
    ys: &mut [f32],
    code: impl Fn(usize, usize) -> i8,
    value: impl Fn(usize) -> V,
) {
    for (s, ys) in ys.chunks_exact_mut(LEN).enumerate() {
        let value = value(s);
        let (run, first) = (s * LEN / 32, s * LEN % 32);
        for (i, y) in ys.iter_mut().enumerate() {
            *y = value(f32::from(code(run, first + i)));
        }
    }
}

/// Returns the function from codes above a minimum to values.
#[inline(always)]
fn above_minimum(d: f32, dmin: f32, scale: u8, min: u8) -> impl Fn(f32) -> f32 {
    let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
    move |q| scale * q - min
}

/// The two bits of element `i` of run `j`.
#[inline(always)]
fn two_bits(qs: &[u8; QK_K / 4], j: usize, i: usize) -> u8 {
    (qs[32 * (j / 4) + i] >> (2 * (j % 4))) & 3
}

/// The nibble of element `i` of run `j`.
#[inline(always)]
fn four_bits(qs: &[u8; QK_K / 2], j: usize, i: usize) -> u8 {
    (qs[32 * (j / 2) + i] >> (4 * (j % 2))) & 15
}

/// Bit `j` of a byte.
#[inline(always)]
fn bit(byte: u8, j: usize) -> u8 {
    (byte >> j) & 1
}

impl Decode for BlockQ2K {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let code = |j, i| two_bits(&self.qs, j, i) as i8;
        sub_blocks::<16, _>(ys, code, |s| {
            above_minimum(d, dmin, self.scales[s] & 15, self.scales[s] >> 4)
        });
    }
}

impl Decode for BlockQ3K {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let d = f16_to_f32(self.d);
        let scales = signed_scales(&self.scales).map(u64::to_le_bytes);
        let code = |j, i: usize| (two_bits(&self.qs, j, i) | bit(self.hmask[i], j) << 2) as i8 - 4;
        sub_blocks::<16, _>(ys, code, |s| {
            let scale = d * f32::from(scales[s / 8][s % 8] as i8);
            move |q| scale * q
        });
    }
}

impl Decode for BlockQ4K {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        let (scales, mins) = (scales.to_le_bytes(), mins.to_le_bytes());
        let code = |j, i| four_bits(&self.qs, j, i) as i8;
        sub_blocks::<32, _>(ys, code, |s| above_minimum(d, dmin, scales[s], mins[s]));
    }
}

impl Decode for BlockQ5K {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let (d, dmin) = (f16_to_f32(self.d), f16_to_f32(self.dmin));
        let (scales, mins) = scales_and_mins(&self.scales);
        let (scales, mins) = (scales.to_le_bytes(), mins.to_le_bytes());
        let code = |j, i: usize| (four_bits(&self.qs, j, i) | bit(self.qh[i], j) << 4) as i8;
        sub_blocks::<32, _>(ys, code, |s| above_minimum(d, dmin, scales[s], mins[s]));
    }
}

impl Decode for BlockQ6K {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        let d = f16_to_f32(self.d);
        let code = |j: usize, i: usize| {
            let (half, part) = (j / 4, j % 4);
            let low = (self.ql[64 * half + 32 * (part % 2) + i] >> (4 * (part / 2))) & 15;
            (low | two_bits(&self.qh, j, i) << 4) as i8 - 32
        };
        sub_blocks::<16, _>(ys, code, |s| {
            let scale = d * f32::from(self.scales[s]);
            move |q| scale * q
        });
    }
}

impl Decode for BlockQ8K {
    #[inline(always)]
    fn decode(&self, ys: &mut [f32]) {
        for (y, &q) in ys.iter_mut().zip(&self.qs) {
            *y = self.d * f32::from(q);
        }
    }
}
