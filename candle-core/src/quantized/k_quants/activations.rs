//! Activations prepared for [panels](super::panels): codes, scales, and sums of codes for offsets and minima.

use super::prepared::DenseRows;
use super::*;
use crate::cpu::threads;

/// A format to which activations are converted.
pub(crate) trait Activations: GgmlType {
    fn codes(&self) -> &[i8];
    fn scale(&self) -> f32;

    /// The sum of `len` codes from `first` on.
    #[inline(always)]
    fn sum(&self, first: usize, len: usize) -> i32 {
        let codes = &self.codes()[first..first + len];
        codes.iter().map(|&q| i32::from(q)).sum()
    }

    /// What minima of weights are multiplied with: the sum of codes, or where a block has the sum of its elements, that.
    #[inline(always)]
    fn float_sum(&self, first: usize, len: usize) -> f32 {
        self.sum(first, len) as f32
    }
}

impl Activations for BlockQ8_0 {
    #[inline(always)]
    fn codes(&self) -> &[i8] {
        &self.qs
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        utils::f16_to_f32(self.d)
    }
}

impl Activations for BlockQ8_1 {
    #[inline(always)]
    fn codes(&self) -> &[i8] {
        &self.qs
    }

    #[inline(always)]
    fn scale(&self) -> f32 {
        utils::f16_to_f32(self.d)
    }

    #[inline(always)]
    fn float_sum(&self, _first: usize, _len: usize) -> f32 {
        utils::f16_to_f32(self.s)
    }
}

impl Activations for BlockQ8K {
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
    /// One row after another: codes, a scale for each block, and for each part of a block an `i32` offset or the `f32`
    /// sum of its codes.
    words: Vec<u32>,
    /// Words of a row.
    stride: usize,
    /// Elements of a row.
    len: usize,
    /// Elements per scale.
    block: usize,
}

/// Pointers to a row's data.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub(crate) codes: *const i8,
    /// One for each block.
    pub(crate) scales: *const f32,
    /// The initial value of a part's sum of products, for codes with an offset.
    pub(crate) offsets: *const i32,
    /// What a part's minimum is multiplied with, where there are minima; in the same place.
    pub(crate) sums: *const f32,
}

impl PanelActivations {
    /// Rows whose sums are needed for parts of `part` elements: times `-offset`, or as floats.
    pub(crate) fn new<V: Activations>(
        rows: &DenseRows<V>,
        part: usize,
        offset: Option<i32>,
    ) -> Self {
        let (len, blocks) = (rows.len(), rows.row_blocks());
        let stride = len / 4 + blocks + len / part;
        let mut words = vec![0; rows.count() * stride];
        let together = WRITTEN.div_ceil(len.max(1));
        threads::chunks_mut(&mut words, together * stride, |i, words| {
            let first = i * together;
            let count = words.len() / stride;
            let ys = rows.encode(first..first + count);
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
            block: V::BLCK_SIZE,
        }
    }

    /// Elements of a row.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Rows.
    pub(crate) fn count(&self) -> usize {
        self.words.len().checked_div(self.stride).unwrap_or(0)
    }

    /// # Panics
    /// When the row is out of range.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> Row {
        let words = &self.words[row * self.stride..][..self.stride];
        let (codes, rest) = words.split_at(self.len / 4);
        let (scales, last) = rest.split_at(self.len / self.block);
        Row {
            codes: codes.as_ptr().cast(),
            scales: scales.as_ptr().cast(),
            offsets: last.as_ptr().cast(),
            sums: last.as_ptr().cast(),
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
    unsafe fn run<S: Simd>(self) {
        let parts = V::BLCK_SIZE / self.part;
        let (codes, rest) = self.words.split_at_mut(self.ys.len() * V::BLCK_SIZE / 4);
        let (scales, last) = rest.split_at_mut(self.ys.len());
        let codes = codes.chunks_exact_mut(V::BLCK_SIZE / 4);
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
