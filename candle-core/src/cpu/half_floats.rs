//! Conversion of slices of 16-bit floats to f32 and back, with the CPU's instructions where available.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::simd::multiversioned;

/// A 16-bit float whose slices convert faster than single values.
pub(crate) trait HalfFloat: Copy {
    /// `dst = src`, over the shorter of the two.
    fn widen(src: &[Self], dst: &mut [f32]);
    /// `dst = src` rounded to nearest, ties to even; over the shorter of the two.
    fn narrow(src: &[f32], dst: &mut [Self]);
}

impl HalfFloat for bf16 {
    fn widen(src: &[Self], dst: &mut [f32]) {
        widen_bf16(src, dst);
    }

    fn narrow(src: &[f32], dst: &mut [Self]) {
        narrow_bf16(src, dst);
    }
}

impl HalfFloat for f16 {
    fn widen(src: &[Self], dst: &mut [f32]) {
        let len = src.len().min(dst.len());
        let (src, dst) = (&src[..len], &mut dst[..len]);
        #[cfg(target_arch = "x86_64")]
        if super::simd::has_avx2() {
            // SAFETY: the CPU has these features.
            return unsafe { x86::widen_f16(src, dst) };
        }
        src.convert_to_f32_slice(dst);
    }

    fn narrow(src: &[f32], dst: &mut [Self]) {
        let len = src.len().min(dst.len());
        let (src, dst) = (&src[..len], &mut dst[..len]);
        #[cfg(target_arch = "x86_64")]
        if super::simd::has_avx2() {
            // SAFETY: the CPU has these features.
            return unsafe { x86::narrow_f16(src, dst) };
        }
        dst.convert_from_f32_slice(src);
    }
}

#[inline(always)]
pub(crate) fn bf16_to_f32(v: bf16) -> f32 {
    f32::from_bits(u32::from(v.to_bits()) << 16)
}

/// Rounds without a branch, which would prevent vectorisation of the loop.
#[inline(always)]
pub(crate) fn f32_to_bf16(v: f32) -> bf16 {
    let bits = v.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
    // A NaN whose upper bits are all zero would round to an infinity.
    let quiet = bits >> 16 | 0x40;
    bf16::from_bits(if v.is_nan() { quiet } else { rounded } as u16)
}

multiversioned! {
    fn widen_bf16[](src: &[bf16], dst: &mut [f32]) {
        for (dst, &v) in dst.iter_mut().zip(src) {
            *dst = bf16_to_f32(v);
        }
    }

    fn narrow_bf16[](src: &[f32], dst: &mut [bf16]) {
        for (dst, &v) in dst.iter_mut().zip(src) {
            *dst = f32_to_bf16(v);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use half::f16;
    use std::arch::x86_64::*;

    /// Both slices have the same length.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn widen_f16(src: &[f16], dst: &mut [f32]) {
        let (sources, source_tail) = src.as_chunks::<8>();
        let (dsts, dst_tail) = dst.as_chunks_mut::<8>();
        for (src, dst) in sources.iter().zip(dsts) {
            // SAFETY: 8 elements are read, 8 written.
            unsafe {
                let halves = _mm_loadu_si128(src.as_ptr().cast());
                _mm256_storeu_ps(dst.as_mut_ptr(), _mm256_cvtph_ps(halves));
            }
        }
        if !source_tail.is_empty() {
            let (mut halves, mut wide) = ([f16::ZERO; 8], [0f32; 8]);
            halves[..source_tail.len()].copy_from_slice(source_tail);
            // SAFETY: as above.
            unsafe {
                let halves = _mm_loadu_si128(halves.as_ptr().cast());
                _mm256_storeu_ps(wide.as_mut_ptr(), _mm256_cvtph_ps(halves));
            }
            dst_tail.copy_from_slice(&wide[..dst_tail.len()]);
        }
    }

    /// Both slices have the same length.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn narrow_f16(src: &[f32], dst: &mut [f16]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        let (sources, source_tail) = src.as_chunks::<8>();
        let (dsts, dst_tail) = dst.as_chunks_mut::<8>();
        for (src, dst) in sources.iter().zip(dsts) {
            // SAFETY: 8 elements are read, 8 written.
            unsafe {
                let halves = _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(src.as_ptr()));
                _mm_storeu_si128(dst.as_mut_ptr().cast(), halves);
            }
        }
        if !source_tail.is_empty() {
            let (mut wide, mut halves) = ([0f32; 8], [f16::ZERO; 8]);
            wide[..source_tail.len()].copy_from_slice(source_tail);
            // SAFETY: as above.
            unsafe {
                let packed = _mm256_cvtps_ph::<NEAREST>(_mm256_loadu_ps(wide.as_ptr()));
                _mm_storeu_si128(halves.as_mut_ptr().cast(), packed);
            }
            dst_tail.copy_from_slice(&halves[..dst_tail.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every 16-bit pattern, at every alignment of the tail.
    fn all_patterns<T: HalfFloat>(
        from_bits: fn(u16) -> T,
        to_bits: fn(T) -> u16,
        one: fn(T) -> f32,
        back: fn(f32) -> T,
    ) {
        let all: Vec<T> = (0..=u16::MAX).map(from_bits).collect();
        for start in [0, 1, 7] {
            let mut wide = vec![0f32; all.len() - start];
            T::widen(&all[start..], &mut wide);
            for (&v, &wide) in all[start..].iter().zip(&wide) {
                let expected = one(v);
                assert!(expected.to_bits() == wide.to_bits() || expected.is_nan() && wide.is_nan());
            }
            let mut narrow = vec![from_bits(0); wide.len()];
            T::narrow(&wide, &mut narrow);
            for (&v, &narrow) in all[start..].iter().zip(&narrow) {
                assert!(to_bits(v) == to_bits(narrow) || one(v).is_nan() && one(narrow).is_nan());
            }
        }
        // Values between two patterns, ties among them, and lengths around a register's.
        for len in [0, 1, 7, 8, 9, 31, 33, 4096] {
            let values: Vec<f32> = (0..len as u32)
                .map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B9) & !0xFF | (i % 3 * 0x80)))
                .collect();
            let mut narrow = vec![from_bits(0); len];
            T::narrow(&values, &mut narrow);
            for (&v, &narrow) in values.iter().zip(&narrow) {
                assert!(
                    to_bits(back(v)) == to_bits(narrow) || v.is_nan() && one(narrow).is_nan(),
                    "{v}"
                );
            }
        }
    }

    #[test]
    fn slices_convert_as_values_do() {
        all_patterns(f16::from_bits, f16::to_bits, f16::to_f32, f16::from_f32);
        all_patterns(bf16::from_bits, bf16::to_bits, bf16::to_f32, bf16::from_f32);
        let payload = f32::from_bits(0x7F80_0001);
        let mut narrow = [bf16::ZERO];
        bf16::narrow(&[payload], &mut narrow);
        assert!(narrow[0].is_nan());
    }
}
