//! The formats whose elements have few different values: a code of at most four bits is looked up in a table of the format.
//!
//! All of them are `x[i] = d · scale[i / 16] · VALUES[code[i]]` with integer scales and values, which is exact in an f32. A format defines
//! the conversion of a block to this form ([`Table`]); dequantisation and products are written once. The formats differ in how they find
//! codes: ggml's IQ formats select the magnitudes of several neighbours at once from a grid ([`grids`](super::grids)).
//!
//! The layouts are those published with [ggml](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

use half::f16;

use super::activations::Bytes32;
use super::encode_legacy::{Encode, Importance};
use super::fit::{inverse, largest};
use super::grids;
use super::products::{Unpack, Weights};
use super::simd::Simd;
use super::unpack_legacy::Scaled32;
use super::utils::f16_to_f32;
use super::*;

/// Elements in a block of [`BlockIQ4NL`].
pub const QK4_NL: usize = 32;
/// Elements in a block of [`BlockMXFP4`].
pub const QK_MXFP4: usize = 32;

/// Values of the IQ4 formats: denser around zero, like the distribution of weights.
const FOUR_BITS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// Floats of four bits (a sign, two bits of exponent, one of mantissa), doubled.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Values in eighths; bit 2 of a code subtracts one eighth, otherwise one eighth is added.
const ONE_BIT: [i8; 16] = [-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// -1, 0 and 1. Two bits can hold one more.
const TERNARY: [i8; 16] = [-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Magnitudes, then their negatives: bit 3 of a code is the sign.
const fn with_signs(magnitudes: [i8; 8]) -> [i8; 16] {
    let mut values = [0; 16];
    let mut i = 0;
    while i < 8 {
        values[i] = magnitudes[i];
        values[i + 8] = -magnitudes[i];
        i += 1;
    }
    values
}

const TWO_BITS: [i8; 16] = with_signs([8, 25, 43, 0, 0, 0, 0, 0]);
const THREE_BITS: [i8; 16] = with_signs([4, 12, 20, 28, 36, 44, 52, 62]);
const THREE_BITS_ODD: [i8; 16] = with_signs([1, 3, 5, 7, 9, 11, 13, 15]);

/// 4 bits and a scale for 32 elements, 4.5 bits each: `x[i] = d · VALUES[q[i]]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ4NL {
    pub(crate) d: f16,
    /// As in [`BlockQ4_0`].
    pub(crate) qs: [u8; 16],
}

/// 4 bits for 256 elements in 8 sub-blocks of 32, 4.25 bits each: `x[i] = d · (scale[i / 32] − 32) · VALUES[q[i]]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ4XS {
    pub(crate) d: f16,
    /// The upper two bits of each scale, from the low bits up.
    pub(crate) scales_h: [u8; 2],
    /// The lower four.
    pub(crate) scales_l: [u8; 4],
    /// The 16 bytes of each sub-block as in [`BlockQ4_0`].
    pub(crate) qs: [u8; QK_K / 2],
}

/// 4 bits and an exponent for 32 elements, 4.25 bits each (MX of the Open Compute Project): `x[i] = 2^(e − 128) · VALUES[q[i]]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockMXFP4 {
    pub(crate) e: u8,
    /// As in [`BlockQ4_0`].
    pub(crate) qs: [u8; 16],
}

/// -1, 0 and 1 for 256 elements, 1.6875 bits each: `x[i] = d · (q[i] − 1)`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockTQ1_0 {
    /// Five codes to a byte, as a fraction in base 3 of 256: 32 bytes with elements `b + 32 n`, 16 with elements `160 + b + 16 n`.
    pub(crate) qs: [u8; 48],
    /// Four codes to a byte, in the same way: elements `240 + b + 4 n`.
    pub(crate) qh: [u8; 4],
    pub(crate) d: f16,
}

/// -1, 0 and 1 for 256 elements, 2.0625 bits each: `x[i] = d · (q[i] − 1)`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockTQ2_0 {
    /// As in [`BlockQ2K`].
    pub(crate) qs: [u8; QK_K / 4],
    pub(crate) d: f16,
}

/// 2.0625 bits each for 256 elements in 8 sub-blocks of 32: `x[i] = d / 8 · (2 scale[i / 32] + 1) · ±magnitude[i]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ2XXS {
    pub(crate) d: f16,
    /// For each sub-block four bytes, each a point of a grid of 256, and a word of four times seven signs (the eighth makes the number of
    /// negative signs even) and a scale of four bits.
    pub(crate) qs: [u8; QK_K / 4],
}

