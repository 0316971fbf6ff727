//! The vector instructions that products need ([`Simd`]).
//!
//! The formats are written once, over [`Simd`] (`products.rs`). A value of an implementation is a proof that this CPU has its instructions:
//! only the detection of them makes one (`level.rs`). So all functions are safe. They are inlined into one function per instruction set,
//! and are slow elsewhere.

use half::f16;

use super::fit::largest_of;
use crate::quantized::utils::{nearest, nearest_away};

/// Vectors of 32 bytes, and of 8 sums.
pub(crate) trait Simd: Copy + 'static {
    /// 32 bytes, signed or not.
    type Bytes: Copy;
    /// 32 signed bytes, prepared for [`dot_signed`](Self::dot_signed).
    type Signed: Copy;
    /// 16 integers of 16 bits.
    type Words: Copy;
    /// The scales of the 16 sixteenths of 256 elements.
    type Scales: Copy;
    /// 8 integers of 32 bits: sums of products, in some order.
    type Ints: Copy;
    /// 8 floats.
    type Floats: Copy;

    /// Prefetches the cache line at `p`, which may be any address. Does nothing if there is no instruction for it.
    #[inline(always)]
    fn prefetch(self, _p: *const u8) {}
    /// Prefetch distance in bytes.
    #[inline(always)]
    fn ahead(self) -> usize {
        0
    }
    /// 32 bytes.
    fn load(self, bytes: &[u8; 32]) -> Self::Bytes;
    /// 32 signed bytes.
    #[inline(always)]
    fn load_signed(self, bytes: &[i8; 32]) -> Self::Bytes {
        self.load(bytemuck::cast_ref(bytes))
    }
    /// The nibbles of 16 bytes: the low ones, then the high ones.
    fn nibbles(self, bytes: &[u8; 16]) -> Self::Bytes;
    /// The bits of 4 bytes as 32 bytes, 16 for a set bit and 0 otherwise.
    fn fifth_bits(self, bits: [u8; 4]) -> Self::Bytes;
    /// `(b >> BY) & mask` in every byte.
    fn right<const BY: i32>(self, b: Self::Bytes, mask: u8) -> Self::Bytes;
    /// `(b << BY) & mask` in every byte.
    fn left<const BY: i32>(self, b: Self::Bytes, mask: u8) -> Self::Bytes;
    /// Bitwise or.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `b - by` in every byte.
    fn less(self, b: Self::Bytes, by: u8) -> Self::Bytes;

    /// The table's entry for each byte, which is below 16.
    #[cfg(feature = "all-ggml-types")]
    fn look_up(self, codes: Self::Bytes, table: &[i8; 16]) -> Self::Bytes;

    /// Signed bytes, ready for [`dot_signed`](Self::dot_signed).
    fn signed(self, b: Self::Bytes) -> Self::Signed;
    /// The products of signed bytes. None of `y` may be -128.
    fn dot_signed(self, x: Self::Signed, y: Self::Bytes) -> Self::Ints;
    /// The products of bytes in `0..=127` with signed bytes.
    fn dot(self, x: Self::Bytes, y: Self::Bytes) -> Self::Ints;
    /// The products of any signed bytes.
    fn dot_wide(self, x: Self::Bytes, y: Self::Bytes) -> Self::Ints;

    /// 16 signed bytes as scales, the first in the lowest byte of the first word.
    fn scales_of_16(self, bytes: [u64; 2]) -> Self::Scales;
    /// 8 bytes in `0..=127` as scales, each for two sixteenths.
    fn scales_of_32(self, bytes: u64) -> Self::Scales;
    /// `sum` plus the products of bytes in `0..=63` with signed bytes: the first 16 times scale `2 * J`, the others times scale `2 * J +
    /// 1`.
    fn dot_scaled<const J: usize>(
        self,
        sum: Self::Ints,
        x: Self::Bytes,
        y: Self::Bytes,
        scales: Self::Scales,
    ) -> Self::Ints;

    /// 16 integers.
    fn load_words(self, words: &[i16; 16]) -> Self::Words;
    /// 16 signed bytes.
    fn words_of_16(self, bytes: [u64; 2]) -> Self::Words;
    /// 8 bytes in `0..=127`, each twice.
    fn words_of_32(self, bytes: u64) -> Self::Words;
    /// The products of 16 integers.
    fn dot_words(self, x: Self::Words, y: Self::Words) -> Self::Ints;

    /// Zeros.
    fn no_ints(self) -> Self::Ints;
    /// `a + b`
    fn add_ints(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Horizontal sum, broadcast to all lanes.
    fn total(self, x: Self::Ints) -> Self::Ints;
    /// `a - (b << BY)`
    fn sub_shifted<const BY: i32>(self, a: Self::Ints, b: Self::Ints) -> Self::Ints;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::Floats;
    /// `x` in every lane.
    fn splat_f16(self, x: f16) -> Self::Floats;
    /// Converts to floats.
    fn floats(self, x: Self::Ints) -> Self::Floats;
    /// `a * b`
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a * b`
    fn neg_mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Lane 0.
    fn first(self, x: Self::Floats) -> f32;

    /// The largest element and the largest negated one, or zero. NaN is skipped.
    #[inline(always)]
    fn extremes(self, xs: &[f32]) -> (f32, f32) {
        (largest_of(xs, 0., |x| x), largest_of(xs, 0., |x| -x))
    }

    /// The nearest integers to `by` times the elements, within `-127..=127`. With `AWAY`, ties round away from zero and NaN gives 0;
    /// without, ties round to even and NaN gives any number.
    #[inline(always)]
    fn codes<const AWAY: bool>(self, xs: &[f32; 32], by: f32) -> [i8; 32] {
        xs.map(|x| {
            let x = (by * x).clamp(-127., 127.);
            if AWAY {
                nearest_away(x) as i8
            } else {
                nearest(x) as i8
            }
        })
    }

    /// The sums of each half of the codes.
    #[inline(always)]
    fn sums_of_halves(self, codes: &[i8; 32]) -> [i16; 2] {
        let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum();
        [sum(&codes[..16]), sum(&codes[16..])]
    }
}

/// A kernel that is compiled for every instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Whether the kernel multiplies bytes or words, for which there may be better instructions than AVX2's.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(
            dead_code,
            reason = "other sets use the same instructions for all kernels"
        )
    )]
    const PRODUCTS: bool;

    /// Runs the kernel. Must be `#[inline(always)]`.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}
