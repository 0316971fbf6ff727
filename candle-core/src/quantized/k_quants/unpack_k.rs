//! Products of the k-quants. A super-block is eight vectors of 32 codes, each with a pair of scales.

use super::one_row::{OneRow, OneRowWeights};
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
unsafe fn scaled_dot<S: Simd>(x: &Unpacked<S>, y: &BlockQ8K) -> S::Ints {
    // Two accumulators, to break the dependency chain.
    let (mut even, mut odd) = (S::no_ints(), S::no_ints());
    macro_rules! steps {
        ($($j:literal $sum:ident)*) => {$(
            let y_codes = S::load(y.qs.as_ptr().add(32 * $j).cast());
            $sum = S::dot_scaled::<$j>($sum, x.codes[$j], y_codes, x.scales);
        )*};
    }
    steps!(0 even 1 odd 2 even 3 odd 4 even 5 odd 6 even 7 odd);
    S::add_ints(even, odd)
}

/// `Σ min[i / 16] · y[i]`
#[inline(always)]
unsafe fn mins_dot<S: Simd>(x: &Unpacked<S>, y: &BlockQ8K) -> S::Ints {
    S::dot_words(x.mins, S::load_words(y.bsums.as_ptr()))
}

/// The vectors of bytes from `p` on.
#[inline(always)]
unsafe fn load_all<S: Simd, const N: usize>(p: *const u8) -> [S::Bytes; N] {
    let mut vectors = [S::load(p); N];
    for (i, vector) in vectors.iter_mut().enumerate().skip(1) {
        *vector = S::load(p.add(32 * i));
    }
    vectors
}

/// The two bits of 256 elements: byte `b` of half `h` has those of `128 h + b + {0, 32, 64, 96}`.
#[inline(always)]
pub(super) unsafe fn two_bits<S: Simd>([a, b]: [S::Bytes; 2]) -> [S::Bytes; 8] {
    [
        S::right::<0>(a, 3),
        S::right::<2>(a, 3),
        S::right::<4>(a, 3),
        S::right::<6>(a, 3),
        S::right::<0>(b, 3),
        S::right::<2>(b, 3),
        S::right::<4>(b, 3),
        S::right::<6>(b, 3),
    ]
}

/// The nibbles of 256 elements: byte `b` of quarter `h` has those of `64 h + b` and `64 h + b + 32`.
#[inline(always)]
pub(super) unsafe fn four_bits<S: Simd>([a, b, c, d]: [S::Bytes; 4]) -> [S::Bytes; 8] {
    [
        S::right::<0>(a, 15),
        S::right::<4>(a, 15),
        S::right::<0>(b, 15),
        S::right::<4>(b, 15),
        S::right::<0>(c, 15),
        S::right::<4>(c, 15),
        S::right::<0>(d, 15),
        S::right::<4>(d, 15),
    ]
}

/// One more bit of 256 elements: bit `j` of byte `b` is that of element `32 j + b`, and becomes bit `BIT` of its byte,
/// 2 or 4.
#[inline(always)]
pub(super) unsafe fn with_top_bit<S: Simd, const BIT: u8>(
    codes: [S::Bytes; 8],
    bits: S::Bytes,
) -> [S::Bytes; 8] {
    let top = if BIT == 2 {
        [
            S::left::<2>(bits, 4),
            S::left::<1>(bits, 4),
            S::right::<0>(bits, 4),
            S::right::<1>(bits, 4),
            S::right::<2>(bits, 4),
            S::right::<3>(bits, 4),
            S::right::<4>(bits, 4),
            S::right::<5>(bits, 4),
        ]
    } else {
        [
            S::left::<4>(bits, 16),
            S::left::<3>(bits, 16),
            S::left::<2>(bits, 16),
            S::left::<1>(bits, 16),
            S::right::<0>(bits, 16),
            S::right::<1>(bits, 16),
            S::right::<2>(bits, 16),
            S::right::<3>(bits, 16),
        ]
    };
    let mut codes = codes;
    for (code, top) in codes.iter_mut().zip(top) {
        *code = S::or(*code, top);
    }
    codes
}

