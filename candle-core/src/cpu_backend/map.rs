//! Elementwise maps over storages and slices of any layout; public for custom ops.

use super::storage::{peer, per_dtype};
use super::walk::{fill_par, Walk};
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

/// An op from two storages of one dtype to a third.
pub trait Map2 {
    /// The name in errors.
    const OP: &'static str;

    /// The op for one element type; returns the elements of a contiguous result.
    fn f<T: WithDType>(&self, v1: &[T], l1: &Layout, v2: &[T], l2: &Layout) -> Result<Vec<T>>;

    /// The op for any two storages of one dtype.
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

/// An op that changes a storage by means of another of the same dtype.
pub trait Map2InPlace {
    /// The name in errors.
    const OP: &'static str;

    /// The op for one element type.
    fn f<T: WithDType>(&self, v1: &mut [T], l1: &Layout, v2: &[T], l2: &Layout) -> Result<()>;

    /// The op for any two storages of one dtype; fails as [`Map2::map`].
    fn map(&self, v1: &mut CpuStorage, l1: &Layout, v2: &CpuStorage, l2: &Layout) -> Result<()> {
        per_dtype!(v1, Self::OP, |v1: T| {
            self.f(v1, l1, peer::<T>(v2, Self::OP)?, l2)
        })
    }
}

/// An op from two storages of one dtype to one of u8.
pub trait Map2U8 {
    /// The name in errors.
    const OP: &'static str;

    /// The op for one element type; returns the elements of a contiguous result.
    fn f<T: WithDType>(&self, v1: &[T], l1: &Layout, v2: &[T], l2: &Layout) -> Result<Vec<u8>>;

    /// The op for any two storages of one dtype; fails as [`Map2::map`].
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
    let walk = Walk::of([layout]);
    let [stride] = walk.strides();
    let mut dst = Vec::with_capacity(walk.len());
    walk.for_runs(0..walk.len(), |run, [start]| match stride {
        1 => dst.extend(vs[start..start + run.len()].iter().map(|&v| f(v))),
        _ => dst.extend((0..run.len()).map(|i| f(vs[start + i * stride]))),
    });
    dst
}

/// As [`unary_map`], with `f_vec` for runs of contiguous elements.
pub fn unary_map_vec<T: Copy, U: Copy, F: FnMut(T) -> U, FV: FnMut(&[T], &mut [U])>(
    vs: &[T],
    layout: &Layout,
    mut f: F,
    mut f_vec: FV,
) -> Vec<U> {
    let walk = Walk::of([layout]);
    if walk.len() == 0 {
        return vec![];
    }
    // Safe code cannot hand out memory that was not written yet.
    let mut dst = vec![f(vs[layout.start_offset()]); walk.len()];
    let [stride] = walk.strides();
    walk.for_runs(0..walk.len(), |run, [start]| {
        unary_run(vs, start, stride, &mut dst[run], &mut f, &mut f_vec)
    });
    dst
}

/// As [`unary_map_vec`], on several threads for large inputs.
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
    let walk = Walk::of([layout]);
    if walk.len() == 0 {
        return vec![];
    }
    let mut dst = vec![f(vs[layout.start_offset()]); walk.len()];
    let [stride] = walk.strides();
    fill_par(&mut dst, 1, |piece, dst| {
        let base = piece.start;
        walk.for_runs(piece, |run, [start]| {
            let dst = &mut dst[run.start - base..run.end - base];
            unary_run(vs, start, stride, dst, &mut &f, &mut &f_vec)
        });
    });
    dst
}

fn unary_run<T: Copy, U: Copy>(
    vs: &[T],
    start: usize,
    stride: usize,
    dst: &mut [U],
    f: &mut impl FnMut(T) -> U,
    f_vec: &mut impl FnMut(&[T], &mut [U]),
) {
    match stride {
        0 => dst.fill(f(vs[start])),
        1 => f_vec(&vs[start..start + dst.len()], dst),
        _ => {
            for (i, dst) in dst.iter_mut().enumerate() {
                *dst = f(vs[start + i * stride]);
            }
        }
    }
}

/// `f` of each pair of elements, in row-major order; the layouts have one shape.
pub fn binary_map<T: Copy, U: Copy, F: FnMut(T, T) -> U>(
    lhs_l: &Layout,
    rhs_l: &Layout,
    lhs: &[T],
    rhs: &[T],
    mut f: F,
) -> Vec<U> {
    let walk = Walk::of([lhs_l, rhs_l]);
    let strides = walk.strides();
    let mut dst = Vec::with_capacity(walk.len());
    walk.for_runs(0..walk.len(), |run, [l, r]| {
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

/// As [`binary_map`], with `f_vec(lhs, rhs, dst)` where both sides are contiguous, and `f_scalar_vec(rhs, lhs, dst)` where the
/// left side is and the right side repeats one element.
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
    mut f: F,
    mut f_vec: FV,
    mut f_scalar_vec: FSV,
) -> Vec<T> {
    let walk = Walk::of([lhs_l, rhs_l]);
    if walk.len() == 0 {
        return vec![];
    }
    let mut dst = vec![lhs[lhs_l.start_offset()]; walk.len()];
    let strides = walk.strides();
    walk.for_runs(0..walk.len(), |run, starts| {
        let dst = &mut dst[run];
        let fs = (&mut f, &mut f_vec, &mut f_scalar_vec);
        binary_run([lhs, rhs], starts, strides, dst, fs)
    });
    dst
}

/// As [`binary_map_vec`], on several threads for large inputs.
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
    let walk = Walk::of([lhs_l, rhs_l]);
    if walk.len() == 0 {
        return vec![];
    }
    let mut dst = vec![lhs[lhs_l.start_offset()]; walk.len()];
    let strides = walk.strides();
    fill_par(&mut dst, 1, |piece, dst| {
        let base = piece.start;
        walk.for_runs(piece, |run, starts| {
            let dst = &mut dst[run.start - base..run.end - base];
            let fs = (&mut &f, &mut &f_vec, &mut &f_scalar_vec);
            binary_run([lhs, rhs], starts, strides, dst, fs)
        });
    });
    dst
}

fn binary_run<T: Copy>(
    [lhs, rhs]: [&[T]; 2],
    [l, r]: [usize; 2],
    strides: [usize; 2],
    dst: &mut [T],
    (f, f_vec, f_scalar_vec): (
        &mut impl FnMut(T, T) -> T,
        &mut impl FnMut(&[T], &[T], &mut [T]),
        &mut impl FnMut(T, &[T], &mut [T]),
    ),
) {
    let len = dst.len();
    match strides {
        [1, 1] => f_vec(&lhs[l..l + len], &rhs[r..r + len], dst),
        [1, 0] => f_scalar_vec(rhs[r], &lhs[l..l + len], dst),
        [ls, rs] => {
            for (i, dst) in dst.iter_mut().enumerate() {
                *dst = f(lhs[l + i * ls], rhs[r + i * rs]);
            }
        }
    }
}