/// 2.3125 bits each for 256 elements in 16 sub-blocks of 16: like [`BlockIQ2XXS`].
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ2XS {
    pub(crate) d: f16,
    /// For each eight elements nine bits, a point of a grid of 512, and seven signs.
    pub(crate) qs: [u8; QK_K / 4],
    /// Nibbles.
    pub(crate) scales: [u8; QK_K / 32],
}

/// 2.5625 bits each for 256 elements in 16 sub-blocks of 16: like [`BlockIQ2XXS`].
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ2S {
    pub(crate) d: f16,
    /// The lower eight bits of a point of a grid of 1024 for each eight elements.
    pub(crate) qs: [u8; QK_K / 8],
    /// A bit for each element.
    pub(crate) signs: [u8; QK_K / 8],
    /// The upper two bits of the points.
    pub(crate) qh: [u8; QK_K / 32],
    /// Nibbles.
    pub(crate) scales: [u8; QK_K / 32],
}

/// 3.0625 bits each for 256 elements in 8 sub-blocks of 32: `x[i] = d / 4 · (2 scale[i / 32] + 1) · ±magnitude[i]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ3XXS {
    pub(crate) d: f16,
    /// A point of a grid of 256 for each four elements.
    pub(crate) qs: [u8; QK_K / 4],
    /// Words of signs and a scale, as in [`BlockIQ2XXS`].
    pub(crate) scales_and_signs: [u8; QK_K / 8],
}

/// 3.4375 bits each for 256 elements in 8 sub-blocks of 32: `x[i] = d · (2 scale[i / 32] + 1) · ±magnitude[i]`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ3S {
    pub(crate) d: f16,
    /// The lower eight bits of a point of a grid of 512 for each four elements.
    pub(crate) qs: [u8; QK_K / 4],
    /// The ninth bits.
    pub(crate) qh: [u8; QK_K / 32],
    /// A bit for each element.
    pub(crate) signs: [u8; QK_K / 8],
    /// Nibbles.
    pub(crate) scales: [u8; QK_K / 64],
}

/// 1.5625 bits each for 256 elements in 8 sub-blocks of 32: `x[i] = d · (2 scale[i / 32] + 1) · (point[i] ± 1/8)`, with points of -1, 0 and
/// 1.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ1S {
    pub(crate) d: f16,
    /// The lower eight bits of a point of a grid of 2048 for each eight elements.
    pub(crate) qs: [u8; QK_K / 8],
    /// For each sub-block the upper three bits of four points, three bits of scale, and whether an eighth is subtracted.
    pub(crate) qh: [u8; QK_K / 16],
}

/// 1.75 bits each for 256 elements in 16 sub-blocks of 16: like [`BlockIQ1S`].
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct BlockIQ1M {
    /// As in [`BlockIQ1S`].
    pub(crate) qs: [u8; QK_K / 8],
    /// For each eight elements the upper three bits of the point, and whether an eighth is subtracted.
    pub(crate) qh: [u8; QK_K / 16],
    /// Four words of four scales of three bits; their upper four bits are the block's scale, an f16.
    pub(crate) scales: [u8; QK_K / 32],
}

/// A block as codes of a table.
pub(crate) trait Table<const LEN: usize>: GgmlType {
    /// The values of the codes.
    const VALUES: [i8; 16];

    /// The scale of the block.
    fn scale(&self) -> f32;

    /// The scales of every 16 elements.
    fn scales(&self) -> [i8; 16] {
        [1; 16]
    }

    fn codes(&self) -> [u8; LEN];
}

/// Word `i` of 16 bits.
fn word(bytes: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])
}

/// Word `i` of 32 bits.
fn long_word(bytes: &[u8], i: usize) -> u32 {
    u32::from(word(bytes, 2 * i)) | u32::from(word(bytes, 2 * i + 1)) << 16
}

/// Nibble `i`, the low one of a byte first.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    (bytes[i / 2] >> (4 * (i % 2))) & 15
}

/// The scale `2 s + 1` for each sixteenth.
fn odd_scales(s: impl Fn(usize) -> u8) -> [i8; 16] {
    std::array::from_fn(|j| 2 * s(j) as i8 + 1)
}

