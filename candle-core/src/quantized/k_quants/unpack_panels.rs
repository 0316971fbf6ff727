//! Unpacks codes and scales of the formats for [panels](super::panels).

use std::mem::offset_of;

use super::pack::{scales_and_mins, signed_scales};
use super::panels::{Codes, PanelWeights};
use super::simd::Simd;
#[cfg(feature = "all-ggml-types")]
use super::table_blocks::Table;
use super::unpack_k::{four_bits, six_bits, two_bits, with_top_bit};
use super::unpack_legacy::five_bits;
use super::*;

/// Sixteen bytes in two words.
#[inline(always)]
fn two_words(bytes: [u8; 16]) -> [u64; 2] {
    let bytes = u128::from_le_bytes(bytes);
    [bytes as u64, (bytes >> 64) as u64]
}

/// [`PanelWeights::part_bytes`] of a `BlockQ4K` or `BlockQ5K`.
#[inline(always)]
fn six_bit_scales(packed: &[u8; K_SCALE_SIZE]) -> [[u64; 2]; 2] {
    let (scales, minima) = scales_and_mins(packed);
    [[scales, 0], [minima, 0]]
}

/// Implements [`PanelWeights`] for each format, given: the vectors of a block's bytes and how one is read; the vectors of codes and how
/// they are extracted (each byte from the bytes with its index); the elements of a part; the kind of codes; the factors; and the bytes that
/// multiply these.
macro_rules! panel_weights {
    ($($ty:ident: $parts:literal elements, $codes:expr,
        $read:literal vectors |$s:ident, $x:ident, $i:ident| $vector:expr,
        $vectors:literal of codes |$with:ident, $bytes:ident| $decoded:expr,
        $factors:expr $(, $part_bytes:expr)?;)*) => {$(
        impl PanelWeights for $ty {
            const PART: usize = $parts;
            const CODES: Codes = $codes;
            type Read<S: Simd> = [S::Bytes; $read];
            type Bytes<S: Simd> = [S::Bytes; $vectors];

            #[inline(always)]
            fn read<S: Simd>(&self, $s: S, $i: usize) -> S::Bytes {
                let $x = self;
                $vector
            }

            #[inline(always)]
            fn read_all<S: Simd>(&self, s: S) -> [S::Bytes; $read] {
                let mut bytes = [self.read(s, 0); $read];
                for (i, bytes) in bytes.iter_mut().enumerate().skip(1) {
                    *bytes = self.read(s, i);
                }
                bytes
            }

            #[inline(always)]
            fn codes<S: Simd>($with: S, $bytes: [S::Bytes; $read]) -> [S::Bytes; $vectors] {
                $decoded
            }

            #[inline(always)]
            fn factors(&self) -> [u16; 2] {
                let $x = self;
                $factors
            }

            $(#[inline(always)]
            fn part_bytes(&self) -> [[u64; 2]; 2] {
                let $x = self;
                $part_bytes
            })?
        }
    )*};
}

/// Vector `i` of a block's bytes from `first` on.
#[inline(always)]
fn vector<T: bytemuck::Pod, S: Simd>(s: S, x: &T, first: usize, i: usize) -> S::Bytes {
    let vectors = bytemuck::bytes_of(x)[first..].as_chunks::<32>().0;
    s.load(&vectors[i])
}

panel_weights! {
    BlockQ4_0: 32 elements, Codes::Offset(8),
        1 vectors |s, x, _i| s.nibbles(&x.qs), 1 of codes |_s, bytes| bytes,
        [x.d.to_bits(), 0];
    BlockQ4_1: 32 elements, Codes::AboveMinimum,
        1 vectors |s, x, _i| s.nibbles(&x.qs), 1 of codes |_s, bytes| bytes,
        [x.d.to_bits(), x.m.to_bits()];
    BlockQ5_0: 32 elements, Codes::Offset(16),
        1 vectors |s, x, _i| five_bits(s, &x.qs, x.qh), 1 of codes |_s, bytes| bytes,
        [x.d.to_bits(), 0];
    BlockQ5_1: 32 elements, Codes::AboveMinimum,
        1 vectors |s, x, _i| five_bits(s, &x.qs, x.qh), 1 of codes |_s, bytes| bytes,
        [x.d.to_bits(), x.m.to_bits()];
    BlockQ8_0: 32 elements, Codes::Signed,
        1 vectors |s, x, _i| s.load_signed(&x.qs), 1 of codes |_s, bytes| bytes,
        [x.d.to_bits(), 0];
    BlockQ2K: 16 elements, Codes::AboveMinimum,
        2 vectors |s, x, i| vector(s, x, offset_of!(Self, qs), i),
        8 of codes |s, bytes| two_bits(s, bytes),
        [x.d.to_bits(), x.dmin.to_bits()],
        {
            const LOW_4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
            let words = two_words(x.scales);
            [words.map(|word| word & LOW_4), words.map(|word| (word >> 4) & LOW_4)]
        };
    BlockQ3K: 16 elements, Codes::Offset(4),
        3 vectors |s, x, i| vector(s, x, offset_of!(Self, hmask), i),
        8 of codes |s, bytes| with_top_bit::<S, 2>(s, two_bits(s, [bytes[1], bytes[2]]), bytes[0]),
        [x.d.to_bits(), 0],
        [signed_scales(&x.scales), [0; 2]];
    BlockQ4K: 32 elements, Codes::AboveMinimum,
        4 vectors |s, x, i| vector(s, x, offset_of!(Self, qs), i),
        8 of codes |s, bytes| four_bits(s, bytes),
        [x.d.to_bits(), x.dmin.to_bits()],
        six_bit_scales(&x.scales);
    BlockQ5K: 32 elements, Codes::AboveMinimum,
        5 vectors |s, x, i| vector(s, x, offset_of!(Self, qh), i),
        8 of codes |s, bytes| {
            let [top, a, b, c, d] = bytes;
            with_top_bit::<S, 4>(s, four_bits(s, [a, b, c, d]), top)
        },
        [x.d.to_bits(), x.dmin.to_bits()],
        six_bit_scales(&x.scales);
    BlockQ6K: 16 elements, Codes::Offset(32),
        6 vectors |s, x, i| vector(s, x, offset_of!(Self, ql), i),
        8 of codes |s, bytes| six_bits(s, bytes),
        [x.d.to_bits(), 0],
        [two_words(x.scales.map(|s| s as u8)), [0; 2]];
}

#[cfg(feature = "all-ggml-types")]
panel_weights! {
    BlockIQ4NL: 32 elements, Codes::Signed,
        1 vectors |s, x, _i| s.nibbles(&x.qs),
        1 of codes |s, bytes| {
            let [codes] = bytes;
            [s.look_up(codes, &<Self as Table<32>>::VALUES)]
        },
        [x.d.to_bits(), 0];
}

/// The contiguous bytes that [`vector`] reads.
const _: () = {
    assert!(offset_of!(BlockQ3K, qs) == offset_of!(BlockQ3K, hmask) + 32);
    assert!(offset_of!(BlockQ5K, qs) == offset_of!(BlockQ5K, qh) + 32);
    assert!(offset_of!(BlockQ6K, qh) == offset_of!(BlockQ6K, ql) + 128);
};
