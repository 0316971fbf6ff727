//! [`PanelSimd`] for x86-64: panels of 8 rows with AVX2 or AVX-VNNI, of 32 with AVX512-VNNI.
//!
//! Everything here is private. Values of [`Avx`] are the proof that the CPU has the features.

#![cfg(target_arch = "x86_64")]

use std::arch::x86_64::*;

use super::avx::{Avx, Avx512Vnni, AvxVnni, ByteProducts, Plain};
use super::k_quants::lanes::{PanelKernel, PanelSimd};
use super::k_quants::simd::Simd;

/// Runs a kernel with AVX2, FMA and F16C.
pub(crate) fn run_avx2<K: PanelKernel>(s: Avx<Plain>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn run<K: PanelKernel>(s: Avx<Plain>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Like [`run_avx2`], with AVX-VNNI.
pub(crate) fn run_avx_vnni<K: PanelKernel>(s: Avx<AvxVnni>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    fn run<K: PanelKernel>(s: Avx<AvxVnni>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Like [`run_avx2`], with AVX512-VNNI for 512 bits.
pub(crate) fn run_avx512_vnni<K: PanelKernel>(s: Avx<Avx512Vnni>, kernel: K) -> K::Output {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")]
    fn run<K: PanelKernel>(s: Avx<Avx512Vnni>, kernel: K) -> K::Output {
        kernel.run(s)
    }
    // SAFETY: `s` is the proof that the CPU has these features.
    unsafe { run(s, kernel) }
}

/// Interleaves the words of neighbouring rows: those of the first and third quarter, then the others.
#[inline(always)]
fn pair<P: ByteProducts>(_: Avx<P>, a: __m256i, b: __m256i) -> (__m256i, __m256i) {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe { (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)) }
}

/// Interleaves the words of four rows; each result holds two groups.
#[inline(always)]
fn four<P: ByteProducts>(
    s: Avx<P>,
    a: __m256i,
    b: __m256i,
    c: __m256i,
    d: __m256i,
) -> [__m256i; 4] {
    let ((ab_low, ab_high), (cd_low, cd_high)) = (pair(s, a, b), pair(s, c, d));
    // SAFETY: `s` is the proof that the CPU has these instructions.
    unsafe {
        [
            _mm256_unpacklo_epi64(ab_low, cd_low),
            _mm256_unpackhi_epi64(ab_low, cd_low),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    }
}

// Without closures: a closure that is not inlined would not be compiled for these instructions.
#[inline(always)]
fn transpose<P: ByteProducts>(s: Avx<P>, [a, b, c, d, e, f, g, h]: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d] = four(s, a, b, c, d);
    let [e, f, g, h] = four(s, e, f, g, h);
    // SAFETY: `s` is the proof that the CPU has these instructions.
    unsafe {
        [
            _mm256_permute2x128_si256::<0x20>(a, e),
            _mm256_permute2x128_si256::<0x20>(b, f),
            _mm256_permute2x128_si256::<0x20>(c, g),
            _mm256_permute2x128_si256::<0x20>(d, h),
            _mm256_permute2x128_si256::<0x31>(a, e),
            _mm256_permute2x128_si256::<0x31>(b, f),
            _mm256_permute2x128_si256::<0x31>(c, g),
            _mm256_permute2x128_si256::<0x31>(d, h),
        ]
    }
}

/// [`PanelSimd::transpose_bytes`].
#[inline(always)]
fn transpose_bytes<P: ByteProducts>(_: Avx<P>, [a, b, c, d, e, f, g, h]: [u64; 8]) -> [__m256i; 2] {
    // SAFETY: the first argument is the proof that the CPU has these instructions.
    unsafe {
        // Two rows in each half, their bytes interleaved.
        let first = _mm256_setr_epi64x(a as i64, b as i64, e as i64, f as i64);
        let second = _mm256_setr_epi64x(c as i64, d as i64, g as i64, h as i64);
        let pairs = _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
        let pairs = _mm256_broadcastsi128_si256(pairs);
        let first = _mm256_shuffle_epi8(first, pairs);
        let second = _mm256_shuffle_epi8(second, pairs);
        // In each half, the bytes of four rows at one index.
        let places = [
            _mm256_unpacklo_epi16(first, second),
            _mm256_unpackhi_epi16(first, second),
        ];
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        [
            _mm256_permutevar8x32_epi32(places[0], order),
            _mm256_permutevar8x32_epi32(places[1], order),
        ]
    }
}

/// Common to all levels: the 256-bit vectors that unpack blocks.
macro_rules! vectors_of_256_bits {
    () => {
        #[inline(always)]
        fn transpose(self, rows: [__m256i; 8]) -> [__m256i; 8] {
            transpose(self, rows)
        }

        #[inline(always)]
        fn transpose_bytes(self, rows: [u64; 8]) -> [__m256i; 2] {
            transpose_bytes(self, rows)
        }

        #[inline(always)]
        fn flip_signs(self, bytes: __m256i) -> __m256i {
            // SAFETY: `self` is the proof that the CPU has these instructions.
            unsafe { _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)) }
        }

        #[inline(always)]
        fn store(self, to: &mut [u8; 32], bytes: __m256i) {
            // SAFETY: `self` is the proof that the CPU has these instructions.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), bytes) }
        }

        #[inline(always)]
        fn eight_bytes(self, word: u64) -> __m256 {
            // SAFETY: `self` is the proof that the CPU has these instructions.
            unsafe {
                let bytes = _mm_cvtsi64_si128(word as i64);
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
            }
        }

        #[inline(always)]
        fn eight_floats(self, halves: [u16; 8]) -> __m256 {
            self.eight_halves(halves)
        }

        #[inline(always)]
        fn eights(self, bytes: __m256i) -> [__m256; 4] {
            // SAFETY: `self` is the proof that the CPU has these instructions.
            unsafe {
                let (low, high) = (
                    _mm256_castsi256_si128(bytes),
                    _mm256_extracti128_si256::<1>(bytes),
                );
                [
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(low))),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(high))),
                ]
            }
        }

        #[inline(always)]
        fn add(self, a: __m256, b: __m256) -> __m256 {
            // SAFETY: `self` is the proof that the CPU has these instructions.
            unsafe { _mm256_add_ps(a, b) }
        }

        #[inline(always)]
        fn store_eight(self, to: &mut [f32; 8], values: __m256) {
            // SAFETY: `self` is the proof that the CPU has these instructions.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) }
        }
    };
}

