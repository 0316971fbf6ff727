//! `Simd` for AArch64: NEON, which every CPU has, and SDOT, which most have.
//!
//! Everything here is private. `Neon::detect` detects the features at run time; all functions take its value as their proof.

use std::arch::{aarch64::*, asm};
use std::marker::PhantomData;

use half::f16;

use super::k_quants::simd::{Kernel, Simd};
use super::utils::f16_to_f32;

/// Runs a kernel with the instruction SDOT.
pub(crate) fn run_dot_prod<K: Kernel>(s: Neon<DotProd>, kernel: K) -> K::Output {
    #[target_feature(enable = "neon,dotprod")]
    fn run<K: Kernel>(s: Neon<DotProd>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has it.
    unsafe { run(s, kernel) }
}

/// Sums of the products of four neighbouring signed bytes.
pub(crate) trait ByteProducts: Sized + Copy + 'static {
    /// The products of 16 bytes in four sums, in any grouping.
    fn dot(s: Neon<Self>, x: int8x16_t, y: int8x16_t) -> int32x4_t;
    /// `sum` plus the products, with four neighbours added to each sum.
    fn add_fours(s: Neon<Self>, sum: int32x4_t, x: int8x16_t, y: int8x16_t) -> int32x4_t;
}

/// Through 16-bit products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plain;

/// In one instruction (FEAT_DotProd: optional in Armv8.2, mandatory in Armv8.4, present in all of Apple's M series).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DotProd;

impl ByteProducts for Plain {
    #[inline(always)]
    fn dot(_: Neon<Self>, x: int8x16_t, y: int8x16_t) -> int32x4_t {
        // SAFETY: the first argument is the proof that the CPU has NEON.
        unsafe {
            let low = vmull_s8(vget_low_s8(x), vget_low_s8(y));
            vpadalq_s16(vpaddlq_s16(low), vmull_high_s8(x, y))
        }
    }

    #[inline(always)]
    fn add_fours(_: Neon<Self>, sum: int32x4_t, x: int8x16_t, y: int8x16_t) -> int32x4_t {
        // SAFETY: the first argument is the proof that the CPU has NEON.
        unsafe {
            let low = vpaddlq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)));
            vaddq_s32(sum, vpaddq_s32(low, vpaddlq_s16(vmull_high_s8(x, y))))
        }
    }
}

impl ByteProducts for DotProd {
    #[inline(always)]
    fn dot(s: Neon<Self>, x: int8x16_t, y: int8x16_t) -> int32x4_t {
        // SAFETY: `s` is the proof that the CPU has NEON.
        unsafe { Self::add_fours(s, vdupq_n_s32(0), x, y) }
    }

