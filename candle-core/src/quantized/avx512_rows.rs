//! Products with one row of activations, as for a single token, with 512-bit vectors.
//!
//! A vector holds 32 codes with one scale and 32 with another.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::avx::{eight_floats, Avx512Vnni};
use super::avx_rows::{add_blocks_in_order, fetch_after, with_rest};
use super::k_quants::activations::Bytes32;
use super::k_quants::one_row::{Line, OneRow};
use super::k_quants::{BlockQ4K, BlockQ8K, BlockQ8_0};
use crate::cpu::simd::ahead;

/// Number of blocks of 32 codes whose scales are prepared together.
const TOGETHER: usize = 16;

/// [`Simd::rows_of_bytes`].
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn of_bytes(xs: &[BlockQ8_0], y: &OneRow<Bytes32>, dst: &mut [f32]) {
    let blocks = y.blocks.len();
    let whole = blocks - blocks % TOGETHER;
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(blocks.max(1)).zip(dst) {
        let (row, rest) = row.split_at(whole);
        let mut total = 0f32;
        for (i, xs) in row.as_chunks::<TOGETHER>().0.iter().enumerate() {
            fetch_after(xs, ahead);
            let at = TOGETHER * i;
            let [low, high] = [0, 8].map(|r| std::array::from_fn(|i| xs[r + i].d.to_bits()));
            let low = _mm512_castps256_ps512(eight_floats(low));
            let d = _mm512_insertf32x8::<1>(low, eight_floats(high));
            let d = _mm512_mul_ps(d, _mm512_loadu_ps(y.scales.as_ptr().add(at)));
            let mut dots = [_mm512_setzero_si512(); TOGETHER / 2];
            for (j, dot) in dots.iter_mut().enumerate() {
                let low = _mm256_loadu_si256(xs[2 * j].qs.as_ptr().cast());
                let high = _mm256_loadu_si256(xs[2 * j + 1].qs.as_ptr().cast());
                let x = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
                let x = _mm512_xor_si512(x, _mm512_set1_epi8(-128));
                let y = _mm512_load_si512(y.codes.as_ptr().add(at / 2 + j).cast());
                *dot = _mm512_dpbusd_epi32(*dot, x, y);
            }
            // The part of the sums that comes from the 128 added to each code.
            let sums = _mm512_loadu_si512(y.block_sums.as_ptr().add(at).cast());
            let dots = _mm512_sub_epi32(sums_of_halves(dots), _mm512_slli_epi32::<7>(sums));
            let (mut products, mut scales) = ([0f32; TOGETHER], [0f32; TOGETHER]);
            _mm512_storeu_ps(products.as_mut_ptr(), _mm512_cvtepi32_ps(dots));
            _mm512_storeu_ps(scales.as_mut_ptr(), d);
            for (product, scale) in products.into_iter().zip(scales) {
                total = product.mul_add(scale, total);
            }
        }
        *dst = with_rest::<BlockQ8_0, _, Avx512Vnni>(total, rest, &y.blocks[whole..]);
    }
}

/// The sum of each half of eight vectors: the first halves, then the second halves.
#[inline(always)]
unsafe fn sums_of_halves([a, b, c, d, e, f, g, h]: [__m512i; TOGETHER / 2]) -> __m512i {
    let first = sums_of_quarters([a, b, c, d]);
    let second = sums_of_quarters([e, f, g, h]);
    // Quarters 0 and 2 of both, and quarters 1 and 3: together the halves of four vectors.
    let sums = _mm512_add_epi32(
        _mm512_shuffle_i32x4::<0b10_00_10_00>(first, second),
        _mm512_shuffle_i32x4::<0b11_01_11_01>(first, second),
    );
    let order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    _mm512_permutexvar_epi32(order, sums)
}

