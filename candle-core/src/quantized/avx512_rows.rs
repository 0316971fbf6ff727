//! Products with one row of activations, as for a single token, with 512-bit vectors.
//!
//! A vector holds 32 codes with one scale and 32 with another.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::avx::{Avx, Avx512Vnni};
use super::avx_rows::{add_blocks_in_order, fetch_after, header, with_rest};
use super::k_quants::activations::Bytes32;
use super::k_quants::one_row::{FourBlocks, Line, OneRow};
use super::k_quants::{BlockQ4K, BlockQ8K, BlockQ8_0};
use crate::cpu::simd::ahead;

/// The instruction set.
type S = Avx<Avx512Vnni>;

/// Number of blocks of 32 codes whose scales are prepared together.
const TOGETHER: usize = 16;

/// [`RowSimd::bytes`](super::k_quants::one_row::RowSimd::bytes).
#[inline(always)]
pub(super) fn bytes(s: S, xs: &[BlockQ8_0], y: &OneRow<Bytes32>, dst: &mut [f32]) {
    let (codes, _) = y.codes.as_chunks::<{ TOGETHER / 2 }>();
    let (scales, _) = y.scales.as_chunks::<TOGETHER>();
    let (sums, _) = y.block_sums.as_chunks::<TOGETHER>();
    let blocks = y.blocks.len();
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(blocks.max(1)).zip(dst) {
        let (sixteens, rest) = row.as_chunks::<TOGETHER>();
        let mut total = 0f32;
        let activations = codes.iter().zip(scales).zip(sums);
        for (xs, ((codes, scales), sums)) in sixteens.iter().zip(activations) {
            fetch_after(xs, ahead);
            let [low, high] = [0, 8].map(|r| std::array::from_fn(|i| xs[r + i].d.to_bits()));
            let (low, high) = (s.eight_halves(low), s.eight_halves(high));
            let (mut products, mut by) = ([0f32; TOGETHER], [0f32; TOGETHER]);
            // SAFETY: `s` is the proof that the CPU has these instructions. Lines have 64 bytes and their alignment, codes 32 bytes, and the
            // arrays 16 numbers.
            unsafe {
                let d = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high);
                let d = _mm512_mul_ps(d, _mm512_loadu_ps(scales.as_ptr()));
                let mut dots = [_mm512_setzero_si512(); TOGETHER / 2];
                for (j, dot) in dots.iter_mut().enumerate() {
                    let low = _mm256_loadu_si256(xs[2 * j].qs.as_ptr().cast());
                    let high = _mm256_loadu_si256(xs[2 * j + 1].qs.as_ptr().cast());
                    let x = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                    let x = _mm512_xor_si512(x, _mm512_set1_epi8(-128));
                    let y = _mm512_load_si512((&raw const codes[j]).cast());
                    *dot = _mm512_dpbusd_epi32(*dot, x, y);
                }
                // The part of the sums that comes from the 128 added to each code.
                let sums = _mm512_loadu_si512(sums.as_ptr().cast());
                let dots = _mm512_sub_epi32(sums_of_halves(s, dots), _mm512_slli_epi32::<7>(sums));
                _mm512_storeu_ps(products.as_mut_ptr(), _mm512_cvtepi32_ps(dots));
                _mm512_storeu_ps(by.as_mut_ptr(), d);
            }
            for (product, by) in products.into_iter().zip(by) {
                total = product.mul_add(by, total);
            }
        }
        *dst = with_rest(s, total, rest, &y.blocks[blocks - rest.len()..]);
    }
}

/// The sum of each half of eight vectors: the first halves, then the second halves.
#[inline(always)]
fn sums_of_halves(s: S, [a, b, c, d, e, f, g, h]: [__m512i; TOGETHER / 2]) -> __m512i {
    let first = sums_of_quarters(s, [a, b, c, d]);
    let second = sums_of_quarters(s, [e, f, g, h]);
    // SAFETY: `s` is the proof that the CPU has these instructions.
    unsafe {
        // Quarters 0 and 2 of both, and quarters 1 and 3: together the halves of four vectors.
        let sums = _mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(first, second),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(first, second),
        );
        let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
        _mm512_permutexvar_epi32(order, sums)
    }
}

