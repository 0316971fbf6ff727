//! Reductions: sum, minimum, maximum and the indexes of the last two.
//!
//! Minimum and maximum compare, so a NaN is passed over unless it is the first element, which then stays.

use rayon::prelude::*;

use super::element::{Accumulator, Element};
use super::storage::per_dtype;
use super::walk::{fill_par, Walk, PAR_MIN};
use super::CpuStorage;
use crate::op::ReduceOp;
use crate::{Error, Layout, Result, WithDType};

/// Partial results of a contiguous fold.
const LANES: usize = 16;

/// Columns that are folded together where the reduced dimension is not the contiguous one.
const COLUMNS: usize = 64;

/// Elements folded by one task; fixed, so that a sum does not depend on the number of threads.
const TASK: usize = 1 << 16;

/// How elements become one result.
trait Fold<T> {
    type Acc: Copy + Send + Sync;
    type Out: Copy + Send;

    /// The start of a fold over elements of which the first is given: adding it does not change the result.
    fn start(first: T) -> Self::Acc;
    /// Adds the element at `index`.
    fn push(acc: Self::Acc, v: T, index: usize) -> Self::Acc;
    fn merge(lhs: Self::Acc, rhs: Self::Acc) -> Self::Acc;
    fn finish(acc: Self::Acc) -> Self::Out;
}

struct Sum;

impl<T: Element> Fold<T> for Sum {
    type Acc = T::Acc;
    type Out = T;

    #[inline(always)]
    fn start(_first: T) -> T::Acc {
        T::Acc::ZERO
    }

    #[inline(always)]
    fn push(acc: T::Acc, v: T, _index: usize) -> T::Acc {
        acc.add(v.to_acc())
    }

    #[inline(always)]
    fn merge(lhs: T::Acc, rhs: T::Acc) -> T::Acc {
        lhs.add(rhs)
    }

    #[inline(always)]
    fn finish(acc: T::Acc) -> T {
        T::from_acc(acc)
    }
}

/// Whether `v` takes the place of `best`.
#[inline(always)]
fn better<T: PartialOrd, const MAX: bool>(v: &T, best: &T) -> bool {
    if MAX {
        v > best
    } else {
        v < best
    }
}

struct Extreme<const MAX: bool>;

impl<T: Element, const MAX: bool> Fold<T> for Extreme<MAX> {
    type Acc = T;
    type Out = T;

    #[inline(always)]
    fn start(first: T) -> T {
        first
    }

    #[inline(always)]
    fn push(acc: T, v: T, _index: usize) -> T {
        if better::<T, MAX>(&v, &acc) {
            v
        } else {
            acc
        }
    }

    #[inline(always)]
    fn merge(lhs: T, rhs: T) -> T {
        <Self as Fold<T>>::push(lhs, rhs, 0)
    }

    #[inline(always)]
    fn finish(acc: T) -> T {
        acc
    }
}

struct ArgExtreme<const MAX: bool>;

impl<T: Element, const MAX: bool> Fold<T> for ArgExtreme<MAX> {
    type Acc = (T, u32);
    type Out = u32;

    #[inline(always)]
    fn start(first: T) -> (T, u32) {
        (first, 0)
    }

    #[inline(always)]
    fn push(acc: (T, u32), v: T, index: usize) -> (T, u32) {
        if better::<T, MAX>(&v, &acc.0) {
            (v, index as u32)
        } else {
            acc
        }
    }

    #[inline(always)]
    fn merge(lhs: (T, u32), rhs: (T, u32)) -> (T, u32) {
        let first_of_equals = rhs.0 == lhs.0 && rhs.1 < lhs.1;
        if better::<T, MAX>(&rhs.0, &lhs.0) || first_of_equals {
            rhs
        } else {
            lhs
        }
    }

    #[inline(always)]
    fn finish(acc: (T, u32)) -> u32 {
        acc.1
    }
}

/// Reduces over `dims`; the result holds the other dimensions, in order.
///
/// # Errors
/// `DimOutOfRange`; `EmptyTensor` for a minimum or maximum of no elements; `OnlySingleDimension` for an index over several
/// dimensions.
pub(super) fn reduce(
    op: ReduceOp,
    storage: &CpuStorage,
    layout: &Layout,
    dims: &[usize],
) -> Result<CpuStorage> {
    let plan = Plan::new(op, layout, dims)?;
    per_dtype!(storage, op.name(), |vs: T| Ok(match op {
        ReduceOp::Sum if plan.reduced.len() == 0 => {
            T::to_cpu_storage_owned(vec![T::from_i64(0); plan.kept.len()])
        }
        ReduceOp::Sum => T::to_cpu_storage_owned(plan.run::<T, Sum>(vs)),
        ReduceOp::Min => T::to_cpu_storage_owned(plan.run::<T, Extreme<false>>(vs)),
        ReduceOp::Max => T::to_cpu_storage_owned(plan.run::<T, Extreme<true>>(vs)),
        ReduceOp::ArgMin => CpuStorage::U32(plan.run::<T, ArgExtreme<false>>(vs)),
        ReduceOp::ArgMax => CpuStorage::U32(plan.run::<T, ArgExtreme<true>>(vs)),
    }))
}

struct Plan {
    /// The result's elements: where each one's first input element is.
    kept: Walk<1>,
    /// The elements that make one result, relative to the first.
    reduced: Walk<1>,
}

