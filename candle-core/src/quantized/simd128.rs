//! `Simd` for WebAssembly with `simd128`, which is selected at compile time. Everything here is private.

use std::arch::wasm32::*;

use half::f16;

use super::k_quants::simd::Simd;
use super::utils::f16_to_f32;

/// Pairs of vectors of 128 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    fn load(self, bytes: &[u8; 32]) -> [v128; 2] {
        let p = bytes.as_ptr();
        // SAFETY: `p` points to 32 bytes.
        unsafe { [v128_load(p.cast()), v128_load(p.add(16).cast())] }
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 16]) -> [v128; 2] {
        // SAFETY: the pointer is to 16 bytes.
        let bytes = unsafe { v128_load(bytes.as_ptr().cast()) };
        [v128_and(bytes, u8x16_splat(15)), u8x16_shr(bytes, 4)]
    }

    #[inline(always)]
    fn fifth_bits(self, bits: [u8; 4]) -> [v128; 2] {
        let bit = u64x2_splat(0x8040_2010_0804_0201);
        let of = |low: u8, high: u8| {
            let spread = |b: u8| u64::from(b) * 0x0101_0101_0101_0101;
            let bits = v128_and(u64x2(spread(low), spread(high)), bit);
            v128_and(u8x16_eq(bits, bit), u8x16_splat(16))
        };
        [of(bits[0], bits[1]), of(bits[2], bits[3])]
    }

    #[inline(always)]
    fn right<const BY: i32>(self, b: [v128; 2], mask: u8) -> [v128; 2] {
        b.map(|b| v128_and(u8x16_shr(b, BY as u32), u8x16_splat(mask)))
    }

    #[inline(always)]
    fn left<const BY: i32>(self, b: [v128; 2], mask: u8) -> [v128; 2] {
        b.map(|b| v128_and(u8x16_shl(b, BY as u32), u8x16_splat(mask)))
    }

    #[inline(always)]
    fn or(self, a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [v128_or(a[0], b[0]), v128_or(a[1], b[1])]
    }

    #[inline(always)]
    fn less(self, b: [v128; 2], by: u8) -> [v128; 2] {
        b.map(|b| u8x16_sub(b, u8x16_splat(by)))
    }

    #[cfg(feature = "all-ggml-types")]
    #[inline(always)]
    fn look_up(self, codes: [v128; 2], table: &[i8; 16]) -> [v128; 2] {
        // SAFETY: the pointer is to 16 bytes.
        let table = unsafe { v128_load(table.as_ptr().cast()) };
        codes.map(|codes| u8x16_swizzle(table, codes))
    }

    #[inline(always)]
    fn signed(self, b: [v128; 2]) -> [v128; 2] {
        b
    }

    #[inline(always)]
    fn dot_signed(self, x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
        [dot_16(x[0], y[0]), dot_16(x[1], y[1])]
    }

    #[inline(always)]
    fn dot(self, x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
        self.dot_signed(x, y)
    }

    #[inline(always)]
    fn dot_wide(self, x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
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
    fn load_words(self, words: &[i16; 16]) -> [v128; 2] {
        self.load(bytemuck::cast_ref(words))
    }

    #[inline(always)]
    fn words_of_16(self, bytes: [u64; 2]) -> [v128; 2] {
        let bytes = u64x2(bytes[0], bytes[1]);
        [
            i16x8_extend_low_i8x16(bytes),
            i16x8_extend_high_i8x16(bytes),
        ]
    }

    #[inline(always)]
    fn words_of_32(self, bytes: u64) -> [v128; 2] {
        let bytes = u64x2(bytes, 0);
        let twice = i8x16_shuffle::<0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7>(bytes, bytes);
        [
            i16x8_extend_low_i8x16(twice),
            i16x8_extend_high_i8x16(twice),
        ]
    }

    #[inline(always)]
    fn dot_words(self, x: [v128; 2], y: [v128; 2]) -> [v128; 2] {
        [i32x4_dot_i16x8(x[0], y[0]), i32x4_dot_i16x8(x[1], y[1])]
    }

    #[inline(always)]
    fn no_ints(self) -> [v128; 2] {
        [i32x4_splat(0); 2]
    }

    #[inline(always)]
    fn add_ints(self, a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [i32x4_add(a[0], b[0]), i32x4_add(a[1], b[1])]
    }

    #[inline(always)]
    fn total(self, x: [v128; 2]) -> [v128; 2] {
        let x = i32x4_add(x[0], x[1]);
        let x = i32x4_add(x, i32x4_shuffle::<2, 3, 0, 1>(x, x));
        [i32x4_add(x, i32x4_shuffle::<1, 0, 3, 2>(x, x)); 2]
    }

    #[inline(always)]
    fn sub_shifted<const BY: i32>(self, a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        let by = BY as u32;
        [
            i32x4_sub(a[0], i32x4_shl(b[0], by)),
            i32x4_sub(a[1], i32x4_shl(b[1], by)),
        ]
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [v128; 2] {
        [f32x4_splat(x); 2]
    }

    #[inline(always)]
    fn splat_f16(self, x: f16) -> [v128; 2] {
        self.splat(f16_to_f32(x))
    }

    #[inline(always)]
    fn floats(self, x: [v128; 2]) -> [v128; 2] {
        x.map(|x| f32x4_convert_i32x4(x))
    }

    #[inline(always)]
    fn mul(self, a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [f32x4_mul(a[0], b[0]), f32x4_mul(a[1], b[1])]
    }

    #[inline(always)]
    fn mul_add(self, a: [v128; 2], b: [v128; 2], c: [v128; 2]) -> [v128; 2] {
        let [low, high] = self.mul(a, b);
        [f32x4_add(low, c[0]), f32x4_add(high, c[1])]
    }

    #[inline(always)]
    fn neg_mul_add(self, a: [v128; 2], b: [v128; 2], c: [v128; 2]) -> [v128; 2] {
        let [low, high] = self.mul(a, b);
        [f32x4_sub(c[0], low), f32x4_sub(c[1], high)]
    }

    #[inline(always)]
    fn first(self, x: [v128; 2]) -> f32 {
        f32x4_extract_lane::<0>(x[0])
    }
}