/// The sum of each quarter of four vectors, next to the sums of the same quarter of the others.
#[inline(always)]
unsafe fn sums_of_quarters([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let first = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let second = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(
        _mm512_unpacklo_epi64(first, second),
        _mm512_unpackhi_epi64(first, second),
    )
}

/// Number of blocks of 256 codes whose headers are unpacked together.
const FOUR: usize = 4;

/// The codes of a block of activations.
type Parts = [Line<[[i8; 32]; 2]>; 4];

/// [`Simd::rows_of_nibbles`].
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn of_nibbles(xs: &[BlockQ4K], y: &OneRow<BlockQ8K>, dst: &mut [f32]) {
    let blocks = y.blocks.len();
    let whole = blocks - blocks % FOUR;
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(blocks.max(1)).zip(dst) {
        let (row, rest) = row.split_at(whole);
        let mut total = 0f32;
        for (i, xs) in row.as_chunks::<FOUR>().0.iter().enumerate() {
            let codes = y.codes.as_ptr().add(4 * FOUR * i).cast();
            let scales = y.scales.as_ptr().add(2 * FOUR * i);
            let sums = y.sums.as_ptr().add(8 * FOUR * i);
            total = four_blocks(xs, codes, scales, sums, total, ahead);
        }
        *dst = with_rest::<BlockQ4K, _, Avx512Vnni>(total, rest, &y.blocks[whole..]);
    }
}

/// `total` plus the products of four blocks. `scales` holds the activations' scales, each twice, and `sums` the sums of 32 activations
/// each.
#[inline(always)]
unsafe fn four_blocks(
    xs: &[BlockQ4K; FOUR],
    y: *const Parts,
    scales: *const f32,
    sums: *const i16,
    total: f32,
    ahead: usize,
) -> f32 {
    let mut headers = [_mm_setzero_si128(); FOUR];
    for (header, x) in headers.iter_mut().zip(xs) {
        *header = _mm_loadu_si128((&raw const *x).cast());
    }
    let [a, b, c, d] = headers;
    let headers = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
    let headers = _mm512_inserti32x4::<2>(headers, c);
    let headers = _mm512_inserti32x4::<3>(headers, d);
    // The first four bytes of each: scale, and scale of the minima.
    let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    let firsts = _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, headers));
    let scaled = _mm256_mul_ps(_mm256_cvtph_ps(firsts), _mm256_loadu_ps(scales));
    let mut d = [[0f32; 2]; FOUR];
    _mm256_storeu_ps(d.as_mut_ptr().cast(), scaled);

    let packed = scales_and_minima(headers);
    let minima = _mm512_unpackhi_epi8(packed, _mm512_setzero_si512());
    let minima = _mm512_madd_epi16(minima, _mm512_loadu_si512(sums.cast()));
    // Broadcasts each block's sum to its whole quarter.
    let minima = _mm512_add_epi32(minima, _mm512_shuffle_epi32::<0b01_00_11_10>(minima));
    let minima = _mm512_add_epi32(minima, _mm512_shuffle_epi32::<0b10_11_00_01>(minima));
    let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    let minima = _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, minima));
    let mut dots = [_mm512_setzero_si512(); FOUR];
    macro_rules! blocks {
        ($($block:literal)*) => {$(
            let x = &xs[$block];
            fetch_after(x, ahead);
            // A block's scales and minima, repeated four times: a shuffle stays within 16 bytes.
            let scales = _mm512_shuffle_i32x4::<{ 0b01_01_01_01 * $block }>(packed, packed);
            dots[$block] = dot(x, &*y.add($block), scales);
        )*};
    }
    blocks!(0 1 2 3);
    let dots = sums_of_quarters(dots);
    let dots = _mm256_add_epi32(
        _mm512_castsi512_si256(dots),
        _mm512_extracti64x4_epi64::<1>(dots),
    );
    let dots = _mm_add_epi32(
        _mm256_castsi256_si128(dots),
        _mm256_extracti128_si256::<1>(dots),
    );
    add_blocks_in_order(minima, dots, d, total)
}

/// `Σ scale · q · y` of a block, in integers.
#[inline(always)]
unsafe fn dot(x: &BlockQ4K, y: &Parts, scales: __m512i) -> __m512i {
    let fifteen = _mm512_set1_epi8(15);
    let mut sum = _mm512_setzero_si512();
    for half in 0..2 {
        let bytes = _mm512_loadu_si512(x.qs.as_ptr().add(64 * half).cast());
        let nibbles = [bytes, _mm512_srli_epi16::<4>(bytes)];
        let mut products = [_mm512_setzero_si512(); 2];
        for (i, products) in products.iter_mut().enumerate() {
            let y = _mm512_load_si512(y.as_ptr().add(2 * half + i).cast());
            *products = _mm512_dpbusd_epi32(*products, _mm512_and_si512(nibbles[i], fifteen), y);
        }
        // Four products of at most 15 * 127 each: the sum fits 16 bits. The four sums of a part stay adjacent.
        let products = _mm512_packs_epi32(products[0], products[1]);
        let of_parts = _mm512_load_si512(OF_PARTS.as_ptr().add(half).cast());
        let scale = _mm512_shuffle_epi8(scales, of_parts);
        sum = _mm512_dpwssd_epi32(sum, products, scale);
    }
    sum
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
unsafe fn scales_and_minima(headers: __m512i) -> __m512i {
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