    #[inline(always)]
    fn add_fours(_: Neon<Self>, mut sum: int32x4_t, x: int8x16_t, y: int8x16_t) -> int32x4_t {
        // SAFETY: the first argument is the proof that the CPU has the instruction, whose intrinsic is not yet in stable Rust.
        unsafe {
            asm!(
                "sdot {sum:v}.4s, {x:v}.16b, {y:v}.16b",
                sum = inout(vreg) sum,
                x = in(vreg) x,
                y = in(vreg) y,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
}

/// Pairs of vectors of 128 bits. A value is the proof that the CPU has NEON and what `P` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neon<P>(PhantomData<P>);

impl Neon<Plain> {
    pub(crate) fn new() -> Self {
        Self(PhantomData)
    }
}

impl Neon<DotProd> {
    pub(crate) fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Self(PhantomData))
    }
}

/// The products of 16 signed bytes, in four sums.
#[inline(always)]
fn dot_16<P: ByteProducts>(s: Neon<P>, x: uint8x16_t, y: uint8x16_t) -> int32x4_t {
    // SAFETY: `s` is the proof that the CPU has NEON.
    unsafe { P::dot(s, vreinterpretq_s8_u8(x), vreinterpretq_s8_u8(y)) }
}

impl<P: ByteProducts> Simd for Neon<P> {
    type Bytes = [uint8x16_t; 2];
    type Signed = [uint8x16_t; 2];
    type Words = [int16x8_t; 2];
    type Scales = [i8; 16];
    type Ints = [int32x4_t; 2];
    type Floats = [float32x4_t; 2];

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            let p = bytes.as_ptr();
            [vld1q_u8(p), vld1q_u8(p.add(16))]
        }
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 16]) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            let bytes = vld1q_u8(bytes.as_ptr());
            [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
        }
    }

    #[inline(always)]
    fn fifth_bits(self, bits: [u8; 4]) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let of = |low: u8, high: u8| {
                let bits = vcombine_u8(vdup_n_u8(low), vdup_n_u8(high));
                vandq_u8(vtstq_u8(bits, bit), vdupq_n_u8(16))
            };
            [of(bits[0], bits[1]), of(bits[2], bits[3])]
        }
    }

    #[inline(always)]
    fn right<const BY: i32>(self, b: Self::Bytes, mask: u8) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let (by, mask) = (vdupq_n_s8(-BY as i8), vdupq_n_u8(mask));
            [
                vandq_u8(vshlq_u8(b[0], by), mask),
                vandq_u8(vshlq_u8(b[1], by), mask),
            ]
        }
    }

    #[inline(always)]
    fn left<const BY: i32>(self, b: Self::Bytes, mask: u8) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let (by, mask) = (vdupq_n_s8(BY as i8), vdupq_n_u8(mask));
            [
                vandq_u8(vshlq_u8(b[0], by), mask),
                vandq_u8(vshlq_u8(b[1], by), mask),
            ]
        }
    }

    #[inline(always)]
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])] }
    }

    #[inline(always)]
    fn less(self, b: Self::Bytes, by: u8) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let by = vdupq_n_u8(by);
            [vsubq_u8(b[0], by), vsubq_u8(b[1], by)]
        }
    }

    #[cfg(feature = "all-ggml-types")]
    #[inline(always)]
    fn look_up(self, codes: Self::Bytes, table: &[i8; 16]) -> Self::Bytes {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            let table = vld1q_u8(table.as_ptr().cast());
            [vqtbl1q_u8(table, codes[0]), vqtbl1q_u8(table, codes[1])]
        }
    }

    #[inline(always)]
    fn signed(self, b: Self::Bytes) -> Self::Bytes {
        b
    }

    #[inline(always)]
    fn dot_signed(self, x: Self::Bytes, y: Self::Bytes) -> Self::Ints {
        [dot_16(self, x[0], y[0]), dot_16(self, x[1], y[1])]
    }

    #[inline(always)]
    fn dot(self, x: Self::Bytes, y: Self::Bytes) -> Self::Ints {
        self.dot_signed(x, y)
    }

    #[inline(always)]
    fn dot_wide(self, x: Self::Bytes, y: Self::Bytes) -> Self::Ints {
        self.dot_signed(x, y)
    }

    #[inline(always)]
    fn scales_of_16(self, bytes: [u64; 2]) -> [i8; 16] {
        let bytes = u128::from(bytes[0]) | u128::from(bytes[1]) << 64;
        bytes.to_le_bytes().map(|b| b as i8)
    }

    #[inline(always)]
    fn scales_of_32(self, bytes: u64) -> [i8; 16] {
        let bytes = bytes.to_le_bytes();
        std::array::from_fn(|i| bytes[i / 2] as i8)
    }

    #[inline(always)]
    fn dot_scaled<const J: usize>(
        self,
        sum: Self::Ints,
        x: Self::Bytes,
        y: Self::Bytes,
        scales: [i8; 16],
    ) -> Self::Ints {
        // SAFETY: every AArch64 has NEON.
        unsafe {
            let (low, high) = (i32::from(scales[2 * J]), i32::from(scales[2 * J + 1]));
            [
                vmlaq_n_s32(sum[0], dot_16(self, x[0], y[0]), low),
                vmlaq_n_s32(sum[1], dot_16(self, x[1], y[1]), high),
            ]
        }
    }

    #[inline(always)]
    fn load_words(self, words: &[i16; 16]) -> Self::Words {
        // SAFETY: `self` is the proof that the CPU has NEON, and pointers are to arrays of as many bytes as it reads or writes.
        unsafe {
            let p = words.as_ptr();
            [vld1q_s16(p), vld1q_s16(p.add(8))]
        }
    }

    #[inline(always)]
    fn words_of_16(self, bytes: [u64; 2]) -> Self::Words {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            [
                vmovl_s8(vcreate_s8(bytes[0])),
                vmovl_s8(vcreate_s8(bytes[1])),
            ]
        }
    }

    #[inline(always)]
    fn words_of_32(self, bytes: u64) -> Self::Words {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let bytes = vcreate_s8(bytes);
            [
                vmovl_s8(vzip1_s8(bytes, bytes)),
                vmovl_s8(vzip2_s8(bytes, bytes)),
            ]
        }
    }

    #[inline(always)]
    fn dot_words(self, x: Self::Words, y: Self::Words) -> Self::Ints {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let dot = |x: int16x8_t, y: int16x8_t| {
                let low = vmull_s16(vget_low_s16(x), vget_low_s16(y));
                vmlal_high_s16(low, x, y)
            };
            [dot(x[0], y[0]), dot(x[1], y[1])]
        }
    }

    #[inline(always)]
    fn no_ints(self) -> Self::Ints {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vdupq_n_s32(0); 2] }
    }

    #[inline(always)]
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vaddq_s32(a[0], b[0]), vaddq_s32(a[1], b[1])] }
    }

    #[inline(always)]
    fn total(self, x: Self::Ints) -> Self::Ints {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vdupq_n_s32(vaddvq_s32(vaddq_s32(x[0], x[1]))); 2] }
    }

    #[inline(always)]
    fn sub_shifted<const BY: i32>(self, a: Self::Ints, b: Self::Ints) -> Self::Ints {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe {
            let by = vdupq_n_s32(BY);
            [
                vsubq_s32(a[0], vshlq_s32(b[0], by)),
                vsubq_s32(a[1], vshlq_s32(b[1], by)),
            ]
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vdupq_n_f32(x); 2] }
    }

    #[inline(always)]
    fn splat_f16(self, x: f16) -> Self::Floats {
        self.splat(f16_to_f32(x))
    }

    #[inline(always)]
    fn floats(self, x: Self::Ints) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vcvtq_f32_s32(x[0]), vcvtq_f32_s32(x[1])] }
    }

    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    fn neg_mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { [vfmsq_f32(c[0], a[0], b[0]), vfmsq_f32(c[1], a[1], b[1])] }
    }

    #[inline(always)]
    fn first(self, x: Self::Floats) -> f32 {
        // SAFETY: `self` is the proof that the CPU has NEON.
        unsafe { vgetq_lane_f32::<0>(x[0]) }
    }
}
