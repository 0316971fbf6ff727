//! Elementwise maps over storages and slices of any layout; public for custom ops.

use super::storage::{peer, per_dtype};
use std::ops::Range;

use super::contiguous_blocks::{blocks, StridedOperand, BLOCK, LONG_RUN};
use super::strided_iter::{filled, StridedIter};
use super::CpuStorage;
use crate::{Layout, Result, WithDType};

/// An op from one storage to another of the same dtype.
pub trait Map1 {
    /// The op for one element type; returns the elements of a contiguous result.
    fn f<T: WithDType>(&self, vs: &[T], layout: &Layout) -> Result<Vec<T>>;

    /// The op for any storage; fails with `UnsupportedDTypeForOp` for a container dtype.
    fn map(&self, vs: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
        per_dtype!(vs, "map1", |vs: T| Ok(T::to_cpu_storage_owned(
            self.f(vs, layout)?
        )))
    }
}

/// An op from one storage to another whose dtype the op chooses.
pub trait Map1Any {
    /// The op for one element type; `wrap` makes a storage of the input's dtype.
    fn f<T: WithDType, W: Fn(Vec<T>) -> CpuStorage>(
        &self,
        vs: &[T],
        layout: &Layout,
        wrap: W,
    ) -> Result<CpuStorage>;

    /// The op for any storage; fails with `UnsupportedDTypeForOp` for a container dtype.
    fn map(&self, vs: &CpuStorage, layout: &Layout) -> Result<CpuStorage> {
        per_dtype!(vs, "map1_any", |vs: T| self.f(
            vs,
            layout,
            T::to_cpu_storage_owned
        ))
    }
}

/// An op from two storages of the same dtype to a third.
pub trait Map2 {
    /// The op's name in errors.
    const OP: &'static str;

    /// The op for one element type; returns the elements of a contiguous result.
    fn f<T: WithDType>(&self, v1: &[T], l1: &Layout, v2: &[T], l2: &Layout) -> Result<Vec<T>>;

    /// The op for any two storages of the same dtype.
    ///
    /// # Errors
    /// `DTypeMismatchBinaryOp` for different dtypes, `UnsupportedDTypeForOp` for a container dtype.
    fn map(
        &self,
        v1: &CpuStorage,
        l1: &Layout,
        v2: &CpuStorage,
        l2: &Layout,
    ) -> Result<CpuStorage> {
        per_dtype!(v1, Self::OP, |v1: T| {
            let v2 = peer(v2, Self::OP)?;
            Ok(T::to_cpu_storage_owned(self.f(v1, l1, v2, l2)?))
        })
    }
}

/// An op that changes a storage and reads another of the same dtype.
pub trait Map2InPlace {
    /// The op's name in errors.
    const OP: &'static str;

    /// The op for one element type.
    fn f<T: WithDType>(&self, v1: &mut [T], l1: &Layout, v2: &[T], l2: &Layout) -> Result<()>;

    /// The op for any two storages of the same dtype; fails like [`Map2::map`].
    fn map(&self, v1: &mut CpuStorage, l1: &Layout, v2: &CpuStorage, l2: &Layout) -> Result<()> {
        per_dtype!(v1, Self::OP, |v1: T| {
            self.f(v1, l1, peer::<T>(v2, Self::OP)?, l2)
        })
    }
}

/// An op from two storages of the same dtype to one of u8.
pub trait Map2U8 {
    /// The op's name in errors.
    const OP: &'static str;

    /// The op for one element type; returns the elements of a contiguous result.
    fn f<T: WithDType>(&self, v1: &[T], l1: &Layout, v2: &[T], l2: &Layout) -> Result<Vec<u8>>;

    /// The op for any two storages of the same dtype; fails like [`Map2::map`].
    fn map(
        &self,
        v1: &CpuStorage,
        l1: &Layout,
        v2: &CpuStorage,
        l2: &Layout,
    ) -> Result<CpuStorage> {
        per_dtype!(v1, Self::OP, |v1: T| {
            let v2 = peer::<T>(v2, Self::OP)?;
            Ok(CpuStorage::U8(self.f(v1, l1, v2, l2)?))
        })
    }
}