/// Common to both levels without 512-bit vectors.
macro_rules! narrow {
    ($products:ident, $unsigned:literal) => {
        impl PanelSimd for Avx<$products> {
            const ROWS: usize = 8;
            const UNSIGNED: bool = $unsigned;
            type FourOfRows = [u8; 32];
            type OneOfRows = [f32; 8];
            type Fours = __m256i;
            type Sums = __m256i;
            type Totals = __m256i;
            type Values = __m256;

            vectors_of_256_bits!();

            #[inline(always)]
            fn load_fours(self, codes: &[u8; 32]) -> __m256i {
                self.load(codes)
            }

            #[inline(always)]
            fn dot_fours<const SIGNED: bool>(self, sum: __m256i, x: __m256i, y: i32) -> __m256i {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe {
                    let y = _mm256_set1_epi32(y);
                    if SIGNED {
                        // The sign of x is moved to y; activations are never -128.
                        $products::add_dot(self, sum, _mm256_abs_epi8(x), _mm256_sign_epi8(y, x))
                    } else {
                        $products::add_dot(self, sum, x, y)
                    }
                }
            }

            #[inline(always)]
            fn splat_sum(self, x: i32) -> __m256i {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_set1_epi32(x) }
            }

            #[inline(always)]
            fn zero_sums(self) -> __m256i {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_setzero_si256() }
            }

            #[inline(always)]
            fn values_of(self, sums: __m256i) -> __m256 {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_cvtepi32_ps(sums) }
            }

            #[inline(always)]
            fn zero_totals(self) -> __m256i {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_setzero_si256() }
            }

            #[inline(always)]
            fn load_whole(self, floats: &[f32; 8]) -> __m256i {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_cvtps_epi32(_mm256_loadu_ps(floats.as_ptr())) }
            }

            #[inline(always)]
            fn add_times(self, total: __m256i, sums: __m256i, by: __m256i) -> __m256i {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_add_epi32(total, _mm256_mullo_epi32(sums, by)) }
            }

            #[inline(always)]
            fn values_of_totals(self, totals: __m256i) -> __m256 {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_cvtepi32_ps(totals) }
            }

            #[inline(always)]
            fn splat_value(self, x: f32) -> __m256 {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_set1_ps(x) }
            }

            #[inline(always)]
            fn zero_values(self) -> __m256 {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_setzero_ps() }
            }

            #[inline(always)]
            fn load_values(self, floats: &[f32; 8]) -> __m256 {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_loadu_ps(floats.as_ptr()) }
            }

            #[inline(always)]
            fn store_values(self, to: &mut [f32; 8], values: __m256) {
                self.store_eight(to, values)
            }

            #[inline(always)]
            fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
                // SAFETY: `self` is the proof that the CPU has these instructions.
                unsafe { _mm256_fmadd_ps(a, b, c) }
            }
        }
    };
}