/// The sum of each quarter of four vectors, next to the sums of the same quarter of the others.
#[inline(always)]
fn sums_of_quarters(_: S, [a, b, c, d]: [__m512i; 4]) -> __m512i {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe {
        let first = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let second = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        _mm512_add_epi32(
            _mm512_unpacklo_epi64(first, second),
            _mm512_unpackhi_epi64(first, second),
        )
    }
}

/// Number of blocks of 256 codes whose headers are unpacked together.
const FOUR: usize = 4;

/// [`RowSimd::nibbles_with_minima`](super::k_quants::one_row::RowSimd::nibbles_with_minima).
#[inline(always)]
pub(super) fn nibbles_with_minima(s: S, xs: &[BlockQ4K], y: &OneRow<BlockQ8K>, dst: &mut [f32]) {
    let blocks = y.blocks.len();
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(blocks.max(1)).zip(dst) {
        let (fours, rest) = row.as_chunks::<FOUR>();
        let mut total = 0f32;
        for (xs, y) in fours.iter().zip(y.fours()) {
            total = four_blocks(s, xs, y, total, ahead);
        }
        *dst = with_rest(s, total, rest, &y.blocks[blocks - rest.len()..]);
    }
}

/// `total` plus the products of four blocks.
#[inline(always)]
fn four_blocks(s: S, xs: &[BlockQ4K; FOUR], y: FourBlocks, total: f32, ahead: usize) -> f32 {
    let mut d = [[0f32; 2]; FOUR];
    let [a, b, c, e] = xs.each_ref().map(header);
    let [low, high] = y.sums;
    // SAFETY: `s` is the proof that the CPU has these instructions. Headers have 16 bytes, sums of two blocks 32, and there are eight scales.
    let (packed, minima) = unsafe {
        let headers = _mm512_castsi128_si512(_mm_loadu_si128(a.as_ptr().cast()));
        let headers = _mm512_inserti32x4::<1>(headers, _mm_loadu_si128(b.as_ptr().cast()));
        let headers = _mm512_inserti32x4::<2>(headers, _mm_loadu_si128(c.as_ptr().cast()));
        let headers = _mm512_inserti32x4::<3>(headers, _mm_loadu_si128(e.as_ptr().cast()));
        // The first four bytes of each: scale, and scale of the minima.
        let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
        let halves = _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, headers));
        let scaled = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_loadu_ps(y.scales.as_ptr()));
        _mm256_storeu_ps(d.as_mut_ptr().cast(), scaled);

        let packed = scales_and_minima(s, headers);
        let sums = _mm512_castsi256_si512(_mm256_loadu_si256(low.as_ptr().cast()));
        let sums = _mm512_inserti64x4::<1>(sums, _mm256_loadu_si256(high.as_ptr().cast()));
        let minima = _mm512_unpackhi_epi8(packed, _mm512_setzero_si512());
        let minima = _mm512_madd_epi16(minima, sums);
        // Broadcasts each block's sum to its whole quarter.
        let minima = _mm512_add_epi32(minima, _mm512_shuffle_epi32::<0b01_00_11_10>(minima));
        let minima = _mm512_add_epi32(minima, _mm512_shuffle_epi32::<0b10_11_00_01>(minima));
        let minima = _mm512_permutexvar_epi32(firsts, minima);
        (packed, _mm512_castsi512_si128(minima))
    };
    let ys = y.codes.as_chunks::<4>().0;
    macro_rules! dot_of {
        ($block:literal) => {{
            let x = &xs[$block];
            fetch_after(x, ahead);
            let scales = quarter::<{ 0b01_01_01_01 * $block }>(s, packed);
            dot(s, x, &ys[$block], scales)
        }};
    }
    let dots = sums_of_quarters(s, [dot_of!(0), dot_of!(1), dot_of!(2), dot_of!(3)]);
    // SAFETY: `s` is the proof that the CPU has these instructions.
    let dots = unsafe {
        let dots = _mm256_add_epi32(
            _mm512_castsi512_si256(dots),
            _mm512_extracti64x4_epi64::<1>(dots),
        );
        _mm_add_epi32(
            _mm256_castsi256_si128(dots),
            _mm256_extracti128_si256::<1>(dots),
        )
    };
    add_blocks_in_order(s, minima, dots, d, total)
}

