//! Products of the formats with 32 elements and one scale to a block.

use half::f16;

use super::one_row::{OneRow, OneRowWeights};
use super::products::Weights;
use super::simd::Simd;
use super::*;

/// `Σ (d · q[i]) · y[i]`
#[inline(always)]
unsafe fn scaled<S: Simd>(
    (q, d): &(S::Signed, S::Floats),
    qs: &[i8; 32],
    y_d: f16,
    sum: S::Floats,
) -> S::Floats {
    let dot = S::dot_signed(*q, S::load(qs.as_ptr().cast()));
    S::mul_add(S::floats(S::total(dot)), S::mul(*d, S::splat_f16(y_d)), sum)
}

/// The fourth and the fifth bits of a block.
#[inline(always)]
pub(super) unsafe fn five_bits<S: Simd>(qs: &[u8; 16], qh: [u8; 4]) -> S::Bytes {
    S::or(S::nibbles(qs.as_ptr()), S::fifth_bits(qh))
}

/// Formats of codes with a sign.
macro_rules! symmetric {
    ($ty:ident, $y:ident, |$x:ident| $bytes:expr $(, $rows:ident)?) => {
        impl Weights for $ty {
            type Unpacked<S: Simd> = (S::Signed, S::Floats);

            #[inline(always)]
            unsafe fn unpack<S: Simd>(&self) -> Self::Unpacked<S> {
                let $x = self;
                (S::signed($bytes), S::splat_f16($x.d))
            }

            #[inline(always)]
            unsafe fn mul_add<S: Simd>(x: &Self::Unpacked<S>, y: &$y, sum: S::Floats) -> S::Floats {
                scaled::<S>(x, &y.qs, y.d, sum)
            }
        }

        $(impl OneRowWeights for $ty {
            #[inline(always)]
            unsafe fn one_row<S: Simd>(xs: &[Self], y: &OneRow<$y>, dst: &mut [f32]) -> bool {
                S::$rows(xs, y, dst)
            }
        })?
    };
}

symmetric!(
    BlockQ4_0,
    BlockQ8_0,
    |x| S::less(S::nibbles(x.qs.as_ptr()), 8),
    rows_with_a_scale
);
symmetric!(
    BlockQ5_0,
    BlockQ8_0,
    |x| S::less(five_bits::<S>(&x.qs, x.qh), 16),
    rows_with_a_scale
);
symmetric!(
    BlockQ8_0,
    BlockQ8_0,
    |x| S::load(x.qs.as_ptr().cast()),
    rows_of_bytes
);
symmetric!(BlockQ8_1, BlockQ8_1, |x| S::load(x.qs.as_ptr().cast()));

/// Formats of codes above a minimum: `Σ (d · q[i] + m) · y[i] = Σ d · q[i] · y[i] + m · Σ y[i]`.
macro_rules! above_minimum {
    ($ty:ident, |$x:ident| $bytes:expr) => {
        impl Weights for $ty {
            /// Codes, scale and minimum.
            type Unpacked<S: Simd> = (S::Bytes, S::Floats, S::Floats);

            #[inline(always)]
            unsafe fn unpack<S: Simd>(&self) -> Self::Unpacked<S> {
                let $x = self;
                ($bytes, S::splat_f16($x.d), S::splat_f16($x.m))
            }

            #[inline(always)]
            unsafe fn mul_add<S: Simd>(
                (q, d, m): &Self::Unpacked<S>,
                y: &BlockQ8_1,
                sum: S::Floats,
            ) -> S::Floats {
                let dot = S::dot(*q, S::load(y.qs.as_ptr().cast()));
                let sum = S::mul_add(*m, S::splat_f16(y.s), sum);
                S::mul_add(S::floats(S::total(dot)), S::mul(*d, S::splat_f16(y.d)), sum)
            }
        }
    };
}

above_minimum!(BlockQ4_1, |x| S::nibbles(x.qs.as_ptr()));
above_minimum!(BlockQ5_1, |x| five_bits::<S>(&x.qs, x.qh));
