//! Reductions: sum, minimum, maximum, and the indexes of the minimum and maximum.
//!
//! Minimum and maximum compare, so NaN is skipped unless it is the first element, which then is the result.

use std::marker::PhantomData;
use std::ops::Range;

use super::element::{Accumulator, Element};
use super::storage::per_dtype;
use super::strided_iter::{filled, StridedIter, PAR_MIN};
use super::CpuStorage;
use crate::cpu::simd::{joined, multiversioned, LANES};
use crate::cpu::threads;
use crate::inline_vec::InlineVec;
use crate::op::ReduceOp;
use crate::{Error, Layout, Result, WithDType};

/// Number of elements that are widened at a time, on the stack.
const WIDEN: usize = 256;

/// Number of columns that are folded together if the reduced dimension is not the contiguous one: few enough for their partial results to
/// stay in the L1 cache, enough for memory to be read in long runs.
const COLUMNS: usize = 256;

/// Elements folded by one task; fixed, so that a sum does not depend on the number of threads.
const TASK: usize = 1 << 16;

/// Maximum number of tasks of a single fold on one thread: small data is in that thread's cache, and other threads would have to fetch it.
const SERIAL_TASKS: usize = 3;

/// A reduction of elements to one result. Smaller floats are widened first.
trait Fold<T: Element> {
    type Acc: Copy + Send + Sync;
    type Out: Copy + Send;

    /// The initial state of a fold, given its first element; adding that element does not change the result.
    fn start(first: T::Acc) -> Self::Acc;
    /// Adds the element at `index`.
    fn push(acc: Self::Acc, v: T::Acc, index: usize) -> Self::Acc;
    fn merge(lhs: Self::Acc, rhs: Self::Acc) -> Self::Acc;
    fn finish(acc: Self::Acc) -> Self::Out;

    /// Adds contiguous elements, the first of which has the index `index`; `first` is as for `start`.
    #[inline(always)]
    fn push_all(acc: Self::Acc, vs: &[T::Acc], first: T::Acc, index: usize) -> Self::Acc
    where
        Self: Sized,
    {
        Self::merge(acc, fold_lanes::<T, Self>(vs, first, index))
    }
}

struct Sum;

impl<T: Element> Fold<T> for Sum {
    type Acc = T::Acc;
    type Out = T;

    #[inline(always)]
    fn start(_first: T::Acc) -> T::Acc {
        T::Acc::ZERO
    }

    #[inline(always)]
    fn push(acc: T::Acc, v: T::Acc, _index: usize) -> T::Acc {
        acc.add(v)
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

/// Whether `v` replaces `best`.
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
    type Acc = T::Acc;
    type Out = T;

    #[inline(always)]
    fn start(first: T::Acc) -> T::Acc {
        first
    }

    #[inline(always)]
    fn push(acc: T::Acc, v: T::Acc, _index: usize) -> T::Acc {
        if better::<T::Acc, MAX>(&v, &acc) {
            v
        } else {
            acc
        }
    }

    #[inline(always)]
    fn merge(lhs: T::Acc, rhs: T::Acc) -> T::Acc {
        <Self as Fold<T>>::push(lhs, rhs, 0)
    }

    #[inline(always)]
    fn finish(acc: T::Acc) -> T {
        T::from_acc(acc)
    }
}

struct ArgExtreme<const MAX: bool>;

impl<T: Element, const MAX: bool> Fold<T> for ArgExtreme<MAX> {
    type Acc = (T::Acc, u32);
    type Out = u32;

    #[inline(always)]
    fn start(first: T::Acc) -> Self::Acc {
        (first, 0)
    }

    #[inline(always)]
    fn push(acc: Self::Acc, v: T::Acc, index: usize) -> Self::Acc {
        let better = better::<T::Acc, MAX>(&v, &acc.0);
        // Written as selections, which vectorise.
        let at = if better { index as u32 } else { acc.1 };
        (if better { v } else { acc.0 }, at)
    }

    #[inline(always)]
    fn merge(lhs: Self::Acc, rhs: Self::Acc) -> Self::Acc {
        let first_of_equals = rhs.0 == lhs.0 && rhs.1 < lhs.1;
        if better::<T::Acc, MAX>(&rhs.0, &lhs.0) || first_of_equals {
            rhs
        } else {
            lhs
        }
    }

    #[inline(always)]
    fn finish(acc: Self::Acc) -> u32 {
        acc.1
    }

