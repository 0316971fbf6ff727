//! Products with one row of activations, as for a single token, for x86-64.
//!
//! The weights are read once, sequentially. Scales of several blocks are prepared together: one block has too few for a vector.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::avx::{eight_floats, Avx, ByteProducts};
use super::k_quants::activations::Bytes32;
use super::k_quants::one_row::{OneRow, PARTS};
use super::k_quants::panels::{Codes, PanelWeights};
use super::k_quants::products::Weights;
use super::k_quants::simd::Simd;
use super::k_quants::BlockQ8K;
use crate::cpu::simd::{ahead, prefetch};

/// Number of blocks of 32 codes that are multiplied together: their sums fill a vector.
const EIGHT: usize = 8;

/// Number of blocks of 256 codes that are multiplied together.
const TOGETHER: usize = 4;

/// Prefetches the blocks `bytes` ahead.
#[inline(always)]
pub(super) unsafe fn fetch_after<T>(x: *const T, bytes: usize) {
    let first = x.cast::<i8>().wrapping_add(bytes);
    for line in (0..size_of::<T>()).step_by(64) {
        prefetch(first.wrapping_add(line));
    }
}

/// [`Simd::rows_with_a_scale`]. Prepares the scales of a whole row first, then multiplies codes, eight blocks at a time.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn with_a_scale<T: PanelWeights<Activations = Bytes32>, P: ByteProducts>(
    xs: &[T],
    y: &OneRow<Bytes32>,
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
        row_scales(row, y, &mut scales);
        let mut total = 0f32;
        let (eights, rest) = row.as_chunks::<EIGHT>();
        for (i, eight) in eights.iter().enumerate() {
            fetch_after(eight, ahead);
            let at = EIGHT * i;
            let mut dots = [_mm256_setzero_si256(); EIGHT];
            for (j, dot) in dots.iter_mut().enumerate() {
                let x = T::codes::<Avx<P>>(eight[j].read_all::<Avx<P>>()).as_ref()[0];
                *dot = P::dot(x, _mm256_load_si256(codes.add(at + j)));
            }
            let sums = _mm256_loadu_si256(y.block_sums.as_ptr().add(at).cast());
            let less = _mm256_mullo_epi32(sums, _mm256_set1_epi32(offset));
            let dots = _mm256_sub_epi32(sums_of_eight(dots), less);
            total = add_in_order(_mm256_cvtepi32_ps(dots), scales.as_ptr().add(at), total);
        }
        *dst = with_rest::<T, _, P>(total, rest, &y.blocks[y.blocks.len() - rest.len()..]);
    }
}

/// `total` plus the products of the last blocks of a row, too few to be multiplied together.
#[inline(always)]
pub(super) unsafe fn with_rest<T: Weights<Y>, Y, P: ByteProducts>(
    total: f32,
    xs: &[T],
    ys: &[Y],
) -> f32 {
    let mut total = _mm256_set1_ps(total);
    for (x, y) in xs.iter().zip(ys) {
        total = T::mul_add::<Avx<P>>(&x.unpack::<Avx<P>>(), y, total);
    }
    Avx::<P>::first(total)
}

/// The sum of each of eight vectors.
#[inline(always)]
unsafe fn sums_of_eight([a, b, c, d, e, f, g, h]: [__m256i; EIGHT]) -> __m256i {
    // Half of each sum, in each half of a vector.
    let low = sums_of_four([a, b, c, d]);
    let high = sums_of_four([e, f, g, h]);
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// The sums of both halves of each of four vectors.
#[inline(always)]
unsafe fn sums_of_four([a, b, c, d]: [__m256i; 4]) -> __m256i {
    _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d))
}

/// `total` plus the products of groups of eight values and their scales, added in sequence.
#[inline(always)]
unsafe fn add_in_order(values: __m256, scales: *const f32, total: f32) -> f32 {
    let mut floats = [0f32; EIGHT];
    _mm256_storeu_ps(floats.as_mut_ptr(), values);
    let mut total = total;
    for (j, float) in floats.into_iter().enumerate() {
        total = float.mul_add(*scales.add(j), total);
    }
    total
}

/// Sets `to[i]` to the product of block `i`'s scale and that of the activations.
#[inline(always)]
unsafe fn row_scales<T>(row: &[T], y: &OneRow<Bytes32>, to: &mut [f32]) {
    let bits = |x: &T| (&raw const *x).cast::<u16>().read_unaligned();
    for (i, eight) in row.as_chunks::<EIGHT>().0.iter().enumerate() {
        let d = eight_floats(eight.each_ref().map(bits));
        let by = _mm256_loadu_ps(y.scales.as_ptr().add(EIGHT * i));
        _mm256_storeu_ps(to.as_mut_ptr().add(EIGHT * i), _mm256_mul_ps(d, by));
    }
}

/// [`Simd::rows_with_minima`]. Unpacks headers four at a time.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn with_minima<T: PanelWeights<Activations = BlockQ8K>, P: ByteProducts>(
    xs: &[T],
    y: &OneRow<BlockQ8K>,
    dst: &mut [f32],
) {
    const { assert!(T::BLCK_SIZE == 256 && T::PART == 32) };
    let blocks = y.blocks.len();
    let whole = blocks - blocks % TOGETHER;
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(blocks.max(1)).zip(dst) {
        let mut total = 0f32;
        for i in (0..whole).step_by(TOGETHER) {
            let codes = y.codes.as_ptr().add(4 * i).cast();
            let (scales, sums) = (y.scales.as_ptr().add(2 * i), y.sums.as_ptr().add(8 * i));
            total = four_blocks::<T, P>(row.as_ptr().add(i), codes, scales, sums, total, ahead);
        }
        *dst = with_rest::<T, _, P>(total, &row[whole..], &y.blocks[whole..]);
    }
}

