//! Pooling: the mean or the greatest element of each window.

use std::marker::PhantomData;
use std::ops::Range;

use super::element::Accumulator;
use super::nchw::{checked_count, NchwView, Pixel};
use super::storage::per_dtype;
use super::strided_iter::{filled, StridedIter};
use super::CpuStorage;
use crate::cpu::simd::multiversioned;
use crate::{Layout, Result, WithDType};

/// Number of windows of a line that are folded together.
const WINDOWS: usize = 64;

/// Number of windows that are folded together if they begin far apart. Each is a dependency chain, so several run at once; few enough that
/// windows of whole images, which may begin at multiples of a power of two, do not evict each other from the cache.
const FAR: usize = 8;

/// Windows of `kernel` elements, `stride` apart; `(height, width)` each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Windows {
    pub kernel: (usize, usize),
    pub stride: (usize, usize),
}

/// The reduction of a window to one element.
trait Fold<T: Pixel> {
    type State: Copy;

    /// The initial state of a fold, given its first element; that element is pushed as well.
    fn start(first: T::Acc) -> Self::State;
    fn push(state: Self::State, v: T::Acc) -> Self::State;
    fn finish(state: Self::State, count: usize) -> T::Acc;
}

struct Mean;

impl<T: Pixel> Fold<T> for Mean {
    type State = T::Sum;

    #[inline(always)]
    fn start(_first: T::Acc) -> T::Sum {
        T::NO_SUM
    }

    #[inline(always)]
    fn push(sum: T::Sum, v: T::Acc) -> T::Sum {
        T::add_to(v, sum)
    }

    #[inline(always)]
    fn finish(sum: T::Sum, count: usize) -> T::Acc {
        T::mean(sum, count)
    }
}

/// A NaN counts as the greatest element.
struct Greatest;

impl<T: Pixel> Fold<T> for Greatest {
    type State = T::Acc;

    #[inline(always)]
    fn start(first: T::Acc) -> T::Acc {
        first
    }

    #[inline(always)]
    #[allow(clippy::eq_op, reason = "NaN is unequal to itself")]
    fn push(max: T::Acc, v: T::Acc) -> T::Acc {
        if v > max || v != v {
            v
        } else {
            max
        }
    }

    #[inline(always)]
    fn finish(max: T::Acc, _count: usize) -> T::Acc {
        max
    }
}

/// The mean of each window.
pub(super) fn avg_pool2d(vs: &CpuStorage, layout: &Layout, windows: Windows) -> Result<CpuStorage> {
    const OP: &str = "avg_pool2d";
    per_dtype!(vs, OP, |vs: T| Ok(T::to_cpu_storage_owned(
        pool::<T, Mean>(vs, layout, windows, OP)?
    )))
}

/// The greatest element of each window; NaN counts as the greatest.
pub(super) fn max_pool2d(vs: &CpuStorage, layout: &Layout, windows: Windows) -> Result<CpuStorage> {
    const OP: &str = "max_pool2d";
    per_dtype!(vs, OP, |vs: T| Ok(T::to_cpu_storage_owned(pool::<
        T,
        Greatest,
    >(
        vs, layout, windows, OP
    )?)))
}

/// Folds each window.
fn pool<T: Pixel, F: Fold<T>>(
    vs: &[T],
    layout: &Layout,
    Windows { kernel, stride }: Windows,
    op: &'static str,
) -> Result<Vec<T>> {
    let planes = NchwView::new(layout, vs.len(), op)?;
    let [b, c, h, w] = planes.dims;
    let dims = [
        b,
        c,
        (h - kernel.0) / stride.0 + 1,
        (w - kernel.1) / stride.1 + 1,
    ];
    checked_count::<T>(&dims, op)?;
    let [image, plane, row, step] = planes.strides;
    let apart = [
        image,
        plane,
        stride.0.saturating_mul(row),
        stride.1.saturating_mul(step),
    ];
    // If an image is a single window, iterate along the planes.
    let iter = StridedIter::new(&dims, [&apart], [planes.offset]);
    let line = Line {
        next: iter.strides()[0],
        kernel,
        row,
        step,
    };
    let fill = |piece: Range<usize>, dst: &mut [T]| {
        let (base, mut buffers) = (piece.start, LineBuffers::new());
        iter.for_runs(piece, |run, [start]| {
            let dst = &mut dst[run.start - base..run.end - base];
            for (i, dst) in dst.chunks_mut(WINDOWS).enumerate() {
                line.pool::<T, F>(&vs[start + i * WINDOWS * line.next..], &mut buffers, dst);
            }
        });
    };
    // SAFETY: the runs cover each chunk, and every element of a run is written; elements are numbers.
    Ok(unsafe { filled(iter.len(), 1, kernel.0 * kernel.1, &fill) })
}

/// Buffers for the widened elements of a line.
struct LineBuffers<A> {
    widened: Vec<A>,
    split: Vec<A>,
}

impl<A> LineBuffers<A> {
    fn new() -> Self {
        Self {
            widened: vec![],
            split: vec![],
        }
    }
}

/// Windows that begin `next` elements apart, with row stride `row` and column stride `step`.
#[derive(Clone, Copy)]
struct Line {
    next: usize,
    kernel: (usize, usize),
    row: usize,
    step: usize,
}

impl Line {
    /// The offsets of a window's elements after its first.
    #[inline(always)]
    fn places(self) -> impl Iterator<Item = usize> {
        let rows = (0..self.kernel.0).map(move |y| y * self.row);
        rows.flat_map(move |row| (0..self.kernel.1).map(move |x| row + x * self.step))
    }

