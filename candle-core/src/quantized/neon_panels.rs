//! [`PanelSimd`] for AArch64: panels of 8 rows in two vectors.
//!
//! Everything here is private: `k_quants` detects the features at run time before it calls.

use std::arch::aarch64::*;

use super::k_quants::lanes::{transpose_in_halves, PanelKernel, PanelSimd};
use super::k_quants::simd::Simd;
use super::neon::{ByteProducts, DotProd, Neon};

/// Runs a kernel with the instruction SDOT.
///
/// # Safety
/// The CPU has it.
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn run_dot_prod<K: PanelKernel>(kernel: K) {
    kernel.run::<Neon<DotProd>>()
}

/// Word `j` of four rows in vector `j`.
#[inline(always)]
unsafe fn transpose_four([a, b, c, d]: [uint8x16_t; 4]) -> [uint8x16_t; 4] {
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

/// Eight signed bytes as floats.
#[inline(always)]
unsafe fn floats_of(bytes: int8x8_t) -> [float32x4_t; 2] {
    let words = vmovl_s8(bytes);
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))),
        vcvtq_f32_s32(vmovl_high_s16(words)),
    ]
}

impl<P: ByteProducts> PanelSimd for Neon<P> {
    const ROWS: usize = 8;
    const UNSIGNED: bool = false;
    type Fours = [int8x16_t; 2];
    type Sums = [int32x4_t; 2];
    type Totals = [int32x4_t; 2];
    type Values = [float32x4_t; 2];

    #[inline(always)]
    unsafe fn transpose(rows: [Self::Bytes; 8]) -> [Self::Bytes; 8] {
        // SAFETY: NEON is available, by this function's contract.
        transpose_in_halves(rows, |four| unsafe { transpose_four(four) })
    }

    #[inline(always)]
    unsafe fn flip_signs(bytes: Self::Bytes) -> Self::Bytes {
        let sign = vdupq_n_u8(0x80);
        [veorq_u8(bytes[0], sign), veorq_u8(bytes[1], sign)]
    }

    #[inline(always)]
    unsafe fn store(p: *mut u8, bytes: Self::Bytes) {
        vst1q_u8(p, bytes[0]);
        vst1q_u8(p.add(16), bytes[1]);
    }

    #[inline(always)]
    unsafe fn eight_bytes(word: u64) -> Self::Floats {
        floats_of(vcreate_s8(word))
    }

    #[inline(always)]
    unsafe fn eight_floats(halves: [u16; 8]) -> Self::Floats {
        // Like `utils::f16_to_f32`, four at a time.
        let halves = vld1q_u16(halves.as_ptr());
        [
            four_floats(vmovl_u16(vget_low_u16(halves))),
            four_floats(vmovl_high_u16(halves)),
        ]
    }

    #[inline(always)]
    unsafe fn eights(bytes: Self::Bytes) -> [Self::Floats; 4] {
        let (low, high) = (vreinterpretq_s8_u8(bytes[0]), vreinterpretq_s8_u8(bytes[1]));
        [
            floats_of(vget_low_s8(low)),
            floats_of(vget_high_s8(low)),
            floats_of(vget_low_s8(high)),
            floats_of(vget_high_s8(high)),
        ]
    }

    #[inline(always)]
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn store_eight(p: *mut f32, values: Self::Floats) {
        vst1q_f32(p, values[0]);
        vst1q_f32(p.add(4), values[1]);
    }

    #[inline(always)]
    unsafe fn load_fours(p: *const u8) -> Self::Fours {
        [vld1q_s8(p.cast()), vld1q_s8(p.add(16).cast())]
    }

    #[inline(always)]
    unsafe fn dot_fours<const SIGNED: bool>(
        sum: Self::Sums,
        x: Self::Fours,
        y: *const i8,
    ) -> Self::Sums {
        // Unsigned codes are below 64, so both kinds are valid signed bytes.
        let y = vreinterpretq_s8_s32(vdupq_n_s32(y.cast::<i32>().read_unaligned()));
        [P::add_fours(sum[0], x[0], y), P::add_fours(sum[1], x[1], y)]
    }

    #[inline(always)]
    unsafe fn splat_sum(p: *const i32) -> Self::Sums {
        [vdupq_n_s32(*p); 2]
    }

    #[inline(always)]
    unsafe fn zero_sums() -> Self::Sums {
        [vdupq_n_s32(0); 2]
    }

    #[inline(always)]
    unsafe fn values_of(sums: Self::Sums) -> Self::Values {
        Self::floats(sums)
    }

    #[inline(always)]
    unsafe fn zero_totals() -> Self::Totals {
        Self::zero_sums()
    }

    #[inline(always)]
    unsafe fn load_whole(p: *const f32) -> Self::Totals {
        [
            vcvtq_s32_f32(vld1q_f32(p)),
            vcvtq_s32_f32(vld1q_f32(p.add(4))),
        ]
    }

    #[inline(always)]
    unsafe fn add_times(total: Self::Totals, sums: Self::Sums, by: Self::Totals) -> Self::Totals {
        [
            vmlaq_s32(total[0], sums[0], by[0]),
            vmlaq_s32(total[1], sums[1], by[1]),
        ]
    }

    #[inline(always)]
    unsafe fn values_of_totals(totals: Self::Totals) -> Self::Values {
        Self::floats(totals)
    }

    #[inline(always)]
    unsafe fn splat_value(p: *const f32) -> Self::Values {
        Self::splat(*p)
    }

    #[inline(always)]
    unsafe fn zero_values() -> Self::Values {
        Self::splat(0.)
    }

    #[inline(always)]
    unsafe fn load_values(p: *const f32) -> Self::Values {
        [vld1q_f32(p), vld1q_f32(p.add(4))]
    }

    #[inline(always)]
    unsafe fn store_values(p: *mut f32, values: Self::Values) {
        Self::store_eight(p, values)
    }

    #[inline(always)]
    unsafe fn fma(a: Self::Values, b: Self::Values, c: Self::Values) -> Self::Values {
        Self::mul_add(a, b, c)
    }
}

/// Converts four f16, in the lower parts of four words, to floats.
#[inline(always)]
unsafe fn four_floats(bits: uint32x4_t) -> float32x4_t {
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