/// Eight signs from seven: the number of negative signs is even.
fn even_signs(seven: u32) -> u8 {
    let seven = seven as u8 & 0x7f;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

/// The codes of groups of eight: `eight(e)` returns a point of a grid, with two bits for each magnitude, and the signs.
fn codes_of_eights(eight: impl Fn(usize) -> (u16, u8)) -> [u8; QK_K] {
    let mut codes = [0; QK_K];
    for (e, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (point, signs) = eight(e);
        *codes = std::array::from_fn(|i| ((point >> (2 * i)) & 3) as u8 | ((signs >> i) & 1) << 3);
    }
    codes
}

/// The same for points of four, with three bits for each magnitude: `eight(e)` returns two points.
fn codes_of_fours(eight: impl Fn(usize) -> ([u16; 2], u8)) -> [u8; QK_K] {
    let mut codes = [0; QK_K];
    for (e, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (points, signs) = eight(e);
        *codes = std::array::from_fn(|i| {
            ((points[i / 4] >> (3 * (i % 4))) & 7) as u8 | ((signs >> i) & 1) << 3
        });
    }
    codes
}

/// The codes of IQ1: `eight(e)` returns the number of a point and whether an eighth is subtracted.
fn codes_with_eighths(eight: impl Fn(usize) -> (usize, bool)) -> [u8; QK_K] {
    let mut codes = [0; QK_K];
    for (e, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let (point, less) = eight(e);
        let point = grids::IQ1[point];
        *codes = std::array::from_fn(|i| ((point >> (2 * i)) & 3) as u8 | u8::from(less) << 2);
    }
    codes
}

/// The codes of 16 bytes: the low nibbles, then the high ones.
fn codes_of_nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

impl Table<32> for BlockIQ4NL {
    const VALUES: [i8; 16] = FOUR_BITS;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d)
    }

    fn codes(&self) -> [u8; 32] {
        codes_of_nibbles(&self.qs)
    }
}

impl Table<QK_K> for BlockIQ4XS {
    const VALUES: [i8; 16] = FOUR_BITS;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d)
    }

    fn scales(&self) -> [i8; 16] {
        let high = word(&self.scales_h, 0);
        std::array::from_fn(|j| {
            let j = j / 2;
            let scale = nibble(&self.scales_l, j) | ((high >> (2 * j)) as u8 & 3) << 4;
            scale as i8 - 32
        })
    }

    fn codes(&self) -> [u8; QK_K] {
        let mut codes = [0; QK_K];
        let parts = codes.as_chunks_mut::<32>().0.iter_mut();
        for (codes, qs) in parts.zip(self.qs.as_chunks::<16>().0) {
            *codes = codes_of_nibbles(qs);
        }
        codes
    }
}

impl BlockMXFP4 {
    /// Half of `2^(e − 127)`, since the values are doubled. The smallest two are subnormal.
    fn half_of(e: u8) -> f32 {
        f32::from_bits(match e {
            0 | 1 => 1 << (21 + e),
            _ => u32::from(e - 1) << 23,
        })
    }
}

impl Table<32> for BlockMXFP4 {
    const VALUES: [i8; 16] = E2M1;

    fn scale(&self) -> f32 {
        Self::half_of(self.e)
    }

    fn codes(&self) -> [u8; 32] {
        codes_of_nibbles(&self.qs)
    }
}

/// The positions in the block of the codes of a byte of a [`BlockTQ1_0`]: the first, the stride, and the number of codes.
fn ternary_places(byte: usize) -> (usize, usize, usize) {
    match byte {
        0..32 => (byte, 32, 5),
        32..48 => (160 + byte - 32, 16, 5),
        _ => (240 + byte - 48, 4, 4),
    }
}

impl Table<QK_K> for BlockTQ1_0 {
    const VALUES: [i8; 16] = TERNARY;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d)
    }

    fn codes(&self) -> [u8; QK_K] {
        let mut codes = [0; QK_K];
        for (byte, &fraction) in self.qs.iter().chain(&self.qh).enumerate() {
            let (first, step, count) = ternary_places(byte);
            let mut fraction = fraction;
            for n in 0..count {
                // The digit is the integer part of three times the fraction.
                codes[first + n * step] = ((u16::from(fraction) * 3) >> 8) as u8;
                fraction = fraction.wrapping_mul(3);
            }
        }
        codes
    }
}