narrow!(Plain, false);
narrow!(AvxVnni, true);

/// Two 512-bit vectors: each loaded activation is multiplied by both.
impl PanelSimd for Avx<Avx512Vnni> {
    const ROWS: usize = 32;
    const UNSIGNED: bool = true;
    type FourOfRows = [u8; 128];
    type OneOfRows = [f32; 32];
    type Fours = [__m512i; 2];
    type Sums = [__m512i; 2];
    type Totals = [__m512i; 2];
    type Values = [__m512; 2];

    vectors_of_256_bits!();

    #[inline(always)]
    fn load_fours(self, codes: &[u8; 128]) -> [__m512i; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let p = codes.as_ptr();
            [
                _mm512_loadu_si512(p.cast()),
                _mm512_loadu_si512(p.add(64).cast()),
            ]
        }
    }

    #[inline(always)]
    fn dot_fours<const SIGNED: bool>(
        self,
        sum: [__m512i; 2],
        x: [__m512i; 2],
        y: i32,
    ) -> [__m512i; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            debug_assert!(!SIGNED, "codes have 128 added: see UNSIGNED");
            let y = _mm512_set1_epi32(y);
            [
                _mm512_dpbusd_epi32(sum[0], x[0], y),
                _mm512_dpbusd_epi32(sum[1], x[1], y),
            ]
        }
    }

    #[inline(always)]
    fn splat_sum(self, x: i32) -> [__m512i; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { [_mm512_set1_epi32(x); 2] }
    }

    #[inline(always)]
    fn zero_sums(self) -> [__m512i; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { [_mm512_setzero_si512(); 2] }
    }

    #[inline(always)]
    fn values_of(self, sums: [__m512i; 2]) -> [__m512; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { [_mm512_cvtepi32_ps(sums[0]), _mm512_cvtepi32_ps(sums[1])] }
    }

    #[inline(always)]
    fn zero_totals(self) -> [__m512i; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { [_mm512_setzero_si512(); 2] }
    }

    #[inline(always)]
    fn load_whole(self, floats: &[f32; 32]) -> [__m512i; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let p = floats.as_ptr();
            [
                _mm512_cvtps_epi32(_mm512_loadu_ps(p)),
                _mm512_cvtps_epi32(_mm512_loadu_ps(p.add(16))),
            ]
        }
    }

    #[inline(always)]
    fn add_times(self, total: [__m512i; 2], sums: [__m512i; 2], by: [__m512i; 2]) -> [__m512i; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            [
                _mm512_add_epi32(total[0], _mm512_mullo_epi32(sums[0], by[0])),
                _mm512_add_epi32(total[1], _mm512_mullo_epi32(sums[1], by[1])),
            ]
        }
    }

    #[inline(always)]
    fn values_of_totals(self, totals: [__m512i; 2]) -> [__m512; 2] {
        self.values_of(totals)
    }

    #[inline(always)]
    fn splat_value(self, x: f32) -> [__m512; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { [_mm512_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn zero_values(self) -> [__m512; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe { [_mm512_setzero_ps(); 2] }
    }

    #[inline(always)]
    fn load_values(self, floats: &[f32; 32]) -> [__m512; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let p = floats.as_ptr();
            [_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(16))]
        }
    }

    #[inline(always)]
    fn store_values(self, to: &mut [f32; 32], [low, high]: [__m512; 2]) {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            let p = to.as_mut_ptr();
            _mm512_storeu_ps(p, low);
            _mm512_storeu_ps(p.add(16), high);
        }
    }

    #[inline(always)]
    fn fma(self, a: [__m512; 2], b: [__m512; 2], c: [__m512; 2]) -> [__m512; 2] {
        // SAFETY: `self` is the proof that the CPU has these instructions.
        unsafe {
            [
                _mm512_fmadd_ps(a[0], b[0], c[0]),
                _mm512_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }
}