    /// Finds the extreme of each chunk first; its index is searched only if it is a new extreme.
    #[inline(always)]
    fn push_all(acc: Self::Acc, vs: &[T::Acc], _first: T::Acc, index: usize) -> Self::Acc {
        let mut acc = acc;
        for (i, chunk) in vs.chunks(WIDEN).enumerate() {
            let best = fold_lanes::<T, Extreme<MAX>>(chunk, acc.0, 0);
            if better::<T::Acc, MAX>(&best, &acc.0) {
                let at = chunk.iter().position(|&v| v == best).unwrap_or_default();
                acc = (best, (index + i * WIDEN + at) as u32);
            }
        }
        acc
    }
}

/// Reduces over `dims`; the result has the other dimensions, in order.
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
    /// The result's elements: the offset of the first input element of each.
    kept: StridedIter<1>,
    /// The elements that are reduced to one result, relative to the first.
    reduced: StridedIter<1>,
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
        let (sizes, strides) = (layout.dims(), layout.stride());
        let iter = |reduced: bool, offset: usize| {
            let of = (0..rank).filter(|d| dims.contains(d) == reduced);
            let sizes: InlineVec<usize> = of.clone().map(|d| sizes[d]).collect();
            let strides: InlineVec<usize> = of.map(|d| strides[d]).collect();
            StridedIter::new(&sizes, [&strides], [offset])
        };
        let start = layout.start_offset();
        // Reducing the last dimensions, the usual case, needs no selection.
        let first = rank.saturating_sub(dims.len());
        let plan = if dims.iter().copied().eq(first..rank) {
            Self {
                kept: StridedIter::new(&sizes[..first], [&strides[..first]], [start]),
                reduced: StridedIter::new(&sizes[first..], [&strides[first..]], [0]),
            }
        } else {
            Self {
                kept: iter(false, start),
                reduced: iter(true, 0),
            }
        };
        if plan.reduced.len() == 0 && op != ReduceOp::Sum {
            return Err(Error::EmptyTensor { op: op.name() }.bt());
        }
        Ok(plan)
    }

    /// Folds at least one element for each result.
    fn run<T: Element, F: Fold<T>>(&self, vs: &[T]) -> Vec<F::Out> {
        let [kept_stride] = self.kept.strides();
        let [reduced_stride] = self.reduced.strides();
        let len = self.reduced.len();
        let by_columns = kept_stride == 1 && reduced_stride != 1;
        let unit = if by_columns { COLUMNS } else { 1 };
        let fill = |piece: Range<usize>, dst: &mut [F::Out]| {
            let base = piece.start;
            self.kept.for_runs(piece, |run, [start]| {
                let dst = &mut dst[run.start - base..run.end - base];
                if by_columns && dst.len() > 1 {
                    for (i, dst) in dst.chunks_mut(COLUMNS).enumerate() {
                        self.fold_columns::<T, F>(vs, start + i * COLUMNS, dst);
                    }
                } else if self.reduced.is_single_run() && reduced_stride == 1 && len < PAR_MIN {
                    fold_rows(&vs[start..], kept_stride, len, dst, PhantomData::<F>);
                } else {
                    for (i, dst) in dst.iter_mut().enumerate() {
                        *dst = F::finish(self.fold_one::<T, F>(vs, start + i * kept_stride));
                    }
                }
            });
        };
        // SAFETY: the runs cover each chunk, and every result of a run is written; results are numbers.
        unsafe { filled(self.kept.len(), unit, len.max(1), &fill) }
    }

    /// The fold of the elements for one result, the first of which is at `at`.
    fn fold_one<T: Element, F: Fold<T>>(&self, vs: &[T], at: usize) -> F::Acc {
        let first = vs[at].to_acc();
        let [stride] = self.reduced.strides();
        let len = self.reduced.len();
        if stride == 1 && self.reduced.is_single_run() {
            let count = len.div_ceil(TASK);
            let part = |i: usize| {
                let range = at + i * TASK..at + len.min((i + 1) * TASK);
                fold_contiguous::<T, F>(&vs[range], first, i * TASK)
            };
            if count <= SERIAL_TASKS || threads::count() == 1 {
                return (0..count).map(part).fold(F::start(first), F::merge);
            }
            let mut parts = vec![F::start(first); count];
            threads::chunks_mut(&mut parts, 1, |i, dst| dst[0] = part(i));
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
                    acc = F::push(acc, vs[start + i * stride].to_acc(), index);
                }
            }
        });
        acc
    }

    /// The folds for neighbouring results, whose elements are also neighbours in memory.
    fn fold_columns<T: Element, F: Fold<T>>(&self, vs: &[T], at: usize, dst: &mut [F::Out]) {
        let width = dst.len();
        let mut acc = [F::start(vs[at].to_acc()); COLUMNS];
        let acc = &mut acc[..width];
        for (acc, &first) in acc.iter_mut().zip(&vs[at..]) {
            *acc = F::start(first.to_acc());
        }
        let [stride] = self.reduced.strides();
        self.reduced
            .for_runs(0..self.reduced.len(), |run, [start]| {
                let start = at + start;
                push_rows::<T, F>(&vs[start..], stride, run, acc);
            });
        for (dst, &acc) in dst.iter_mut().zip(&*acc) {
            *dst = F::finish(acc);
        }
    }
}