impl Table<QK_K> for BlockTQ2_0 {
    const VALUES: [i8; 16] = TERNARY;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d)
    }

    fn codes(&self) -> [u8; QK_K] {
        std::array::from_fn(|i| (self.qs[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3)
    }
}

impl Table<QK_K> for BlockIQ2XXS {
    const VALUES: [i8; 16] = TWO_BITS;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d) / 8.
    }

    fn scales(&self) -> [i8; 16] {
        odd_scales(|j| (long_word(&self.qs, 2 * (j / 2) + 1) >> 28) as u8)
    }

    fn codes(&self) -> [u8; QK_K] {
        codes_of_eights(|e| {
            let (part, i) = (e / 4, e % 4);
            let signs = long_word(&self.qs, 2 * part + 1) >> (7 * i);
            let point = self.qs[8 * part + i];
            (grids::IQ2_XXS[usize::from(point)], even_signs(signs))
        })
    }
}

impl Table<QK_K> for BlockIQ2XS {
    const VALUES: [i8; 16] = TWO_BITS;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d) / 8.
    }

    fn scales(&self) -> [i8; 16] {
        odd_scales(|j| nibble(&self.scales, j))
    }

    fn codes(&self) -> [u8; QK_K] {
        codes_of_eights(|e| {
            let word = word(&self.qs, e);
            let point = grids::IQ2_XS[usize::from(word & 511)];
            (point, even_signs(u32::from(word >> 9)))
        })
    }
}

impl Table<QK_K> for BlockIQ2S {
    const VALUES: [i8; 16] = TWO_BITS;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d) / 8.
    }

    fn scales(&self) -> [i8; 16] {
        odd_scales(|j| nibble(&self.scales, j))
    }

    fn codes(&self) -> [u8; QK_K] {
        codes_of_eights(|e| {
            let high = (self.qh[e / 4] >> (2 * (e % 4))) & 3;
            let point = usize::from(self.qs[e]) | usize::from(high) << 8;
            (grids::IQ2_S[point], self.signs[e])
        })
    }
}

impl Table<QK_K> for BlockIQ3XXS {
    const VALUES: [i8; 16] = THREE_BITS;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d) / 4.
    }

    fn scales(&self) -> [i8; 16] {
        odd_scales(|j| (long_word(&self.scales_and_signs, j / 2) >> 28) as u8)
    }

    fn codes(&self) -> [u8; QK_K] {
        codes_of_fours(|e| {
            let signs = long_word(&self.scales_and_signs, e / 4) >> (7 * (e % 4));
            let point = |i: usize| grids::IQ3_XXS[usize::from(self.qs[2 * e + i])];
            ([point(0), point(1)], even_signs(signs))
        })
    }
}

impl Table<QK_K> for BlockIQ3S {
    const VALUES: [i8; 16] = THREE_BITS_ODD;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d)
    }

    fn scales(&self) -> [i8; 16] {
        odd_scales(|j| nibble(&self.scales, j / 2))
    }

    fn codes(&self) -> [u8; QK_K] {
        codes_of_fours(|e| {
            let point = |four: usize| {
                let high = (self.qh[four / 8] >> (four % 8)) & 1;
                grids::IQ3_S[usize::from(self.qs[four]) | usize::from(high) << 8]
            };
            ([point(2 * e), point(2 * e + 1)], self.signs[e])
        })
    }
}

impl Table<QK_K> for BlockIQ1S {
    const VALUES: [i8; 16] = ONE_BIT;

    fn scale(&self) -> f32 {
        f16_to_f32(self.d) / 8.
    }

    fn scales(&self) -> [i8; 16] {
        odd_scales(|j| (word(&self.qh, j / 2) >> 12) as u8 & 7)
    }

    fn codes(&self) -> [u8; QK_K] {
        codes_with_eighths(|e| {
            let word = word(&self.qh, e / 4);
            let high = (word >> (3 * (e % 4))) & 7;
            let point = usize::from(self.qs[e]) | usize::from(high) << 8;
            (point, word >> 15 == 1)
        })
    }
}

impl Table<QK_K> for BlockIQ1M {
    const VALUES: [i8; 16] = ONE_BIT;

    fn scale(&self) -> f32 {
        let part = |i: usize| (word(&self.scales, i) >> 12) << (4 * i);
        f16_to_f32(f16::from_bits(part(0) | part(1) | part(2) | part(3))) / 8.
    }

    fn scales(&self) -> [i8; 16] {
        odd_scales(|j| (word(&self.scales, j / 4) >> (3 * (j % 4))) as u8 & 7)
    }

