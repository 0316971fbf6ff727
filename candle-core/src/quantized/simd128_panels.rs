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
    /// As words, two rows in a vector.
    type Fours = [v128; 4];
    /// Two parts of each row's sum, two rows in a vector.
    type Sums = [v128; 4];
    type Totals = [v128; 2];
    type Values = [v128; 2];

    #[inline(always)]
    unsafe fn transpose(rows: [[v128; 2]; 8]) -> [[v128; 2]; 8] {
        transpose_in_halves(rows, transpose_four)
    }

    #[inline(always)]
    unsafe fn flip_signs(bytes: [v128; 2]) -> [v128; 2] {
        bytes.map(|b| v128_xor(b, u8x16_splat(0x80)))
    }

    #[inline(always)]
    unsafe fn store(p: *mut u8, bytes: [v128; 2]) {
        v128_store(p.cast(), bytes[0]);
        v128_store(p.add(16).cast(), bytes[1]);
    }

    #[inline(always)]
    unsafe fn eight_bytes(word: u64) -> [v128; 2] {
        floats_of(i16x8_extend_low_i8x16(u64x2(word, 0)))
    }

    #[inline(always)]
    unsafe fn eight_floats(halves: [u16; 8]) -> [v128; 2] {
        let halves = v128_load(halves.as_ptr().cast());
        [
            four_floats(u32x4_extend_low_u16x8(halves)),
            four_floats(u32x4_extend_high_u16x8(halves)),
        ]
    }

    #[inline(always)]
    unsafe fn eights(bytes: [v128; 2]) -> [[v128; 2]; 4] {
        [
            floats_of(i16x8_extend_low_i8x16(bytes[0])),
            floats_of(i16x8_extend_high_i8x16(bytes[0])),
            floats_of(i16x8_extend_low_i8x16(bytes[1])),
            floats_of(i16x8_extend_high_i8x16(bytes[1])),
        ]
    }

    #[inline(always)]
    unsafe fn add(a: [v128; 2], b: [v128; 2]) -> [v128; 2] {
        [f32x4_add(a[0], b[0]), f32x4_add(a[1], b[1])]
    }

    #[inline(always)]
    unsafe fn store_eight(p: *mut f32, values: [v128; 2]) {
        Self::store(p.cast(), values)
    }

    #[inline(always)]
    unsafe fn load_fours(p: *const u8) -> [v128; 4] {
        let p = p.cast::<i8>();
        [
            i16x8_load_extend_i8x8(p),
            i16x8_load_extend_i8x8(p.add(8)),
            i16x8_load_extend_i8x8(p.add(16)),
            i16x8_load_extend_i8x8(p.add(24)),
        ]
    }

    #[inline(always)]
    unsafe fn dot_fours<const SIGNED: bool>(
        mut sum: [v128; 4],
        x: [v128; 4],
        y: *const i8,
    ) -> [v128; 4] {
        // Unsigned codes are below 64, so both kinds are valid signed bytes.
        let y = i16x8_extend_low_i8x16(v128_load32_splat(y.cast()));
        for (sum, x) in sum.iter_mut().zip(x) {
            *sum = i32x4_add(*sum, i32x4_dot_i16x8(x, y));
        }
        sum
    }

    #[inline(always)]
    unsafe fn splat_sum(p: *const i32) -> [v128; 4] {
        [i32x4(*p, 0, *p, 0); 4]
    }

    #[inline(always)]
    unsafe fn zero_sums() -> [v128; 4] {
        [i32x4_splat(0); 4]
    }

    #[inline(always)]
    unsafe fn values_of([a, b, c, d]: [v128; 4]) -> [v128; 2] {
        Self::floats([add_pairs(a, b), add_pairs(c, d)])
    }

    #[inline(always)]
    unsafe fn zero_totals() -> [v128; 2] {
        [i32x4_splat(0); 2]
    }

    #[inline(always)]
    unsafe fn load_whole(p: *const f32) -> [v128; 2] {
        Self::load_values(p).map(|x| i32x4_trunc_sat_f32x4(x))
    }

    #[inline(always)]
    unsafe fn add_times(total: [v128; 2], [a, b, c, d]: [v128; 4], by: [v128; 2]) -> [v128; 2] {
        [
            i32x4_add(total[0], i32x4_mul(add_pairs(a, b), by[0])),
            i32x4_add(total[1], i32x4_mul(add_pairs(c, d), by[1])),
        ]
    }

    #[inline(always)]
    unsafe fn values_of_totals(totals: [v128; 2]) -> [v128; 2] {
        Self::floats(totals)
    }

    #[inline(always)]
    unsafe fn splat_value(p: *const f32) -> [v128; 2] {
        Self::splat(*p)
    }

    #[inline(always)]
    unsafe fn zero_values() -> [v128; 2] {
        Self::splat(0.)
    }

    #[inline(always)]
    unsafe fn load_values(p: *const f32) -> [v128; 2] {
        Self::load(p.cast())
    }

    #[inline(always)]
    unsafe fn store_values(p: *mut f32, values: [v128; 2]) {
        Self::store(p.cast(), values)
    }

    #[inline(always)]
    unsafe fn fma(a: [v128; 2], b: [v128; 2], c: [v128; 2]) -> [v128; 2] {
        Self::mul_add(a, b, c)
    }
}
