//! Products of the formats with 32 elements and one scale per block.

use super::activations::Bytes32;
use super::one_row::{OneRow, OneRowWeights, RowSimd};
use super::products::{Unpack, Weights};
use super::simd::Simd;
use super::*;

/// 32 activations with a scale.
pub(super) trait Scaled32 {
    fn codes(&self) -> &[i8; 32];

    /// The scale in every lane. Must be `#[inline(always)]`.
    fn scale<S: Simd>(&self, s: S) -> S::Floats;
}

/// The same with their sum.
pub(super) trait Summed32: Scaled32 {
    /// The sum in every lane. Must be `#[inline(always)]`.
    fn sum<S: Simd>(&self, s: S) -> S::Floats;
}

macro_rules! scaled {
    ($($ty:ident $splat:ident;)*) => {$(
        impl Scaled32 for $ty {
            #[inline(always)]
            fn codes(&self) -> &[i8; 32] {
                &self.qs
            }

            #[inline(always)]
            fn scale<S: Simd>(&self, s: S) -> S::Floats {
                s.$splat(self.d)
            }
        }
    )*};
}

macro_rules! summed {
    ($($ty:ident $splat:ident;)*) => {$(
        impl Summed32 for $ty {
            #[inline(always)]
            fn sum<S: Simd>(&self, s: S) -> S::Floats {
                s.$splat(self.s)
            }
        }
    )*};
}

scaled! {
    Bytes32 splat;
    BlockQ8_0 splat_f16;
    BlockQ8_1 splat_f16;
}

summed! {
    Bytes32 splat;
    BlockQ8_1 splat_f16;
}

/// The fourth and the fifth bits of a block.
#[inline(always)]
pub(super) fn five_bits<S: Simd>(s: S, qs: &[u8; 16], qh: [u8; 4]) -> S::Bytes {
    s.or(s.nibbles(qs), s.fifth_bits(qh))
}

/// Formats of codes with a sign: `Σ (d · q[i]) · y[i]`.
macro_rules! symmetric {
    ($ty:ident, |$s:ident, $x:ident| $bytes:expr $(, $rows:ident)?) => {
        impl Unpack for $ty {
            type Activations = Bytes32;
            type Unpacked<S: Simd> = (S::Signed, S::Floats);

            #[inline(always)]
            fn unpack<S: Simd>(&self, $s: S) -> Self::Unpacked<S> {
                let $x = self;
                ($s.signed($bytes), $s.splat_f16($x.d))
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

        $(impl OneRowWeights for $ty {
            #[inline(always)]
            fn one_row<S: RowSimd>(s: S, xs: &[Self], y: &OneRow<Bytes32>, dst: &mut [f32]) {
                s.$rows(xs, y, dst)
            }
        })?
    };
}

symmetric!(BlockQ4_0, |s, x| s.less(s.nibbles(&x.qs), 8), offset_codes);
symmetric!(
    BlockQ5_0,
    |s, x| s.less(five_bits(s, &x.qs, x.qh), 16),
    offset_codes
);
symmetric!(BlockQ8_0, |s, x| s.load_signed(&x.qs));

impl OneRowWeights for BlockQ8_0 {
    #[inline(always)]
    fn has_kernel<S: RowSimd>() -> bool {
        S::BYTES
    }

    #[inline(always)]
    fn one_row<S: RowSimd>(s: S, xs: &[Self], y: &OneRow<Bytes32>, dst: &mut [f32]) {
        s.bytes(xs, y, dst)
    }
}

symmetric!(BlockQ8_1, |s, x| s.load_signed(&x.qs));

/// Formats of codes above a minimum: `Σ (d · q[i] + m) · y[i] = Σ d · q[i] · y[i] + m · Σ y[i]`.
macro_rules! above_minimum {
    ($ty:ident, |$s:ident, $x:ident| $bytes:expr) => {
        impl Unpack for $ty {
            type Activations = Bytes32;
            /// Codes, scale and minimum.
            type Unpacked<S: Simd> = (S::Bytes, S::Floats, S::Floats);

            #[inline(always)]
            fn unpack<S: Simd>(&self, $s: S) -> Self::Unpacked<S> {
                let $x = self;
                ($bytes, $s.splat_f16($x.d), $s.splat_f16($x.m))
            }
        }

        impl<Y: Summed32> Weights<Y> for $ty {
            #[inline(always)]
            fn mul_add<S: Simd>(
                s: S,
                (q, d, m): &Self::Unpacked<S>,
                y: &Y,
                sum: S::Floats,
            ) -> S::Floats {
                let dot = s.dot(*q, s.load_signed(y.codes()));
                let sum = s.mul_add(*m, y.sum(s), sum);
                s.mul_add(s.floats(s.total(dot)), s.mul(*d, y.scale(s)), sum)
            }
        }
    };
}

above_minimum!(BlockQ4_1, |s, x| s.nibbles(&x.qs));
above_minimum!(BlockQ5_1, |s, x| five_bits(s, &x.qs, x.qh));
