//! Batched matrix products over any strides.
//!
//! Floats go to the `gemm` crate (`gemm.rs`). Products with few rows, as in decoding one token, are bound by reading
//! the weights and have separate kernels in `skinny_matmul.rs`. Integers wrap.

use super::element::Element;
use super::skinny_matmul;
use super::storage::peer;
use super::strided_iter::StridedIter;
use super::CpuStorage;
use crate::backend::BackendStorage;
use crate::cpu::threads;
use crate::{Error, Layout, Result};

/// Multiplications below which threads cost more than they save.
const PAR_PRODUCTS: usize = 64 * 64 * 64;

/// `b` products of `(m, k)` and `(k, n)`, row-major in the result.
///
/// # Errors
/// Layouts that do not have these shapes or that exceed their storage; different or unsupported dtypes.
pub(super) fn matmul(
    lhs: &CpuStorage,
    rhs: &CpuStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<CpuStorage> {
    let plan = Plan::new(bmnk, lhs_l, rhs_l)?;
    macro_rules! run {
        ($($variant:ident $kernel:expr),+) => {
            match lhs {
                $(CpuStorage::$variant(lhs) => {
                    let dst = plan.run(lhs, peer(rhs, "matmul")?, $kernel)?;
                    Ok(CpuStorage::$variant(dst))
                })+
                other => Err(Error::UnsupportedDTypeForOp(other.dtype(), "matmul").bt()),
            }
        };
    }
    run! {
        F32 Kernel { one: Problem::gemm, skinny: Some(skinny_matmul::product) },
        F64 Kernel { one: Problem::gemm, skinny: None },
        F16 Kernel { one: Problem::widened, skinny: Some(skinny_matmul::product) },
        BF16 Kernel { one: Problem::widened, skinny: Some(skinny_matmul::product) },
        F8E4M3 Kernel { one: Problem::widened, skinny: None },
        U8 Kernel { one: Problem::wrapping, skinny: None },
        U32 Kernel { one: Problem::wrapping, skinny: None },
        I16 Kernel { one: Problem::wrapping, skinny: None },
        I32 Kernel { one: Problem::wrapping, skinny: None },
        I64 Kernel { one: Problem::wrapping, skinny: None }
    }
}

/// Computes one product on at most the given number of threads.
type Product<T> = fn(&Problem, &[T], &[T], &mut [T], usize);

/// Computes one product with few rows or columns, on several threads if the last argument is true. Returns false if the
/// product is not skinny.
type SkinnyProduct<T> = fn(&Problem, &[T], &[T], &mut [T], bool) -> bool;

/// The functions that compute products of one element type.
struct Kernel<T> {
    one: Product<T>,
    skinny: Option<SkinnyProduct<T>>,
}

/// A matrix within a slice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix {
    pub offset: usize,
    pub row_stride: usize,
    pub column_stride: usize,
}

/// One product, `(m, k)` times `(k, n)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Problem {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub lhs: Matrix,
    pub rhs: Matrix,
}

/// Products that differ in their matrices' offsets.
#[derive(Debug)]
struct Plan {
    problem: Problem,
    /// Offsets of left and right side for each product.
    offsets: Vec<[usize; 2]>,
}

impl Plan {
    fn new(
        (b, m, n, k): (usize, usize, usize, usize),
        lhs_l: &Layout,
        rhs_l: &Layout,
    ) -> Result<Self> {
        let mismatch = || {
            Error::ShapeMismatchBinaryOp {
                lhs: lhs_l.shape().clone(),
                rhs: rhs_l.shape().clone(),
                op: "matmul",
            }
            .bt()
        };
        let split = |layout: &Layout| {
            let batch = layout.dims().len().checked_sub(2).ok_or_else(mismatch)?;
            let matrix = Matrix {
                offset: layout.start_offset(),
                row_stride: layout.stride()[batch],
                column_stride: layout.stride()[batch + 1],
            };
            Ok::<_, Error>((batch, matrix))
        };
        let ((lhs_batch, lhs), (rhs_batch, rhs)) = (split(lhs_l)?, split(rhs_l)?);
        let batch_dims = &lhs_l.dims()[..lhs_batch];
        if batch_dims != &rhs_l.dims()[..rhs_batch]
            || batch_dims.iter().product::<usize>() != b
            || lhs_l.dims()[lhs_batch..] != [m, k]
            || rhs_l.dims()[rhs_batch..] != [k, n]
        {
            return Err(mismatch());
        }
        let strides = [&lhs_l.stride()[..lhs_batch], &rhs_l.stride()[..rhs_batch]];
        let iter = StridedIter::new(batch_dims, strides, [lhs.offset, rhs.offset]);
        let [l_stride, r_stride] = iter.strides();
        let mut offsets = Vec::with_capacity(b);
        iter.for_runs(0..iter.len(), |run, [l, r]| {
            offsets.extend((0..run.len()).map(|i| [l + i * l_stride, r + i * r_stride]));
        });
        let problem = Problem { m, n, k, lhs, rhs };
        Ok(Self { problem, offsets }.folded())
    }