/// A block's scales and minima, repeated four times: a shuffle stays within 16 bytes.
#[inline(always)]
fn quarter<const FOUR_TIMES: i32>(_: S, packed: __m512i) -> __m512i {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe { _mm512_shuffle_i32x4::<FOUR_TIMES>(packed, packed) }
}

/// `Σ scale · q · y` of a block, in integers.
#[inline(always)]
fn dot(_: S, x: &BlockQ4K, y: &[Line<[[i8; 32]; 2]>; 4], scales: __m512i) -> __m512i {
    // SAFETY: the first argument is the proof that the CPU has these instructions. Both halves of the codes have 64 bytes; lines have 64
    // and their alignment.
    unsafe {
        let fifteen = _mm512_set1_epi8(15);
        let mut sum = _mm512_setzero_si512();
        for (half, bytes) in x.qs.as_chunks::<64>().0.iter().enumerate() {
            let bytes = _mm512_loadu_si512(bytes.as_ptr().cast());
            let nibbles = [bytes, _mm512_srli_epi16::<4>(bytes)];
            let mut products = [_mm512_setzero_si512(); 2];
            for (i, products) in products.iter_mut().enumerate() {
                let y = _mm512_load_si512((&raw const y[2 * half + i]).cast());
                let nibbles = _mm512_and_si512(nibbles[i], fifteen);
                *products = _mm512_dpbusd_epi32(*products, nibbles, y);
            }
            // Four products of at most 15 * 127 each: the sum fits 16 bits. The four sums of a part stay adjacent.
            let products = _mm512_packs_epi32(products[0], products[1]);
            let of_parts = _mm512_load_si512((&raw const OF_PARTS[half]).cast());
            let scale = _mm512_shuffle_epi8(scales, of_parts);
            sum = _mm512_dpwssd_epi32(sum, products, scale);
        }
        sum
    }
}

/// The scale for each sum of [`dot`], as bytes and zeros: 16-bit integers.
static OF_PARTS: [Line<[[i16; 8]; 4]>; 2] = {
    let mut of = [Line([[0; 8]; 4]); 2];
    let mut place = 0;
    while place < 64 {
        let (half, lane, word) = (place / 32, place / 8 % 4, place % 8);
        let part = 4 * half + lane / 2 * 2 + word / 4;
        of[half].0[lane][word] = -256 | part as i16;
        place += 1;
    }
    of
};

/// The eight scales, then the eight minima, of four headers. (`pack.rs` unpacks a single header and describes the layout.)
#[inline(always)]
fn scales_and_minima(_: S, headers: __m512i) -> __m512i {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe {
        // Scales 0–3 and minima 0–3, each followed by the bytes with the lower nibbles of scales and minima 4–7.
        let low = _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
        let low = _mm512_shuffle_epi8(headers, _mm512_broadcast_i32x4(low));
        // Aligned with these nibbles, the bytes with the upper bits.
        let high = _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11);
        let high = _mm512_shuffle_epi8(headers, _mm512_broadcast_i32x4(high));
        let high = _mm512_and_si512(_mm512_srli_epi16::<2>(high), _mm512_set1_epi8(0x30));

        let six = _mm512_broadcast_i32x4(_mm_setr_epi32(0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f, 0));
        let four = _mm512_broadcast_i32x4(_mm_setr_epi32(0, 0, 0, 0x0f0f_0f0f));
        let six = _mm512_and_si512(low, six);
        let four = _mm512_and_si512(_mm512_srli_epi16::<4>(low), four);
        _mm512_or_si512(_mm512_or_si512(six, four), high)
    }
}
