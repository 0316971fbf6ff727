//! Codes and scales of the formats as [panels](super::panels) take them.

use std::mem::offset_of;

use super::lanes::Lanes;
use super::pack::{scales_and_mins, signed_scales};
use super::panels::{Codes, PanelWeights};
use super::simd::Simd;
use super::unpack_k::{four_bits, six_bits, two_bits, with_top_bit};
use super::unpack_legacy::five_bits;
use super::*;

/// `by` times each of the bytes in these words, signed or below 128, the first in the lowest byte.
///
/// # Safety
/// As for [`Lanes`]; `to` has room for them.
#[inline(always)]
unsafe fn times<S: Lanes, const N: usize>(to: *mut f32, by: f32, words: [u64; N]) {
    for (i, word) in words.into_iter().enumerate() {
        S::store_eight(to.add(8 * i), S::mul(S::eight_bytes(word), S::splat(by)));
    }
}

/// Sixteen bytes in two words.
#[inline(always)]
fn two_words(bytes: [u8; 16]) -> [u64; 2] {
    let bytes = u128::from_le_bytes(bytes);
    [bytes as u64, (bytes >> 64) as u64]
}

/// As [`times`], for the scales of a `BlockQ4K` or `BlockQ5K` and for what their minima take away.
#[inline(always)]
unsafe fn six_bit_scales<S: Lanes>(
    (d, scales): (f32, *mut f32),
    (dmin, minima): (f32, *mut f32),
    packed: &[u8; K_SCALE_SIZE],
) {
    let (s, m) = scales_and_mins(packed);
    times::<S, 1>(scales, d, [s]);
    times::<S, 1>(minima, -dmin, [m]);
}

/// Per format: the vectors that a block's bytes are read in and how one is read, its vectors of codes and how they come out of the
/// former (each byte out of those in its own place), the elements of a part, what codes are, its factors, and how scales and minima come from them.
macro_rules! panel_weights {
    ($($ty:ident: $parts:literal elements, $codes:expr,
        $read:literal vectors |$x:ident, $i:ident| $vector:expr,
        $vectors:literal of codes |$bytes:ident| $decoded:expr,
        $factors:expr $(, |$d:ident, $m:ident, $scales:ident, $minima:ident| $write:expr)?;)*) => {$(
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
            fn factors(&self) -> [u16; 2] {
                let $x = self;
                $factors
            }

            $(#[inline(always)]
            unsafe fn scales<S: Lanes>(&self, [$d, $m]: [f32; 2], $scales: *mut f32, $minima: *mut f32) {
                let $x = self;
                $write
            })?
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
        [x.d.to_bits(), 0];
    BlockQ4_1: 32 elements, Codes::AboveMinimum,
        1 vectors |x, _i| S::nibbles(x.qs.as_ptr()), 1 of codes |bytes| bytes,
        [x.d.to_bits(), x.m.to_bits()];
    BlockQ5_0: 32 elements, Codes::Offset(16),
        1 vectors |x, _i| five_bits::<S>(&x.qs, x.qh), 1 of codes |bytes| bytes,
        [x.d.to_bits(), 0];
    BlockQ5_1: 32 elements, Codes::AboveMinimum,
        1 vectors |x, _i| five_bits::<S>(&x.qs, x.qh), 1 of codes |bytes| bytes,
        [x.d.to_bits(), x.m.to_bits()];
    BlockQ8_0: 32 elements, Codes::Signed,
        1 vectors |x, _i| S::load(x.qs.as_ptr().cast()), 1 of codes |bytes| bytes,
        [x.d.to_bits(), 0];
    BlockQ2K: 16 elements, Codes::AboveMinimum,
        2 vectors |x, i| vector::<_, S>(x, offset_of!(Self, qs), i),
        8 of codes |bytes| two_bits::<S>(bytes),
        [x.d.to_bits(), x.dmin.to_bits()],
        |d, dmin, scales, minima| {
            const LOW_4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
            let [a, b] = two_words(x.scales);
            times::<S, 2>(scales, d, [a & LOW_4, b & LOW_4]);
            times::<S, 2>(minima, -dmin, [(a >> 4) & LOW_4, (b >> 4) & LOW_4]);
        };
    BlockQ3K: 16 elements, Codes::Offset(4),
        3 vectors |x, i| vector::<_, S>(x, offset_of!(Self, hmask), i),
        8 of codes |bytes| with_top_bit::<S, 2>(two_bits::<S>([bytes[1], bytes[2]]), bytes[0]),
        [x.d.to_bits(), 0],
        |d, _m, scales, _minima| times::<S, 2>(scales, d, signed_scales(&x.scales));
    BlockQ4K: 32 elements, Codes::AboveMinimum,
        4 vectors |x, i| vector::<_, S>(x, offset_of!(Self, qs), i),
        8 of codes |bytes| four_bits::<S>(bytes),
        [x.d.to_bits(), x.dmin.to_bits()],
        |d, dmin, scales, minima| six_bit_scales::<S>((d, scales), (dmin, minima), &x.scales);
    BlockQ5K: 32 elements, Codes::AboveMinimum,
        5 vectors |x, i| vector::<_, S>(x, offset_of!(Self, qh), i),
        8 of codes |bytes| {
            let [top, a, b, c, d] = bytes;
            with_top_bit::<S, 4>(four_bits::<S>([a, b, c, d]), top)
        },
        [x.d.to_bits(), x.dmin.to_bits()],
        |d, dmin, scales, minima| six_bit_scales::<S>((d, scales), (dmin, minima), &x.scales);
    BlockQ6K: 16 elements, Codes::Offset(32),
        6 vectors |x, i| vector::<_, S>(x, offset_of!(Self, ql), i),
        8 of codes |bytes| six_bits::<S>(bytes),
        [x.d.to_bits(), 0],
        |d, _m, scales, _minima| times::<S, 2>(scales, d, two_words(x.scales.map(|s| s as u8)));
}

/// What [`vector`] reads without a break.
const _: () = {
    assert!(offset_of!(BlockQ3K, qs) == offset_of!(BlockQ3K, hmask) + 32);
    assert!(offset_of!(BlockQ5K, qs) == offset_of!(BlockQ5K, qh) + 32);
    assert!(offset_of!(BlockQ6K, qh) == offset_of!(BlockQ6K, ql) + 128);
};
