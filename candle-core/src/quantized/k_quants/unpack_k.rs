//! Products of the k-quants. A super-block is eight vectors of 32 codes, each with a pair of scales.

use super::one_row::{OneRow, OneRowWeights, RowSimd};
use super::pack::{scales_and_mins, signed_scales};
use super::products::{Unpack, Weights};
use super::simd::Simd;
use super::*;

/// The subtrahend of a minimum or an offset, per sixteenth of the super-block.
#[derive(Clone, Copy)]
pub(crate) struct Unpacked<S: Simd> {
    codes: [S::Bytes; 8],
    scales: S::Scales,
    /// The factors of the activations' sums: minima, or the scales again.
    mins: S::Words,
    d: S::Floats,
    dmin: S::Floats,
}

/// `Σ scale[i / 16] · q[i] · y[i]`
#[inline(always)]
fn scaled_dot<S: Simd>(s: S, x: &Unpacked<S>, y: &BlockQ8K) -> S::Ints {
    // Two accumulators, to break the dependency chain.
    let (mut even, mut odd) = (s.no_ints(), s.no_ints());
    let y_parts = y.qs.as_chunks::<32>().0;
    macro_rules! steps {
        ($($j:literal $sum:ident)*) => {$(
            let y_codes = s.load_signed(&y_parts[$j]);
            $sum = s.dot_scaled::<$j>($sum, x.codes[$j], y_codes, x.scales);
        )*};
    }
    steps!(0 even 1 odd 2 even 3 odd 4 even 5 odd 6 even 7 odd);
    s.add_ints(even, odd)
}

/// `Σ min[i / 16] · y[i]`
#[inline(always)]
fn mins_dot<S: Simd>(s: S, x: &Unpacked<S>, y: &BlockQ8K) -> S::Ints {
    s.dot_words(x.mins, s.load_words(&y.bsums))
}

/// `N` vectors of bytes.
#[inline(always)]
fn load_all<S: Simd, const N: usize>(s: S, bytes: &[u8]) -> [S::Bytes; N] {
    let parts = bytes.as_chunks::<32>().0;
    let mut vectors = [s.load(&parts[0]); N];
    for (i, vector) in vectors.iter_mut().enumerate().skip(1) {
        *vector = s.load(&parts[i]);
    }
    vectors
}

/// The two bits of 256 elements: byte `b` of half `h` has those of `128 h + b + {0, 32, 64, 96}`.
#[inline(always)]
pub(super) fn two_bits<S: Simd>(s: S, [a, b]: [S::Bytes; 2]) -> [S::Bytes; 8] {
    [
        s.right::<0>(a, 3),
        s.right::<2>(a, 3),
        s.right::<4>(a, 3),
        s.right::<6>(a, 3),
        s.right::<0>(b, 3),
        s.right::<2>(b, 3),
        s.right::<4>(b, 3),
        s.right::<6>(b, 3),
    ]
}

/// The nibbles of 256 elements: byte `b` of quarter `h` has those of `64 h + b` and `64 h + b + 32`.
#[inline(always)]
pub(super) fn four_bits<S: Simd>(s: S, [a, b, c, d]: [S::Bytes; 4]) -> [S::Bytes; 8] {
    [
        s.right::<0>(a, 15),
        s.right::<4>(a, 15),
        s.right::<0>(b, 15),
        s.right::<4>(b, 15),
        s.right::<0>(c, 15),
        s.right::<4>(c, 15),
        s.right::<0>(d, 15),
        s.right::<4>(d, 15),
    ]
}

