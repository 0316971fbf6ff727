//! `Simd` for AArch64: NEON, which every CPU has, and SDOT, which most have.
//!
//! Everything here is private: `k_quants` detects the features at run time before it calls.

use std::arch::{aarch64::*, asm};
use std::marker::PhantomData;

use half::f16;

use super::k_quants::simd::{Kernel, Simd};
use super::utils::f16_to_f32;

/// Runs a kernel with the instruction SDOT.
///
/// # Safety
/// The CPU has it.
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn run_dot_prod<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Neon<DotProd>>()
}

/// Sums of the products of four neighbouring signed bytes.
pub(crate) trait ByteProducts: Copy + 'static {
    /// The products of 16 bytes in four sums, in any grouping.
    unsafe fn dot(x: int8x16_t, y: int8x16_t) -> int32x4_t;
    /// `sum` plus the products, with four neighbours added to each sum.
    unsafe fn add_fours(sum: int32x4_t, x: int8x16_t, y: int8x16_t) -> int32x4_t;
}

/// Through 16-bit products.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

/// In one instruction (FEAT_DotProd: optional in Armv8.2, mandatory in Armv8.4, present in all of Apple's M series).
#[derive(Clone, Copy)]
pub(crate) struct DotProd;

impl ByteProducts for Plain {
    #[inline(always)]
    unsafe fn dot(x: int8x16_t, y: int8x16_t) -> int32x4_t {
        let low = vmull_s8(vget_low_s8(x), vget_low_s8(y));
        vpadalq_s16(vpaddlq_s16(low), vmull_high_s8(x, y))
    }

    #[inline(always)]
    unsafe fn add_fours(sum: int32x4_t, x: int8x16_t, y: int8x16_t) -> int32x4_t {
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)));
        vaddq_s32(sum, vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(x, y))))
    }
}

impl ByteProducts for DotProd {
    #[inline(always)]
    unsafe fn dot(x: int8x16_t, y: int8x16_t) -> int32x4_t {
        Self::add_fours(vdupq_n_s32(0), x, y)
    }

    #[inline(always)]
    unsafe fn add_fours(mut sum: int32x4_t, x: int8x16_t, y: int8x16_t) -> int32x4_t {
        // The intrinsic is not yet in stable Rust.
        asm!(
            "sdot {sum:v}.4s, {x:v}.16b, {y:v}.16b",
            sum = inout(vreg) sum,
            x = in(vreg) x,
            y = in(vreg) y,
            options(pure, nomem, nostack, preserves_flags)
        );
        sum
    }
}

/// Pairs of vectors of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct Neon<P>(PhantomData<P>);

/// The products of 16 signed bytes, in four sums.
#[inline(always)]
unsafe fn dot_16<P: ByteProducts>(x: uint8x16_t, y: uint8x16_t) -> int32x4_t {
    P::dot(vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(y))
}

