//! Encoders of the formats with 32 elements and one scale per block.
//!
//! Without an importance matrix the scale follows from the largest element, or from the range, alone; with one it is searched for. In both
//! cases the bytes are those of ggml's reference encoder.

use half::f16;

use super::fit::{above_minimum, inverse, largest, range, symmetric, Candidates, Fit};
use super::*;

/// Importance of a block's elements, from an importance matrix.
#[derive(Clone, Copy)]
pub(crate) struct Importance<'a, const LEN: usize> {
    /// A weight for the squared error of each element of the block.
    pub(super) weights: &'a [f32; LEN],
    /// The mean square of the whole row.
    pub(super) spread: f32,
}

impl Importance<'_, 32> {
    /// Weights like those of a k-quant's sub-block, but with the spread of the row.
    #[inline(always)]
    pub(super) fn of(&self, xs: &[f32; 32]) -> [f32; 32] {
        std::array::from_fn(|i| self.weights[i] * (self.spread + xs[i] * xs[i]).sqrt())
    }
}

/// A block that can be encoded from `LEN` elements.
pub(crate) trait Encode<const LEN: usize>: Sized {
    /// Encodes `xs`. Must be `#[inline(always)]`.
    fn encode<S: Simd>(s: S, xs: &[f32; LEN], importance: Option<Importance<LEN>>) -> Self;

    /// Like [`encode`](Self::encode) without importance, with the search of ggml's first version if it differs. Must be
    /// `#[inline(always)]`.
    #[inline(always)]
    fn encode_as_at_first<S: Simd>(s: S, xs: &[f32; LEN]) -> Self {
        Self::encode(s, xs, None)
    }
}

/// The integer part of `place(x)` for each element, clamped to `0..=last`; 0 for a NaN.
#[allow(unsafe_code, reason = "a plain cast would check the range again")]
#[inline(always)]
fn codes(xs: &[f32; 32], last: i32, place: impl Fn(f32) -> f32) -> [u8; 32] {
    let mut codes = [0; 32];
    for (code, &x) in codes.iter_mut().zip(xs) {
        let x = place(x);
        let x = if x > 0. { x } else { 0. };
        let x = if x < last as f32 { x } else { last as f32 };
        // SAFETY: between 0 and `last`; a NaN was replaced.
        *code = unsafe { x.to_int_unchecked::<i32>() } as u8;
    }
    codes
}

/// A scale and codes in `0..2n`, with `n` added: `x = d (q − n)`.
#[inline(always)]
fn symmetric_codes(xs: &[f32; 32], importance: Option<Importance<32>>, n: i32) -> (f16, [u8; 32]) {
    if let Some(importance) = importance {
        let Fit { scale, codes, .. } = symmetric(xs, &importance.of(xs), n);
        return (f16::from_f32(scale), codes);
    }
    let d = largest(xs) / -n as f32;
    let inverse = inverse(d);
    // Ties round up.
    let codes = codes(xs, 2 * n - 1, |x| x * inverse + (n as f32 + 0.5));
    (f16::from_f32(d), codes)
}

/// A scale, a minimum and codes in `0..=n`: `x = d q + m`.
#[inline(always)]
fn codes_above_minimum(
    xs: &[f32; 32],
    importance: Option<Importance<32>>,
    n: i32,
) -> (f16, f16, [u8; 32]) {
    if let Some(importance) = importance {
        let weights = importance.of(xs);
        let Fit { scale, min, codes } = above_minimum(xs, &weights, n, &Candidates::WEIGHTED);
        return (f16::from_f32(scale), f16::from_f32(min), codes);
    }
    let (low, high) = range(xs);
    let d = (high - low) / n as f32;
    let inverse = inverse(d);
    let codes = codes(xs, n, |x| (x - low) * inverse + 0.5);
    (f16::from_f32(d), f16::from_f32(low), codes)
}

/// The lower four bits of 32 codes.
#[inline(always)]
fn nibbles(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4)
}

/// The fifth bits of 32 codes.
#[inline(always)]
fn fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let bits = codes
        .iter()
        .enumerate()
        .fold(0u32, |bits, (i, &q)| bits | u32::from(q >> 4) << i);
    bits.to_le_bytes()
}

impl Encode<32> for BlockQ4_0 {
    #[inline(always)]
    fn encode<S: Simd>(_: S, xs: &[f32; 32], importance: Option<Importance<32>>) -> Self {
        let (d, codes) = symmetric_codes(xs, importance, 8);
        Self {
            d,
            qs: nibbles(&codes),
        }
    }
}

impl Encode<32> for BlockQ4_1 {
    #[inline(always)]
    fn encode<S: Simd>(_: S, xs: &[f32; 32], importance: Option<Importance<32>>) -> Self {
        let (d, m, codes) = codes_above_minimum(xs, importance, 15);
        Self {
            d,
            m,
            qs: nibbles(&codes),
        }
    }
}

impl Encode<32> for BlockQ5_0 {
    #[inline(always)]
    fn encode<S: Simd>(_: S, xs: &[f32; 32], importance: Option<Importance<32>>) -> Self {
        let (d, codes) = symmetric_codes(xs, importance, 16);
        Self {
            d,
            qh: fifth_bits(&codes),
            qs: nibbles(&codes),
        }
    }
}

impl Encode<32> for BlockQ5_1 {
    #[inline(always)]
    fn encode<S: Simd>(_: S, xs: &[f32; 32], importance: Option<Importance<32>>) -> Self {
        let (d, m, codes) = codes_above_minimum(xs, importance, 31);
        Self {
            d,
            m,
            qh: fifth_bits(&codes),
            qs: nibbles(&codes),
        }
    }
}

/// A scale and codes in `-127..=127`.
#[inline(always)]
fn eight_bits<S: Simd>(s: S, xs: &[f32; 32]) -> (f32, [i8; 32]) {
    let (above, below) = s.extremes(xs);
    let d = above.max(below) / 127.;
    // The codes are limited to their range: a scale may be so small that its inverse is infinite.
    (d, s.codes::<true>(xs, inverse(d)))
}

impl Encode<32> for BlockQ8_0 {
    #[inline(always)]
    fn encode<S: Simd>(s: S, xs: &[f32; 32], _importance: Option<Importance<32>>) -> Self {
        let (d, qs) = eight_bits(s, xs);
        Self {
            d: f16::from_f32(d),
            qs,
        }
    }
}

impl BlockQ8_1 {
    /// `scale` is the factor of the sum of the codes: the block's scale before or after it became an f16.
    #[inline(always)]
    fn encode_with<S: Simd>(s: S, xs: &[f32; 32], scale: fn(f32, f16) -> f32) -> Self {
        let (unrounded, qs) = eight_bits(s, xs);
        let [low, high] = s.sums_of_halves(&qs);
        let d = f16::from_f32(unrounded);
        Self {
            d,
            s: f16::from_f32(f32::from(low + high) * scale(unrounded, d)),
            qs,
        }
    }
}

impl Encode<32> for BlockQ8_1 {
    #[inline(always)]
    fn encode<S: Simd>(s: S, xs: &[f32; 32], importance: Option<Importance<32>>) -> Self {
        match importance {
            None => Self::encode_with(s, xs, |unrounded, _| unrounded),
            // ggml ignores weights here, and the others change nothing.
            Some(_) => Self::encode_as_at_first(s, xs),
        }
    }

    /// The sum is that of the dequantised elements.
    #[inline(always)]
    fn encode_as_at_first<S: Simd>(s: S, xs: &[f32; 32]) -> Self {
        Self::encode_with(s, xs, |_, d| utils::f16_to_f32(d))
    }
}
