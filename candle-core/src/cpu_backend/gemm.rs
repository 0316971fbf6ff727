//! Float products by the `gemm` crate: f32 and f64 directly; smaller floats are widened to f32 in panels of bounded size, so that they are
//! summed in f32 and rounded once.
//!
//! The result is divided into tiles, one or a few for each thread of the pool that runs all other loops. The crate itself would use rayon's
//! threads, which wake later and compete for cores with pool threads still spinning from the previous op.

use std::ops::Range;

use gemm::Parallelism;

use super::contiguous_blocks::StridedOperand;
use super::element::Element;
use super::matmul::{Matrix, Problem};
use super::strided_iter::{filled, StridedIter};
use crate::cpu::shared_matrix::SharedMatrix;
use crate::cpu::threads;
use crate::{Layout, Shape};

/// Multiplications below which threads cost more than they save.
const PAR_PRODUCTS: usize = 1 << 19;

/// Elements in a panel widened to f32: 16 MiB.
const PANEL: usize = 1 << 22;

/// Cost of packing one element of either side, in multiplications.
const PACK: usize = 24;

/// Columns of `rhs` that are packed at a time if each column is contiguous, as in a layer's weights; twice that number if the panel is
/// small. A multiple of every kernel's width. The crate packs such columns element by element. With 512 or 2048 elements per column they
/// map to the same cache sets, and packing took up to four times as long as the product. The crate uses a panel packed here without another
/// copy.
const STRIP: usize = 48;

/// Maximum size in bytes of a panel for which twice that number of columns is packed.
const STRIP_BYTES: usize = 1 << 19;

/// Minimum number of rows for packing: with fewer, the crate uses other kernels for such columns.
const MIN_ROWS: usize = 2;

/// The crate also uses other kernels for results of at most this many elements.
const SMALL_RESULT: usize = 256;

/// Tile sizes are multiples of this many rows and columns: whole registers wide, and several rows high.
const STEPS: [usize; 2] = [4, 16];

impl Problem {
    /// The product of f32 or f64, on at most `threads` threads. The plan has checked the bounds.
    pub(super) fn gemm<T: Element>(&self, lhs: &[T], rhs: &[T], dst: &mut [T], threads: usize) {
        let Self { m, n, .. } = *self;
        let dst = &mut dst[..m * n];
        #[cfg(any(feature = "mkl", all(feature = "accelerate", target_vendor = "apple")))]
        {
            use super::blas::View;
            let (l, r, k) = (self.lhs, self.rhs, self.k);
            let lhs = (
                &lhs[l.offset..],
                View::new(m, k, l.row_stride, l.column_stride),
            );
            let rhs = (
                &rhs[r.offset..],
                View::new(k, n, r.row_stride, r.column_stride),
            );
            if super::blas::gemm(lhs, rhs, dst, threads == 1) {
                return;
            }
        }
        let dst = SharedMatrix::new(dst, n);
        self.in_parts(threads, &|rows, columns| {
            let last = dst.at(rows.end - 1, columns.start, columns.len());
            let first = dst.at(rows.start, columns.start, columns.len());
            debug_assert!(first <= last);
            // SAFETY: the plan has checked both sides; the first and the last row of this tile are within `dst`, and tiles are disjoint.
            unsafe { self.part(&rows, &columns).one(lhs, rhs, first, n) };
        });
    }

    /// The product of smaller floats in f32, panel by panel.
    pub(super) fn widened<T: Element>(&self, lhs: &[T], rhs: &[T], dst: &mut [T], threads: usize) {
        let Self { m, n, k, .. } = *self;
        let rows = (PANEL / k).clamp(1, m);
        let columns = (PANEL / k.max(rows)).clamp(1, n);
        let dst = SharedMatrix::new(&mut dst[..m * n], n);
        for i in (0..m).step_by(rows) {
            let rows = rows.min(m - i);
            let (lhs_panel, lhs) = self.lhs.panel(lhs, (i, 0), (rows, k), threads);
            for j in (0..n).step_by(columns) {
                let columns = columns.min(n - j);
                let (rhs_panel, rhs) = self.rhs.panel(rhs, (0, j), (k, columns), threads);
                let panels = Self {
                    m: rows,
                    n: columns,
                    k,
                    lhs,
                    rhs,
                };
                panels.in_parts(threads, &|rows, columns| {
                    let mut product = vec![0f32; rows.len() * columns.len()];
                    let part = panels.part(&rows, &columns);
                    part.gemm(&lhs_panel, &rhs_panel, &mut product, 1);
                    for (row, product) in rows.zip(product.chunks(columns.len())) {
                        let start = dst.at(i + row, j + columns.start, columns.len());
                        // SAFETY: these elements are within the slice and belong to no other tile.
                        let dst = unsafe { std::slice::from_raw_parts_mut(start, columns.len()) };
                        T::narrow(product, dst);
                    }
                });
            }
        }
    }