    fn codes(&self) -> [u8; QK_K] {
        codes_with_eighths(|e| {
            let high = nibble(&self.qh, e);
            let point = usize::from(self.qs[e]) | usize::from(high & 7) << 8;
            (point, high & 8 != 0)
        })
    }
}

/// The values of a block's codes, in units of its scales.
#[inline(always)]
fn values<T: Table<LEN>, const LEN: usize>(x: &T) -> [i8; LEN] {
    x.codes().map(|code| T::VALUES[usize::from(code & 15)])
}

/// A block of 256 elements with its codes looked up.
#[derive(Clone, Copy)]
pub(crate) struct Looked {
    scale: f32,
    scales: [i8; 16],
    values: [i8; QK_K],
}

/// The sum of 16 products.
#[inline(always)]
fn dot_16(xs: &[i8; 16], ys: &[i8; 16]) -> i32 {
    let products = xs
        .iter()
        .zip(ys)
        .map(|(&x, &y)| i32::from(x) * i32::from(y));
    products.sum()
}

macro_rules! tables {
    ($($ty:ident $len:tt;)*) => {$(
        impl Decode for $ty {
            fn decode(&self, ys: &mut [f32]) {
                let (scale, scales) = (self.scale(), self.scales());
                let values = values::<Self, $len>(self);
                let parts = values.as_chunks::<16>().0.iter().zip(scales);
                for ((values, by), ys) in parts.zip(ys.chunks_exact_mut(16)) {
                    let scale = scale * f32::from(by);
                    for (y, &value) in ys.iter_mut().zip(values) {
                        *y = scale * f32::from(value);
                    }
                }
            }
        }
    )*};
}

/// The formats of 32 elements: nibbles and one scale.
macro_rules! short_tables {
    ($($ty:ident;)*) => {
        tables! { $($ty 32;)* }
        $(
            impl Unpack for $ty {
                type Activations = Bytes32;
                type Unpacked<S: Simd> = (S::Signed, S::Floats);

                #[inline(always)]
                fn unpack<S: Simd>(&self, s: S) -> Self::Unpacked<S> {
                    let codes = s.nibbles(&self.qs);
                    let values = s.look_up(codes, &<Self as Table<32>>::VALUES);
                    (s.signed(values), s.splat(self.scale()))
                }
            }

            impl<Y: Scaled32> Weights<Y> for $ty {
                #[inline(always)]
                fn mul_add<S: Simd>(s: S, (q, d): &Self::Unpacked<S>,
                    y: &Y,
                    sum: S::Floats,
                ) -> S::Floats {
                    let dot = s.dot_signed(*q, s.load_signed(y.codes()));
                    s.mul_add(s.floats(s.total(dot)), s.mul(*d, y.scale(s)), sum)
                }
            }
        )*
    };
}

/// The formats of 256 elements, with scales for every 16.
macro_rules! long_tables {
    ($($ty:ident;)*) => {
        tables! { $($ty QK_K;)* }
        $(
            impl Unpack for $ty {
                type Activations = BlockQ8K;
                type Unpacked<S: Simd> = Looked;

                #[inline(always)]
                fn unpack<S: Simd>(&self, _: S) -> Looked {
                    Looked {
                        scale: self.scale(),
                        scales: self.scales(),
                        values: values::<Self, QK_K>(self),
                    }
                }
            }

            impl Weights<BlockQ8K> for $ty {
                #[inline(always)]
                fn mul_add<S: Simd>(s: S, x: &Looked, y: &BlockQ8K, sum: S::Floats) -> S::Floats {
                    let (xs, ys) = (x.values.as_chunks::<16>().0, y.qs.as_chunks::<16>().0);
                    // At most 256 times 127 times 127 times 32: fits 32 bits.
                    let mut dot = 0;
                    for ((xs, ys), by) in xs.iter().zip(ys).zip(x.scales) {
                        dot += i32::from(by) * dot_16(xs, ys);
                    }
                    s.mul_add(s.splat(dot as f32), s.splat(x.scale * y.d), sum)
                }
            }
        )*
    };
}

short_tables! {
    BlockIQ4NL;
    BlockMXFP4;
}

long_tables! {
    BlockIQ1S;
    BlockIQ1M;
    BlockIQ2XXS;
    BlockIQ2XS;
    BlockIQ2S;
    BlockIQ3XXS;
    BlockIQ3S;
    BlockIQ4XS;
    BlockTQ1_0;
    BlockTQ2_0;
}