/// One more bit of 256 elements: bit `j` of byte `b` is that of element `32 j + b`, and becomes bit `BIT` of its byte,
/// 2 or 4.
#[inline(always)]
pub(super) fn with_top_bit<S: Simd, const BIT: u8>(
    s: S,
    codes: [S::Bytes; 8],
    bits: S::Bytes,
) -> [S::Bytes; 8] {
    let top = if BIT == 2 {
        [
            s.left::<2>(bits, 4),
            s.left::<1>(bits, 4),
            s.right::<0>(bits, 4),
            s.right::<1>(bits, 4),
            s.right::<2>(bits, 4),
            s.right::<3>(bits, 4),
            s.right::<4>(bits, 4),
            s.right::<5>(bits, 4),
        ]
    } else {
        [
            s.left::<4>(bits, 16),
            s.left::<3>(bits, 16),
            s.left::<2>(bits, 16),
            s.left::<1>(bits, 16),
            s.right::<0>(bits, 16),
            s.right::<1>(bits, 16),
            s.right::<2>(bits, 16),
            s.right::<3>(bits, 16),
        ]
    };
    let mut codes = codes;
    for (code, top) in codes.iter_mut().zip(top) {
        *code = s.or(*code, top);
    }
    codes
}

/// The nibbles of 256 elements, byte `b` of half `h` with those of `128 h + b` and `128 h + b + 64`, and two more bits: four vectors of
/// nibbles, then two of bits.
#[inline(always)]
pub(super) fn six_bits<S: Simd>(s: S, [a, b, c, d, e, f]: [S::Bytes; 6]) -> [S::Bytes; 8] {
    [
        s.or(s.right::<0>(a, 15), s.left::<4>(e, 48)),
        s.or(s.right::<0>(b, 15), s.left::<2>(e, 48)),
        s.or(s.right::<4>(a, 15), s.right::<0>(e, 48)),
        s.or(s.right::<4>(b, 15), s.right::<2>(e, 48)),
        s.or(s.right::<0>(c, 15), s.left::<4>(f, 48)),
        s.or(s.right::<0>(d, 15), s.left::<2>(f, 48)),
        s.or(s.right::<4>(c, 15), s.right::<0>(f, 48)),
        s.or(s.right::<4>(d, 15), s.right::<2>(f, 48)),
    ]
}

/// The eight bytes of each half.
#[inline(always)]
fn two_words(bytes: &[u8; 16]) -> [u64; 2] {
    let bytes = u128::from_le_bytes(*bytes);
    [bytes as u64, (bytes >> 64) as u64]
}

/// Formats with minima: `d · Σ scale · q · y − dmin · Σ min · y`.
macro_rules! above_minimum {
    ($ty:ident, |$s:ident, $x:ident| $unpacked:expr $(, $rows:ident)?) => {
        impl Unpack for $ty {
            type Activations = BlockQ8K;
            type Unpacked<S: Simd> = Unpacked<S>;

            #[inline(always)]
            fn unpack<S: Simd>(&self, $s: S) -> Unpacked<S> {
                let $x = self;
                let (codes, scales, mins) = $unpacked;
                Unpacked {
                    codes,
                    scales,
                    mins,
                    d: $s.splat_f16($x.d),
                    dmin: $s.splat_f16($x.dmin),
                }
            }
        }

        impl Weights<BlockQ8K> for $ty {
            #[inline(always)]
            fn mul_add<S: Simd>(s: S, x: &Unpacked<S>, y: &BlockQ8K, sum: S::Floats) -> S::Floats {
                let y_d = s.splat(y.d);
                let mins = s.floats(s.total(mins_dot(s, x, y)));
                let sum = s.neg_mul_add(mins, s.mul(x.dmin, y_d), sum);
                let dot = s.floats(s.total(scaled_dot(s, x, y)));
                s.mul_add(dot, s.mul(x.d, y_d), sum)
            }
        }

        $(impl OneRowWeights for $ty {
            #[inline(always)]
            fn one_row<S: RowSimd>(s: S, xs: &[Self], y: &OneRow<BlockQ8K>, dst: &mut [f32]) {
                s.$rows(xs, y, dst)
            }
        })?
    };
}