impl Plan {
    fn new(op: ReduceOp, layout: &Layout, dims: &[usize]) -> Result<Self> {
        let rank = layout.dims().len();
        if let Some(&dim) = dims.iter().find(|&&dim| dim >= rank) {
            return Err(Error::DimOutOfRange {
                shape: layout.shape().clone(),
                dim: dim as i32,
                op: op.name(),
            }
            .bt());
        }
        if matches!(op, ReduceOp::ArgMin | ReduceOp::ArgMax) && dims.len() != 1 {
            return Err(Error::OnlySingleDimension {
                op: op.name(),
                dims: dims.to_vec(),
            }
            .bt());
        }
        let walk = |reduced: bool, offset: usize| {
            let of = (0..rank).filter(|d| dims.contains(d) == reduced);
            let (dims, strides): (Vec<_>, Vec<_>) =
                of.map(|d| (layout.dims()[d], layout.stride()[d])).unzip();
            Walk::new(&dims, [&strides], [offset])
        };
        let plan = Self {
            kept: walk(false, layout.start_offset()),
            reduced: walk(true, 0),
        };
        if plan.reduced.len() == 0 && op != ReduceOp::Sum {
            return Err(Error::EmptyTensor { op: op.name() }.bt());
        }
        Ok(plan)
    }

    /// Folds at least one element for each result.
    fn run<T: Element, F: Fold<T>>(&self, vs: &[T]) -> Vec<F::Out> {
        let len = self.kept.len();
        if len == 0 {
            return vec![];
        }
        let [kept_stride] = self.kept.strides();
        let [reduced_stride] = self.reduced.strides();
        let by_columns = kept_stride == 1 && reduced_stride != 1;
        let mut first = 0;
        self.kept.for_runs(0..1, |_, [start]| first = start);
        let mut dst = vec![F::finish(F::start(vs[first])); len];
        fill_par(&mut dst, self.reduced.len(), |piece, dst| {
            let base = piece.start;
            self.kept.for_runs(piece, |run, [start]| {
                let dst = &mut dst[run.start - base..run.end - base];
                if by_columns && dst.len() > 1 {
                    for (i, dst) in dst.chunks_mut(COLUMNS).enumerate() {
                        self.fold_columns::<T, F>(vs, start + i * COLUMNS, dst);
                    }
                } else {
                    for (i, dst) in dst.iter_mut().enumerate() {
                        *dst = F::finish(self.fold_one::<T, F>(vs, start + i * kept_stride));
                    }
                }
            });
        });
        dst
    }

    /// The fold of the elements for one result, of which the first is at `at`.
    fn fold_one<T: Element, F: Fold<T>>(&self, vs: &[T], at: usize) -> F::Acc {
        let first = vs[at];
        let [stride] = self.reduced.strides();
        let len = self.reduced.len();
        if stride == 1 && self.reduced.is_single_run() && len >= PAR_MIN {
            let tasks = vs[at..at + len].par_chunks(TASK).enumerate();
            let parts: Vec<F::Acc> = tasks
                .map(|(i, vs)| fold_contiguous::<T, F>(vs, first, i * TASK))
                .collect();
            return parts.into_iter().fold(F::start(first), F::merge);
        }
        let mut acc = F::start(first);
        self.reduced.for_runs(0..len, |run, [start]| {
            let start = at + start;
            if stride == 1 {
                let vs = &vs[start..start + run.len()];
                acc = F::merge(acc, fold_contiguous::<T, F>(vs, first, run.start));
            } else {
                for (i, index) in run.enumerate() {
                    acc = F::push(acc, vs[start + i * stride], index);
                }
            }
        });
        acc
    }

    /// The folds for neighbouring results, whose elements are neighbours in memory too.
    fn fold_columns<T: Element, F: Fold<T>>(&self, vs: &[T], at: usize, dst: &mut [F::Out]) {
        let width = dst.len();
        let mut acc = [F::start(vs[at]); COLUMNS];
        for (acc, &first) in acc.iter_mut().zip(&vs[at..at + width]) {
            *acc = F::start(first);
        }
        let [stride] = self.reduced.strides();
        self.reduced
            .for_runs(0..self.reduced.len(), |run, [start]| {
                for (i, index) in run.enumerate() {
                    let row = &vs[at + start + i * stride..][..width];
                    for (acc, &v) in acc.iter_mut().zip(row) {
                        *acc = F::push(*acc, v, index);
                    }
                }
            });
        for (dst, acc) in dst.iter_mut().zip(acc) {
            *dst = F::finish(acc);
        }
    }
}

/// The fold of a slice whose first element has the index `index`, with partial results that the compiler can vectorise.
#[inline]
fn fold_contiguous<T: Element, F: Fold<T>>(vs: &[T], first: T, index: usize) -> F::Acc {
    let mut lanes = [F::start(first); LANES];
    let chunks = vs.chunks_exact(LANES);
    let tail = chunks.remainder();
    for (c, chunk) in chunks.enumerate() {
        for (lane, &v) in chunk.iter().enumerate() {
            lanes[lane] = F::push(lanes[lane], v, index + c * LANES + lane);
        }
    }
    let acc = lanes.into_iter().fold(F::start(first), F::merge);
    let tail_index = index + vs.len() - tail.len();
    tail.iter()
        .enumerate()
        .fold(acc, |acc, (i, &v)| F::push(acc, v, tail_index + i))
}
