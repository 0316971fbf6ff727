//! Matrix products by a vendor library: Intel's MKL with the feature `mkl`, Apple's Accelerate with `accelerate`.
//!
//! Both export the Fortran interface of BLAS (<https://netlib.org/blas>): column-major matrices, each with a leading dimension and a letter
//! for transposition. A row-major `dst = lhs * rhs` is the column-major `dst^T = rhs^T * lhs^T`, so the two sides are swapped and the
//! result is never transposed.

use std::any::TypeId;
use std::borrow::Cow;
use std::ffi::{c_char, c_int};

// The crates have no Rust items: naming them makes the linker include their libraries.
#[cfg(all(feature = "accelerate", target_vendor = "apple"))]
extern crate accelerate_src as _;
#[cfg(feature = "mkl")]
extern crate candle_mkl as _;

macro_rules! gemm_routine {
    ($name:ident, $ty:ty) => {
        fn $name(
            transa: *const c_char,
            transb: *const c_char,
            m: *const c_int,
            n: *const c_int,
            k: *const c_int,
            alpha: *const $ty,
            a: *const $ty,
            lda: *const c_int,
            b: *const $ty,
            ldb: *const c_int,
            beta: *const $ty,
            c: *mut $ty,
            ldc: *const c_int,
        );
    };
}

extern "C" {
    gemm_routine!(sgemm_, f32);
    gemm_routine!(dgemm_, f64);

    /// Sets the number of threads that MKL uses for calls from this thread and returns the previous number; 0 is MKL's default.
    #[cfg(feature = "mkl")]
    #[link_name = "MKL_Set_Num_Threads_Local"]
    fn mkl_set_num_threads_local(threads: c_int) -> c_int;
}

/// A matrix within a slice, described by the strides of rows and columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl View {
    pub(super) fn new(
        rows: usize,
        columns: usize,
        row_stride: usize,
        column_stride: usize,
    ) -> Self {
        Self {
            rows,
            columns,
            row_stride,
            column_stride,
        }
    }

    /// The letter and the leading dimension with which column-major BLAS reads the transpose of this matrix: `N` for contiguous rows, `T`
    /// for contiguous columns. `None` for other strides, including overlapping rows.
    fn leading(self) -> Option<(u8, usize)> {
        let Self {
            rows,
            columns,
            row_stride,
            column_stride,
        } = self;
        let lines = |count: usize, len: usize, stride: usize, step: usize| {
            let packed = step == 1 || len == 1;
            match count {
                1 => packed.then_some(len.max(1)),
                _ => (packed && stride >= len.max(1)).then_some(stride),
            }
        };
        let by_rows = lines(rows, columns, row_stride, column_stride).map(|ld| (b'N', ld));
        by_rows.or_else(|| lines(columns, rows, column_stride, row_stride).map(|ld| (b'T', ld)))
    }

    /// The matrix in a form that BLAS can read: borrowed, or copied row by row.
    fn operand<T: Copy>(self, vs: &[T]) -> (Cow<'_, [T]>, u8, usize) {
        if let Some((letter, ld)) = self.leading() {
            return (Cow::Borrowed(vs), letter, ld);
        }
        let row =
            |i: usize| (0..self.columns).map(move |j| i * self.row_stride + j * self.column_stride);
        let copy = (0..self.rows).flat_map(row).map(|at| vs[at]).collect();
        (Cow::Owned(copy), b'N', self.columns)
    }

    /// One more than the largest index.
    fn end(self) -> usize {
        (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride + 1
    }
}

/// `slice` as a slice of `U`, if `T` is `U`.
fn same<T: 'static, U: 'static>(slice: &[T]) -> Option<&[U]> {
    // SAFETY: both types are the same.
    (TypeId::of::<T>() == TypeId::of::<U>())
        .then(|| unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), slice.len()) })
}

/// Like [`same`], mutable.
fn same_mut<T: 'static, U: 'static>(slice: &mut [T]) -> Option<&mut [U]> {
    // SAFETY: both types are the same.
    (TypeId::of::<T>() == TypeId::of::<U>())
        .then(|| unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), slice.len()) })
}

macro_rules! call {
    ($routine:ident, $ty:ty, $lhs:expr, $rhs:expr, $dst:expr, $lhs_view:expr, $rhs_view:expr) => {{
        let (Some(lhs), Some(rhs), Some(dst)) = (
            same::<T, $ty>($lhs),
            same::<T, $ty>($rhs),
            same_mut::<T, $ty>($dst),
        ) else {
            return false;
        };
        let (lhs, lhs_letter, lhs_ld) = $lhs_view.operand(lhs);
        let (rhs, rhs_letter, rhs_ld) = $rhs_view.operand(rhs);
        let int = |v: usize| c_int::try_from(v).ok();
        let (Some(m), Some(n), Some(k), Some(lhs_ld), Some(rhs_ld)) = (
            int($lhs_view.rows),
            int($rhs_view.columns),
            int($lhs_view.columns),
            int(lhs_ld),
            int(rhs_ld),
        ) else {
            return false;
        };
        let (lhs_letter, rhs_letter) = (lhs_letter as c_char, rhs_letter as c_char);
        // SAFETY: the caller's bounds check covers both operands, a copy has the size of its view, and `dst` holds m rows of n.
        unsafe {
            $routine(
                &rhs_letter,
                &lhs_letter,
                &n,
                &m,
                &k,
                &1.,
                rhs.as_ptr(),
                &rhs_ld,
                lhs.as_ptr(),
                &lhs_ld,
                &0.,
                dst.as_mut_ptr(),
                &n,
            );
        }
        true
    }};
}

