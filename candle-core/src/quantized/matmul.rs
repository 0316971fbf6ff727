//! The product of a dense matrix with rows of blocks.
//!
//! The dense side is converted once to the activations' format of the blocks (8 bits for all quantised formats). Every task then multiplies
//! some rows of blocks by all rows of the dense side. The many rows of a prompt are processed in groups that fit the cache together with
//! the blocks.

use half::f16;
use std::ops::Range;

use super::k_quants::lanes::MAX_ROWS;
use super::k_quants::prepared::DenseRows;
use super::GgmlType;
use crate::cpu::shared_matrix::SharedMatrix;
use crate::cpu::threads;
use crate::{Error, Result};

/// Multiplications below which a second thread costs more than it saves: about 20 microseconds of work.
const SERIAL_PRODUCTS: usize = 1 << 18;

/// Bytes of blocks and of the dense side that a task processes at a time: together they fit a core's L2 cache.
const PANEL_BYTES: usize = 1 << 17;

/// Maximum number of products of a tile.
const TILE: usize = 4096;

/// Maximum number of dense rows of a tile of rows.
const TILE_M: usize = 32;

/// Maximum number of rows of blocks of a tile with several dense rows.
const TILE_N: usize = 64;

/// `dst = lhs * rhs_t^T` in f32: `lhs` is `(m, k)`, the blocks `rhs_t` hold `(n, k)`, `dst` is `(m, n)`, all row-major.
///
/// For quantised blocks each row of `lhs` is quantised to 8 bits first, so results contain that rounding (as in upstream).
///
/// # Errors
/// If `lhs` does not have `m * k` elements, `k` is not a multiple of the block size, or `rhs_t` is too short.
///
/// # Panics
/// If `dst` has fewer than `m * n` elements, as in upstream: no caller could continue without space for the result.
///
/// ```
/// use candle_core::quantized::k_quants::{matmul, BlockQ8_0, GgmlType};
/// # fn main() -> candle_core::Result<()> {
/// let mut weight = vec![BlockQ8_0::zeros(); 2];
/// let rows = [[1f32; 32], [2f32; 32]].concat();
/// BlockQ8_0::from_float(&rows, &mut weight);
/// let mut dst = [0f32; 2];
/// matmul((1, 32, 2), &[0.5; 32], &weight, &mut dst)?;
/// assert!((dst[0] - 16.).abs() < 0.05 && (dst[1] - 32.).abs() < 0.1);
/// # Ok(())
/// # }
/// ```
pub fn matmul<T: GgmlType>(
    (m, k, n): (usize, usize, usize),
    lhs: &[f32],
    rhs_t: &[T],
    dst: &mut [f32],
) -> Result<()> {
    product((m, k, n), lhs, rhs_t, dst)
}

/// Like [`matmul`], from f16 to f16; sums are f32.
///
/// # Errors
/// As [`matmul`].
///
/// # Panics
/// As [`matmul`].
pub fn matmul_f16<T: GgmlType>(
    mkn: (usize, usize, usize),
    lhs: &[f16],
    rhs_t: &[T],
    dst: &mut [f16],
) -> Result<()> {
    product(mkn, lhs, rhs_t, dst)
}

/// The product for a dense side of elements `E` (f32, f16, bf16).
fn product<T: GgmlType, E: GgmlType>(
    (m, k, n): (usize, usize, usize),
    lhs: &[E],
    rhs_t: &[T],
    dst: &mut [E],
) -> Result<()> {
    let rhs_blocks = check::<T>((m, k, n), lhs.len(), rhs_t.len(), dst.len())?;
    let dst = &mut dst[..m * n];
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 {
        E::from_float(&vec![0.; dst.len()], dst);
        return Ok(());
    }
    let floats = |rows: Range<usize>, floats: &mut [f32]| {
        E::to_float(&lhs[rows.start * k..rows.end * k], floats);
    };
    let lhs = T::prepare(&DenseRows::new(m, k, &floats));
    let rhs = &rhs_t[..n * rhs_blocks];

    let workers = threads::count();
    let serial = workers == 1 || m.saturating_mul(n).saturating_mul(k) <= SERIAL_PRODUCTS;
    let threads = if serial { 1 } else { workers };
    let tile = match lhs.panel_rows() {
        Some(panel_rows) => Tile::of_panels(m, n, panel_rows, threads),
        None => Tile::of_rows::<T>(m, n, k, threads),
    };
    let dst = SharedMatrix::new(dst, n);
    let run = |rows: Range<usize>, columns: Range<usize>| {
        let mut floats = [0f32; TILE];
        let mut narrow: [E; TILE_N] = std::array::from_fn(|_| E::zeros());
        for j in columns.clone().step_by(tile.n) {
            let tile_n = tile.n.min(columns.end - j);
            let xs = &rhs[j * rhs_blocks..(j + tile_n) * rhs_blocks];
            for i in rows.clone().step_by(tile.m) {
                let tile_m = tile.m.min(rows.end - i);
                let floats_n = lhs.panel_rows().unwrap_or(tile_n);
                let floats = &mut floats[..tile_m * floats_n];
                lhs.multiply(xs, i..i + tile_m, floats);
                for (r, floats) in floats.chunks_exact(floats_n).enumerate() {
                    for (c, floats) in floats[..tile_n].chunks(TILE_N).enumerate() {
                        let narrow = &mut narrow[..floats.len()];
                        E::from_float(floats, narrow);
                        // SAFETY: tasks have disjoint rows and columns, so no other thread touches these elements.
                        unsafe { dst.write(i + r, j + c * TILE_N, narrow) };
                    }
                }
            }
        }
    };
    if serial {
        run(0..m, 0..n);
        return Ok(());
    }
    // Neighbouring tasks of the same dense rows are merged.
    threads::for_each_range(tile.tasks_m * tile.tasks_n, &|tasks| {
        for task_i in tasks.start / tile.tasks_n..tasks.end.div_ceil(tile.tasks_n) {
            let first = task_i * tile.tasks_n;
            let start = tasks.start.saturating_sub(first);
            let end = (tasks.end - first).min(tile.tasks_n);
            let rows = task_i * tile.task_m..m.min((task_i + 1) * tile.task_m);
            run(rows, start * tile.task_n..n.min(end * tile.task_n));
        }
    });
    Ok(())
}

