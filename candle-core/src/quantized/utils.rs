//! Rounding and conversions in forms that compilers vectorise. Everything here is private.

use half::f16;

/// f16 to f32, by arithmetic on the bits: `half` checks for the CPU's instruction at every call.
#[inline(always)]
pub(crate) fn f16_to_f32(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let sign = (bits & 0x8000) << 16;
    // The exponent's bias of f32 is 112 greater; the product also normalises subnormal numbers.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
    let exponent = if bits & 0x7c00 == 0x7c00 {
        0xff << 23
    } else {
        0
    };
    f32::from_bits(magnitude.to_bits() | exponent | sign)
}

/// The nearest integer, ties to even, for magnitudes below 2^22. For other values, NaN included, the result is unspecified.
#[inline(always)]
pub(crate) fn nearest(x: f32) -> i32 {
    // 1.5 * 2^23: the sum's last bit is worth one.
    const SHIFT: f32 = 12_582_912.;
    (x + SHIFT).to_bits() as i32 - SHIFT.to_bits() as i32
}

/// The largest number below a half. Added before truncation; adding a half would round 0.49999997 up to 1.
pub(crate) const HALF: f32 = 0.499_999_97;

/// The nearest integer, ties away from zero, for magnitudes below 2^22. For other values, NaN included, the result is unspecified.
#[inline(always)]
pub(crate) fn nearest_away(x: f32) -> i32 {
    let x = x.clamp(-4e6, 4e6) + HALF.copysign(x);
    // SAFETY: the clamped sum is in range; a NaN is replaced.
    unsafe { if x.is_nan() { 0. } else { x }.to_int_unchecked() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16() {
        for bits in 0..=u16::MAX {
            let x = f16::from_bits(bits);
            let (found, right) = (f16_to_f32(x), x.to_f32());
            assert!(
                found.to_bits() == right.to_bits() || found.is_nan() && right.is_nan(),
                "{bits:#x}: {found} for {right}"
            );
        }
    }

    #[test]
    fn rounding() {
        for i in -8000..8000 {
            let x = i as f32 / 16.;
            assert_eq!(nearest(x), x.round_ties_even() as i32, "{x}");
            assert_eq!(nearest_away(x), x.round() as i32, "{x}");
        }
        for x in [0.499_999_97f32, 0.5, 1.5, 2.5, 4_000_000.5 / 2.] {
            assert_eq!(nearest_away(x), x.round() as i32, "{x}");
            assert_eq!(nearest_away(-x), (-x).round() as i32, "-{x}");
        }
        assert_eq!(nearest_away(f32::NAN), 0);
    }
}