/// Writes the product of `lhs` and `rhs` to `dst`, row by row. Returns false and does nothing for elements other than f32 and f64, and for
/// sizes that BLAS cannot count (2^31 and more). With `one_thread` the library starts no threads.
///
/// # Panics
/// If a view or the product exceeds its slice.
pub(super) fn gemm<T: Copy + 'static>(
    lhs: (&[T], View),
    rhs: (&[T], View),
    dst: &mut [T],
    one_thread: bool,
) -> bool {
    let ((lhs, lhs_view), (rhs, rhs_view)) = (lhs, rhs);
    if lhs_view.rows == 0 || lhs_view.columns == 0 || rhs_view.columns == 0 {
        return false;
    }
    assert!(lhs.len() >= lhs_view.end() && rhs.len() >= rhs_view.end());
    assert!(lhs_view.columns == rhs_view.rows && dst.len() >= lhs_view.rows * rhs_view.columns);
    let _threads = one_thread.then(OneThread::new);
    if TypeId::of::<T>() == TypeId::of::<f32>() {
        call!(sgemm_, f32, lhs, rhs, dst, lhs_view, rhs_view)
    } else {
        call!(dgemm_, f64, lhs, rhs, dst, lhs_view, rhs_view)
    }
}

/// During its lifetime, the library uses no other thread for calls from this one. Accelerate has no such switch.
struct OneThread {
    #[cfg(feature = "mkl")]
    before: c_int,
}

impl OneThread {
    fn new() -> Self {
        Self {
            // SAFETY: any number is valid.
            #[cfg(feature = "mkl")]
            before: unsafe { mkl_set_num_threads_local(1) },
        }
    }
}

#[cfg(feature = "mkl")]
impl Drop for OneThread {
    fn drop(&mut self) {
        // SAFETY: as in `new`.
        unsafe { mkl_set_num_threads_local(self.before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares every pair of layouts, including sizes of 1, with sums of products.
    #[test]
    fn layouts_of_both_sides() {
        // (row stride, column stride) for (rows, columns): packed, transposed, padded both ways, every other, repeated.
        let strides: [fn(usize, usize) -> (usize, usize); 7] = [
            |_, columns| (columns, 1),
            |rows, _| (1, rows),
            |_, columns| (columns + 3, 1),
            |rows, _| (1, rows + 2),
            |_, columns| (2 * columns, 2),
            |_, _| (0, 1),
            |_, _| (1, 1),
        ];
        let mut copied = 0;
        for (m, n, k) in [(1, 1, 1), (1, 5, 3), (5, 1, 3), (4, 3, 1), (3, 4, 5)] {
            for (l, r) in (0..49).map(|i| (strides[i / 7], strides[i % 7])) {
                let view = |rows, columns, strides: fn(usize, usize) -> (usize, usize)| {
                    let (row_stride, column_stride) = strides(rows, columns);
                    View::new(rows, columns, row_stride, column_stride)
                };
                let (l, r) = (view(m, k, l), view(k, n, r));
                copied += usize::from(l.leading().is_none());
                let numbers = |len| {
                    (0..len)
                        .map(|i| ((i * 7) % 11) as f64 - 5.)
                        .collect::<Vec<_>>()
                };
                let (lhs, rhs) = (numbers(l.end()), numbers(r.end()));
                let mut want = vec![0.; m * n];
                for (at, want) in want.iter_mut().enumerate() {
                    let (i, j) = (at / n, at % n);
                    let left = |p| lhs[i * l.row_stride + p * l.column_stride];
                    let right = |p| rhs[p * r.row_stride + j * r.column_stride];
                    *want = (0..k).map(|p| left(p) * right(p)).sum::<f64>();
                }
                for one_thread in [false, true] {
                    let mut dst = vec![f64::NAN; m * n];
                    assert!(gemm((&lhs, l), (&rhs, r), &mut dst, one_thread));
                    assert_eq!(dst, want, "{l:?} {r:?}");
                }
                let small = |vs: &[f64]| vs.iter().map(|&v| v as f32).collect::<Vec<_>>();
                let mut dst = vec![f32::NAN; m * n];
                assert!(gemm((&small(&lhs), l), (&small(&rhs), r), &mut dst, false));
                assert_eq!(dst, small(&want), "{l:?} {r:?}");
            }
        }
        assert!(copied > 0);
        let view = View::new(1, 1, 1, 1);
        assert!(!gemm((&[1i64], view), (&[1], view), &mut [0], false));
    }
}