/// The code of the nearest value; the first of several.
#[inline(always)]
fn nearest_code(x: f32, scale: f32, table: &[i8; 16]) -> u8 {
    let (mut best, mut least) = (0, f32::INFINITY);
    for (code, &value) in table.iter().enumerate() {
        let off = (scale * f32::from(value) - x).abs();
        if off < least {
            (best, least) = (code as u8, off);
        }
    }
    best
}

/// Low nibbles, then high ones.
fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| codes[i] | codes[i + 16] << 4)
}

impl Encode<32> for BlockIQ4NL {
    /// Searches for the scale with the least error. Without importance, elements are weighted by their squares.
    #[inline(always)]
    fn encode<S: Simd>(_: S, xs: &[f32; 32], importance: Option<Importance<32>>) -> Self {
        let weights = match importance {
            Some(importance) => importance.of(xs),
            None => xs.map(|x| x * x),
        };
        let codes = |scale: f32| xs.map(|x| nearest_code(x, scale, &FOUR_BITS));
        let largest = largest(xs);
        let mut best = (0., largest / f32::from(FOUR_BITS[0]));
        // The largest element gets the first value, or one that is a little larger or smaller.
        for step in -7..=7 {
            let scale = largest / (f32::from(FOUR_BITS[0]) + step as f32);
            let (mut with_x, mut squares) = (0., 0.);
            for ((&x, &weight), code) in xs.iter().zip(&weights).zip(codes(scale)) {
                let value = f32::from(FOUR_BITS[usize::from(code)]);
                with_x += weight * value * x;
                squares += weight * value * value;
            }
            // The reduction of the error by the best scale for these codes.
            let taken = with_x * with_x / squares;
            if taken > best.0 {
                best = (taken, with_x / squares);
            }
        }
        let d = f16::from_f32(best.1);
        Self {
            d,
            qs: nibbles(&codes(f16_to_f32(d))),
        }
    }
}

impl Encode<32> for BlockMXFP4 {
    /// The exponent is that of the largest element, as in ggml, which ignores weights here.
    #[inline(always)]
    fn encode<S: Simd>(s: S, xs: &[f32; 32], _importance: Option<Importance<32>>) -> Self {
        let (above, below) = s.extremes(xs);
        let exponent = above.max(below).to_bits() >> 23;
        let e = exponent.saturating_sub(2) as u8;
        let scale = Self::half_of(e);
        let most = 12. * scale;
        let codes = xs.map(|x| nearest_code(x.clamp(-most, most), scale, &E2M1));
        Self {
            e,
            qs: nibbles(&codes),
        }
    }
}

/// The largest magnitude as the scale, and codes in `0..=2`: 1 for a NaN.
#[inline(always)]
fn ternary<S: Simd>(s: S, xs: &[f32; QK_K]) -> (f16, [u8; QK_K]) {
    let (above, below) = s.extremes(xs);
    let d = above.max(below);
    let inverse = inverse(d);
    let codes = xs.map(|x| (utils::nearest_away(x * inverse).clamp(-1, 1) + 1) as u8);
    (f16::from_f32(d), codes)
}

impl Encode<QK_K> for BlockTQ1_0 {
    #[inline(always)]
    fn encode<S: Simd>(s: S, xs: &[f32; QK_K], _importance: Option<Importance<QK_K>>) -> Self {
        let (d, codes) = ternary(s, xs);
        let byte = |byte: usize| {
            let (first, step, count) = ternary_places(byte);
            let mut number = 0u16;
            for n in 0..5 {
                let digit = if n < count {
                    codes[first + n * step]
                } else {
                    0
                };
                number = 3 * number + u16::from(digit);
            }
            // The smallest fraction of 256 that has these digits.
            (number * 256).div_ceil(243) as u8
        };
        Self {
            qs: std::array::from_fn(byte),
            qh: std::array::from_fn(|i| byte(48 + i)),
            d,
        }
    }
}

impl Encode<QK_K> for BlockTQ2_0 {
    #[inline(always)]
    fn encode<S: Simd>(s: S, xs: &[f32; QK_K], _importance: Option<Importance<QK_K>>) -> Self {
        let (d, codes) = ternary(s, xs);
        let code = |byte: usize, n: usize| codes[128 * (byte / 32) + byte % 32 + 32 * n];
        Self {
            qs: std::array::from_fn(|b| {
                code(b, 0) | code(b, 1) << 2 | code(b, 2) << 4 | code(b, 3) << 6
            }),
            d,
        }
    }
}
