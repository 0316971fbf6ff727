//! Float to integer conversion with the semantics of `as` (truncating, saturating), in forms that the compiler vectorises.

use super::functions::limit;

/// `x` clamped to `lo..=hi`, which f32 and i32 both represent, and truncated; NaN gives 0. `as` checks the limits of
/// i32 again and is not vectorised for smaller integers.
#[inline(always)]
pub(crate) fn to_i32_within(x: f32, lo: f32, hi: f32) -> i32 {
    let x = if x.is_nan() { 0. } else { x };
    // SAFETY: the number is within the range of i32.
    unsafe { limit(x, lo, hi).to_int_unchecked() }
}

/// `x as i64` by shifts: before AVX-512 there is no vector instruction for the conversion.
#[inline(always)]
pub(crate) fn to_i64(x: f32) -> i64 {
    // The biased exponents of a float whose last mantissa bit is 1, and of 2^63.
    const UNIT: u32 = 127 + 23;
    const TOO_LARGE: u32 = 127 + 63;
    let bits = x.to_bits();
    let exponent = bits >> 23 & 0xFF;
    let mantissa = u64::from(bits & 0x7F_FFFF | 0x80_0000);
    let shrunk = mantissa >> UNIT.saturating_sub(exponent).min(63);
    let magnitude = shrunk << exponent.saturating_sub(UNIT).min(63);
    let magnitude = if exponent < TOO_LARGE {
        magnitude as i64
    } else {
        i64::MAX
    };
    // All bits set if the sign is: negates, and converts the greatest integer to the least.
    let sign = i64::from(bits as i32 >> 31);
    let carry = if exponent < TOO_LARGE { sign } else { 0 };
    let v = (magnitude ^ sign) - carry;
    if x.is_nan() {
        0
    } else {
        v
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_what_as_gives() {
        let edges = [
            2f32.powi(63),
            2f32.powi(62),
            16_777_215.5,
            0.99,
            1.99,
            1e9 + 64.,
        ];
        let edges = edges.into_iter().flat_map(|v| [v, -v]);
        let ends = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0., -0.];
        let numbers = (0..u32::MAX / 4999).map(|i| f32::from_bits(i * 4999));
        for x in numbers.chain(ends).chain(edges) {
            assert_eq!(to_i64(x), x as i64, "{x}");
            let small = [
                to_i32_within(x, 0., 255.),
                to_i32_within(x, -32768., 32767.),
            ];
            assert_eq!(small, [i32::from(x as u8), i32::from(x as i16)], "{x}");
        }
    }
}