above_minimum!(BlockQ2K, |s, x| {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let words = two_words(&x.scales);
    (
        two_bits(s, load_all::<S, 2>(s, &x.qs)),
        s.scales_of_16(words.map(|w| w & LOW)),
        s.words_of_16(words.map(|w| (w >> 4) & LOW)),
    )
});

above_minimum!(
    BlockQ4K,
    |s, x| {
        let (scales, mins) = scales_and_mins(&x.scales);
        (
            four_bits(s, load_all::<S, 4>(s, &x.qs)),
            s.scales_of_32(scales),
            s.words_of_32(mins),
        )
    },
    nibbles_with_minima
);

above_minimum!(
    BlockQ5K,
    |s, x| {
        let (scales, mins) = scales_and_mins(&x.scales);
        (
            with_top_bit::<S, 4>(s, four_bits(s, load_all::<S, 4>(s, &x.qs)), s.load(&x.qh)),
            s.scales_of_32(scales),
            s.words_of_32(mins),
        )
    },
    with_minima
);

/// Formats whose codes have `1 << SHIFT` added: `d · (Σ scale · q · y − (1 << SHIFT) · Σ scale · y)`, in integers except for `d`.
macro_rules! symmetric {
    ($ty:ident, $shift:literal, |$s:ident, $x:ident| $unpacked:expr) => {
        impl Unpack for $ty {
            type Activations = BlockQ8K;
            type Unpacked<S: Simd> = Unpacked<S>;

            #[inline(always)]
            fn unpack<S: Simd>(&self, $s: S) -> Unpacked<S> {
                let $x = self;
                let (codes, scales): (_, [u64; 2]) = $unpacked;
                let d = $s.splat_f16($x.d);
                Unpacked {
                    codes,
                    scales: $s.scales_of_16(scales),
                    mins: $s.words_of_16(scales),
                    d,
                    dmin: d,
                }
            }
        }

        impl Weights<BlockQ8K> for $ty {
            #[inline(always)]
            fn mul_add<S: Simd>(s: S, x: &Unpacked<S>, y: &BlockQ8K, sum: S::Floats) -> S::Floats {
                let dot = s.sub_shifted::<$shift>(scaled_dot(s, x, y), mins_dot(s, x, y));
                s.mul_add(s.floats(s.total(dot)), s.mul(x.d, s.splat(y.d)), sum)
            }
        }
    };
}

symmetric!(BlockQ3K, 2, |s, x| {
    let codes = with_top_bit::<S, 2>(s, two_bits(s, load_all::<S, 2>(s, &x.qs)), s.load(&x.hmask));
    (codes, signed_scales(&x.scales))
});

symmetric!(BlockQ6K, 5, |s, x| {
    let scales = two_words(&x.scales.map(|s| s as u8));
    let [a, b, c, d] = load_all::<S, 4>(s, &x.ql);
    let [e, f] = load_all::<S, 2>(s, &x.qh);
    (six_bits(s, [a, b, c, d, e, f]), scales)
});

impl Unpack for BlockQ8K {
    type Activations = BlockQ8K;
    type Unpacked<S: Simd> = ([S::Bytes; 8], f32);

    #[inline(always)]
    fn unpack<S: Simd>(&self, s: S) -> Self::Unpacked<S> {
        let codes = self.qs.as_chunks::<32>().0;
        let codes = std::array::from_fn(|j| s.load_signed(&codes[j]));
        (codes, self.d)
    }
}

impl Weights<BlockQ8K> for BlockQ8K {
    #[inline(always)]
    fn mul_add<S: Simd>(
        s: S,
        (codes, d): &Self::Unpacked<S>,
        y: &BlockQ8K,
        sum: S::Floats,
    ) -> S::Floats {
        let mut dot = s.no_ints();
        for (&codes, y_codes) in codes.iter().zip(y.qs.as_chunks::<32>().0) {
            dot = s.add_ints(dot, s.dot_wide(codes, s.load_signed(y_codes)));
        }
        s.mul_add(s.floats(s.total(dot)), s.splat(d * y.d), sum)
    }
}
