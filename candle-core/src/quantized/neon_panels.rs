//! [`PanelSimd`] for AArch64: panels of 8 rows in two vectors.
//!
//! Everything here is private. Values of [`Neon`] are the proof that the CPU has the features.

use std::arch::aarch64::*;

use super::k_quants::lanes::{transpose_in_halves, PanelKernel, PanelSimd};
use super::k_quants::simd::Simd;
use super::neon::{ByteProducts, DotProd, Neon};

/// Runs a kernel with the instruction SDOT.
pub(crate) fn run_dot_prod<K: PanelKernel>(s: Neon<DotProd>, kernel: K) -> K::Output {
    #[target_feature(enable = "neon,dotprod")]
    fn run<K: PanelKernel>(s: Neon<DotProd>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has it.
    unsafe { run(s, kernel) }
}

/// Word `j` of four rows in vector `j`.
#[inline(always)]
fn transpose_four([a, b, c, d]: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
    // SAFETY: every AArch64 has NEON.
    unsafe {
        let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
        let (c, d) = (vreinterpretq_u32_u8(c), vreinterpretq_u32_u8(d));
        // Words 0 and 2 of two rows, then 1 and 3.
        let even = (
            vreinterpretq_u64_u32(vtrn1q_u32(a, b)),
            vreinterpretq_u64_u32(vtrn1q_u32(c, d)),
        );
        let odd = (
            vreinterpretq_u64_u32(vtrn2q_u32(a, b)),
            vreinterpretq_u64_u32(vtrn2q_u32(c, d)),
        );
        [
            vreinterpretq_u8_u64(vtrn1q_u64(even.0, even.1)),
            vreinterpretq_u8_u64(vtrn1q_u64(odd.0, odd.1)),
            vreinterpretq_u8_u64(vtrn2q_u64(even.0, even.1)),
            vreinterpretq_u8_u64(vtrn2q_u64(odd.0, odd.1)),
        ]
    }
}

/// Eight signed bytes as floats.
#[inline(always)]
fn floats_of(bytes: int8x8_t) -> [float32x4_t; 2] {
    // SAFETY: every AArch64 has NEON.
    unsafe {
        let words = vmovl_s8(bytes);
        [
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))),
            vcvtq_f32_s32(vmovl_high_s16(words)),
        ]
    }
}

impl<P: ByteProducts> PanelSimd for Neon<P> {
    const ROWS: usize = 8;
    const UNSIGNED: bool = false;
    type FourOfRows = [u8; 32];
    type OneOfRows = [f32; 8];
    type Fours = [int8x16_t; 2];
    type Sums = [int32x4_t; 2];
    type Totals = [int32x4_t; 2];
    type Values = [float32x4_t; 2];

    #[inline(always)]
    fn transpose(self, rows: [Self::Bytes; 8]) -> [Self::Bytes; 8] {
        transpose_in_halves(rows, transpose_four)
    }