    /// The results of the windows from the start of `vs` on, at most [`WINDOWS`].
    fn pool<T: Pixel, F: Fold<T>>(
        &self,
        vs: &[T],
        buffers: &mut LineBuffers<T::Acc>,
        dst: &mut [T],
    ) {
        let (k_h, k_w) = self.kernel;
        let reach = (k_h - 1) * self.row + (k_w - 1) * self.step;
        let vs = &vs[..(dst.len() - 1) * self.next + reach + 1];
        let mut results = [T::Acc::ZERO; WINDOWS];
        let results = &mut results[..dst.len()];
        let fold = PhantomData::<(T, F)>;
        let narrow = size_of::<T>() != size_of::<T::Acc>();
        if narrow && vs.len() > 4 * dst.len() * k_h * k_w {
            // Most elements in between are not needed.
            fold_far(vs, *self, results, T::to_acc, fold);
        } else {
            let wanted = if narrow { vs.len() } else { 0 };
            let vs = T::acc_slice(vs, at_least(&mut buffers.widened, wanted));
            match self.next {
                1 => fold_near(vs, *self, results, fold),
                2 => {
                    // Even elements, then odd ones: neighbouring windows are contiguous in each half.
                    let half = vs.len().div_ceil(2);
                    let split = &mut at_least(&mut buffers.split, 2 * half)[..2 * half];
                    let (even, odd) = split.split_at_mut(half);
                    split_pairs(vs, even, odd);
                    fold_halves(split, *self, results, fold);
                }
                _ => fold_far(vs, *self, results, |v| v, fold),
            }
        }
        T::narrow_acc(results, dst);
    }
}

/// The buffer, with space for `len` elements.
fn at_least<A: Accumulator>(buffer: &mut Vec<A>, len: usize) -> &mut [A] {
    if buffer.len() < len {
        buffer.resize(len, A::ZERO);
    }
    buffer
}

multiversioned! {
    /// Splits the elements into even and odd ones; there may be one fewer odd element.
    fn split_pairs[A: Copy](vs: &[A], even: &mut [A], odd: &mut [A]) {
        let (pairs, last) = vs.as_chunks::<2>();
        for ((pair, even), odd) in pairs.iter().zip(even.iter_mut()).zip(odd) {
            [*even, *odd] = *pair;
        }
        if let ([last], Some(even)) = (last, even.last_mut()) {
            *even = *last;
        }
    }

    /// Folds windows with stride 1.
    fn fold_near[T: Pixel, F: Fold<T>](
        vs: &[T::Acc],
        line: Line,
        results: &mut [T::Acc],
        fold: PhantomData<(T, F)>,
    ) {
        fold_side_by_side(vs, line, results, |place| place, fold);
    }

    /// Folds windows with stride 2, of a line that was split into its halves.
    fn fold_halves[T: Pixel, F: Fold<T>](
        vs: &[T::Acc],
        line: Line,
        results: &mut [T::Acc],
        fold: PhantomData<(T, F)>,
    ) {
        let half = vs.len() / 2;
        fold_side_by_side(vs, line, results, |place| place % 2 * half + place / 2, fold);
    }

    /// Folds windows of any stride; `widen` converts their elements.
    fn fold_far[V: Copy, T: Pixel, F: Fold<T>, W: Fn(V) -> T::Acc + Copy](
        vs: &[V],
        line: Line,
        results: &mut [T::Acc],
        widen: W,
        fold: PhantomData<(T, F)>,
    ) {
        match results.len() {
            FAR.. => fold_blocks::<V, T, F, FAR>(vs, line, results, widen, fold),
            _ => fold_blocks::<V, T, F, 1>(vs, line, results, widen, fold),
        }
    }
}

/// Folds windows whose elements at the same offset are contiguous, starting at `at(offset)`.
#[inline(always)]
fn fold_side_by_side<T: Pixel, F: Fold<T>>(
    vs: &[T::Acc],
    line: Line,
    results: &mut [T::Acc],
    at: impl Fn(usize) -> usize,
    _fold: PhantomData<(T, F)>,
) {
    let mut states = [F::start(vs[0]); WINDOWS];
    let states = &mut states[..results.len()];
    for (state, &first) in states.iter_mut().zip(vs) {
        *state = F::start(first);
    }
    for place in line.places() {
        for (state, &v) in states.iter_mut().zip(&vs[at(place)..]) {
            *state = F::push(*state, v);
        }
    }
    let count = line.kernel.0 * line.kernel.1;
    for (result, &state) in results.iter_mut().zip(&*states) {
        *result = F::finish(state, count);
    }
}

/// Folds `N` windows at a time; there are at least `N`.
#[inline(always)]
fn fold_blocks<V: Copy, T: Pixel, F: Fold<T>, const N: usize>(
    vs: &[V],
    line: Line,
    results: &mut [T::Acc],
    widen: impl Fn(V) -> T::Acc + Copy,
    _fold: PhantomData<(T, F)>,
) {
    let (next, count) = (line.next, line.kernel.0 * line.kernel.1);
    for block in 0..results.len().div_ceil(N) {
        // The last block overlaps the one before it, so some windows are folded twice.
        let first = (block * N).min(results.len() - N);
        let vs = &vs[first * next..];
        let mut states: [F::State; N] = std::array::from_fn(|i| F::start(widen(vs[i * next])));
        for place in line.places() {
            let vs = &vs[place..][..(N - 1) * next + 1];
            for (i, state) in states.iter_mut().enumerate() {
                *state = F::push(*state, widen(vs[i * next]));
            }
        }
        let states = states.map(|state| F::finish(state, count));
        results[first..first + N].copy_from_slice(&states);
    }
}
