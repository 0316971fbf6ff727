//! The order of f32 as an order of integers, which neither NaN nor a device's treatment of subnormal numbers disturbs.

/// Orders as the float with these bits; -0 and 0 are equal, and NaN is above everything.
pub(crate) fn key(bits: u32) -> u32 {
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        u32::MAX
    } else if bits << 1 == 0 {
        0x8000_0000
    } else if bits >> 31 == 1 {
        !bits
    } else {
        bits | 0x8000_0000
    }
}

/// As [`key`], for what others are compared with: nothing is at most NaN.
pub(crate) fn threshold_key(bits: u32) -> u32 {
    match key(bits) {
        u32::MAX => 0,
        key => key,
    }
}

#[cfg(test)]
mod tests {
    use super::{key, threshold_key};

    #[test]
    fn keys_compare_as_floats_do() {
        let tiny = f32::from_bits(1);
        let values = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.,
            -tiny,
            -0.,
            0.,
            tiny,
            1.,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
            -f32::NAN,
        ];
        for x in values {
            for t in values {
                let left = key(x.to_bits()) <= threshold_key(t.to_bits());
                assert_eq!(left, x <= t, "{x} <= {t}");
            }
        }
    }
}
