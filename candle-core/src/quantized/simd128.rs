//! `Simd` for WebAssembly with `simd128`, which is selected at compile time. Everything here is private.

use std::arch::wasm32::*;

use half::f16;

use super::k_quants::simd::Simd;
use super::utils::f16_to_f32;

/// Pairs of vectors of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct Simd128;

/// The products of 16 signed bytes, in four sums.
#[inline(always)]
fn dot_16(x: v128, y: v128) -> v128 {
    i32x4_add(
        i32x4_extadd_pairwise_i16x8(i16x8_extmul_low_i8x16(x, y)),
        i32x4_extadd_pairwise_i16x8(i16x8_extmul_high_i8x16(x, y)),
    )
}

impl Simd for Simd128 {
    type Bytes = [v128; 2];
    type Signed = [v128; 2];
    type Words = [v128; 2];
    type Scales = [i8; 16];
    type Ints = [v128; 2];
    type Floats = [v128; 2];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> [v128; 2] {
        [v128_load(p.cast()), v128_load(p.add(16).cast())]
    }

    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> [v128; 2] {
        let bytes = v128_load(p.cast());
        [v128_and(bytes, u8x16_splat(15)), u8x16_shr(bytes, 4)]
    }

    #[inline(always)]
    unsafe fn fifth_bits(bits: [u8; 4]) -> [v128; 2] {
        let bit = u64x2_splat(0x8040_2010_0804_0201);
        let of = |low: u8, high: u8| {
            let spread = |b: u8| u64::from(b) * 0x0101_0101_0101_0101;
            let bits = v128_and(u64x2(spread(low), spread(high)), bit);
            v128_and(u8x16_eq(bits, bit), u8x16_splat(16))
        };
        [of(bits[0], bits[1]), of(bits[2], bits[3])]
    }

    #[inline(always)]
    unsafe fn right<const BY: i32>(b: [v128; 2], mask: u8) -> [v128; 2] {
        b.map(|b| v128_and(u8x16_shr(b, BY as u32), u8x16_splat(mask)))
    }

    #[inline(always)]
    unsafe fn left<const BY: i32>(b: [v128; 2], mask: u8) -> [v128; 2] {
        b.map(|b| v128_and(u8x16_shl(b, BY as u32), u8x16_splat(mask)))
    }

    #[inline(always)]
    unsafe fn or(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [v128_or(a[0], b[0]), v128_or(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn less(b: [v128; 2], by: u8) -> [v128; 2] {
        b.map(|b| u8x16_sub(b, u8x16_splat(by)))
    }

    #[inline(always)]
    unsafe fn look_up(codes: [v128; 2], table: &[i8; 16]) -> [v128; 2] {
        let table = v128_load(table.as_ptr().cast());
        codes.map(|codes| u8x16_swizzle(table, codes))
    }

    #[inline(always)]
    unsafe fn signed(b: [v128; 2]) -> [v128; 2] {
        b
    }

    #[inline(always)]
    unsafe fn dot_signed(x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
        [dot_16(x[0], y[0]), dot_16(x[1], y[1])]
    }

    #[inline(always)]
    unsafe fn dot(x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
        Self::dot_signed(x, y)
    }

    #[inline(always)]
    unsafe fn dot_wide(x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
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
        sum: [v128; 2],
        x: [v128; 2],
        y: [v128; 2],
        scales: [i8; 16],
    ) -> [v128; 2] {
        let scaled = |h: usize| {
            let scale = i32x4_splat(i32::from(scales[2 * J + h]));
            i32x4_add(sum[h], i32x4_mul(dot_16(x[h], y[h]), scale))
        };
        [scaled(0), scaled(1)]
    }

    #[inline(always)]
    unsafe fn load_words(p: *const i16) -> [v128; 2] {
        Self::load(p.cast())
    }

    #[inline(always)]
    unsafe fn words_of_16(bytes: [u64; 2]) -> [v128; 2] {
        let bytes = u64x2(bytes[0], bytes[1]);
        [
            i16x8_extend_low_i8x16(bytes),
            i16x8_extend_high_i8x16(bytes),
        ]
    }

    #[inline(always)]
    unsafe fn words_of_32(bytes: u64) -> [v128; 2] {
        let bytes = u64x2(bytes, 0);
        let twice = i8x16_shuffle::<0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7>(bytes, bytes);
        [
            i16x8_extend_low_i8x16(twice),
            i16x8_extend_high_i8x16(twice),
        ]
    }

    #[inline(always)]
    unsafe fn dot_words(x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
        [i32x4_dot_i16x8(x[0], y[0]), i32x4_dot_i16x8(x[1], y[1])]
    }

    #[inline(always)]
    unsafe fn no_ints() -> [v128; 2] {
        [i32x4_splat(0); 2]
    }

    #[inline(always)]
    unsafe fn add_ints(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [i32x4_add(a[0], b[0]), i32x4_add(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn total(x: [v128; 2]) -> [v128; 2] {
        let x = i32x4_add(x[0], x[1]);
        let x = i32x4_add(x, i32x4_shuffle::<2, 3, 0, 1>(x, x));
        [i32x4_add(x, i32x4_shuffle::<1, 0, 3, 2>(x, x)); 2]
    }

    #[inline(always)]
    unsafe fn sub_shifted<const BY: i32>(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        let by = BY as u32;
        [
            i32x4_sub(a[0], i32x4_shl(b[0], by)),
            i32x4_sub(a[1], i32x4_shl(b[1], by)),
        ]
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> [v128; 2] {
        [f32x4_splat(x); 2]
    }

    #[inline(always)]
    unsafe fn splat_f16(x: f16) -> [v128; 2] {
        Self::splat(f16_to_f32(x))
    }

    #[inline(always)]
    unsafe fn floats(x: [v128; 2]) -> [v128; 2] {
        x.map(|x| f32x4_convert_i32x4(x))
    }

    #[inline(always)]
    unsafe fn mul(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [f32x4_mul(a[0], b[0]), f32x4_mul(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn mul_add(a: [v128; 2], b: [v128; 2], c: [v128; 2]) -> [v128; 2] {
        let [low, high] = Self::mul(a, b);
        [f32x4_add(low, c[0]), f32x4_add(high, c[1])]
    }

    #[inline(always)]
    unsafe fn neg_mul_add(a: [v128; 2], b: [v128; 2], c: [v128; 2]) -> [v128; 2] {
        let [low, high] = Self::mul(a, b);
        [f32x4_sub(c[0], low), f32x4_sub(c[1], high)]
    }

    #[inline(always)]
    unsafe fn first(x: [v128; 2]) -> f32 {
        f32x4_extract_lane::<0>(x[0])
    }
}
