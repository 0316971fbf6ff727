//! Codes and scales of the formats as [panels](super::panels) take them.

use super::lanes::Lanes;
use super::pack::{scales_and_mins, signed_scales};
use super::panels::{Codes, PanelWeights};
use super::simd::Simd;
use super::unpack_k::{four_bits, six_bits, two_bits, with_top_bit};
use super::unpack_legacy::five_bits;
use super::*;

/// `by` times each of the bytes, signed or below 128.
///
/// # Safety
/// `to` has room for them.
#[inline(always)]
unsafe fn times<const N: usize>(to: *mut f32, by: f32, bytes: [u8; N]) {
    for (i, byte) in bytes.into_iter().enumerate() {
        *to.add(i) = by * f32::from(byte as i8);
    }
}

/// As [`times`], for the scales of a `BlockQ4K` or `BlockQ5K` and for what their minima take away.
#[inline(always)]
unsafe fn six_bit_scales(
    (d, scales): (f32, *mut f32),
    (dmin, minima): (f32, *mut f32),
    packed: &[u8; K_SCALE_SIZE],
) {
    let (s, m) = scales_and_mins(packed);
    times(scales, d, s.to_le_bytes());
    times(minima, -dmin, m.to_le_bytes());
}

macro_rules! panel_weights {
    ($($ty:ident: $vectors:literal vectors, $part:literal elements, $codes:expr,
        |$x:ident, $scales:ident, $minima:ident| $bytes:expr, $write:expr;)*) => {$(
        impl PanelWeights for $ty {
            const PART: usize = $part;
            const CODES: Codes = $codes;
            type Bytes<S: Simd> = [S::Bytes; $vectors];

            #[inline(always)]
            unsafe fn codes<S: Simd>(&self) -> [S::Bytes; $vectors] {
                let $x = self;
                $bytes
            }

            #[inline(always)]
            unsafe fn scales<S: Lanes>(&self, $scales: *mut f32, $minima: *mut f32) {
                let $x = self;
                $write
            }
        }
    )*};
}

panel_weights! {
    BlockQ4_0: 1 vectors, 32 elements, Codes::Offset(8),
        |x, scales, _minima| [S::nibbles(x.qs.as_ptr())], *scales = S::float(x.d);
    BlockQ4_1: 1 vectors, 32 elements, Codes::AboveMinimum,
        |x, scales, minima| [S::nibbles(x.qs.as_ptr())],
        (*scales, *minima) = (S::float(x.d), S::float(x.m));
    BlockQ5_0: 1 vectors, 32 elements, Codes::Offset(16),
        |x, scales, _minima| [five_bits::<S>(&x.qs, x.qh)], *scales = S::float(x.d);
    BlockQ5_1: 1 vectors, 32 elements, Codes::AboveMinimum,
        |x, scales, minima| [five_bits::<S>(&x.qs, x.qh)],
        (*scales, *minima) = (S::float(x.d), S::float(x.m));
    BlockQ8_0: 1 vectors, 32 elements, Codes::Signed,
        |x, scales, _minima| [S::load(x.qs.as_ptr().cast())], *scales = S::float(x.d);
    BlockQ2K: 8 vectors, 16 elements, Codes::AboveMinimum,
        |x, scales, minima| two_bits::<S>(&x.qs),
        {
            times(scales, S::float(x.d), x.scales.map(|s| s & 15));
            times(minima, -S::float(x.dmin), x.scales.map(|s| s >> 4));
        };
    BlockQ3K: 8 vectors, 16 elements, Codes::Offset(4),
        |x, scales, _minima| with_top_bit::<S, 2>(two_bits::<S>(&x.qs), &x.hmask),
        {
            let [low, high] = signed_scales(&x.scales).map(u64::to_le_bytes);
            times(scales, S::float(x.d), low);
            times(scales.add(8), S::float(x.d), high);
        };
    BlockQ4K: 8 vectors, 32 elements, Codes::AboveMinimum,
        |x, scales, minima| four_bits::<S>(&x.qs),
        six_bit_scales((S::float(x.d), scales), (S::float(x.dmin), minima), &x.scales);
    BlockQ5K: 8 vectors, 32 elements, Codes::AboveMinimum,
        |x, scales, minima| with_top_bit::<S, 4>(four_bits::<S>(&x.qs), &x.qh),
        six_bit_scales((S::float(x.d), scales), (S::float(x.dmin), minima), &x.scales);
    BlockQ6K: 8 vectors, 16 elements, Codes::Offset(32),
        |x, scales, _minima| six_bits::<S>(&x.ql, &x.qh),
        times(scales, S::float(x.d), x.scales.map(|s| s as u8));
}
