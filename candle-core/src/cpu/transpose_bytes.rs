//! Transposes blocks of 8 × 8 bytes.

/// The transpose of eight rows of eight bytes. A row's first byte is the lowest of its word.
///
/// Swaps bytes, then pairs, then groups of four between rows that are equally far apart (Warren, *Hacker's Delight*, 7-3, transposes bits
/// in the same way).
#[inline(always)]
pub(crate) fn transpose_bytes(mut rows: [u64; 8]) -> [u64; 8] {
    for (apart, kept) in [
        (1, u64::MAX / 0x101),
        (2, u64::MAX / 0x1_0001),
        (4, 0xFFFF_FFFF),
    ] {
        for i in (0..8).filter(|i| i & apart == 0) {
            let changed = (rows[i] >> (8 * apart) ^ rows[i + apart]) & kept;
            rows[i + apart] ^= changed;
            rows[i] ^= changed << (8 * apart);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows() {
        let rows = |byte: fn(u8, u8) -> u8| {
            std::array::from_fn(|r| {
                u64::from_le_bytes(std::array::from_fn(|c| byte(r as u8, c as u8)))
            })
        };
        assert_eq!(
            transpose_bytes(rows(|r, c| 16 * r + c)),
            rows(|r, c| 16 * c + r)
        );
    }
}
