//! Products of the formats with 32 elements and one scale per block.

use super::activations::Bytes32;
use super::one_row::{OneRow, OneRowWeights};
use super::products::{Unpack, Weights};
use super::simd::Simd;
use super::*;

/// 32 activations with a scale.
pub(super) trait Scaled32 {
    fn codes(&self) -> *const u8;

    /// The scale in every lane. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn scale<S: Simd>(&self) -> S::Floats;
}

/// The same with their sum.
pub(super) trait Summed32: Scaled32 {
    /// The sum in every lane. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn sum<S: Simd>(&self) -> S::Floats;
}

macro_rules! scaled {
    ($($ty:ident $splat:ident;)*) => {$(
        impl Scaled32 for $ty {
            #[inline(always)]
            fn codes(&self) -> *const u8 {
                self.qs.as_ptr().cast()
            }

            #[inline(always)]
            unsafe fn scale<S: Simd>(&self) -> S::Floats {
                S::$splat(self.d)
            }
        }
    )*};
}

macro_rules! summed {
    ($($ty:ident $splat:ident;)*) => {$(
        impl Summed32 for $ty {
            #[inline(always)]
            unsafe fn sum<S: Simd>(&self) -> S::Floats {
                S::$splat(self.s)
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
pub(super) unsafe fn five_bits<S: Simd>(qs: &[u8; 16], qh: [u8; 4]) -> S::Bytes {
    S::or(S::nibbles(qs.as_ptr()), S::fifth_bits(qh))
}

/// Formats of codes with a sign: `Σ (d · q[i]) · y[i]`.
macro_rules! symmetric {
    ($ty:ident, |$x:ident| $bytes:expr $(, $rows:ident)?) => {
        impl Unpack for $ty {
            type Activations = Bytes32;
            type Unpacked<S: Simd> = (S::Signed, S::Floats);

            #[inline(always)]
            unsafe fn unpack<S: Simd>(&self) -> Self::Unpacked<S> {
                let $x = self;
                (S::signed($bytes), S::splat_f16($x.d))
            }
        }

        impl<Y: Scaled32> Weights<Y> for $ty {
            #[inline(always)]
            unsafe fn mul_add<S: Simd>(
                (q, d): &Self::Unpacked<S>,
                y: &Y,
                sum: S::Floats,
            ) -> S::Floats {
                let dot = S::dot_signed(*q, S::load(y.codes()));
                S::mul_add(S::floats(S::total(dot)), S::mul(*d, y.scale::<S>()), sum)
            }
        }

        $(impl OneRowWeights for $ty {
            #[inline(always)]
            unsafe fn one_row<S: Simd>(xs: &[Self], y: &OneRow<Bytes32>, dst: &mut [f32]) -> bool {
                S::$rows(xs, y, dst)
            }
        })?
    };
}

symmetric!(
    BlockQ4_0,
    |x| S::less(S::nibbles(x.qs.as_ptr()), 8),
    rows_with_a_scale
);
symmetric!(
    BlockQ5_0,
    |x| S::less(five_bits::<S>(&x.qs, x.qh), 16),
    rows_with_a_scale
);
symmetric!(BlockQ8_0, |x| S::load(x.qs.as_ptr().cast()), rows_of_bytes);
symmetric!(BlockQ8_1, |x| S::load(x.qs.as_ptr().cast()));

/// Formats of codes above a minimum: `Σ (d · q[i] + m) · y[i] = Σ d · q[i] · y[i] + m · Σ y[i]`.
macro_rules! above_minimum {
    ($ty:ident, |$x:ident| $bytes:expr) => {
        impl Unpack for $ty {
            type Activations = Bytes32;
            /// Codes, scale and minimum.
            type Unpacked<S: Simd> = (S::Bytes, S::Floats, S::Floats);

            #[inline(always)]
            unsafe fn unpack<S: Simd>(&self) -> Self::Unpacked<S> {
                let $x = self;
                ($bytes, S::splat_f16($x.d), S::splat_f16($x.m))
            }
        }

        impl<Y: Summed32> Weights<Y> for $ty {
            #[inline(always)]
            unsafe fn mul_add<S: Simd>(
                (q, d, m): &Self::Unpacked<S>,
                y: &Y,
                sum: S::Floats,
            ) -> S::Floats {
                let dot = S::dot(*q, S::load(y.codes()));
                let sum = S::mul_add(*m, y.sum::<S>(), sum);
                S::mul_add(S::floats(S::total(dot)), S::mul(*d, y.scale::<S>()), sum)
            }
        }
    };
}

above_minimum!(BlockQ4_1, |x| S::nibbles(x.qs.as_ptr()));
above_minimum!(BlockQ5_1, |x| five_bits::<S>(&x.qs, x.qh));
