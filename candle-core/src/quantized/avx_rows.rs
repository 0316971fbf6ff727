//! Rows of blocks times a single row of activations, as for one token, for x86-64.
//!
//! The weights are walked through once, from the first byte to the last. Scales of several blocks are made ready together: a block by
//! itself has too few of them for a vector.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::avx::{eight_floats, Avx, ByteProducts};
use super::k_quants::one_row::{OneRow, PARTS};
use super::k_quants::panels::{Codes, PanelWeights};
use super::k_quants::simd::Simd;
use super::k_quants::{BlockQ8K, BlockQ8_0};
use super::utils::f16_to_f32;
use crate::cpu::simd::{ahead, prefetch};

/// Blocks that are multiplied together.
const TOGETHER: usize = 4;

/// Asks for the blocks that come so many bytes after these, if there are any.
#[inline(always)]
pub(super) unsafe fn fetch_after<T>(x: *const T, bytes: usize) {
    let first = x.cast::<i8>().wrapping_add(bytes);
    for line in (0..size_of::<T>()).step_by(64) {
        prefetch(first.wrapping_add(line));
    }
}

/// [`Simd::rows_with_a_scale`]. Scales come first, those of a whole row; then codes, with four sums, as a step waits for the one before
/// it.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn with_a_scale<T: PanelWeights<VecDotType = BlockQ8_0>, P: ByteProducts>(
    xs: &[T],
    y: &OneRow<BlockQ8_0>,
    dst: &mut [f32],
) {
    let offset = const {
        match T::CODES {
            Codes::Offset(offset) if T::BLCK_SIZE == 32 => offset,
            _ => panic!("not a block of a scale and 32 codes with an offset"),
        }
    };
    let codes: *const __m256i = y.codes.as_ptr().cast();
    let mut scales = vec![0f32; y.scales.len()];
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(y.blocks.len().max(1)).zip(dst) {
        let offsets = row_scales(row, y, &mut scales);
        let mut sums = [_mm256_setzero_ps(); TOGETHER];
        let (fours, rest) = row.as_chunks::<TOGETHER>();
        for (i, four) in fours.iter().enumerate() {
            fetch_after(four, ahead);
            for (j, sum) in sums.iter_mut().enumerate() {
                let at = TOGETHER * i + j;
                *sum = add_products::<T, P>(&four[j], codes.add(at), scales.as_ptr().add(at), *sum);
            }
        }
        for (i, x) in rest.iter().enumerate() {
            let at = TOGETHER * fours.len() + i;
            sums[i] = add_products::<T, P>(x, codes.add(at), scales.as_ptr().add(at), sums[i]);
        }
        let [a, b, c, d] = sums;
        let sum = _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d));
        let offset = _mm256_set1_ps(offset as f32);
        *dst = Avx::<P>::sum(_mm256_fmadd_ps(offsets, offset, sum));
    }
}

/// `sum` and the products of a block with codes of activations, times `scale`.
#[inline(always)]
unsafe fn add_products<T: PanelWeights, P: ByteProducts>(
    x: &T,
    y: *const __m256i,
    scale: *const f32,
    sum: __m256,
) -> __m256 {
    let x = T::codes::<Avx<P>>(x.read_all::<Avx<P>>()).as_ref()[0];
    let products = _mm256_cvtepi32_ps(P::dot(x, _mm256_load_si256(y)));
    _mm256_fmadd_ps(products, _mm256_set1_ps(*scale), sum)
}

/// `to[i]` becomes the scale of block `i` times that of the activations; returns the sums of the blocks' scales times their
/// [offsets](OneRow::offsets).
#[inline(always)]
unsafe fn row_scales<T>(row: &[T], y: &OneRow<BlockQ8_0>, to: &mut [f32]) -> __m256 {
    let bits = |x: &T| (&raw const *x).cast::<u16>().read_unaligned();
    let mut sums = _mm256_setzero_ps();
    let (eights, rest) = row.as_chunks::<8>();
    for (i, eight) in eights.iter().enumerate() {
        let d = eight_floats(eight.each_ref().map(bits));
        let (by, offsets) = (y.scales.as_ptr().add(8 * i), y.offsets.as_ptr().add(8 * i));
        _mm256_storeu_ps(
            to.as_mut_ptr().add(8 * i),
            _mm256_mul_ps(d, _mm256_loadu_ps(by)),
        );
        sums = _mm256_fmadd_ps(d, _mm256_loadu_ps(offsets), sums);
    }
    for (i, x) in rest.iter().enumerate() {
        let at = 8 * eights.len() + i;
        let d = f16_to_f32(half::f16::from_bits(bits(x)));
        to[at] = d * y.scales[at];
        sums = _mm256_add_ps(
            sums,
            _mm256_setr_ps(d * y.offsets[at], 0., 0., 0., 0., 0., 0., 0.),
        );
    }
    sums
}

