//! [`PanelSimd`] for WebAssembly with `simd128`: panels of 8 rows. Codes are widened to 16 bits when they are loaded, because the
//! multiply-add of neighbours has 16-bit operands. Everything here is private.

use std::arch::wasm32::*;

use super::k_quants::lanes::{transpose_in_halves, PanelSimd};
use super::k_quants::simd::Simd;
use super::simd128::Simd128;

/// Word `j` of four rows in vector `j`.
#[inline(always)]
fn transpose_four([a, b, c, d]: [v128; 4]) -> [v128; 4] {
    let low = (
        i32x4_shuffle::<0, 4, 1, 5>(a, b),
        i32x4_shuffle::<0, 4, 1, 5>(c, d),
    );
    let high = (
        i32x4_shuffle::<2, 6, 3, 7>(a, b),
        i32x4_shuffle::<2, 6, 3, 7>(c, d),
    );
    [
        i64x2_shuffle::<0, 2>(low.0, low.1),
        i64x2_shuffle::<1, 3>(low.0, low.1),
        i64x2_shuffle::<0, 2>(high.0, high.1),
        i64x2_shuffle::<1, 3>(high.0, high.1),
    ]
}

/// Eight signed words as floats.
#[inline(always)]
fn floats_of(words: v128) -> [v128; 2] {
    [
        f32x4_convert_i32x4(i32x4_extend_low_i16x8(words)),
        f32x4_convert_i32x4(i32x4_extend_high_i16x8(words)),
    ]
}

/// Converts four f16, in the lower parts of four words, to floats, like `utils::f16_to_f32`.
#[inline(always)]
fn four_floats(bits: v128) -> v128 {
    let sign = u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16);
    let magnitude = u32x4_shl(v128_and(bits, u32x4_splat(0x7fff)), 13);
    let bias = f32x4_splat(f32::from_bits((127 + 112) << 23));
    let magnitude = f32x4_mul(magnitude, bias);
    // Infinity and NaN: all bits of the exponent are set.
    let top = u32x4_splat(0x7c00);
    let endless = i32x4_eq(v128_and(bits, top), top);
    let exponent = v128_and(endless, u32x4_splat(0xff << 23));
    v128_or(magnitude, v128_or(exponent, sign))
}

/// The sums of neighbours in two vectors.
#[inline(always)]
fn add_pairs(a: v128, b: v128) -> v128 {
    i32x4_add(
        i32x4_shuffle::<0, 2, 4, 6>(a, b),
        i32x4_shuffle::<1, 3, 5, 7>(a, b),
    )
}

impl PanelSimd for Simd128 {
    const ROWS: usize = 8;
    const UNSIGNED: bool = false;
    type FourOfRows = [u8; 32];
    type OneOfRows = [f32; 8];
    /// As words, two rows in a vector.
    type Fours = [v128; 4];
    /// Two parts of each row's sum, two rows in a vector.
    type Sums = [v128; 4];
    type Totals = [v128; 2];
    type Values = [v128; 2];

    #[inline(always)]
    fn transpose(self, rows: [[v128; 2]; 8]) -> [[v128; 2]; 8] {
        transpose_in_halves(rows, transpose_four)
    }

    #[inline(always)]
    fn flip_signs(self, bytes: [v128; 2]) -> [v128; 2] {
        bytes.map(|b| v128_xor(b, u8x16_splat(0x80)))
    }

    #[inline(always)]
    fn store(self, to: &mut [u8; 32], bytes: [v128; 2]) {
        let p = to.as_mut_ptr();
        // SAFETY: `p` points to 32 bytes.
        unsafe {
            v128_store(p.cast(), bytes[0]);
            v128_store(p.add(16).cast(), bytes[1]);
        }
    }

    #[inline(always)]
    fn eight_bytes(self, word: u64) -> [v128; 2] {
        floats_of(i16x8_extend_low_i8x16(u64x2(word, 0)))
    }

