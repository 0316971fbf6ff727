//! Codes and scales of the formats as [panels](super::panels) take them.

use std::mem::offset_of;

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

/// Per format: the vectors that a block's bytes are read in and how one is read, its vectors of codes and how they come out of the
/// former (each byte out of those in its own place), the elements of a part, what codes are, and how scales and minima are written.
macro_rules! panel_weights {
    ($($ty:ident: $parts:literal elements, $codes:expr,
        $read:literal vectors |$x:ident, $i:ident| $vector:expr,
        $vectors:literal of codes |$bytes:ident| $decoded:expr,
        |$scales:ident, $minima:ident| $write:expr;)*) => {$(
        impl PanelWeights for $ty {
            const PART: usize = $parts;
            const CODES: Codes = $codes;
            type Read<S: Simd> = [S::Bytes; $read];
            type Bytes<S: Simd> = [S::Bytes; $vectors];

            #[inline(always)]
            unsafe fn read<S: Simd>(&self, $i: usize) -> S::Bytes {
                let $x = self;
                $vector
            }

            #[inline(always)]
            unsafe fn read_all<S: Simd>(&self) -> [S::Bytes; $read] {
                let mut bytes = [self.read::<S>(0); $read];
                for (i, bytes) in bytes.iter_mut().enumerate().skip(1) {
                    *bytes = self.read::<S>(i);
                }
                bytes
            }

            #[inline(always)]
            unsafe fn codes<S: Simd>($bytes: [S::Bytes; $read]) -> [S::Bytes; $vectors] {
                $decoded
            }

            #[inline(always)]
            unsafe fn scales<S: Lanes>(&self, $scales: *mut f32, $minima: *mut f32) {
                let $x = self;
                $write
            }
        }
    )*};
}

/// Vector `i` of a block's bytes from `first` on.
#[inline(always)]
unsafe fn vector<T, S: Simd>(x: &T, first: usize, i: usize) -> S::Bytes {
    S::load((&raw const *x).cast::<u8>().add(first + 32 * i))
}

panel_weights! {
    BlockQ4_0: 32 elements, Codes::Offset(8),
        1 vectors |x, _i| S::nibbles(x.qs.as_ptr()), 1 of codes |bytes| bytes,
        |scales, _minima| *scales = S::float(x.d);
    BlockQ4_1: 32 elements, Codes::AboveMinimum,
        1 vectors |x, _i| S::nibbles(x.qs.as_ptr()), 1 of codes |bytes| bytes,
        |scales, minima| (*scales, *minima) = (S::float(x.d), S::float(x.m));
    BlockQ5_0: 32 elements, Codes::Offset(16),
        1 vectors |x, _i| five_bits::<S>(&x.qs, x.qh), 1 of codes |bytes| bytes,
        |scales, _minima| *scales = S::float(x.d);
    BlockQ5_1: 32 elements, Codes::AboveMinimum,
        1 vectors |x, _i| five_bits::<S>(&x.qs, x.qh), 1 of codes |bytes| bytes,
        |scales, minima| (*scales, *minima) = (S::float(x.d), S::float(x.m));
    BlockQ8_0: 32 elements, Codes::Signed,
        1 vectors |x, _i| S::load(x.qs.as_ptr().cast()), 1 of codes |bytes| bytes,
        |scales, _minima| *scales = S::float(x.d);
    BlockQ2K: 16 elements, Codes::AboveMinimum,
        2 vectors |x, i| vector::<_, S>(x, offset_of!(Self, qs), i),
        8 of codes |bytes| two_bits::<S>(bytes),
        |scales, minima| {
            times(scales, S::float(x.d), x.scales.map(|s| s & 15));
            times(minima, -S::float(x.dmin), x.scales.map(|s| s >> 4));
        };
    BlockQ3K: 16 elements, Codes::Offset(4),
        3 vectors |x, i| vector::<_, S>(x, offset_of!(Self, hmask), i),
        8 of codes |bytes| with_top_bit::<S, 2>(two_bits::<S>([bytes[1], bytes[2]]), bytes[0]),
        |scales, _minima| {
            let [low, high] = signed_scales(&x.scales).map(u64::to_le_bytes);
            times(scales, S::float(x.d), low);
            times(scales.add(8), S::float(x.d), high);
        };
    BlockQ4K: 32 elements, Codes::AboveMinimum,
        4 vectors |x, i| vector::<_, S>(x, offset_of!(Self, qs), i),
        8 of codes |bytes| four_bits::<S>(bytes),
        |scales, minima|
            six_bit_scales((S::float(x.d), scales), (S::float(x.dmin), minima), &x.scales);
    BlockQ5K: 32 elements, Codes::AboveMinimum,
        5 vectors |x, i| vector::<_, S>(x, offset_of!(Self, qh), i),
        8 of codes |bytes| {
            let [top, a, b, c, d] = bytes;
            with_top_bit::<S, 4>(four_bits::<S>([a, b, c, d]), top)
        },
        |scales, minima|
            six_bit_scales((S::float(x.d), scales), (S::float(x.dmin), minima), &x.scales);
    BlockQ6K: 16 elements, Codes::Offset(32),
        6 vectors |x, i| vector::<_, S>(x, offset_of!(Self, ql), i),
        8 of codes |bytes| six_bits::<S>(bytes),
        |scales, _minima| times(scales, S::float(x.d), x.scales.map(|s| s as u8));
}

/// What [`vector`] reads without a break.
const _: () = {
    assert!(offset_of!(BlockQ3K, qs) == offset_of!(BlockQ3K, hmask) + 32);
    assert!(offset_of!(BlockQ5K, qs) == offset_of!(BlockQ5K, qh) + 32);
    assert!(offset_of!(BlockQ6K, qh) == offset_of!(BlockQ6K, ql) + 128);
};