    /// Calls `f` with rows and columns that together cover the result, on at most `threads` threads.
    fn in_parts(&self, threads: usize, f: &(dyn Fn(Range<usize>, Range<usize>) + Sync)) {
        let Self { m, n, k, .. } = *self;
        let work = m.saturating_mul(n).saturating_mul(k);
        let threads = if work < PAR_PRODUCTS { 1 } else { threads };
        let [rows, columns] = part_size(m, n, threads);
        let across = n.div_ceil(columns);
        threads::for_each(m.div_ceil(rows) * across, &|task| {
            let (i, j) = (task / across * rows, task % across * columns);
            f(i..m.min(i + rows), j..n.min(j + columns));
        });
    }

    /// The problem whose result is a tile of this one's.
    fn part(&self, rows: &Range<usize>, columns: &Range<usize>) -> Self {
        let mut part = *self;
        (part.m, part.n) = (rows.len(), columns.len());
        part.lhs.offset += rows.start * self.lhs.row_stride;
        part.rhs.offset += columns.start * self.rhs.column_stride;
        part
    }

    /// The whole product, on this thread.
    ///
    /// # Safety
    /// Both sides cover the problem. `dst` points to `m` rows, `row` elements apart, of which `n` elements each may be written.
    unsafe fn one<T: Element>(&self, lhs: &[T], rhs: &[T], dst: *mut T, row: usize) {
        let Self { m, n, k, .. } = *self;
        let transposed = self.rhs.row_stride == 1 && self.rhs.column_stride > 1;
        if !transposed || m < MIN_ROWS || m * n <= SMALL_RESULT {
            // SAFETY: this function's contract.
            return unsafe { self.unpacked(lhs, rhs, dst, row) };
        }
        let columns = if 2 * STRIP * k * size_of::<T>() <= STRIP_BYTES {
            2 * STRIP
        } else {
            STRIP
        };
        let mut strip = vec![T::zero(); k * columns.min(n)];
        for j in (0..n).step_by(columns) {
            let mut part = self.part(&(0..m), &(j..n.min(j + columns)));
            let strip = &mut strip[..k * part.n];
            part.rhs.pack([k, part.n], rhs, strip);
            part.rhs = Matrix {
                offset: 0,
                row_stride: part.n,
                column_stride: 1,
            };
            // SAFETY: this function's contract; these are some of the columns.
            unsafe { part.unpacked(lhs, strip, dst.add(j), row) };
        }
    }

    /// Like [`Self::one`], but passes both sides to the crate unpacked.
    ///
    /// # Safety
    /// As for [`Self::one`].
    unsafe fn unpacked<T: Element>(&self, lhs: &[T], rhs: &[T], dst: *mut T, row: usize) {
        let (l, r) = (self.lhs, self.rhs);
        // SAFETY: this function's contract.
        unsafe {
            gemm::gemm(
                self.m,
                self.n,
                self.k,
                dst,
                1,
                row as isize,
                false,
                lhs.as_ptr().add(l.offset),
                l.column_stride as isize,
                l.row_stride as isize,
                rhs.as_ptr().add(r.offset),
                r.column_stride as isize,
                r.row_stride as isize,
                T::from_f32(0.),
                T::from_f32(1.),
                false,
                false,
                false,
                Parallelism::None,
            );
        }
    }
}

/// Rows and columns per tile of an `m` by `n` result that minimise the estimated time on `threads` threads: every tile packs its share of
/// both sides, and all threads wait for the last tile.
fn part_size(m: usize, n: usize, threads: usize) -> [usize; 2] {
    if threads <= 1 {
        return [m, n];
    }
    let sizes = |len: usize, step: usize| {
        let most = (2 * threads).min(len.div_ceil(step));
        (1..=most).map(move |cuts| len.div_ceil(cuts).next_multiple_of(step))
    };
    let cost = |[rows, columns]: [usize; 2]| {
        let parts = m.div_ceil(rows) * n.div_ceil(columns);
        parts.div_ceil(threads) * (rows * columns + PACK * (rows + columns))
    };
    let all =
        sizes(m, STEPS[0]).flat_map(|rows| sizes(n, STEPS[1]).map(move |columns| [rows, columns]));
    all.min_by_key(|&size| cost(size)).unwrap_or([m, n])
}

impl Matrix {
    /// Writes `rows` by `columns` elements to `dst`, row by row.
    fn pack<T: Copy>(&self, [rows, columns]: [usize; 2], vs: &[T], dst: &mut [T]) {
        let strides = vec![self.row_stride, self.column_stride];
        let layout = Layout::new(Shape::from((rows, columns)), strides, self.offset);
        StridedOperand::new(vs, &layout).pack(0..dst.len(), dst);
    }