/// `total` plus the products of four blocks. `scales` holds the activations' scales, each twice, and `sums` the sums of 32 activations
/// each.
#[inline(always)]
unsafe fn four_blocks<T: PanelWeights<Activations = BlockQ8K>, P: ByteProducts>(
    x: *const T,
    y: *const [__m256i; 8],
    scales: *const f32,
    sums: *const i16,
    total: f32,
    ahead: usize,
) -> f32 {
    let both = |block: usize| x.add(block).cast::<i32>().read_unaligned();
    let halves = _mm_setr_epi32(both(0), both(1), both(2), both(3));
    let mut d = [[0f32; 2]; TOGETHER];
    let scaled = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_loadu_ps(scales));
    _mm256_storeu_ps(d.as_mut_ptr().cast(), scaled);

    let mut packed = [_mm256_setzero_si256(); TOGETHER / 2];
    let mut minima = [_mm256_setzero_si256(); TOGETHER / 2];
    for (pair, packed) in packed.iter_mut().enumerate() {
        let (a, b) = (2 * pair, 2 * pair + 1);
        *packed = scales_and_minima(x.add(a).cast(), x.add(b).cast());
        let sums = _mm256_loadu_si256(sums.add(8 * a).cast());
        minima[pair] = _mm256_madd_epi16(upper_bytes(*packed), sums);
    }
    // Sums of the first and the third block in the lower half, of the others in the upper.
    let minima = sums_of_four([minima[0], minima[1], minima[0], minima[1]]);
    let minima = _mm_unpacklo_epi32(
        _mm256_castsi256_si128(minima),
        _mm256_extracti128_si256::<1>(minima),
    );

    let mut dots = [_mm256_setzero_si256(); TOGETHER];
    for block in 0..TOGETHER {
        let x = x.add(block);
        fetch_after(x, ahead);
        // The block's half, repeated twice: a shuffle works within 128-bit lanes.
        let scales = if block % 2 == 0 {
            _mm256_permute4x64_epi64::<0b01_00_01_00>(packed[block / 2])
        } else {
            _mm256_permute4x64_epi64::<0b11_10_11_10>(packed[block / 2])
        };
        let codes = T::codes::<Avx<P>>((*x).read_all::<Avx<P>>());
        let y: *const __m256i = y.add(block).cast();
        // Two accumulators, to break the dependency chain.
        let mut sums = [_mm256_setzero_si256(); 2];
        for (j, &codes) in codes.as_ref().iter().enumerate() {
            // A byte and a zero: a 16-bit integer.
            let scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16(-256 | j as i16));
            // Two products of at most 31 * 127 each: the sum fits 16 bits.
            let products = _mm256_maddubs_epi16(codes, _mm256_load_si256(y.add(PARTS[j])));
            sums[j % 2] = P::madd(sums[j % 2], products, scale);
        }
        dots[block] = _mm256_add_epi32(sums[0], sums[1]);
    }
    let dots = sums_of_four(dots);
    let dots = _mm_add_epi32(
        _mm256_castsi256_si128(dots),
        _mm256_extracti128_si256::<1>(dots),
    );
    add_blocks_in_order(minima, dots, d, total)
}

/// `total` plus the contributions of four blocks, in sequence: subtracts each block's minima, then adds the products of its codes. `d`
/// holds the scales of the products and of the minima.
#[inline(always)]
pub(super) unsafe fn add_blocks_in_order(
    minima: __m128i,
    dots: __m128i,
    d: [[f32; 2]; TOGETHER],
    total: f32,
) -> f32 {
    let (mut less, mut products) = ([0f32; TOGETHER], [0f32; TOGETHER]);
    _mm_storeu_ps(less.as_mut_ptr(), _mm_cvtepi32_ps(minima));
    _mm_storeu_ps(products.as_mut_ptr(), _mm_cvtepi32_ps(dots));
    let mut total = total;
    for ((less, product), [by, less_by]) in less.into_iter().zip(products).zip(d) {
        total = (-less).mul_add(less_by, total);
        total = product.mul_add(by, total);
    }
    total
}

/// The eight scales, then the eight minima, of a block in each half. (`pack.rs` unpacks a single header and describes the layout.)
#[inline(always)]
unsafe fn scales_and_minima(a: *const __m128i, b: *const __m128i) -> __m256i {
    let headers = _mm256_set_m128i(_mm_loadu_si128(b), _mm_loadu_si128(a));
    // Scales 0–3 and minima 0–3, each followed by the bytes with the lower nibbles of scales and minima 4–7.
    let low = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    let low = _mm256_shuffle_epi8(headers, _mm256_broadcastsi128_si256(low));
    // Aligned with these nibbles, the bytes with the upper bits.
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

/// The upper eight bytes of both halves as 16-bit integers.
#[inline(always)]
unsafe fn upper_bytes(x: __m256i) -> __m256i {
    _mm256_unpackhi_epi8(x, _mm256_setzero_si256())
}