/// Checks the sizes; returns the number of blocks of a row of weights.
///
/// # Panics
/// When `dst` has fewer elements than the product.
fn check<T: GgmlType>(
    (m, k, n): (usize, usize, usize),
    lhs: usize,
    rhs: usize,
    dst: usize,
) -> Result<usize> {
    let block = T::BLCK_SIZE.max(T::VecDotType::BLCK_SIZE);
    let refuse = |what: String| {
        Err(Error::Msg(format!(
            "quantized matmul of ({m}, {k}) with ({n}, {k}) {:?} transposed: {what}",
            T::DTYPE
        ))
        .bt())
    };
    if !k.is_multiple_of(block) {
        return refuse(format!("{k} is not a multiple of the block size {block}"));
    }
    if m.checked_mul(k) != Some(lhs) {
        return refuse(format!("lhs has {lhs} elements"));
    }
    let rhs_blocks = k / T::BLCK_SIZE;
    if n.checked_mul(rhs_blocks).is_none_or(|needed| needed > rhs) {
        return refuse(format!("rhs has {rhs} blocks of {}", T::BLCK_SIZE));
    }
    let fits = m.checked_mul(n).is_some_and(|needed| needed <= dst);
    assert!(
        fits,
        "quantized matmul of ({m}, {k}) with ({n}, {k}) {:?} transposed: dst too small: it has {dst} elements",
        T::DTYPE
    );
    Ok(rhs_blocks)
}

/// The division of a product into tasks for threads and tiles for caches.
struct Tile {
    /// Dense rows of a tile.
    m: usize,
    /// Rows of blocks of a tile.
    n: usize,
    /// Dense rows of a task.
    task_m: usize,
    /// Rows of blocks of a task.
    task_n: usize,
    tasks_m: usize,
    tasks_n: usize,
}

impl Tile {
    /// The division for dense rows without panels.
    fn of_rows<T: GgmlType>(m: usize, n: usize, k: usize, threads: usize) -> Self {
        let row_bytes = |size: usize, block: usize| (k / block * size).max(1);
        let lhs_row = row_bytes(size_of::<T::VecDotType>(), T::VecDotType::BLCK_SIZE);
        let rhs_row = row_bytes(size_of::<T>(), T::BLCK_SIZE);
        // Multiples of 4 rows: kernels process 4 rows at a time.
        let fours = |rows: usize| (rows / 4 * 4).max(4);
        let tile_m = fours(PANEL_BYTES / lhs_row).min(TILE_M).min(m);
        // With one dense row each block is used once.
        let tile_n = match m {
            1 => TILE,
            _ => fours(PANEL_BYTES / rhs_row).min(TILE_N),
        };
        let task_n = task_n(n, 4, threads).max(tile_n.min(16));
        Self::cut((m, n), (tile_m, tile_n), task_n, threads)
    }

    /// The division for products with panels. A panel is unpacked for each tile, so tiles have the maximum number of dense rows that fit.
    fn of_panels(m: usize, n: usize, panel_rows: usize, threads: usize) -> Self {
        let tile_m = (TILE / MAX_ROWS).min(m);
        let task_n = task_n(n, panel_rows, threads);
        Self::cut((m, n), (tile_m, panel_rows), task_n, threads)
    }

    fn cut(
        (m, n): (usize, usize),
        (tile_m, tile_n): (usize, usize),
        task_n: usize,
        threads: usize,
    ) -> Self {
        let tasks_n = n.div_ceil(task_n);
        // Few rows of blocks: the dense rows are split over threads as well.
        let task_m = if tasks_n >= 2 * threads {
            m
        } else {
            m.div_ceil((8 * threads).div_ceil(tasks_n))
                .next_multiple_of(tile_m)
        };
        Self {
            m: tile_m,
            n: tile_n,
            task_m,
            task_n,
            tasks_m: m.div_ceil(task_m),
            tasks_n,
        }
    }
}

/// Rows of blocks of a task, a multiple of `step`. Tasks are small: threads take several at a time, and single ones at the end.
fn task_n(n: usize, step: usize, threads: usize) -> usize {
    n.div_ceil(32 * threads).next_multiple_of(step)
}