    /// The `rows` by `columns` elements from `(i, j)` on, widened to f32. The faster dimension stays the faster one.
    fn panel<T: Element>(
        &self,
        vs: &[T],
        (i, j): (usize, usize),
        (rows, columns): (usize, usize),
        threads: usize,
    ) -> (Vec<f32>, Matrix) {
        let offset = self.offset + i * self.row_stride + j * self.column_stride;
        let by_rows = self.column_stride <= self.row_stride;
        let (dims, strides) = if by_rows {
            ([rows, columns], [self.row_stride, self.column_stride])
        } else {
            ([columns, rows], [self.column_stride, self.row_stride])
        };
        let iter = StridedIter::new(&dims, [&strides], [offset]);
        let [stride] = iter.strides();
        let cost = if threads > 1 { 1 } else { 0 };
        // SAFETY: the runs cover each chunk, and all of each run is written before it is read.
        let panel = unsafe {
            filled(rows * columns, 1, cost, &|piece, panel: &mut [f32]| {
                let base = piece.start;
                let mut row = vec![];
                iter.for_runs(piece, |run, [start]| {
                    let panel = &mut panel[run.start - base..run.end - base];
                    if stride == 1 {
                        T::widen(&vs[start..start + panel.len()], panel);
                    } else {
                        row.clear();
                        row.extend((0..panel.len()).map(|i| vs[start + i * stride]));
                        T::widen(&row, panel);
                    }
                });
            })
        };
        let view = Matrix {
            offset: 0,
            row_stride: if by_rows { columns } else { 1 },
            column_stride: if by_rows { 1 } else { rows },
        };
        (panel, view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Checks `(m, k)` times the transpose of `(n, k)`, with a row stride of `k + 3`.
    fn check_transposed<T: Element + PartialEq + std::fmt::Debug>(m: usize, k: usize, n: usize) {
        // Small integers, whose sums are exact.
        let numbers = |len: usize, salt: usize| -> Vec<i64> {
            (0..len).map(|i| ((i * 7 + salt) % 11) as i64 - 5).collect()
        };
        let (x, y) = (numbers(m * k, 1), numbers(5 + n * (k + 3), 2));
        let problem = Problem {
            m,
            n,
            k,
            lhs: Matrix {
                offset: 0,
                row_stride: k,
                column_stride: 1,
            },
            rhs: Matrix {
                offset: 5,
                row_stride: 1,
                column_stride: k + 3,
            },
        };
        let floats = |vs: &[i64]| -> Vec<T> { vs.iter().map(|&v| T::from_f64(v as f64)).collect() };
        let expected: Vec<i64> = (0..m * n)
            .map(|at| {
                let (x, y) = (&x[at / n * k..][..k], &y[5 + at % n * (k + 3)..][..k]);
                x.iter().zip(y).map(|(x, y)| x * y).sum()
            })
            .collect();
        for threads in [1, 3] {
            let mut dst = vec![T::from_f64(77.); m * n];
            problem.gemm(&floats(&x), &floats(&y), &mut dst, threads);
            assert_eq!(dst, floats(&expected), "{m}x{k}x{n}");
        }
    }

    #[test]
    fn contiguous_columns() {
        for m in [1, 2, 3, 9, 33] {
            for n in [2, 47, 48, 49, 95, 96, 97, 200] {
                for k in [1, 3, 8, 17, 130] {
                    check_transposed::<f32>(m, k, n);
                    check_transposed::<f64>(m, k, n);
                }
            }
        }
        // Narrow panels, and whole tiles for each thread.
        for (m, k, n) in [(9, STRIP_BYTES / 4 / STRIP, 100), (70, 65, 300)] {
            check_transposed::<f32>(m, k, n);
            check_transposed::<f64>(m, k, n);
        }
    }

    #[test]
    fn parts_are_the_whole_result_once() {
        let matrix = Matrix {
            offset: 0,
            row_stride: 1,
            column_stride: 1,
        };
        for (m, n) in [(1, 1), (5, 1000), (64, 64), (768, 768), (4096, 3), (17, 33)] {
            for threads in [1, 2, 3, 16, 64] {
                let problem = Problem {
                    m,
                    n,
                    k: 1 << 20,
                    lhs: matrix,
                    rhs: matrix,
                };
                let found = Mutex::new(vec![0; m * n]);
                problem.in_parts(threads, &|rows, columns| {
                    let mut found = found.lock().unwrap();
                    for row in rows {
                        found[row * n..][columns.clone()]
                            .iter_mut()
                            .for_each(|f| *f += 1);
                    }
                });
                let found = found.into_inner().unwrap();
                assert!(
                    found.iter().all(|&f| f == 1),
                    "{m}x{n} on {threads} threads"
                );
            }
        }
    }

    #[test]
    fn every_thread_has_a_part() {
        for threads in [2, 4, 16] {
            for (m, n) in [(256, 256), (768, 768), (4096, 64), (64, 4096)] {
                let [rows, columns] = part_size(m, n, threads);
                let parts = m.div_ceil(rows) * n.div_ceil(columns);
                assert!(parts >= threads, "{m}x{n} on {threads}: {rows}x{columns}");
            }
        }
    }
}
