//! The blocks of activation rows in a product, and their form for [panels](super::panels): codes, scales, and sums of codes for offsets and
//! minima.

use super::fit::inverse;
use super::prepared::DenseRows;
use super::*;
use crate::cpu::threads;

/// Blocks to which activations are converted. A block with a non-finite element has a non-finite scale: the row's products are then NaN or
/// infinite, like those of floats.
pub(crate) trait Activations: Clone + Send + Sync + 'static {
    /// Elements of a block.
    const LEN: usize;

    fn zeros() -> Self;

    /// Encodes elements, `LEN` for each block.
    fn encode(xs: &[f32], ys: &mut [Self]);

    fn codes(&self) -> &[i8];
    fn scale(&self) -> f32;

    /// The sum of `len` codes from `first` on.
    #[inline(always)]
    fn sum(&self, first: usize, len: usize) -> i32 {
        let codes = &self.codes()[first..first + len];
        codes.iter().map(|&q| i32::from(q)).sum()
    }

    /// The factor of the weights' minima: the sum of codes, or the sum of the elements if a block stores it.
    #[inline(always)]
    fn float_sum(&self, first: usize, len: usize) -> f32 {
        self.sum(first, len) as f32
    }
}

/// 8 bits for 32 activations, `y[i] = d · q[i]`: a [`BlockQ8_1`] whose scale and sum have the range of an f32. An f16 cannot represent the
/// sums of activations of 1e4, nor the scales of activations of 1e-7. Not a format of files.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bytes32 {
    /// Rounded to the precision of an f16, so that products within its range are those of Candle.
    pub(crate) d: f32,
    /// `d · Σ q[i]`, rounded like `d`. (The sum of the elements themselves makes products worse: weights above a minimum are near zero on
    /// average, but their codes are not, so the codes would be multiplied by the errors of the activations.)
    pub(crate) s: f32,
    pub(crate) qs: [i8; 32],
}

/// The nearest float with 11 significant bits. The argument must be at most half of the greatest f32.
#[inline(always)]
fn eleven_bits(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = (bits + 0xfff + ((bits >> 13) & 1)) & !0x1fff;
    if x.is_finite() {
        f32::from_bits(rounded)
    } else {
        x
    }
}

/// The largest magnitude; NaN if there is one: its bits exceed those of all numbers.
#[inline(always)]
pub(super) fn magnitude(xs: &[f32]) -> f32 {
    let bits = xs.iter().map(|x| x.to_bits() & 0x7fff_ffff);
    f32::from_bits(bits.fold(0, u32::max))
}

/// [`Activations::encode`] of [`Bytes32`].
pub(super) struct EncodeBytes<'a> {
    pub(super) xs: &'a [f32],
    pub(super) ys: &'a mut [Bytes32],
}

impl Kernel for EncodeBytes<'_> {
    type Output = ();
    const PRODUCTS: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (xs, y) in self.xs.as_chunks::<32>().0.iter().zip(self.ys) {
            let d = magnitude(xs) / 127.;
            // The inverse of a smaller scale is infinite. A NaN stays.
            let d = if d < f32::MIN_POSITIVE { 0. } else { d };
            let qs = s.codes::<true>(xs, inverse(d));
            let d = eleven_bits(d);
            let [low, high] = s.sums_of_halves(&qs);
            *y = Bytes32 {
                d,
                s: eleven_bits(d * f32::from(low + high)),
                qs,
            };
        }
    }
}

impl Activations for Bytes32 {
    const LEN: usize = 32;

    fn zeros() -> Self {
        Self {
            d: 0.,
            s: 0.,
            qs: [0; 32],
        }
    }

    fn encode(xs: &[f32], ys: &mut [Self]) {
        dispatch(EncodeBytes { xs, ys })
    }

    #[inline(always)]
    fn codes(&self) -> &[i8] {
        &self.qs
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        self.d
    }

    #[inline(always)]
    fn float_sum(&self, _first: usize, _len: usize) -> f32 {
        self.s
    }
}

impl Activations for BlockQ8K {
    const LEN: usize = QK_K;

    fn zeros() -> Self {
        GgmlType::zeros()
    }

    fn encode(xs: &[f32], ys: &mut [Self]) {
        Self::from_float(xs, ys)
    }