/// The nibbles of 256 elements, byte `b` of half `h` with those of `128 h + b` and `128 h + b + 64`, and two more bits: four vectors of
/// nibbles, then two of bits.
#[inline(always)]
pub(super) unsafe fn six_bits<S: Simd>([a, b, c, d, e, f]: [S::Bytes; 6]) -> [S::Bytes; 8] {
    [
        S::or(S::right::<0>(a, 15), S::left::<4>(e, 48)),
        S::or(S::right::<0>(b, 15), S::left::<2>(e, 48)),
        S::or(S::right::<4>(a, 15), S::right::<0>(e, 48)),
        S::or(S::right::<4>(b, 15), S::right::<2>(e, 48)),
        S::or(S::right::<0>(c, 15), S::left::<4>(f, 48)),
        S::or(S::right::<0>(d, 15), S::left::<2>(f, 48)),
        S::or(S::right::<4>(c, 15), S::right::<0>(f, 48)),
        S::or(S::right::<4>(d, 15), S::right::<2>(f, 48)),
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
    ($ty:ident, |$x:ident| $unpacked:expr $(, $rows:ident)?) => {
        impl Unpack for $ty {
            type Activations = BlockQ8K;
            type Unpacked<S: Simd> = Unpacked<S>;

            #[inline(always)]
            unsafe fn unpack<S: Simd>(&self) -> Unpacked<S> {
                let $x = self;
                let (codes, scales, mins) = $unpacked;
                Unpacked {
                    codes,
                    scales,
                    mins,
                    d: S::splat_f16($x.d),
                    dmin: S::splat_f16($x.dmin),
                }
            }
        }

        impl Weights<BlockQ8K> for $ty {
            #[inline(always)]
            unsafe fn mul_add<S: Simd>(x: &Unpacked<S>, y: &BlockQ8K, sum: S::Floats) -> S::Floats {
                let y_d = S::splat(y.d);
                let mins = S::floats(S::total(mins_dot(x, y)));
                let sum = S::neg_mul_add(mins, S::mul(x.dmin, y_d), sum);
                let dot = S::floats(S::total(scaled_dot(x, y)));
                S::mul_add(dot, S::mul(x.d, y_d), sum)
            }
        }

        $(impl OneRowWeights for $ty {
            #[inline(always)]
            unsafe fn one_row<S: Simd>(xs: &[Self], y: &OneRow<BlockQ8K>, dst: &mut [f32]) -> bool {
                S::$rows(xs, y, dst)
            }
        })?
    };
}

above_minimum!(BlockQ2K, |x| {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    let words = two_words(&x.scales);
    (
        two_bits::<S>(load_all::<S, 2>(x.qs.as_ptr())),
        S::scales_of_16(words.map(|w| w & LOW)),
        S::words_of_16(words.map(|w| (w >> 4) & LOW)),
    )
});

above_minimum!(
    BlockQ4K,
    |x| {
        let (scales, mins) = scales_and_mins(&x.scales);
        (
            four_bits::<S>(load_all::<S, 4>(x.qs.as_ptr())),
            S::scales_of_32(scales),
            S::words_of_32(mins),
        )
    },
    rows_of_nibbles
);

above_minimum!(
    BlockQ5K,
    |x| {
        let (scales, mins) = scales_and_mins(&x.scales);
        (
            with_top_bit::<S, 4>(
                four_bits::<S>(load_all::<S, 4>(x.qs.as_ptr())),
                S::load(x.qh.as_ptr()),
            ),
            S::scales_of_32(scales),
            S::words_of_32(mins),
        )
    },
    rows_with_minima
);

/// Formats whose codes have `1 << SHIFT` added: `d · (Σ scale · q · y − (1 << SHIFT) · Σ scale · y)`, in integers except for `d`.
macro_rules! symmetric {
    ($ty:ident, $shift:literal, |$x:ident| $unpacked:expr) => {
        impl Unpack for $ty {
            type Activations = BlockQ8K;
            type Unpacked<S: Simd> = Unpacked<S>;

            #[inline(always)]
            unsafe fn unpack<S: Simd>(&self) -> Unpacked<S> {
                let $x = self;
                let (codes, scales): (_, [u64; 2]) = $unpacked;
                let d = S::splat_f16($x.d);
                Unpacked {
                    codes,
                    scales: S::scales_of_16(scales),
                    mins: S::words_of_16(scales),
                    d,
                    dmin: d,
                }
            }
        }

        impl Weights<BlockQ8K> for $ty {
            #[inline(always)]
            unsafe fn mul_add<S: Simd>(x: &Unpacked<S>, y: &BlockQ8K, sum: S::Floats) -> S::Floats {
                let dot = S::sub_shifted::<$shift>(scaled_dot(x, y), mins_dot(x, y));
                S::mul_add(S::floats(S::total(dot)), S::mul(x.d, S::splat(y.d)), sum)
            }
        }
    };
}

symmetric!(BlockQ3K, 2, |x| {
    let codes = with_top_bit::<S, 2>(
        two_bits::<S>(load_all::<S, 2>(x.qs.as_ptr())),
        S::load(x.hmask.as_ptr()),
    );
    (codes, signed_scales(&x.scales))
});

symmetric!(BlockQ6K, 5, |x| {
    let scales = two_words(&x.scales.map(|s| s as u8));
    let [a, b, c, d] = load_all::<S, 4>(x.ql.as_ptr());
    let [e, f] = load_all::<S, 2>(x.qh.as_ptr());
    (six_bits::<S>([a, b, c, d, e, f]), scales)
});

impl Unpack for BlockQ8K {
    type Activations = BlockQ8K;
    type Unpacked<S: Simd> = ([S::Bytes; 8], f32);

    #[inline(always)]
    unsafe fn unpack<S: Simd>(&self) -> Self::Unpacked<S> {
        let codes = std::array::from_fn(|j| S::load(self.qs.as_ptr().add(32 * j).cast()));
        (codes, self.d)
    }
}

impl Weights<BlockQ8K> for BlockQ8K {
    #[inline(always)]
    unsafe fn mul_add<S: Simd>(
        (codes, d): &Self::Unpacked<S>,
        y: &BlockQ8K,
        sum: S::Floats,
    ) -> S::Floats {
        let mut dot = S::no_ints();
        for (j, &codes) in codes.iter().enumerate() {
            let y_codes = S::load(y.qs.as_ptr().add(32 * j).cast());
            dot = S::add_ints(dot, S::dot_wide(codes, y_codes));
        }
        S::mul_add(S::floats(S::total(dot)), S::splat(d * y.d), sum)
    }
}