    /// If all products share `rhs` and their `lhs` are evenly spaced rows, merges them into one product with more rows.
    fn folded(mut self) -> Self {
        let (Problem { m, lhs, .. }, [[l0, r0], [l1, _], ..]) = (self.problem, &self.offsets[..])
        else {
            return self;
        };
        let Some(step) = l1.checked_sub(*l0) else {
            return self;
        };
        let evenly = self.offsets.windows(2).all(|w| w[1][0] == w[0][0] + step);
        let shared = self.offsets.iter().all(|[_, r]| r == r0);
        if evenly && shared && (m == 1 || step == m * lhs.row_stride) {
            if m == 1 {
                self.problem.lhs.row_stride = step;
            }
            self.problem.m = m * self.offsets.len();
            self.offsets.truncate(1);
        }
        self
    }

    /// Checks once that no product reads outside of its slices.
    fn check_bounds(&self, lhs_len: usize, rhs_len: usize) -> Result<()> {
        let Problem { m, n, k, lhs, rhs } = self.problem;
        let last = |matrix: Matrix, rows: usize, columns: usize| {
            let row = (rows - 1).checked_mul(matrix.row_stride)?;
            (columns - 1)
                .checked_mul(matrix.column_stride)?
                .checked_add(row)
        };
        let within = |side: usize, last: Option<usize>, len: usize| {
            let offset = self.offsets.iter().map(|o| o[side]).max();
            let end = offset.zip(last).and_then(|(o, l)| o.checked_add(l));
            end.is_some_and(|end| end < len)
        };
        if within(0, last(lhs, m, k), lhs_len) && within(1, last(rhs, k, n), rhs_len) {
            return Ok(());
        }
        Err(Error::msg(format!(
            "matmul: a layout reaches past its storage of {lhs_len} (lhs) or {rhs_len} (rhs) elements"
        ))
        .bt())
    }

    fn run<T: Element>(&self, lhs: &[T], rhs: &[T], kernel: Kernel<T>) -> Result<Vec<T>> {
        let Problem { m, n, k, .. } = self.problem;
        let mut dst = vec![T::from_i64(0); self.offsets.len() * m * n];
        if dst.is_empty() || k == 0 {
            return Ok(dst);
        }
        self.check_bounds(lhs.len(), rhs.len())?;
        let workers = threads::count();
        let products = m.saturating_mul(n).saturating_mul(k);
        let one = |i: usize, dst: &mut [T], threads: usize| {
            let mut problem = self.problem;
            [problem.lhs.offset, problem.rhs.offset] = self.offsets[i];
            let skinny = kernel.skinny;
            if !skinny.is_some_and(|product| product(&problem, lhs, rhs, dst, threads > 1)) {
                (kernel.one)(&problem, lhs, rhs, dst, threads);
            }
        };
        let all = products.saturating_mul(self.offsets.len());
        if workers > 1 && self.offsets.len() >= workers && all >= PAR_PRODUCTS {
            // Whole products per thread synchronise less often than parts of one; small ones are grouped into tasks.
            let group = (PAR_PRODUCTS / 4 / products.max(1))
                .clamp(1, self.offsets.len().div_ceil(2 * workers));
            threads::chunks_mut(&mut dst, m * n * group, |g, dst| {
                for (i, dst) in dst.chunks_mut(m * n).enumerate() {
                    one(g * group + i, dst, 1);
                }
            });
        } else {
            let threads = if products >= PAR_PRODUCTS { workers } else { 1 };
            for (i, dst) in dst.chunks_mut(m * n).enumerate() {
                one(i, dst, threads);
            }
        }
        Ok(dst)
    }
}

impl Problem {
    /// The product of integers.
    fn wrapping<T: Element>(&self, lhs: &[T], rhs: &[T], dst: &mut [T], _: usize) {
        let (l, r) = (self.lhs, self.rhs);
        for (i, dst) in dst.chunks_mut(self.n).enumerate() {
            for p in 0..self.k {
                let left = lhs[l.offset + i * l.row_stride + p * l.column_stride];
                let row = r.offset + p * r.row_stride;
                for (j, dst) in dst.iter_mut().enumerate() {
                    *dst = dst.plus(left.times(rhs[row + j * r.column_stride]));
                }
            }
        }
    }
}
