//! `Simd` for x86-64: AVX2, AVX-VNNI and AVX512-VNNI.
//!
//! Everything here is private: `k_quants` detects the features at run time before it calls.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use half::f16;

use super::k_quants::activations::Bytes32;
use super::k_quants::one_row::OneRow;
use super::k_quants::panels::PanelWeights;
use super::k_quants::simd::{Kernel, Simd};
use super::k_quants::{BlockQ4K, BlockQ8K, BlockQ8_0};
use super::utils::HALF;
use super::{avx512_rows, avx_rows};
use crate::cpu::simd::ahead;

/// Runs a kernel with AVX2, FMA and F16C.
///
/// # Safety
/// The CPU has these features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx<Plain>>()
}

/// Like [`run_avx2`], with AVX-VNNI.
///
/// # Safety
/// The CPU has these features.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub(crate) unsafe fn run_avx_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx<AvxVnni>>()
}

/// Like [`run_avx2`], with AVX512-VNNI.
///
/// # Safety
/// The CPU has these features.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn run_avx512_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx<Avx512Vnni>>()
}

/// Sums of the products of four neighbouring bytes.
pub(crate) trait ByteProducts: Copy + 'static {
    /// Whether 512-bit vectors are available as well.
    const WIDE: bool = false;

    /// `x` in `0..=128` (with VNNI in `0..=255`), `y` in `-127..=127`.
    unsafe fn dot(x: __m256i, y: __m256i) -> __m256i;
    /// `sum` plus the products; operands as for [`dot`](Self::dot).
    unsafe fn add_dot(sum: __m256i, x: __m256i, y: __m256i) -> __m256i;
    /// `sum` plus the products of neighbouring 16-bit integers.
    unsafe fn madd(sum: __m256i, x: __m256i, y: __m256i) -> __m256i;
}

#[derive(Clone, Copy)]
pub(crate) struct Plain;

#[derive(Clone, Copy)]
pub(crate) struct AvxVnni;

#[derive(Clone, Copy)]
pub(crate) struct Avx512Vnni;

impl ByteProducts for Plain {
    #[inline(always)]
    unsafe fn dot(x: __m256i, y: __m256i) -> __m256i {
        // Two products of at most 128 * 127 each: the sum fits 16 bits.
        _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1))
    }

    #[inline(always)]
    unsafe fn add_dot(sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        _mm256_add_epi32(sum, Self::dot(x, y))
    }

    #[inline(always)]
    unsafe fn madd(sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        _mm256_add_epi32(sum, _mm256_madd_epi16(x, y))
    }
}

impl ByteProducts for AvxVnni {
    #[inline(always)]
    unsafe fn dot(x: __m256i, y: __m256i) -> __m256i {
        Self::add_dot(_mm256_setzero_si256(), x, y)
    }

    #[inline(always)]
    unsafe fn add_dot(sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        _mm256_dpbusd_avx_epi32(sum, x, y)
    }

    #[inline(always)]
    unsafe fn madd(sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        _mm256_dpwssd_avx_epi32(sum, x, y)
    }
}

impl ByteProducts for Avx512Vnni {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn dot(x: __m256i, y: __m256i) -> __m256i {
        Self::add_dot(_mm256_setzero_si256(), x, y)
    }

    #[inline(always)]
    unsafe fn add_dot(sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        _mm256_dpbusd_epi32(sum, x, y)
    }

    #[inline(always)]
    unsafe fn madd(sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        _mm256_dpwssd_epi32(sum, x, y)
    }
}

/// Eight f16 as floats. They are gathered in two words: eight insertions into a vector would compete for one execution port and depend on
/// each other.
#[inline(always)]
pub(super) unsafe fn eight_floats(halves: [u16; 8]) -> __m256 {
    let [a, b, c, d, e, f, g, h] = halves;
    let word = |a: u16, b: u16, c: u16, d: u16| {
        let low = u64::from(a) | u64::from(b) << 16;
        (low | (u64::from(c) | u64::from(d) << 16) << 32) as i64
    };
    _mm256_cvtph_ps(_mm_set_epi64x(word(e, f, g, h), word(a, b, c, d)))
}