/// `f` of each element, in row-major order.
pub fn unary_map<T: Copy, U: Copy, F: FnMut(T) -> U>(
    vs: &[T],
    layout: &Layout,
    mut f: F,
) -> Vec<U> {
    let iter = StridedIter::of([layout]);
    let [stride] = iter.strides();
    let mut dst = Vec::with_capacity(iter.len());
    iter.for_runs(0..iter.len(), |run, [start]| match stride {
        1 => dst.extend(vs[start..start + run.len()].iter().map(|&v| f(v))),
        _ => dst.extend((0..run.len()).map(|i| f(vs[start + i * stride]))),
    });
    dst
}

/// Like [`unary_map`], with `f_vec` for contiguous elements; strided ones are packed first.
pub fn unary_map_vec<T: Copy, U: Copy, F: FnMut(T) -> U, FV: FnMut(&[T], &mut [U])>(
    vs: &[T],
    layout: &Layout,
    mut f: F,
    mut f_vec: FV,
) -> Vec<U> {
    let operand = StridedOperand::new(vs, layout);
    if operand.len() == 0 {
        return vec![];
    }
    // Safe code cannot pass on uninitialised memory.
    let mut dst = vec![f(vs[layout.start_offset()]); operand.len()];
    operand.for_slices(0..operand.len(), |range, xs| f_vec(xs, &mut dst[range]));
    dst
}

/// Like [`unary_map_vec`], on several threads for large inputs.
pub fn unary_map_vec_par<
    T: Copy + Send + Sync,
    U: Copy + Send + Sync,
    F: Fn(T) -> U + Sync,
    FV: Fn(&[T], &mut [U]) + Sync,
>(
    vs: &[T],
    layout: &Layout,
    f: F,
    f_vec: FV,
) -> Vec<U> {
    if layout.shape().elem_count() == 0 {
        return vec![];
    }
    let seed = f(vs[layout.start_offset()]);
    // SAFETY: every element is written before `f_vec` reads it.
    unsafe { map(vs, layout, &seeded1(seed, f_vec)) }
}

/// `f_vec` with memory that it may read: blocks are initialised just before, while they are in the L1 cache.
fn seeded1<T: Copy, U: Copy>(seed: U, f_vec: impl Fn(&[T], &mut [U])) -> impl Fn(&[T], &mut [U]) {
    move |xs: &[T], dst: &mut [U]| {
        for (xs, dst) in xs.chunks(BLOCK).zip(dst.chunks_mut(BLOCK)) {
            dst.fill(seed);
            f_vec(xs, dst);
        }
    }
}

/// `f_vec` of the elements, in row-major order, on several threads for large inputs.
///
/// # Safety
/// `f_vec` writes all of its second argument, and does not read it. `U` is a number.
pub(super) unsafe fn map<T: Copy + Sync, U: Copy + Send>(
    vs: &[T],
    layout: &Layout,
    f_vec: &(dyn Fn(&[T], &mut [U]) + Sync),
) -> Vec<U> {
    if let Some(xs) = contiguous(vs, layout) {
        let fill = |piece: Range<usize>, dst: &mut [U]| f_vec(&xs[piece], dst);
        // SAFETY: this function's contract.
        return unsafe { filled(xs.len(), 1, 1, &fill) };
    }
    let operand = StridedOperand::new(vs, layout);
    let fill = |piece: Range<usize>, dst: &mut [U]| {
        let base = piece.start;
        operand.for_slices(piece, |range, xs| {
            f_vec(xs, &mut dst[range.start - base..range.end - base])
        });
    };
    // SAFETY: the slices cover each chunk; the rest is this function's contract.
    unsafe { filled(operand.len(), operand.unit(), 1, &fill) }
}

/// The elements of a contiguous layout. This fast path is for small tensors: planning an iteration takes longer than
/// the op.
pub(super) fn contiguous<'a, T>(vs: &'a [T], layout: &Layout) -> Option<&'a [T]> {
    let (start, end) = layout.contiguous_offsets()?;
    vs.get(start..end)
}