/// [`Simd::rows_with_minima`]. Headers are unpacked four at a time.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn with_minima<T: PanelWeights<VecDotType = BlockQ8K>, P: ByteProducts>(
    xs: &[T],
    y: &OneRow<BlockQ8K>,
    dst: &mut [f32],
) {
    const { assert!(T::BLCK_SIZE == 256 && T::PART == 32) };
    let blocks = y.blocks.len();
    let whole = blocks - blocks % TOGETHER;
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(blocks.max(1)).zip(dst) {
        let mut sum = _mm256_setzero_ps();
        for i in (0..whole).step_by(TOGETHER) {
            let codes = y.codes.as_ptr().add(4 * i).cast();
            let (scales, sums) = (y.scales.as_ptr().add(2 * i), y.sums.as_ptr().add(8 * i));
            sum = four_blocks::<T, P>(row.as_ptr().add(i), codes, scales, sums, sum, ahead);
        }
        for (x, y) in row.iter().zip(&y.blocks).skip(whole) {
            sum = T::mul_add::<Avx<P>>(&x.unpack::<Avx<P>>(), y, sum);
        }
        *dst = Avx::<P>::sum(sum);
    }
}

/// `sum` and the products of four blocks. `scales` has the activations' scales, each twice, and `sums` those of 32 activations each.
#[inline(always)]
unsafe fn four_blocks<T: PanelWeights<VecDotType = BlockQ8K>, P: ByteProducts>(
    x: *const T,
    y: *const [__m256i; 8],
    scales: *const f32,
    sums: *const i16,
    sum: __m256,
    ahead: usize,
) -> __m256 {
    let both = |block: usize| x.add(block).cast::<i32>().read_unaligned();
    let halves = _mm_setr_epi32(both(0), both(1), both(2), both(3));
    let mut d = [[0f32; 2]; TOGETHER];
    let scaled = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_loadu_ps(scales));
    _mm256_storeu_ps(d.as_mut_ptr().cast(), scaled);

    let mut total = sum;
    let mut packed = [_mm256_setzero_si256(); TOGETHER / 2];
    for (pair, packed) in packed.iter_mut().enumerate() {
        let (a, b) = (2 * pair, 2 * pair + 1);
        *packed = scales_and_minima(x.add(a).cast(), x.add(b).cast());
        let sums = _mm256_loadu_si256(sums.add(8 * a).cast());
        let minima = _mm256_madd_epi16(upper_bytes(*packed), sums);
        let d = _mm256_set_m128(_mm_set1_ps(d[b][1]), _mm_set1_ps(d[a][1]));
        total = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(minima), d, total);
    }
    for block in 0..TOGETHER {
        let x = x.add(block);
        fetch_after(x, ahead);
        // The block's own half, twice: a shuffle stays within halves.
        let scales = if block % 2 == 0 {
            _mm256_permute4x64_epi64::<0b01_00_01_00>(packed[block / 2])
        } else {
            _mm256_permute4x64_epi64::<0b11_10_11_10>(packed[block / 2])
        };
        let codes = T::codes::<Avx<P>>((*x).read_all::<Avx<P>>());
        let y: *const __m256i = y.add(block).cast();
        // Two sums, as a step waits for the one before it.
        let mut sums = [_mm256_setzero_si256(); 2];
        for (j, &codes) in codes.as_ref().iter().enumerate() {
            // A byte and a zero: an integer of 16 bits.
            let scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16(-256 | j as i16));
            // Two products of at most 31 * 127 each: 16 bits hold them.
            let products = _mm256_maddubs_epi16(codes, _mm256_load_si256(y.add(PARTS[j])));
            sums[j % 2] = P::madd(sums[j % 2], products, scale);
        }
        let dot = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[0], sums[1]));
        total = _mm256_fmadd_ps(dot, _mm256_set1_ps(d[block][0]), total);
    }
    total
}

/// The eight scales, then the eight minima, of a block in either half. (`pack.rs` does the same to one block, and tells the layout.)
#[inline(always)]
unsafe fn scales_and_minima(a: *const __m128i, b: *const __m128i) -> __m256i {
    let headers = _mm256_set_m128i(_mm_loadu_si128(b), _mm_loadu_si128(a));
    // Scales 0–3 and minima 0–3, each before the bytes with the lower nibbles of scales and minima 4–7.
    let low = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    let low = _mm256_shuffle_epi8(headers, _mm256_broadcastsi128_si256(low));
    // Under these nibbles, the bytes with the upper bits.
    let high = _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11);
    let high = _mm256_shuffle_epi8(headers, _mm256_broadcastsi128_si256(high));
    let high = _mm256_and_si256(_mm256_srli_epi16::<2>(high), _mm256_set1_epi8(0x30));

    let six = _mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0);
    let six = _mm256_and_si256(low, _mm256_broadcastsi128_si256(six));
    let four = _mm_setr_epi32(0, 0, 0, 0x0f0f_0f0f);
    let four = _mm256_and_si256(
        _mm256_srli_epi16::<4>(low),
        _mm256_broadcastsi128_si256(four),
    );
    _mm256_or_si256(_mm256_or_si256(six, four), high)
}

/// The upper eight bytes of both halves as integers of 16 bits.
#[inline(always)]
unsafe fn upper_bytes(x: __m256i) -> __m256i {
    _mm256_unpackhi_epi8(x, _mm256_setzero_si256())
}
