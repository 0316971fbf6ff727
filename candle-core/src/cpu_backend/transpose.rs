//! Transposed copies in tiles of 8 × 8, so that each cache line is fetched once.

use std::mem::transmute_copy;

use crate::cpu::simd::multiversioned;
use crate::cpu::transpose_bytes::transpose_bytes;

/// Rows and columns of a tile.
pub(super) const TILE: usize = 8;

/// `dst[r * columns + c] = src[c * stride + r]`; `dst` holds whole rows.
pub(super) fn transpose<T: Copy>(src: &[T], stride: usize, dst: &mut [T], columns: usize) {
    let rows = dst.len() / columns;
    let tiles = [rows - rows % TILE, columns - columns % TILE];
    if tiles.iter().all(|&size| size > 0) {
        in_tiles(src, stride, dst, columns, tiles);
    }
    for r in 0..rows {
        let first = if r < tiles[0] { tiles[1] } else { 0 };
        for c in first..columns {
            dst[r * columns + c] = src[c * stride + r];
        }
    }
}

/// The rows and columns that whole tiles cover.
fn in_tiles<T: Copy>(src: &[T], stride: usize, dst: &mut [T], columns: usize, tiles: [usize; 2]) {
    #[cfg(target_arch = "x86_64")]
    if size_of::<T>() == size_of::<f32>() && crate::cpu::simd::has_avx2() {
        let [rows, lines] = tiles;
        assert!((lines - 1) * stride + rows <= src.len());
        assert!((rows - 1) * columns + lines <= dst.len());
        let (src, dst) = (src.as_ptr().cast(), dst.as_mut_ptr().cast());
        // SAFETY: the last line read ends in `src`, the last row written in `dst`; the elements have 32 bits and are
        // only moved. The CPU has AVX2.
        return unsafe { x86::words_in_tiles(src, stride, dst, columns, tiles) };
    }
    any_in_tiles(src, stride, dst, columns, tiles)
}

multiversioned! {
    /// [`in_tiles`] for elements of any size.
    fn any_in_tiles[T: Copy](
        src: &[T],
        stride: usize,
        dst: &mut [T],
        columns: usize,
        tiles: [usize; 2],
    ) {
        for r in (0..tiles[0]).step_by(TILE) {
            for c in (0..tiles[1]).step_by(TILE) {
                let tile: [&[T; TILE]; TILE] = std::array::from_fn(|i| {
                    src[(c + i) * stride + r..].first_chunk().expect("a line of the tile")
                });
                for (i, line) in transposed(tile).iter().enumerate() {
                    dst[(r + i) * columns + c..][..TILE].copy_from_slice(line);
                }
            }
        }
    }
}

/// The transpose of a tile.
#[inline(always)]
fn transposed<T: Copy>(tile: [&[T; TILE]; TILE]) -> [[T; TILE]; TILE] {
    if size_of::<T>() == 1 {
        // A row fits a register. SAFETY: a line is eight elements of one byte.
        let lines = tile.map(|line| u64::from_le_bytes(unsafe { transmute_copy(line) }));
        // SAFETY: each byte is one of those read.
        return transpose_bytes(lines).map(|line| unsafe { transmute_copy(&line.to_le_bytes()) });
    }
    std::array::from_fn(|i| std::array::from_fn(|j| tile[j][i]))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::TILE;
    use std::arch::x86_64::*;

    /// Transposes tiles of 32-bit elements. Each cache line is read once: `src` may be so wide that the line would be
    /// evicted before the next row of tiles.
    ///
    /// # Safety
    /// `tiles`, the number of rows and columns to transpose, are multiples of [`TILE`]. All rows, `columns` apart, are
    /// within `dst`, and all columns, `stride` apart, within `src`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn words_in_tiles(
        src: *const f32,
        stride: usize,
        dst: *mut f32,
        columns: usize,
        tiles: [usize; 2],
    ) {
        for c in (0..tiles[1]).step_by(TILE) {
            for r in (0..tiles[0]).step_by(TILE) {
                // A register's 128-bit lane holds half of a tile's row.
                for half in [0, TILE / 2] {
                    // SAFETY: by this function's contract.
                    unsafe {
                        // Half of a row in the lower lane, that of the row four below it in the upper one.
                        let halves = |line: usize| {
                            let src = src.add((c + line) * stride + r + half);
                            let low = _mm256_castps128_ps256(_mm_loadu_ps(src));
                            _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(src.add(TILE / 2 * stride)))
                        };
                        let [first, second, third, fourth] =
                            [halves(0), halves(1), halves(2), halves(3)];
                        let low = [
                            _mm256_unpacklo_ps(first, second),
                            _mm256_unpacklo_ps(third, fourth),
                        ];
                        let high = [
                            _mm256_unpackhi_ps(first, second),
                            _mm256_unpackhi_ps(third, fourth),
                        ];
                        let lines = [
                            _mm256_shuffle_ps::<0x44>(low[0], low[1]),
                            _mm256_shuffle_ps::<0xEE>(low[0], low[1]),
                            _mm256_shuffle_ps::<0x44>(high[0], high[1]),
                            _mm256_shuffle_ps::<0xEE>(high[0], high[1]),
                        ];
                        for (i, line) in lines.into_iter().enumerate() {
                            _mm256_storeu_ps(dst.add((r + half + i) * columns + c), line);
                        }
                    }
                }
            }
        }
    }
}