/// `f` of each pair of elements, in row-major order; the layouts have the same shape.
pub fn binary_map<T: Copy, U: Copy, F: FnMut(T, T) -> U>(
    lhs_l: &Layout,
    rhs_l: &Layout,
    lhs: &[T],
    rhs: &[T],
    mut f: F,
) -> Vec<U> {
    let iter = StridedIter::of([lhs_l, rhs_l]);
    let strides = iter.strides();
    let mut dst = Vec::with_capacity(iter.len());
    iter.for_runs(0..iter.len(), |run, [l, r]| {
        let len = run.len();
        match strides {
            [1, 1] => {
                let pairs = lhs[l..l + len].iter().zip(&rhs[r..r + len]);
                dst.extend(pairs.map(|(&l, &r)| f(l, r)));
            }
            [1, 0] => {
                let r = rhs[r];
                dst.extend(lhs[l..l + len].iter().map(|&l| f(l, r)));
            }
            [ls, rs] => dst.extend((0..len).map(|i| f(lhs[l + i * ls], rhs[r + i * rs]))),
        }
    });
    dst
}

/// Like [`binary_map`], with `f_vec(lhs, rhs, dst)` for contiguous elements, and `f_scalar_vec(rhs, lhs, dst)` if the right side repeats
/// one element. Other layouts are packed first.
pub fn binary_map_vec<
    T: Copy,
    F: FnMut(T, T) -> T,
    FV: FnMut(&[T], &[T], &mut [T]),
    FSV: FnMut(T, &[T], &mut [T]),
>(
    lhs_l: &Layout,
    rhs_l: &Layout,
    lhs: &[T],
    rhs: &[T],
    f: F,
    mut f_vec: FV,
    mut f_scalar_vec: FSV,
) -> Vec<T> {
    // Part of the public signature; elements are gathered as slices, so single elements are not needed.
    drop(f);
    let pair = OperandPair::new(lhs_l, rhs_l, lhs, rhs);
    if pair.len() == 0 {
        return vec![];
    }
    let mut dst = vec![lhs[lhs_l.start_offset()]; pair.len()];
    pair.for_slices(0..pair.len(), |range, xs, right| match right {
        Right::Slice(ys) => f_vec(xs, ys, &mut dst[range]),
        Right::Scalar(y) => f_scalar_vec(y, xs, &mut dst[range]),
    });
    dst
}

/// Like [`binary_map_vec`], on several threads for large inputs.
pub fn binary_map_vec_par<
    T: Copy + Send + Sync,
    F: Fn(T, T) -> T + Sync,
    FV: Fn(&[T], &[T], &mut [T]) + Sync,
    FSV: Fn(T, &[T], &mut [T]) + Sync,
>(
    lhs_l: &Layout,
    rhs_l: &Layout,
    lhs: &[T],
    rhs: &[T],
    f: F,
    f_vec: FV,
    f_scalar_vec: FSV,
) -> Vec<T> {
    drop(f);
    if lhs_l.shape().elem_count() == 0 {
        return vec![];
    }
    let seed = lhs[lhs_l.start_offset()];
    let f_vec = |xs: &[T], ys: &[T], dst: &mut [T]| {
        let chunks = xs.chunks(BLOCK).zip(ys.chunks(BLOCK));
        for ((xs, ys), dst) in chunks.zip(dst.chunks_mut(BLOCK)) {
            dst.fill(seed);
            f_vec(xs, ys, dst);
        }
    };
    let f_scalar_vec = |y: T, xs: &[T], dst: &mut [T]| {
        seeded1(seed, |xs: &[T], dst: &mut [T]| f_scalar_vec(y, xs, dst))(xs, dst)
    };
    // SAFETY: every element is written before the functions read it.
    unsafe { zip(lhs_l, rhs_l, lhs, rhs, &f_vec, &f_scalar_vec) }
}