/// The maximum of eight numbers.
#[inline(always)]
unsafe fn greatest(x: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

/// Vectors of 256 bits.
#[derive(Clone, Copy)]
pub(crate) struct Avx<P>(std::marker::PhantomData<P>);

impl<P: ByteProducts> Simd for Avx<P> {
    type Bytes = __m256i;
    /// The magnitudes, and the bytes themselves for their signs.
    type Signed = (__m256i, __m256i);
    type Words = __m256i;
    /// The even scales in the lower half, the odd ones in the upper: a shuffle within the halves finds a pair.
    type Scales = __m256i;
    type Ints = __m256i;
    type Floats = __m256;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T1>(p.cast())
    }

    #[inline(always)]
    fn ahead() -> usize {
        ahead()
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256i {
        _mm256_loadu_si256(p.cast())
    }

    #[inline(always)]
    unsafe fn nibbles(p: *const u8) -> __m256i {
        let bytes = _mm_loadu_si128(p.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }

    #[inline(always)]
    unsafe fn fifth_bits(bits: [u8; 4]) -> __m256i {
        let bits = _mm256_set1_epi32(i32::from_le_bytes(bits));
        // Byte `i` of the result is byte `i / 8`, masked to its bit `i % 8`.
        let spread = _mm256_set_epi64x(
            0x0303_0303_0303_0303,
            0x0202_0202_0202_0202,
            0x0101_0101_0101_0101,
            0,
        );
        let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let found = _mm256_and_si256(_mm256_shuffle_epi8(bits, spread), bit);
        _mm256_and_si256(_mm256_cmpeq_epi8(found, bit), _mm256_set1_epi8(16))
    }

    #[inline(always)]
    unsafe fn right<const BY: i32>(b: __m256i, mask: u8) -> __m256i {
        _mm256_and_si256(_mm256_srli_epi16::<BY>(b), _mm256_set1_epi8(mask as i8))
    }

    #[inline(always)]
    unsafe fn left<const BY: i32>(b: __m256i, mask: u8) -> __m256i {
        _mm256_and_si256(_mm256_slli_epi16::<BY>(b), _mm256_set1_epi8(mask as i8))
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        _mm256_or_si256(a, b)
    }

    #[inline(always)]
    unsafe fn less(b: __m256i, by: u8) -> __m256i {
        _mm256_sub_epi8(b, _mm256_set1_epi8(by as i8))
    }

    #[inline(always)]
    unsafe fn look_up(codes: __m256i, table: &[i8; 16]) -> __m256i {
        let table = _mm_loadu_si128(table.as_ptr().cast());
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
    }

    #[inline(always)]
    unsafe fn signed(b: __m256i) -> Self::Signed {
        (_mm256_abs_epi8(b), b)
    }

    #[inline(always)]
    unsafe fn dot_signed(x: Self::Signed, y: __m256i) -> __m256i {
        P::dot(x.0, _mm256_sign_epi8(y, x.1))
    }

    #[inline(always)]
    unsafe fn dot(x: __m256i, y: __m256i) -> __m256i {
        P::dot(x, y)
    }

    #[inline(always)]
    unsafe fn dot_wide(x: __m256i, y: __m256i) -> __m256i {
        let low = |v| _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v));
        let high = |v| _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(v));
        let low = _mm256_madd_epi16(low(x), low(y));
        _mm256_add_epi32(low, _mm256_madd_epi16(high(x), high(y)))
    }

    #[inline(always)]
    unsafe fn scales_of_16(bytes: [u64; 2]) -> __m256i {
        let bytes = _mm_set_epi64x(bytes[1] as i64, bytes[0] as i64);
        let even_odd = _mm_set_epi8(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
        _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, even_odd))
    }

    #[inline(always)]
    unsafe fn scales_of_32(bytes: u64) -> __m256i {
        _mm256_cvtepi8_epi16(_mm_set1_epi64x(bytes as i64))
    }

    #[inline(always)]
    unsafe fn dot_scaled<const J: usize>(
        sum: __m256i,
        x: __m256i,
        y: __m256i,
        scales: __m256i,
    ) -> __m256i {
        let pair = _mm256_set1_epi16(((2 * J) | ((2 * J + 1) << 8)) as i16);
        let scale = _mm256_shuffle_epi8(scales, pair);
        // Two products of at most 63 * 128 each: the sum fits 16 bits.
        P::madd(sum, _mm256_maddubs_epi16(x, y), scale)
    }

    #[inline(always)]
    unsafe fn load_words(p: *const i16) -> __m256i {
        _mm256_loadu_si256(p.cast())
    }

    #[inline(always)]
    unsafe fn words_of_16(bytes: [u64; 2]) -> __m256i {
        _mm256_cvtepi8_epi16(_mm_set_epi64x(bytes[1] as i64, bytes[0] as i64))
    }

    #[inline(always)]
    unsafe fn words_of_32(bytes: u64) -> __m256i {
        let bytes = _mm_cvtsi64_si128(bytes as i64);
        _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(bytes, bytes))
    }

    #[inline(always)]
    unsafe fn dot_words(x: __m256i, y: __m256i) -> __m256i {
        _mm256_madd_epi16(x, y)
    }

    #[inline(always)]
    unsafe fn no_ints() -> __m256i {
        _mm256_setzero_si256()
    }

    #[inline(always)]
    unsafe fn add_ints(a: __m256i, b: __m256i) -> __m256i {
        _mm256_add_epi32(a, b)
    }

    #[inline(always)]
    unsafe fn total(x: __m256i) -> __m256i {
        let x = _mm256_add_epi32(x, _mm256_permute2x128_si256::<1>(x, x));
        let x = _mm256_add_epi32(x, _mm256_shuffle_epi32::<0b01_00_11_10>(x));
        _mm256_add_epi32(x, _mm256_shuffle_epi32::<0b10_11_00_01>(x))
    }

    #[inline(always)]
    unsafe fn sub_shifted<const BY: i32>(a: __m256i, b: __m256i) -> __m256i {
        _mm256_sub_epi32(a, _mm256_slli_epi32::<BY>(b))
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }

    #[inline(always)]
    unsafe fn splat_f16(x: f16) -> __m256 {
        _mm256_cvtph_ps(_mm_set1_epi16(x.to_bits() as i16))
    }

    #[inline(always)]
    unsafe fn floats(x: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(x)
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn neg_mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fnmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn rows_with_a_scale<T: PanelWeights<Activations = Bytes32>>(
        xs: &[T],
        y: &OneRow<Bytes32>,
        dst: &mut [f32],
    ) -> bool {
        avx_rows::with_a_scale::<T, P>(xs, y, dst);
        true
    }

    #[inline(always)]
    unsafe fn rows_with_minima<T: PanelWeights<Activations = BlockQ8K>>(
        xs: &[T],
        y: &OneRow<BlockQ8K>,
        dst: &mut [f32],
    ) -> bool {
        avx_rows::with_minima::<T, P>(xs, y, dst);
        true
    }

    #[inline(always)]
    unsafe fn rows_of_bytes(xs: &[BlockQ8_0], y: &OneRow<Bytes32>, dst: &mut [f32]) -> bool {
        if P::WIDE {
            avx512_rows::of_bytes(xs, y, dst);
        }
        P::WIDE
    }

    #[inline(always)]
    unsafe fn rows_of_nibbles(xs: &[BlockQ4K], y: &OneRow<BlockQ8K>, dst: &mut [f32]) -> bool {
        if P::WIDE {
            avx512_rows::of_nibbles(xs, y, dst);
        } else {
            avx_rows::with_minima::<BlockQ4K, P>(xs, y, dst);
        }
        true
    }

    #[inline(always)]
    unsafe fn extremes(xs: &[f32]) -> (f32, f32) {
        let (eights, rest) = xs.as_chunks::<8>();
        let (mut above, mut below) = (_mm256_setzero_ps(), _mm256_setzero_ps());
        for eight in eights {
            // For a NaN these instructions return their second argument.
            let x = _mm256_loadu_ps(eight.as_ptr());
            above = _mm256_max_ps(x, above);
            below = _mm256_min_ps(x, below);
        }
        let (mut most, mut least) = (
            greatest(above),
            -greatest(_mm256_sub_ps(_mm256_setzero_ps(), below)),
        );
        for &x in rest {
            most = if x > most { x } else { most };
            least = if x < least { x } else { least };
        }
        (most, -least)
    }

    #[inline(always)]
    unsafe fn codes<const AWAY: bool>(xs: &[f32; 32], by: f32) -> [i8; 32] {
        let by = _mm256_set1_ps(by);
        let mut ints = [_mm256_setzero_si256(); 4];
        for (i, ints) in ints.iter_mut().enumerate() {
            let x = _mm256_mul_ps(_mm256_loadu_ps(xs.as_ptr().add(8 * i)), by);
            // A NaN becomes 0.
            let x = _mm256_and_ps(x, _mm256_cmp_ps::<_CMP_ORD_Q>(x, x));
            let x = _mm256_max_ps(x, _mm256_set1_ps(-127.));
            let x = _mm256_min_ps(x, _mm256_set1_ps(127.));
            *ints = if AWAY {
                let sign = _mm256_and_ps(x, _mm256_set1_ps(-0.));
                let half = _mm256_or_ps(sign, _mm256_set1_ps(HALF));
                _mm256_cvttps_epi32(_mm256_add_ps(x, half))
            } else {
                _mm256_cvtps_epi32(x)
            };
        }
        let [a, b, c, d] = ints;
        // Packing works within 128-bit lanes: groups of four are in the order a, b, c, d, twice.
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let mut codes = [0; 32];
        let bytes = _mm256_permutevar8x32_epi32(bytes, order);
        _mm256_storeu_si256(codes.as_mut_ptr().cast(), bytes);
        codes
    }

    #[inline(always)]
    unsafe fn sums_of_halves(codes: &[i8; 32]) -> [i16; 2] {
        let codes = _mm256_loadu_si256(codes.as_ptr().cast());
        // Sums of eight bytes each, with 128 added to every byte.
        let above = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
        let sums = _mm256_sad_epu8(above, _mm256_setzero_si256());
        let (low, high) = (
            _mm256_castsi256_si128(sums),
            _mm256_extracti128_si256::<1>(sums),
        );
        let sum = |eights| _mm_extract_epi16::<0>(eights) + _mm_extract_epi16::<4>(eights);
        [(sum(low) - 2048) as i16, (sum(high) - 2048) as i16]
    }

    #[inline(always)]
    unsafe fn first(x: __m256) -> f32 {
        _mm256_cvtss_f32(x)
    }
}