impl<P: ByteProducts> Simd for Neon<P> {
    type Bytes = [uint8x16_t; 2];
    type Signed = [uint8x16_t; 2];
    type Words = [int16x8_t; 2];
    type Scales = [i8; 16];
    type Ints = [int32x4_t; 2];
    type Floats = [float32x4_t; 2];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::Bytes {
        [vld1q_u8(p), vld1q_u8(p.add(16))]
    }

    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> Self::Bytes {
        let bytes = vld1q_u8(p);
        [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
    }

    #[inline(always)]
    unsafe fn fifth_bits(bits: [u8; 4]) -> Self::Bytes {
        let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
        let of = |low: u8, high: u8| {
            let bits = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
            vandq_u8(vtstq_u8(bits, bit), vdupq_n_u8(16))
        };
        [of(bits[0], bits[1]), of(bits[2], bits[3])]
    }

    #[inline(always)]
    unsafe fn right<const BY: i32>(b: Self::Bytes, mask: u8) -> Self::Bytes {
        let (by, mask) = (vdupq_n_s8(-BY as i8), vdupq_n_u8(mask));
        [
            vandq_u8(vshlq_u8(b[0], by), mask),
            vandq_u8(vshlq_u8(b[1], by), mask),
        ]
    }

    #[inline(always)]
    unsafe fn left<const BY: i32>(b: Self::Bytes, mask: u8) -> Self::Bytes {
        let (by, mask) = (vdupq_n_s8(BY as i8), vdupq_n_u8(mask));
        [
            vandq_u8(vshlq_u8(b[0], by), mask),
            vandq_u8(vshlq_u8(b[1], by), mask),
        ]
    }

    #[inline(always)]
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn less(b: Self::Bytes, by: u8) -> Self::Bytes {
        let by = vdupq_n_u8(by);
        [vsubq_u8(b[0], by), vsubq_u8(b[1], by)]
    }

    #[inline(always)]
    unsafe fn look_up(codes: Self::Bytes, table: &[i8; 16]) -> Self::Bytes {
        let table = vld1q_u8(table.as_ptr().cast());
        [vqtbl1q_u8(table, codes[0]), vqtbl1q_u8(table, codes[1])]
    }

    #[inline(always)]
    unsafe fn signed(b: Self::Bytes) -> Self::Bytes {
        b
    }

    #[inline(always)]
    unsafe fn dot_signed(x: Self::Bytes, y: Self::Bytes) -> Self::Ints {
        [dot_16::<P>(x[0], y[0]), dot_16::<P>(x[1], y[1])]
    }

    #[inline(always)]
    unsafe fn dot(x: Self::Bytes, y: Self::Bytes) -> Self::Ints {
        Self::dot_signed(x, y)
    }

    #[inline(always)]
    unsafe fn dot_wide(x: Self::Bytes, y: Self::Bytes) -> Self::Ints {
        Self::dot_signed(x, y)
    }

    #[inline(always)]
    unsafe fn scales_of_16(bytes: [u64; 2]) -> [i8; 16] {
        let bytes = u128::from(bytes[0]) | u128::from(bytes[1]) << 64;
        bytes.to_le_bytes().map(|b| b as i8)
    }

    #[inline(always)]
    unsafe fn scales_of_32(bytes: u64) -> [i8; 16] {
        let bytes = bytes.to_le_bytes();
        std::array::from_fn(|i| bytes[i / 2] as i8)
    }

    #[inline(always)]
    unsafe fn dot_scaled<const J: usize>(
        sum: Self::Ints,
        x: Self::Bytes,
        y: Self::Bytes,
        scales: [i8; 16],
    ) -> Self::Ints {
        let (low, high) = (i32::from(scales[2 * J]), i32::from(scales[2 * J + 1]));
        [
            vmlaq_n_s32(sum[0], dot_16::<P>(x[0], y[0]), low),
            vmlaq_n_s32(sum[1], dot_16::<P>(x[1], y[1]), high),
        ]
    }

    #[inline(always)]
    unsafe fn load_words(p: *const i16) -> Self::Words {
        [vld1q_s16(p), vld1q_s16(p.add(8))]
    }

    #[inline(always)]
    unsafe fn words_of_16(bytes: [u64; 2]) -> Self::Words {
        [
            vmovl_s8(vcreate_s8(bytes[0])),
            vmovl_s8(vcreate_s8(bytes[1])),
        ]
    }

    #[inline(always)]
    unsafe fn words_of_32(bytes: u64) -> Self::Words {
        let bytes = vcreate_s8(bytes);
        [
            vmovl_s8(vzip1_s8(bytes, bytes)),
            vmovl_s8(vzip2_s8(bytes, bytes)),
        ]
    }

    #[inline(always)]
    unsafe fn dot_words(x: Self::Words, y: Self::Words) -> Self::Ints {
        let dot = |x: int16x8_t, y: int16x8_t| {
            let low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
            vmlal_high_s16(low, x, y)
        };
        [dot(x[0], y[0]), dot(x[1], y[1])]
    }

    #[inline(always)]
    unsafe fn no_ints() -> Self::Ints {
        [vdupq_n_s32(0); 2]
    }

    #[inline(always)]
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn total(x: Self::Ints) -> Self::Ints {
        [vdupq_n_s32(vaddvq_s32(vaddq_s32(x[0], x[1]))); 2]
    }

    #[inline(always)]
    unsafe fn sub_shifted<const BY: i32>(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        let by = vdupq_n_s32(BY);
        [
            vsubq_s32(a[0], vshlq_s32(b[0], by)),
            vsubq_s32(a[1], vshlq_s32(b[1], by)),
        ]
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::Floats {
        [vdupq_n_f32(x); 2]
    }

    #[inline(always)]
    unsafe fn splat_f16(x: f16) -> Self::Floats {
        Self::splat(f16_to_f32(x))
    }

    #[inline(always)]
    unsafe fn floats(x: Self::Ints) -> Self::Floats {
        [vcvtq_f32_s32(x[0]), vcvtq_f32_s32(x[1])]
    }

    #[inline(always)]
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats {
        [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn neg_mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        [vfmsq_f32(c[0], a[0], b[0]), vfmsq_f32(c[1], a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn first(x: Self::Floats) -> f32 {
        vgetq_lane_f32::<0>(x[0])
    }
}