/// A function of two slices and a destination.
pub(super) type BySlices<'a, T, U> = &'a (dyn Fn(&[T], &[T], &mut [U]) + Sync + 'a);

/// Like [`BySlices`], with a single element on the right side, which is the first argument.
pub(super) type ByScalar<'a, T, U> = &'a (dyn Fn(T, &[T], &mut [U]) + Sync + 'a);

/// `f_vec` of both operands' elements, in row-major order, on several threads for large inputs; `f_scalar_vec(rhs, lhs, dst)` if the right
/// side repeats one element.
///
/// # Safety
/// Both functions write all of their last argument, and do not read it. `U` is a number.
pub(super) unsafe fn zip<T: Copy + Sync, U: Copy + Send>(
    lhs_l: &Layout,
    rhs_l: &Layout,
    lhs: &[T],
    rhs: &[T],
    f_vec: BySlices<T, U>,
    f_scalar_vec: ByScalar<T, U>,
) -> Vec<U> {
    if let (Some(xs), Some(ys)) = (contiguous(lhs, lhs_l), contiguous(rhs, rhs_l)) {
        let fill = |piece: Range<usize>, dst: &mut [U]| f_vec(&xs[piece.clone()], &ys[piece], dst);
        // SAFETY: this function's contract.
        return unsafe { filled(xs.len(), 1, 1, &fill) };
    }
    let pair = OperandPair::new(lhs_l, rhs_l, lhs, rhs);
    let fill = |piece: Range<usize>, dst: &mut [U]| {
        let base = piece.start;
        pair.for_slices(piece, |range, xs, right| {
            let dst = &mut dst[range.start - base..range.end - base];
            match right {
                Right::Slice(ys) => f_vec(xs, ys, dst),
                Right::Scalar(y) => f_scalar_vec(y, xs, dst),
            }
        });
    };
    // SAFETY: the slices cover each chunk; the rest is this function's contract.
    unsafe { filled(pair.len(), pair.unit(), 1, &fill) }
}

/// Two operands of the same shape.
struct OperandPair<'a, T> {
    /// Iterates over both together.
    iter: StridedIter<2>,
    slices: [&'a [T]; 2],
    /// Each separately: one may be contiguous even if both together are not.
    operands: [StridedOperand<'a, T>; 2],
}

/// The right operand of some elements: one for each, or one for all.
enum Right<'a, T> {
    Slice(&'a [T]),
    Scalar(T),
}

impl<'a, T: Copy> OperandPair<'a, T> {
    fn new(lhs_l: &Layout, rhs_l: &Layout, lhs: &'a [T], rhs: &'a [T]) -> Self {
        Self {
            iter: StridedIter::of([lhs_l, rhs_l]),
            slices: [lhs, rhs],
            operands: [
                StridedOperand::new(lhs, lhs_l),
                StridedOperand::new(rhs, rhs_l),
            ],
        }
    }

    fn len(&self) -> usize {
        self.iter.len()
    }

    fn unit(&self) -> usize {
        let [l, r] = &self.operands;
        l.unit().max(r.unit())
    }

    /// Calls `f` with slices that together cover `piece` of the row-major order.
    fn for_slices(&self, piece: Range<usize>, mut f: impl FnMut(Range<usize>, &[T], Right<T>)) {
        let long = self.iter.run_len() >= LONG_RUN || self.iter.is_single_run();
        let [lhs, rhs] = self.slices;
        match self.iter.strides() {
            [1, 1] if long => self.iter.for_runs(piece, |run, [l, r]| {
                let ys = Right::Slice(&rhs[r..r + run.len()]);
                let xs = &lhs[l..l + run.len()];
                f(run, xs, ys);
            }),
            [1, 0] if long => self.iter.for_runs(piece, |run, [l, r]| {
                let xs = &lhs[l..l + run.len()];
                f(run, xs, Right::Scalar(rhs[r]));
            }),
            _ => {
                let (mut left, mut right) = (vec![], vec![]);
                let [l, r] = &self.operands;
                for block in blocks(piece, self.unit()) {
                    let xs = l.slice(block.clone(), &mut left);
                    let ys = r.slice(block.clone(), &mut right);
                    f(block, xs, Right::Slice(ys));
                }
            }
        }
    }
}
