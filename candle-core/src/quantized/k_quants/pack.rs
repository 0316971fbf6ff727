//! Packing and unpacking of 6-bit scales, eight or sixteen in 12 bytes, all bytes of a word at a time.

use super::K_SCALE_SIZE;

const LOW_2: u64 = 0x0303_0303_0303_0303;
const LOW_4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
const LOW_6: u64 = 0x3f3f_3f3f_3f3f_3f3f;
const LOW_HALF: u64 = 0xffff_ffff;

/// The first 8 bytes and the last 4.
#[inline(always)]
fn words(packed: &[u8; K_SCALE_SIZE]) -> (u64, u64) {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3] = *packed;
    let last = u32::from_le_bytes([c0, c1, c2, c3]);
    (
        u64::from_le_bytes([a0, a1, a2, a3, b0, b1, b2, b3]),
        u64::from(last),
    )
}

/// The eight scales and the eight minima of a `BlockQ4K` or `BlockQ5K`, a byte each, the first in the lowest byte.
#[inline(always)]
pub(super) fn scales_and_mins(packed: &[u8; K_SCALE_SIZE]) -> (u64, u64) {
    let (first, last) = words(packed);
    // Scales in the lower half of a word, minima in the upper: 0–3 of both, then 4–7.
    let low = first & LOW_6;
    let high = ((last | last << 28) & LOW_4) | ((first >> 2) & (LOW_2 << 4));
    (
        (low & LOW_HALF) | high << 32,
        low >> 32 | (high & !LOW_HALF),
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
    const TOP: u64 = 0x8080_8080_8080_8080;
    let (low, upper) = words(packed);
    let upper = upper | upper << 30;
    let scales = |low: u64, upper: u64| {
        let scales = (low & LOW_4) | (upper & LOW_2) << 4;
        // Subtracts 32 from every byte: the set top bit keeps the borrow from the neighbouring byte.
        ((scales | TOP) - (TOP >> 2)) ^ TOP
    };
    [scales(low, upper), scales(low >> 4, upper >> 4)]
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
