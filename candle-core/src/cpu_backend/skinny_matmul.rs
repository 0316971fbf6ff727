//! Skinny matrix products: few rows on the left or few columns on the right. The other side is read once, in order, without packing.

use std::borrow::Cow;

use super::element::Element;
use super::matmul::Problem;
use super::strided_iter::fill_par_by;
use crate::cpu::gemv::{axpy_rows, dot_columns, dot_rows, GemvWeight};
use crate::cpu::threads;

/// Maximum number of rows for which reading the matrix once is faster than `gemm`, which packs it first (measured for f32). Up to this
/// number, the sums of a row do not depend on the other rows; candle-engine's speculative decoding relies on that.
const MAX_FEW: usize = 4;

/// The same for matrices that `gemm` would have to widen first.
const MAX_FEW_HALF: usize = 8;

/// Sums per block: with four rows of the matrix they stay in the L1 cache. A row of sums is long, so that the matrix is read in long runs.
const STRIP: usize = 4096;

/// The product's two sides by their roles: `(few, k)` times `(k, many)`, or its transpose.
#[derive(Debug, Clone, Copy)]
struct Roles {
    few: usize,
    many: usize,
    k: usize,
    /// Offset, and strides over `few` and `k`.
    few_side: [usize; 3],
    /// Offset, and strides over `many` and `k`.
    many_side: [usize; 3],
    /// Strides of the result over `few` and `many`.
    dst: [usize; 2],
}

impl Roles {
    fn of(problem: &Problem, few: usize) -> Option<Self> {
        let Problem { m, n, k, lhs, rhs } = *problem;
        let left = [lhs.offset, lhs.row_stride, lhs.column_stride];
        let right = [rhs.offset, rhs.column_stride, rhs.row_stride];
        if m <= few && m <= n {
            return Some(Self {
                few: m,
                many: n,
                k,
                few_side: left,
                many_side: right,
                dst: [n, 1],
            });
        }
        (n <= few).then_some(Self {
            few: n,
            many: m,
            k,
            few_side: right,
            many_side: left,
            dst: [1, n],
        })
    }

    /// The few rows as contiguous f32: borrowed if they already are, else copied.
    fn rows<'a, T: Element + GemvWeight>(&self, side: &'a [T]) -> Cow<'a, [f32]> {
        let Self { few, k, .. } = *self;
        let [offset, step, k_step] = self.few_side;
        let in_order = (k_step == 1 || k == 1) && (step == k || few == 1);
        if let (true, Some(side)) = (in_order, T::as_f32s(side)) {
            return Cow::Borrowed(&side[offset..offset + few * k]);
        }
        let mut rows = vec![0f32; few * k];
        for (r, row) in rows.chunks_mut(k).enumerate() {
            let start = offset + r * step;
            if k_step == 1 {
                <T as GemvWeight>::widen(&side[start..start + k], row);
            } else {
                for (i, v) in row.iter_mut().enumerate() {
                    *v = side[start + i * k_step].as_f32();
                }
            }
        }
        Cow::Owned(rows)
    }
}

/// Computes the product and returns true if it is skinny. The caller has checked the bounds.
pub(super) fn product<T: Element + GemvWeight>(
    problem: &Problem,
    lhs: &[T],
    rhs: &[T],
    dst: &mut [T],
    parallel: bool,
) -> bool {
    let small = size_of::<T>() < size_of::<f32>();
    let Some(roles) = Roles::of(problem, if small { MAX_FEW_HALF } else { MAX_FEW }) else {
        return false;
    };
    let swapped = roles.dst[0] == 1 && roles.few != problem.m;
    let (few, many) = if swapped { (rhs, lhs) } else { (lhs, rhs) };
    let [_, step, k_step] = roles.many_side;
    let by_columns = k_step == 1 || roles.k == 1;
    if !by_columns && step != 1 && roles.many > 1 {
        return false;
    }
    let rows = roles.rows(few);
    if by_columns {
        columns(&roles, &rows, many, dst, parallel);
    } else {
        strips(&roles, &rows, many, dst, parallel);
    }
    true
}

/// Dot products, for a large side that is contiguous along `k`.
fn columns<T: Element + GemvWeight>(
    roles: &Roles,
    rows: &[f32],
    many: &[T],
    dst: &mut [T],
    parallel: bool,
) {
    let Roles { few, k, .. } = *roles;
    let [offset, step, _] = roles.many_side;
    let cost = if parallel { k } else { 0 };
    // Products with one column are contiguous here.
    let fill = |products: &mut [f32]| {
        fill_par_by(products, few, cost, &|piece, products| {
            if few == 1 {
                return dot_columns(rows, &many[offset + piece.start * step..], step, products);
            }
            for (j, out) in (piece.start / few..).zip(products.chunks_mut(few)) {
                dot_rows(rows, &many[offset + j * step..][..k], out);
            }
        });
    };
    let together = few == 1 || roles.dst == [1, few];
    if together {
        if let Some(dst) = T::as_f32s_mut(dst) {
            return fill(dst);
        }
    }
    let mut products = vec![0f32; few * roles.many];
    fill(&mut products);
    if together {
        return T::narrow(&products, dst);
    }
    for (j, products) in products.chunks(few).enumerate() {
        for (r, &v) in products.iter().enumerate() {
            dst[r * roles.dst[0] + j * roles.dst[1]] = T::from_f32(v);
        }
    }
}

/// Scaled sums of rows, for a large side that is contiguous across `k`.
fn strips<T: Element + GemvWeight>(
    roles: &Roles,
    rows: &[f32],
    many: &[T],
    dst: &mut [T],
    parallel: bool,
) {
    let Roles { few, k, .. } = *roles;
    let [offset, _, k_step] = roles.many_side;
    let workers = if parallel { threads::count() } else { 1 };
    let even = roles.many.div_ceil(2 * workers).next_multiple_of(64);
    let most = STRIP / few.max(1).next_power_of_two();
    let width = if workers > 1 { even.min(most) } else { most };
    let add = |s: usize, sums: &mut [f32]| {
        let matrix = &many[offset + s * width..];
        axpy_rows(rows, k, (matrix, k_step), sums, sums.len() / few);
    };
    let count = roles.many.div_ceil(width);
    let shared = workers > 1 && count > 1;
    // A row of sums is a row of the result.
    if let (1, Some(dst)) = (few, T::as_f32s_mut(dst)) {
        dst.fill(0.);
        if shared {
            threads::chunks_mut(dst, width, add);
        } else {
            let strips = dst.chunks_mut(width).enumerate();
            strips.for_each(|(s, sums)| add(s, sums));
        }
        return;
    }
    let strip = |s: usize| {
        let mut sums = vec![0f32; few * width.min(roles.many - s * width)];
        add(s, &mut sums);
        sums
    };
    let mut put = |s: usize, sums: Vec<f32>| {
        let width_here = sums.len() / few;
        for (r, sums) in sums.chunks(width_here).enumerate() {
            let start = r * roles.dst[0] + s * width * roles.dst[1];
            if roles.dst[1] == 1 {
                T::narrow(sums, &mut dst[start..start + width_here]);
            } else {
                for (j, &v) in sums.iter().enumerate() {
                    dst[start + j * roles.dst[1]] = T::from_f32(v);
                }
            }
        }
    };
    if shared {
        let mut all = vec![vec![]; count];
        threads::chunks_mut(&mut all, 1, |s, sums| sums[0] = strip(s));
        all.into_iter()
            .enumerate()
            .for_each(|(s, sums)| put(s, sums));
    } else {
        (0..count).for_each(|s| put(s, strip(s)));
    }
}