    #[inline(always)]
    fn codes(&self) -> &[i8] {
        &self.qs
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        self.d
    }

    #[inline(always)]
    fn sum(&self, first: usize, len: usize) -> i32 {
        let sums = &self.bsums[first / 16..(first + len) / 16];
        sums.iter().map(|&sum| i32::from(sum)).sum()
    }
}

/// Elements per task when activations are encoded and written: some microseconds of work.
const WRITTEN: usize = 2048;

/// Rows of activations.
pub(crate) struct PanelActivations {
    /// Contiguous rows: codes, a scale for each block, and for each part of a block an `i32` offset or the `f32` sum of its codes.
    words: Vec<u32>,
    /// Words of a row.
    stride: usize,
    /// Elements of a row.
    len: usize,
    /// Elements per scale.
    block: usize,
}

/// A row's data.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    /// Four codes in a word, the first in its lowest address.
    pub(crate) codes: &'a [i32],
    /// A scale for each block.
    pub(crate) scales: &'a [f32],
    /// The initial value of a part's sum of products, for codes with an offset.
    pub(crate) offsets: &'a [i32],
    /// The factor of a part's minimum, for formats with minima; the same memory.
    pub(crate) sums: &'a [f32],
}

impl PanelActivations {
    /// Rows with sums for parts of `part` elements: multiplied by `-offset`, or as floats.
    pub(crate) fn new<V: Activations>(rows: &DenseRows, part: usize, offset: Option<i32>) -> Self {
        let (len, blocks) = (rows.len(), rows.len() / V::LEN);
        let stride = len / 4 + blocks + len / part;
        let mut words = vec![0; rows.count() * stride];
        let together = WRITTEN.div_ceil(len.max(1));
        threads::chunks_mut(&mut words, together * stride, |i, words| {
            let first = i * together;
            let count = words.len() / stride;
            let ys = rows.activations::<V>(first..first + count);
            let ys = ys.chunks_exact(blocks);
            for (ys, words) in ys.zip(words.chunks_exact_mut(stride)) {
                dispatch(WriteRow {
                    ys,
                    words,
                    part,
                    offset,
                });
            }
        });
        Self {
            words,
            stride,
            len,
            block: V::LEN,
        }
    }

    /// Number of elements of a row.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of rows.
    pub(crate) fn count(&self) -> usize {
        self.words.len().checked_div(self.stride).unwrap_or(0)
    }

    /// A row's data.
    ///
    /// # Panics
    /// If the row is out of range.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> Row<'_> {
        let words = &self.words[row * self.stride..][..self.stride];
        let (codes, rest) = words.split_at(self.len / 4);
        let (scales, last) = rest.split_at(self.len / self.block);
        Row {
            codes: bytemuck::cast_slice(codes),
            scales: bytemuck::cast_slice(scales),
            offsets: bytemuck::cast_slice(last),
            sums: bytemuck::cast_slice(last),
        }
    }
}

/// One of [`PanelActivations`].
struct WriteRow<'a, V> {
    ys: &'a [V],
    words: &'a mut [u32],
    part: usize,
    offset: Option<i32>,
}

impl<V: Activations> Kernel for WriteRow<'_, V> {
    type Output = ();
    const PRODUCTS: bool = false;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let parts = V::LEN / self.part;
        let (codes, rest) = self.words.split_at_mut(self.ys.len() * V::LEN / 4);
        let (scales, last) = rest.split_at_mut(self.ys.len());
        let codes = codes.chunks_exact_mut(V::LEN / 4);
        let last = last.chunks_exact_mut(parts);
        for (((y, codes), scale), last) in self.ys.iter().zip(codes).zip(scales).zip(last) {
            let (fours, _) = y.codes().as_chunks::<4>();
            for (word, four) in codes.iter_mut().zip(fours) {
                *word = u32::from_ne_bytes(four.map(|q| q as u8));
            }
            *scale = y.scale().to_bits();
            for (part, last) in last.iter_mut().enumerate() {
                let first = part * self.part;
                *last = match self.offset {
                    Some(offset) => (-offset * y.sum(first, self.part)) as u32,
                    None => y.float_sum(first, self.part).to_bits(),
                };
            }
        }
    }
}
