//! `Simd` for x86-64: AVX2, AVX-VNNI and AVX512-VNNI.
//!
//! Everything here is private. `Avx::detect` detects the features at run time; all functions take its value as their proof.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::f16;

use super::k_quants::simd::{Kernel, Simd};
use super::utils::HALF;
use crate::cpu::simd::{ahead, has_avx2};

/// Runs a kernel with AVX2, FMA and F16C.
pub(crate) fn run_avx2<K: Kernel>(s: Avx<Plain>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn run<K: Kernel>(s: Avx<Plain>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Like [`run_avx2`], with AVX-VNNI.
pub(crate) fn run_avx_vnni<K: Kernel>(s: Avx<AvxVnni>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    fn run<K: Kernel>(s: Avx<AvxVnni>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Like [`run_avx2`], with AVX512-VNNI.
pub(crate) fn run_avx512_vnni<K: Kernel>(s: Avx<Avx512Vnni>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn run<K: Kernel>(s: Avx<Avx512Vnni>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Sums of the products of four neighbouring bytes, for vectors of 256 bits.
pub(crate) trait ByteProducts: Sized + Copy + 'static {
    /// The products of `x` in `0..=128` (with VNNI in `0..=255`) and `y` in `-127..=127`.
    fn dot(s: Avx<Self>, x: __m256i, y: __m256i) -> __m256i;
    /// `sum` plus the products; operands as for [`dot`](Self::dot).
    fn add_dot(s: Avx<Self>, sum: __m256i, x: __m256i, y: __m256i) -> __m256i;
    /// `sum` plus the products of neighbouring 16-bit integers.
    fn madd(s: Avx<Self>, sum: __m256i, x: __m256i, y: __m256i) -> __m256i;
}

/// AVX2 alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plain;

/// With AVX-VNNI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AvxVnni;

/// With AVX512-VNNI: vectors of 512 bits are available as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx512Vnni;

impl ByteProducts for Plain {
    #[inline(always)]
    fn dot(_: Avx<Self>, x: __m256i, y: __m256i) -> __m256i {
        // Two products of at most 128 * 127 each: the sum fits 16 bits.
        // SAFETY: the first argument is the proof that the CPU has these instructions.
        unsafe { _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), _mm256_set1_epi16(1)) }
    }

    #[inline(always)]
    fn add_dot(s: Avx<Self>, sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        // SAFETY: `s` is the proof that the CPU has these instructions.
        unsafe { _mm256_add_epi32(sum, Self::dot(s, x, y)) }
    }

    #[inline(always)]
    fn madd(_: Avx<Self>, sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
        // SAFETY: the first argument is the proof that the CPU has these instructions.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)) }
    }
}

/// Products in one instruction each.
macro_rules! vnni {
    ($($ty:ident: $bytes:ident, $words:ident;)*) => {$(
        impl ByteProducts for $ty {
            #[inline(always)]
            fn dot(s: Avx<Self>, x: __m256i, y: __m256i) -> __m256i {
                // SAFETY: `s` is the proof that the CPU has these instructions.
                let zero = unsafe { _mm256_setzero_si256() };
                Self::add_dot(s, zero, x, y)
            }

            #[inline(always)]
            fn add_dot(_: Avx<Self>, sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
                // SAFETY: the first argument is the proof that the CPU has these instructions.
                unsafe { $bytes(sum, x, y) }
            }

            #[inline(always)]
            fn madd(_: Avx<Self>, sum: __m256i, x: __m256i, y: __m256i) -> __m256i {
                // SAFETY: the first argument is the proof that the CPU has these instructions.
                unsafe { $words(sum, x, y) }
            }
        }
    )*};
}

vnni! {
    AvxVnni: _mm256_dpbusd_avx_epi32, _mm256_dpwssd_avx_epi32;
    Avx512Vnni: _mm256_dpbusd_epi32, _mm256_dpwssd_epi32;
}

/// The maximum of eight numbers.
#[inline(always)]
fn greatest<P>(_: Avx<P>, x: __m256) -> f32 {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Vectors of 256 bits. A value is the proof that the CPU has AVX2, FMA, F16C and what `P` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Avx<P>(PhantomData<P>);

impl Avx<Plain> {
    pub(crate) fn detect() -> Option<Self> {
        has_avx2().then_some(Self(PhantomData))
    }
}

impl Avx<AvxVnni> {
    pub(crate) fn detect() -> Option<Self> {
        (has_avx2() && is_x86_feature_detected!("avxvnni")).then_some(Self(PhantomData))
    }
}

impl Avx<Avx512Vnni> {
    pub(crate) fn detect() -> Option<Self> {
        let has_all = has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has_all.then_some(Self(PhantomData))
    }
}

impl<P> Avx<P> {
    /// Without the instructions of `P`.
    #[inline(always)]
    pub(crate) fn plain(self) -> Avx<Plain> {
        Avx(PhantomData)
    }

    /// Eight f16 as floats. They are gathered in two words: eight insertions into a vector would compete for one execution port and depend
    /// on each other.
    #[inline(always)]
    pub(super) fn eight_halves(self, halves: [u16; 8]) -> __m256 {
        let [a, b, c, d, e, f, g, h] = halves;
        let word = |a: u16, b: u16, c: u16, d: u16| {
            let low = u64::from(a) | u64::from(b) << 16;
            (low | (u64::from(c) | u64::from(d) << 16) << 32) as i64
        };
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_cvtph_ps(_mm_set_epi64x(word(e, f, g, h), word(a, b, c, d))) }
    }
}

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
    fn prefetch(self, p: *const u8) {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }

    #[inline(always)]
    fn ahead(self) -> usize {
        ahead()
    }

    #[inline(always)]
    fn load(self, bytes: &[u8; 32]) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline(always)]
    fn nibbles(self, bytes: &[u8; 16]) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let bytes = _mm_loadu_si128(bytes.as_ptr().cast());
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }
    }

    #[inline(always)]
    fn fifth_bits(self, bits: [u8; 4]) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
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
    }

    #[inline(always)]
    fn right<const BY: i32>(self, b: __m256i, mask: u8) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_and_si256(_mm256_srli_epi16::<BY>(b), _mm256_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    fn left<const BY: i32>(self, b: __m256i, mask: u8) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_and_si256(_mm256_slli_epi16::<BY>(b), _mm256_set1_epi8(mask as i8)) }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn less(self, b: __m256i, by: u8) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_sub_epi8(b, _mm256_set1_epi8(by as i8)) }
    }

    #[cfg(feature = "all-ggml-types")]
    #[inline(always)]
    fn look_up(self, codes: __m256i, table: &[i8; 16]) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)
        }
    }

    #[inline(always)]
    fn signed(self, b: __m256i) -> Self::Signed {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { (_mm256_abs_epi8(b), b) }
    }

    #[inline(always)]
    fn dot_signed(self, x: Self::Signed, y: __m256i) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { P::dot(self, x.0, _mm256_sign_epi8(y, x.1)) }
    }

    #[inline(always)]
    fn dot(self, x: __m256i, y: __m256i) -> __m256i {
        P::dot(self, x, y)
    }

    #[inline(always)]
    fn dot_wide(self, x: __m256i, y: __m256i) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let low = |v| _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v));
            let high = |v| _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(v));
            let low = _mm256_madd_epi16(low(x), low(y));
            _mm256_add_epi32(low, _mm256_madd_epi16(high(x), high(y)))
        }
    }

    #[inline(always)]
    fn scales_of_16(self, bytes: [u64; 2]) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let bytes = _mm_set_epi64x(bytes[1] as i64, bytes[0] as i64);
            let even_odd = _mm_set_epi8(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
            _mm256_cvtepi8_epi16(_mm_shuffle_epi8(bytes, even_odd))
        }
    }

    #[inline(always)]
    fn scales_of_32(self, bytes: u64) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_cvtepi8_epi16(_mm_set1_epi64x(bytes as i64)) }
    }

    #[inline(always)]
    fn dot_scaled<const J: usize>(
        self,
        sum: __m256i,
        x: __m256i,
        y: __m256i,
        scales: __m256i,
    ) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let pair = _mm256_set1_epi16(((2 * J) | ((2 * J + 1) << 8)) as i16);
            let scale = _mm256_shuffle_epi8(scales, pair);
            // Two products of at most 63 * 128 each: the sum fits 16 bits.
            P::madd(self, sum, _mm256_maddubs_epi16(x, y), scale)
        }
    }

    #[inline(always)]
    fn load_words(self, words: &[i16; 16]) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
    }

    #[inline(always)]
    fn words_of_16(self, bytes: [u64; 2]) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_cvtepi8_epi16(_mm_set_epi64x(bytes[1] as i64, bytes[0] as i64)) }
    }

    #[inline(always)]
    fn words_of_32(self, bytes: u64) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let bytes = _mm_cvtsi64_si128(bytes as i64);
            _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(bytes, bytes))
        }
    }

    #[inline(always)]
    fn dot_words(self, x: __m256i, y: __m256i) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_madd_epi16(x, y) }
    }

    #[inline(always)]
    fn no_ints(self) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_setzero_si256() }
    }

    #[inline(always)]
    fn add_ints(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn total(self, x: __m256i) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let x = _mm256_add_epi32(x, _mm256_permute2x128_si256::<1>(x, x));
            let x = _mm256_add_epi32(x, _mm256_shuffle_epi32::<0b01_00_11_10>(x));
            _mm256_add_epi32(x, _mm256_shuffle_epi32::<0b10_11_00_01>(x))
        }
    }

    #[inline(always)]
    fn sub_shifted<const BY: i32>(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_sub_epi32(a, _mm256_slli_epi32::<BY>(b)) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_set1_ps(x) }
    }

    #[inline(always)]
    fn splat_f16(self, x: f16) -> __m256 {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_cvtph_ps(_mm_set1_epi16(x.to_bits() as i16)) }
    }

    #[inline(always)]
    fn floats(self, x: __m256i) -> __m256 {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_cvtepi32_ps(x) }
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    fn mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn neg_mul_add(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn extremes(self, xs: &[f32]) -> (f32, f32) {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let (eights, rest) = xs.as_chunks::<8>();
            let (mut above, mut below) = (_mm256_setzero_ps(), _mm256_setzero_ps());
            for eight in eights {
                // For a NaN these instructions return their second argument.
                let x = _mm256_loadu_ps(eight.as_ptr());
                above = _mm256_max_ps(x, above);
                below = _mm256_min_ps(x, below);
            }
            let (mut most, mut least) = (
                greatest(self, above),
                -greatest(self, _mm256_sub_ps(_mm256_setzero_ps(), below)),
            );
            for &x in rest {
                most = if x > most { x } else { most };
                least = if x < least { x } else { least };
            }
            (most, -least)
        }
    }

    #[inline(always)]
    fn codes<const AWAY: bool>(self, xs: &[f32; 32], by: f32) -> [i8; 32] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
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
    }

    #[inline(always)]
    fn sums_of_halves(self, codes: &[i8; 32]) -> [i16; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
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
    }

    #[inline(always)]
    fn first(self, x: __m256) -> f32 {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { _mm256_cvtss_f32(x) }
    }
}