    #[inline(always)]
    fn eight_floats(self, halves: [u16; 8]) -> [v128; 2] {
        // SAFETY: the pointer is to 16 bytes.
        let halves = unsafe { v128_load(halves.as_ptr().cast()) };
        [
            four_floats(u32x4_extend_low_u16x8(halves)),
            four_floats(u32x4_extend_high_u16x8(halves)),
        ]
    }

    #[inline(always)]
    fn eights(self, bytes: [v128; 2]) -> [[v128; 2]; 4] {
        [
            floats_of(i16x8_extend_low_i8x16(bytes[0])),
            floats_of(i16x8_extend_high_i8x16(bytes[0])),
            floats_of(i16x8_extend_low_i8x16(bytes[1])),
            floats_of(i16x8_extend_high_i8x16(bytes[1])),
        ]
    }

    #[inline(always)]
    fn add(self, a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [f32x4_add(a[0], b[0]), f32x4_add(a[1], b[1])]
    }

    #[inline(always)]
    fn store_eight(self, to: &mut [f32; 8], values: [v128; 2]) {
        self.store(bytemuck::cast_mut(to), values)
    }

    #[inline(always)]
    fn load_fours(self, codes: &[u8; 32]) -> [v128; 4] {
        let p = codes.as_ptr().cast::<i8>();
        // SAFETY: `p` points to 32 bytes.
        unsafe {
            [
                i16x8_load_extend_i8x8(p),
                i16x8_load_extend_i8x8(p.add(8)),
                i16x8_load_extend_i8x8(p.add(16)),
                i16x8_load_extend_i8x8(p.add(24)),
            ]
        }
    }

    #[inline(always)]
    fn dot_fours<const SIGNED: bool>(self, mut sum: [v128; 4], x: [v128; 4], y: i32) -> [v128; 4] {
        // Unsigned codes are below 64, so both kinds are valid signed bytes.
        let y = i16x8_extend_low_i8x16(i32x4_splat(y));
        for (sum, x) in sum.iter_mut().zip(x) {
            *sum = i32x4_add(*sum, i32x4_dot_i16x8(x, y));
        }
        sum
    }

    #[inline(always)]
    fn splat_sum(self, x: i32) -> [v128; 4] {
        [i32x4(x, 0, x, 0); 4]
    }

    #[inline(always)]
    fn zero_sums(self) -> [v128; 4] {
        [i32x4_splat(0); 4]
    }

    #[inline(always)]
    fn values_of(self, [a, b, c, d]: [v128; 4]) -> [v128; 2] {
        self.floats([add_pairs(a, b), add_pairs(c, d)])
    }

    #[inline(always)]
    fn zero_totals(self) -> [v128; 2] {
        [i32x4_splat(0); 2]
    }

    #[inline(always)]
    fn load_whole(self, floats: &[f32; 8]) -> [v128; 2] {
        self.load_values(floats).map(|x| i32x4_trunc_sat_f32x4(x))
    }

    #[inline(always)]
    fn add_times(self, total: [v128; 2], [a, b, c, d]: [v128; 4], by: [v128; 2]) -> [v128; 2] {
        [
            i32x4_add(total[0], i32x4_mul(add_pairs(a, b), by[0])),
            i32x4_add(total[1], i32x4_mul(add_pairs(c, d), by[1])),
        ]
    }

    #[inline(always)]
    fn values_of_totals(self, totals: [v128; 2]) -> [v128; 2] {
        self.floats(totals)
    }

    #[inline(always)]
    fn splat_value(self, x: f32) -> [v128; 2] {
        self.splat(x)
    }

    #[inline(always)]
    fn zero_values(self) -> [v128; 2] {
        self.splat(0.)
    }

    #[inline(always)]
    fn load_values(self, floats: &[f32; 8]) -> [v128; 2] {
        self.load(bytemuck::cast_ref(floats))
    }

    #[inline(always)]
    fn store_values(self, to: &mut [f32; 8], values: [v128; 2]) {
        self.store_eight(to, values)
    }

    #[inline(always)]
    fn fma(self, a: [v128; 2], b: [v128; 2], c: [v128; 2]) -> [v128; 2] {
        self.mul_add(a, b, c)
    }
}
