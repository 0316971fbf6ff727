//! Products with one row of activations, as for a single token, for x86-64.
//!
//! The weights are read once, sequentially. Scales of several blocks are prepared together: one block has too few for a vector.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::avx::{Avx, Avx512Vnni, AvxVnni, ByteProducts, Plain};
use super::avx512_rows;
use super::k_quants::activations::Bytes32;
use super::k_quants::lanes::PanelSimd;
use super::k_quants::one_row::{FourBlocks, OneRow, RowKernel, RowSimd, PARTS};
use super::k_quants::panels::{Codes, PanelWeights};
use super::k_quants::products::Weights;
use super::k_quants::simd::Simd;
use super::k_quants::{BlockQ4K, BlockQ8K, BlockQ8_0};
use crate::cpu::simd::{ahead, prefetch};

/// Runs a kernel with AVX2, FMA and F16C.
pub(crate) fn run_avx2<K: RowKernel>(s: Avx<Plain>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn run<K: RowKernel>(s: Avx<Plain>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Like [`run_avx2`], with AVX-VNNI.
pub(crate) fn run_avx_vnni<K: RowKernel>(s: Avx<AvxVnni>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    fn run<K: RowKernel>(s: Avx<AvxVnni>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Like [`run_avx2`], with AVX512-VNNI.
pub(crate) fn run_avx512_vnni<K: RowKernel>(s: Avx<Avx512Vnni>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn run<K: RowKernel>(s: Avx<Avx512Vnni>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// The kernels of both levels without 512-bit vectors.
macro_rules! narrow {
    ($($products:ident)*) => {$(
        impl RowSimd for Avx<$products> {
            const BYTES: bool = false;

            #[inline(always)]
            fn offset_codes<T>(self, xs: &[T], y: &OneRow<Bytes32>, dst: &mut [f32])
            where
                T: PanelWeights<Activations = Bytes32> + Weights<Bytes32>,
            {
                offset_codes(self, xs, y, dst)
            }

            #[inline(always)]
            fn with_minima<T>(self, xs: &[T], y: &OneRow<BlockQ8K>, dst: &mut [f32])
            where
                T: PanelWeights<Activations = BlockQ8K> + Weights<BlockQ8K> + bytemuck::Pod,
            {
                with_minima(self, xs, y, dst)
            }

            #[inline(always)]
            fn bytes(self, xs: &[BlockQ8_0], y: &OneRow<Bytes32>, dst: &mut [f32]) {
                let rows = xs.chunks_exact(y.blocks.len().max(1));
                for (row, dst) in rows.zip(dst) {
                    *dst = with_rest(self, 0., row, &y.blocks);
                }
            }
        }
    )*};
}

narrow!(Plain AvxVnni);

impl RowSimd for Avx<Avx512Vnni> {
    const BYTES: bool = true;

    #[inline(always)]
    fn offset_codes<T>(self, xs: &[T], y: &OneRow<Bytes32>, dst: &mut [f32])
    where
        T: PanelWeights<Activations = Bytes32> + Weights<Bytes32>,
    {
        offset_codes(self, xs, y, dst)
    }

    #[inline(always)]
    fn with_minima<T>(self, xs: &[T], y: &OneRow<BlockQ8K>, dst: &mut [f32])
    where
        T: PanelWeights<Activations = BlockQ8K> + Weights<BlockQ8K> + bytemuck::Pod,
    {
        with_minima(self, xs, y, dst)
    }

    #[inline(always)]
    fn nibbles_with_minima(self, xs: &[BlockQ4K], y: &OneRow<BlockQ8K>, dst: &mut [f32]) {
        avx512_rows::nibbles_with_minima(self, xs, y, dst)
    }

    #[inline(always)]
    fn bytes(self, xs: &[BlockQ8_0], y: &OneRow<Bytes32>, dst: &mut [f32]) {
        avx512_rows::bytes(self, xs, y, dst)
    }
}

/// Number of blocks of 32 codes that are multiplied together: their sums fill a vector.
const EIGHT: usize = 8;

/// Number of blocks of 256 codes that are multiplied together.
const TOGETHER: usize = 4;

/// Prefetches the blocks `bytes` ahead.
#[inline(always)]
pub(super) fn fetch_after<T>(x: *const T, bytes: usize) {
    let first = x.cast::<i8>().wrapping_add(bytes);
    for line in (0..size_of::<T>()).step_by(64) {
        prefetch(first.wrapping_add(line));
    }
}

/// [`RowSimd::offset_codes`]. Prepares the scales of a whole row first, then multiplies codes, eight blocks at a time.
#[inline(always)]
fn offset_codes<T, P: ByteProducts>(s: Avx<P>, xs: &[T], y: &OneRow<Bytes32>, dst: &mut [f32])
where
    T: PanelWeights<Activations = Bytes32> + Weights<Bytes32>,
    Avx<P>: PanelSimd<Bytes = __m256i, Ints = __m256i, Floats = __m256>,
{
    let offset = const {
        match T::CODES {
            Codes::Offset(offset) if T::BLCK_SIZE == 32 => offset,
            _ => panic!("not a block of a scale and 32 codes with an offset"),
        }
    };
    // Eight blocks are four pairs.
    let (codes, _) = y.codes.as_chunks::<{ EIGHT / 2 }>();
    let (block_sums, _) = y.block_sums.as_chunks::<EIGHT>();
    let mut scales = vec![[0f32; EIGHT]; block_sums.len()];
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(y.blocks.len().max(1)).zip(dst) {
        let (eights, rest) = row.as_chunks::<EIGHT>();
        row_scales(s, eights, y, &mut scales);
        let mut total = 0f32;
        let activations = codes.iter().zip(block_sums).zip(&scales);
        for (eight, ((codes, sums), scales)) in eights.iter().zip(activations) {
            fetch_after(eight, ahead);
            let mut dots = [s.no_ints(); EIGHT];
            for (j, dot) in dots.iter_mut().enumerate() {
                let x = T::codes(s, eight[j].read_all(s)).as_ref()[0];
                *dot = s.dot(x, s.load_signed(&codes[j / 2].0[j % 2]));
            }
            let dots = sums_of_eight(s, dots);
            // SAFETY: `s` is the proof that the CPU has these instructions, and `sums` has eight integers.
            let dots = unsafe {
                let sums = _mm256_loadu_si256(sums.as_ptr().cast());
                let less = _mm256_mullo_epi32(sums, _mm256_set1_epi32(offset));
                _mm256_sub_epi32(dots, less)
            };
            let mut products = [0f32; EIGHT];
            s.store_eight(&mut products, s.floats(dots));
            for (product, &scale) in products.into_iter().zip(scales) {
                total = product.mul_add(scale, total);
            }
        }
        *dst = with_rest(s, total, rest, &y.blocks[y.blocks.len() - rest.len()..]);
    }
}

/// `total` plus the products of the last blocks of a row, too few to be multiplied together.
#[inline(always)]
pub(super) fn with_rest<T: Weights<Y>, Y, P: ByteProducts>(
    s: Avx<P>,
    total: f32,
    xs: &[T],
    ys: &[Y],
) -> f32 {
    let mut total = s.splat(total);
    for (x, y) in xs.iter().zip(ys) {
        total = T::mul_add(s, &x.unpack(s), y, total);
    }
    s.first(total)
}

/// The sum of each of eight vectors.
#[inline(always)]
fn sums_of_eight<P: ByteProducts>(
    s: Avx<P>,
    [a, b, c, d, e, f, g, h]: [__m256i; EIGHT],
) -> __m256i {
    // Half of each sum, in each half of a vector.
    let low = sums_of_four(s, [a, b, c, d]);
    let high = sums_of_four(s, [e, f, g, h]);
    // SAFETY: `s` is the proof that the CPU has these instructions.
    unsafe {
        _mm256_add_epi32(
            _mm256_permute2x128_si256::<0x20>(low, high),
            _mm256_permute2x128_si256::<0x31>(low, high),
        )
    }
}

/// The sums of both halves of each of four vectors.
#[inline(always)]
fn sums_of_four<P: ByteProducts>(_: Avx<P>, [a, b, c, d]: [__m256i; 4]) -> __m256i {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe { _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d)) }
}

/// Sets `to[i][j]` to the product of the scale of block `8 i + j` and that of the activations.
#[inline(always)]
fn row_scales<T: PanelWeights, P: ByteProducts>(
    s: Avx<P>,
    row: &[[T; EIGHT]],
    y: &OneRow<Bytes32>,
    to: &mut [[f32; EIGHT]],
) where
    Avx<P>: PanelSimd<Bytes = __m256i, Ints = __m256i, Floats = __m256>,
{
    let (scales, _) = y.scales.as_chunks::<EIGHT>();
    for ((eight, by), to) in row.iter().zip(scales).zip(to) {
        let mut bits = [0; EIGHT];
        for (bits, x) in bits.iter_mut().zip(eight) {
            [*bits, _] = x.factors();
        }
        let d = s.eight_halves(bits);
        // SAFETY: `s` is the proof that the CPU has these instructions, and both arrays have eight floats.
        unsafe {
            let by = _mm256_loadu_ps(by.as_ptr());
            _mm256_storeu_ps(to.as_mut_ptr(), _mm256_mul_ps(d, by));
        }
    }
}

/// [`RowSimd::with_minima`]. Unpacks headers four at a time.
#[inline(always)]
fn with_minima<T, P: ByteProducts>(s: Avx<P>, xs: &[T], y: &OneRow<BlockQ8K>, dst: &mut [f32])
where
    T: PanelWeights<Activations = BlockQ8K> + Weights<BlockQ8K> + bytemuck::Pod,
{
    const { assert!(T::BLCK_SIZE == 256 && T::PART == 32) };
    let blocks = y.blocks.len();
    let ahead = ahead();
    for (row, dst) in xs.chunks_exact(blocks.max(1)).zip(dst) {
        let mut total = 0f32;
        let (fours, rest) = row.as_chunks::<TOGETHER>();
        for (x, y) in fours.iter().zip(y.fours()) {
            total = four_blocks(s, x, y, total, ahead);
        }
        *dst = with_rest(s, total, rest, &y.blocks[blocks - rest.len()..]);
    }
}

/// `total` plus the products of four blocks.
#[inline(always)]
fn four_blocks<T, P: ByteProducts>(
    s: Avx<P>,
    xs: &[T; TOGETHER],
    y: FourBlocks,
    total: f32,
    ahead: usize,
) -> f32
where
    T: PanelWeights<Activations = BlockQ8K> + bytemuck::Pod,
{
    let headers = xs.each_ref().map(header);
    let d = factors(s, headers, y.scales);
    let packed = [
        scales_and_minima(s, headers[0], headers[1]),
        scales_and_minima(s, headers[2], headers[3]),
    ];
    let minima = {
        let [a, b] = y.sums;
        let a = s.dot_words(upper_bytes(s, packed[0]), s.load_words(a));
        let b = s.dot_words(upper_bytes(s, packed[1]), s.load_words(b));
        // Sums of the first and the third block in the lower half, of the others in the upper.
        let sums = sums_of_four(s, [a, b, a, b]);
        // SAFETY: `s` is the proof that the CPU has these instructions.
        unsafe {
            _mm_unpacklo_epi32(
                _mm256_castsi256_si128(sums),
                _mm256_extracti128_si256::<1>(sums),
            )
        }
    };
    let mut dots = [s.no_ints(); TOGETHER];
    for block in 0..TOGETHER {
        let x = &xs[block];
        fetch_after(x, ahead);
        // The block's half, repeated twice: a shuffle works within 128-bit lanes.
        // SAFETY: `s` is the proof that the CPU has these instructions.
        let scales = unsafe {
            if block % 2 == 0 {
                _mm256_permute4x64_epi64::<0b01_00_01_00>(packed[block / 2])
            } else {
                _mm256_permute4x64_epi64::<0b11_10_11_10>(packed[block / 2])
            }
        };
        let codes = T::codes(s, x.read_all(s));
        // Two accumulators, to break the dependency chain.
        let mut sums = [s.no_ints(); 2];
        for (j, &codes) in codes.as_ref().iter().enumerate() {
            let part = PARTS[j];
            let y = s.load_signed(&y.codes[4 * block + part / 2].0[part % 2]);
            // SAFETY: `s` is the proof that the CPU has these instructions.
            unsafe {
                // A byte and a zero: a 16-bit integer.
                let scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16(-256 | j as i16));
                // Two products of at most 31 * 127 each: the sum fits 16 bits.
                let products = _mm256_maddubs_epi16(codes, y);
                sums[j % 2] = P::madd(s, sums[j % 2], products, scale);
            }
        }
        dots[block] = s.add_ints(sums[0], sums[1]);
    }
    let dots = sums_of_four(s, dots);
    // SAFETY: `s` is the proof that the CPU has these instructions.
    let dots = unsafe {
        _mm_add_epi32(
            _mm256_castsi256_si128(dots),
            _mm256_extracti128_si256::<1>(dots),
        )
    };
    add_blocks_in_order(s, minima, dots, d, total)
}

/// The first 16 bytes of a block: its two factors, and the packed scales and minima.
#[inline(always)]
pub(super) fn header<T: bytemuck::Pod>(x: &T) -> &[u8; 16] {
    let header = bytemuck::bytes_of(x).first_chunk();
    header.expect("a block of 256 codes")
}

/// The scales of four blocks' products and of their minima: the factors of the blocks times the scales of the activations, which are each
/// repeated twice.
#[inline(always)]
pub(super) fn factors<P: ByteProducts>(
    _: Avx<P>,
    headers: [&[u8; 16]; TOGETHER],
    scales: &[f32; 2 * TOGETHER],
) -> [[f32; 2]; TOGETHER] {
    let [a, b, c, d] = headers.map(|[a, b, c, d, ..]| i32::from_le_bytes([*a, *b, *c, *d]));
    let mut factors = [[0f32; 2]; TOGETHER];
    // SAFETY: the first argument is the proof that the CPU has these instructions; both arrays have eight floats.
    unsafe {
        let halves = _mm_setr_epi32(a, b, c, d);
        let scaled = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_loadu_ps(scales.as_ptr()));
        _mm256_storeu_ps(factors.as_mut_ptr().cast(), scaled);
    }
    factors
}

/// `total` plus the contributions of four blocks, in sequence: subtracts each block's minima, then adds the products of its codes. `d`
/// holds the scales of the products and of the minima.
#[inline(always)]
pub(super) fn add_blocks_in_order<P: ByteProducts>(
    _: Avx<P>,
    minima: __m128i,
    dots: __m128i,
    d: [[f32; 2]; TOGETHER],
    total: f32,
) -> f32 {
    let (mut less, mut products) = ([0f32; TOGETHER], [0f32; TOGETHER]);
    // SAFETY: the first argument is the proof that the CPU has these instructions; both arrays have four floats.
    unsafe {
        _mm_storeu_ps(less.as_mut_ptr(), _mm_cvtepi32_ps(minima));
        _mm_storeu_ps(products.as_mut_ptr(), _mm_cvtepi32_ps(dots));
    }
    let mut total = total;
    for ((less, product), [by, less_by]) in less.into_iter().zip(products).zip(d) {
        total = (-less).mul_add(less_by, total);
        total = product.mul_add(by, total);
    }
    total
}

/// The eight scales, then the eight minima, of a block in each half. (`pack.rs` unpacks a single header and describes the layout.)
#[inline(always)]
fn scales_and_minima<P: ByteProducts>(_: Avx<P>, a: &[u8; 16], b: &[u8; 16]) -> __m256i {
    // SAFETY: the first argument is the proof that the CPU has these instructions; both arrays have 16 bytes.
    unsafe {
        let (a, b) = (a.as_ptr().cast(), b.as_ptr().cast());
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
}

/// The upper eight bytes of both halves as 16-bit integers.
#[inline(always)]
fn upper_bytes<P: ByteProducts>(_: Avx<P>, x: __m256i) -> __m256i {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe { _mm256_unpackhi_epi8(x, _mm256_setzero_si256()) }
}
