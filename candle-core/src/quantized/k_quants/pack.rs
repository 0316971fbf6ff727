//! Scales of 6 bits, eight or sixteen of them in 12 bytes. All bytes of a word are treated at once.

use super::K_SCALE_SIZE;

const LOW_2: u32 = 0x0303_0303;
const LOW_4: u32 = 0x0f0f_0f0f;
const LOW_6: u32 = 0x3f3f_3f3f;

#[inline(always)]
fn words(packed: &[u8; K_SCALE_SIZE]) -> [u32; 3] {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *packed;
    [[a0, a1, a2, a3], [b0, b1, b2, b3], [c0, c1, c2, c3]].map(u32::from_le_bytes)
}

#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The eight scales and the eight minima of a `BlockQ4K` or `BlockQ5K`, a byte each, the first in the lowest byte.
#[inline(always)]
pub(super) fn scales_and_mins(packed: &[u8; K_SCALE_SIZE]) -> (u64, u64) {
    let [scales, mins, rest] = words(packed);
    let upper = |word: u32| ((word >> 6) & LOW_2) << 4;
    (
        join(scales & LOW_6, (rest & LOW_4) | upper(scales)),
        join(mins & LOW_6, ((rest >> 4) & LOW_4) | upper(mins)),
    )
}

/// The inverse of [`scales_and_mins`]; values above 63 lose their upper bits.
pub(super) fn pack_scales_and_mins(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; K_SCALE_SIZE] {
    let mut packed = [0; K_SCALE_SIZE];
    for j in 0..4 {
        packed[j] = (scales[j] & 63) | (scales[j + 4] & 0x30) << 2;
        packed[j + 4] = (mins[j] & 63) | (mins[j + 4] & 0x30) << 2;
        packed[j + 8] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
    }
    packed
}

/// The sixteen scales of a `BlockQ3K` less 32, as signed bytes, the first in the lowest byte of the first word.
#[inline(always)]
pub(super) fn signed_scales(packed: &[u8; K_SCALE_SIZE]) -> [u64; 2] {
    let [a, b, upper] = words(packed);
    let scale = |low: u32, shift: u32| {
        let scale = (low & LOW_4) | ((upper >> shift) & LOW_2) << 4;
        // 32 less in every byte: the set top bit keeps a borrow from its neighbour.
        ((scale | 0x8080_8080) - 0x2020_2020) ^ 0x8080_8080
    };
    [
        join(scale(a, 0), scale(b, 2)),
        join(scale(a >> 4, 4), scale(b >> 4, 6)),
    ]
}

/// The inverse of [`signed_scales`], for scales in `-32..=31`.
pub(super) fn pack_signed_scales(scales: &[i8; 16]) -> [u8; K_SCALE_SIZE] {
    let mut packed = [0; K_SCALE_SIZE];
    for (j, &scale) in scales.iter().enumerate() {
        let scale = (scale.wrapping_add(32)) as u8 & 63;
        packed[j % 8] |= (scale & 15) << (4 * (j / 8));
        packed[8 + j % 4] |= (scale >> 4) << (2 * (j / 4));
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_comes_back() {
        for v in 0..64u8 {
            for j in 0..8 {
                let (mut scales, mut mins) = ([63 - v; 8], [v; 8]);
                scales[j] = v;
                mins[j] = 63 - v;
                let packed = pack_scales_and_mins(&scales, &mins);
                let (s, m) = scales_and_mins(&packed);
                assert_eq!((s.to_le_bytes(), m.to_le_bytes()), (scales, mins));
            }
            for j in 0..16 {
                let mut scales = [31 - v as i8; 16];
                scales[j] = v as i8 - 32;
                let [low, high] = signed_scales(&pack_signed_scales(&scales));
                let bytes = [low.to_le_bytes(), high.to_le_bytes()].concat();
                assert_eq!(bytes.iter().map(|&b| b as i8).collect::<Vec<_>>(), scales);
            }
        }
    }
}