    #[inline(always)]
    fn flip_signs(self, bytes: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let sign = vdupq_n_u8(0x80);
            [veorq_u8(bytes[0], sign), veorq_u8(bytes[1], sign)]
        }
    }

    #[inline(always)]
    fn store(self, to: &mut [u8; 32], bytes: Self::Bytes) {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            let p = to.as_mut_ptr();
            vst1q_u8(p, bytes[0]);
            vst1q_u8(p.add(16), bytes[1]);
        }
    }

    #[inline(always)]
    fn eight_bytes(self, word: u64) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { floats_of(vcreate_s8(word)) }
    }

    #[inline(always)]
    fn eight_floats(self, halves: [u16; 8]) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            // Like `utils::f16_to_f32`, four at a time.
            let halves = vld1q_u16(halves.as_ptr());
            [
                four_floats(vmovl_u16(vget_low_u16(halves))),
                four_floats(vmovl_high_u16(halves)),
            ]
        }
    }

    #[inline(always)]
    fn eights(self, bytes: Self::Bytes) -> [Self::Floats; 4] {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let (low, high) = (vreinterpretq_s8_u8(bytes[0]), vreinterpretq_s8_u8(bytes[1]));
            [
                floats_of(vget_low_s8(low)),
                floats_of(vget_high_s8(low)),
                floats_of(vget_low_s8(high)),
                floats_of(vget_high_s8(high)),
            ]
        }
    }

    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn store_eight(self, to: &mut [f32; 8], values: Self::Floats) {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            let p = to.as_mut_ptr();
            vst1q_f32(p, values[0]);
            vst1q_f32(p.add(4), values[1]);
        }
    }

    #[inline(always)]
    fn load_fours(self, codes: &[u8; 32]) -> Self::Fours {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let [low, high] = self.load(codes);
            [vreinterpretq_s8_u8(low), vreinterpretq_s8_u8(high)]
        }
    }

    #[inline(always)]
    fn dot_fours<const SIGNED: bool>(self, sum: Self::Sums, x: Self::Fours, y: i32) -> Self::Sums {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            // Unsigned codes are below 64, so both kinds are valid signed bytes.
            let y = vreinterpretq_s8_s32(vdupq_n_s32(y));
            [
                P::add_fours(self, sum[0], x[0], y),
                P::add_fours(self, sum[1], x[1], y),
            ]
        }
    }

    #[inline(always)]
    fn splat_sum(self, x: i32) -> Self::Sums {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vdupq_n_s32(x); 2] }
    }

    #[inline(always)]
    fn zero_sums(self) -> Self::Sums {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vdupq_n_s32(0); 2] }
    }

    #[inline(always)]
    fn values_of(self, sums: Self::Sums) -> Self::Values {
        self.floats(sums)
    }

    #[inline(always)]
    fn zero_totals(self) -> Self::Totals {
        self.zero_sums()
    }

    #[inline(always)]
    fn load_whole(self, floats: &[f32; 8]) -> Self::Totals {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let [low, high] = self.load_values(floats);
            [vcvtq_s32_f32(low), vcvtq_s32_f32(high)]
        }
    }

    #[inline(always)]
    fn add_times(self, total: Self::Totals, sums: Self::Sums, by: Self::Totals) -> Self::Totals {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            [
                vmlaq_s32(total[0], sums[0], by[0]),
                vmlaq_s32(total[1], sums[1], by[1]),
            ]
        }
    }

    #[inline(always)]
    fn values_of_totals(self, totals: Self::Totals) -> Self::Values {
        self.floats(totals)
    }

    #[inline(always)]
    fn splat_value(self, x: f32) -> Self::Values {
        self.splat(x)
    }

    #[inline(always)]
    fn zero_values(self) -> Self::Values {
        self.splat(0.)
    }

    #[inline(always)]
    fn load_values(self, floats: &[f32; 8]) -> Self::Values {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            let p = floats.as_ptr();
            [vld1q_f32(p), vld1q_f32(p.add(4))]
        }
    }

    #[inline(always)]
    fn store_values(self, to: &mut [f32; 8], values: Self::Values) {
        self.store_eight(to, values)
    }

    #[inline(always)]
    fn fma(self, a: Self::Values, b: Self::Values, c: Self::Values) -> Self::Values {
        self.mul_add(a, b, c)
    }
}

/// Converts four f16, in the lower parts of four words, to floats.
#[inline(always)]
fn four_floats(bits: uint32x4_t) -> float32x4_t {
    // SAFETY: every AArch64 has NEON.
    unsafe {
        let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
        let magnitude = vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff)));
        let bias = vdupq_n_f32(f32::from_bits((127 + 112) << 23));
        let magnitude = vmulq_f32(vreinterpretq_f32_u32(magnitude), bias);
        // Infinity and NaN: all bits of the exponent are set.
        let top = vdupq_n_u32(0x7c00);
        let endless = vceqq_u32(vandq_u32(bits, top), top);
        let exponent = vandq_u32(endless, vdupq_n_u32(0xff << 23));
        let bits = vorrq_u32(vreinterpretq_u32_f32(magnitude), vorrq_u32(exponent, sign));
        vreinterpretq_f32_u32(bits)
    }
}