/// The fold of a slice whose first element has the index `index`.
#[inline]
fn fold_contiguous<T: Element, F: Fold<T>>(vs: &[T], first: T::Acc, index: usize) -> F::Acc {
    fold_slice(vs, first, index, PhantomData::<F>)
}

multiversioned! {
    /// The folds of slices of `len` elements with stride `stride`.
    fn fold_rows[T: Element, F: Fold<T>](
        vs: &[T],
        stride: usize,
        len: usize,
        dst: &mut [F::Out],
        fold: PhantomData<F>,
    ) {
        for (i, dst) in dst.iter_mut().enumerate() {
            let row = &vs[i * stride..][..len];
            *dst = F::finish(fold_slice_body(row, row[0].to_acc(), 0, fold));
        }
    }

    fn fold_slice[T: Element, F: Fold<T>](
        vs: &[T],
        first: T::Acc,
        index: usize,
        fold: PhantomData<F>,
    ) -> F::Acc {
        fold_slice_body(vs, first, index, fold)
    }

    /// Adds the elements of rows `run`, with stride `stride`, to the fold of each column.
    fn add_rows[T: Element, F: Fold<T>](
        vs: &[T],
        stride: usize,
        run: Range<usize>,
        acc: &mut [F::Acc],
        _fold: PhantomData<F>,
    ) {
        let mut buffer = [T::Acc::ZERO; COLUMNS];
        let width = acc.len();
        for (i, index) in run.enumerate() {
            let row = T::acc_slice(&vs[i * stride..][..width], &mut buffer);
            for (acc, &v) in acc.iter_mut().zip(row) {
                *acc = F::push(*acc, v, index);
            }
        }
    }
}

#[inline(always)]
fn fold_slice_body<T: Element, F: Fold<T>>(
    vs: &[T],
    first: T::Acc,
    index: usize,
    _fold: PhantomData<F>,
) -> F::Acc {
    let mut acc = F::start(first);
    if size_of::<T>() == size_of::<T::Acc>() {
        return F::push_all(acc, T::acc_slice(vs, &mut []), first, index);
    }
    let mut buffer = [T::Acc::ZERO; WIDEN];
    for (i, vs) in vs.chunks(WIDEN).enumerate() {
        let vs = T::acc_slice(vs, &mut buffer);
        acc = F::push_all(acc, vs, first, index + i * WIDEN);
    }
    acc
}

fn push_rows<T: Element, F: Fold<T>>(
    vs: &[T],
    stride: usize,
    run: Range<usize>,
    acc: &mut [F::Acc],
) {
    add_rows(vs, stride, run, acc, PhantomData::<F>)
}

/// The fold of a slice whose first element has the index `index`, with partial results that the compiler can vectorise.
///
/// Inlined, so that it is compiled for its caller's instruction set. A browser's module has one instruction set, and a copy for each caller
/// would add half a megabyte of code.
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
#[cfg_attr(target_arch = "wasm32", inline(never))]
fn fold_lanes<T: Element, F: Fold<T>>(vs: &[T::Acc], first: T::Acc, index: usize) -> F::Acc {
    let mut acc = F::start(first);
    let (chunks, tail) = vs.as_chunks::<LANES>();
    if !chunks.is_empty() {
        let mut lanes = [acc; LANES];
        for (c, chunk) in chunks.iter().enumerate() {
            for lane in 0..LANES {
                lanes[lane] = F::push(lanes[lane], chunk[lane], index + c * LANES + lane);
            }
        }
        acc = joined(lanes, F::merge);
    }
    let tail_index = index + vs.len() - tail.len();
    tail.iter()
        .enumerate()
        .fold(acc, |acc, (i, &v)| F::push(acc, v, tail_index + i))
}
