//! Loops over slices, written so that the compiler vectorises them.
//!
//! Sums and dot products keep many partial results: the compiler may not reorder float additions itself, and one chain of them
//! waits for each addition to finish.

use std::ops::{Add, Mul};

use float8::F8E4M3;
use half::{bf16, f16};

use super::threads;

use super::half_floats::HalfFloat;
use super::scratch::{WidenBuffer, WIDEN};
use super::simd::multiversioned;

/// Slice functions of an element type. Integers wrap; 16-bit and 8-bit floats are summed in f32.
pub trait VecOps: num_traits::NumAssign + Copy {
    /// The smaller value.
    fn min(self, rhs: Self) -> Self;

    /// The larger value.
    fn max(self, rhs: Self) -> Self;

    /// Writes the dot product of two slices to `res`.
    ///
    /// # Safety
    /// `lhs` and `rhs` must be readable for `len` elements, `res` must be writable.
    #[inline(always)]
    unsafe fn vec_dot(lhs: *const Self, rhs: *const Self, res: *mut Self, len: usize) {
        let (lhs, rhs) = unsafe { (slice(lhs, len), slice(rhs, len)) };
        let products = lhs.iter().zip(rhs).map(|(&l, &r)| l * r);
        unsafe { *res = products.fold(Self::zero(), |acc, v| acc + v) };
    }

    /// Writes the sum of a slice to `res`.
    ///
    /// # Safety
    /// `xs` must be readable for `len` elements, `res` must be writable.
    #[inline(always)]
    unsafe fn vec_reduce_sum(xs: *const Self, res: *mut Self, len: usize) {
        let xs = unsafe { slice(xs, len) };
        unsafe { *res = xs.iter().fold(Self::zero(), |acc, &v| acc + v) };
    }

    /// Writes the largest element to `res`; leaves `res` unchanged if `len` is 0.
    ///
    /// # Safety
    /// `xs` must be readable for `len` elements, `res` must be writable.
    #[inline(always)]
    unsafe fn vec_reduce_max(xs: *const Self, res: *mut Self, len: usize) {
        if let Some(max) = fold(unsafe { slice(xs, len) }, Self::max) {
            unsafe { *res = max };
        }
    }

    /// Writes the smallest element to `res`; leaves `res` unchanged if `len` is 0.
    ///
    /// # Safety
    /// `xs` must be readable for `len` elements, `res` must be writable.
    #[inline(always)]
    unsafe fn vec_reduce_min(xs: *const Self, res: *mut Self, len: usize) {
        if let Some(min) = fold(unsafe { slice(xs, len) }, Self::min) {
            unsafe { *res = min };
        }
    }

    /// `res = lhs + rhs`, over the shortest of the three.
    #[inline(always)]
    fn vec_add(lhs: &[Self], rhs: &[Self], res: &mut [Self]) {
        zip_slices(lhs, rhs, res, |l, r| l + r);
    }

    /// `res = lhs * rhs`, over the shortest of the three.
    #[inline(always)]
    fn vec_mul(lhs: &[Self], rhs: &[Self], res: &mut [Self]) {
        zip_slices(lhs, rhs, res, |l, r| l * r);
    }

    /// `ys = xs + scalar`, over the shorter of the two.
    #[inline(always)]
    fn scalar_add(scalar: Self, xs: &[Self], ys: &mut [Self]) {
        map_slice(xs, ys, |x| x + scalar);
    }

    /// `ys = xs * scalar`, over the shorter of the two.
    #[inline(always)]
    fn scalar_mul(scalar: Self, xs: &[Self], ys: &mut [Self]) {
        map_slice(xs, ys, |x| x * scalar);
    }
}

/// # Safety
/// As for `std::slice::from_raw_parts`, except that any pointer is valid if `len` is 0.
#[inline(always)]
unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    match len {
        0 => &[],
        _ => unsafe { std::slice::from_raw_parts(data, len) },
    }
}

multiversioned! {
    /// `ys = f(xs)`.
    pub(crate) fn map_slice[T: Copy, U, F: Fn(T) -> U](xs: &[T], ys: &mut [U], f: F) {
        for (y, &x) in ys.iter_mut().zip(xs) {
            *y = f(x);
        }
    }

    /// `ys = f(lhs, rhs)`.
    pub(crate) fn zip_slices[T: Copy, U, F: Fn(T, T) -> U](lhs: &[T], rhs: &[T], ys: &mut [U], f: F) {
        for ((y, &l), &r) in ys.iter_mut().zip(lhs).zip(rhs) {
            *y = f(l, r);
        }
    }
}

/// Runs an f32 function over 16-bit floats, slice by slice.
pub(crate) fn map_through_f32<T: HalfFloat>(
    xs: &[T],
    ys: &mut [T],
    f: impl Fn(&[f32], &mut [f32]),
) {
    let (mut x, mut y) = (WidenBuffer::new(), WidenBuffer::new());
    let (x, y) = (x.filled(0., xs.len()), y.filled(0., xs.len()));
    for (xs, ys) in xs.chunks(WIDEN).zip(ys.chunks_mut(WIDEN)) {
        let (x, y) = (&mut x[..xs.len()], &mut y[..xs.len()]);
        T::widen(xs, x);
        f(x, y);
        T::narrow(y, ys);
    }
}

/// Like [`map_through_f32`], for a function of two slices.
pub(crate) fn zip_through_f32<T: HalfFloat>(
    lhs: &[T],
    rhs: &[T],
    ys: &mut [T],
    f: impl Fn(&[f32], &[f32], &mut [f32]),
) {
    let mut r = WidenBuffer::new();
    let r = r.filled(0., rhs.len());
    for ((lhs, rhs), ys) in lhs
        .chunks(WIDEN)
        .zip(rhs.chunks(WIDEN))
        .zip(ys.chunks_mut(WIDEN))
    {
        let r = &mut r[..rhs.len()];
        T::widen(rhs, r);
        map_through_f32(lhs, ys, |l, y| f(l, r, y));
    }
}

/// Folds with 16 partial results if there are at least 16 elements; `None` for an empty slice.
#[inline(always)]
fn fold<T: Copy>(xs: &[T], f: impl Fn(T, T) -> T) -> Option<T> {
    let Some((first, rest)) = xs.split_first_chunk::<16>() else {
        return xs.iter().copied().reduce(f);
    };
    let mut acc = *first;
    let chunks = rest.chunks_exact(16);
    let tail = chunks.remainder();
    for chunk in chunks {
        for (acc, &x) in acc.iter_mut().zip(chunk) {
            *acc = f(*acc, x);
        }
    }
    acc.iter().chain(tail).copied().reduce(f)
}

macro_rules! int_vec_ops {
    ($($ty:ty),+) => {$(
        impl VecOps for $ty {
            fn min(self, rhs: Self) -> Self {
                Ord::min(self, rhs)
            }

            fn max(self, rhs: Self) -> Self {
                Ord::max(self, rhs)
            }

            unsafe fn vec_dot(lhs: *const Self, rhs: *const Self, res: *mut Self, len: usize) {
                let (lhs, rhs) = unsafe { (slice(lhs, len), slice(rhs, len)) };
                let products = lhs.iter().zip(rhs).map(|(l, &r)| l.wrapping_mul(r));
                unsafe { *res = products.fold(0, Self::wrapping_add) };
            }

            unsafe fn vec_reduce_sum(xs: *const Self, res: *mut Self, len: usize) {
                let xs = unsafe { slice(xs, len) };
                unsafe { *res = xs.iter().copied().fold(0, Self::wrapping_add) };
            }

            fn vec_add(lhs: &[Self], rhs: &[Self], res: &mut [Self]) {
                zip_slices(lhs, rhs, res, Self::wrapping_add);
            }

            fn vec_mul(lhs: &[Self], rhs: &[Self], res: &mut [Self]) {
                zip_slices(lhs, rhs, res, Self::wrapping_mul);
            }

            fn scalar_add(scalar: Self, xs: &[Self], ys: &mut [Self]) {
                map_slice(xs, ys, |x| x.wrapping_add(scalar));
            }

            fn scalar_mul(scalar: Self, xs: &[Self], ys: &mut [Self]) {
                map_slice(xs, ys, |x| x.wrapping_mul(scalar));
            }
        }
    )+};
}

int_vec_ops!(u8, u32, i16, i32, i64);

/// Floats, whose sums and dot products use `$acc` partial results.
macro_rules! float_vec_ops {
    ($($ty:ty, $acc:ty, |$x:ident| $widen:expr, |$s:ident| $narrow:expr;)+) => {$(
        impl VecOps for $ty {
            fn min(self, rhs: Self) -> Self {
                <$ty>::min(self, rhs)
            }

            fn max(self, rhs: Self) -> Self {
                <$ty>::max(self, rhs)
            }

            unsafe fn vec_dot(lhs: *const Self, rhs: *const Self, res: *mut Self, len: usize) {
                let (lhs, rhs) = unsafe { (slice(lhs, len), slice(rhs, len)) };
                let widen = |$x: $ty| -> $acc { $widen };
                let $s = sum_lanes(len, |i| widen(lhs[i]) * widen(rhs[i]));
                unsafe { *res = $narrow };
            }

            unsafe fn vec_reduce_sum(xs: *const Self, res: *mut Self, len: usize) {
                let xs = unsafe { slice(xs, len) };
                let widen = |$x: $ty| -> $acc { $widen };
                let $s = sum_lanes(len, |i| widen(xs[i]));
                unsafe { *res = $narrow };
            }
        }
    )+};
}

float_vec_ops! {
    f32, f32, |x| x, |s| s;
    f64, f64, |x| x, |s| s;
    f16, f32, |x| x.to_f32(), |s| f16::from_f32(s);
    bf16, f32, |x| x.to_f32(), |s| bf16::from_f32(s);
    F8E4M3, f32, |x| x.to_f32(), |s| F8E4M3::from_f32(s);
}

/// Sums `value(0..len)` with 16 partial sums.
#[inline(always)]
fn sum_lanes<T: num_traits::Float + Add + Mul>(len: usize, value: impl Fn(usize) -> T) -> T {
    let mut acc = [T::zero(); 16];
    let whole = len - len % 16;
    for start in (0..whole).step_by(16) {
        for (lane, acc) in acc.iter_mut().enumerate() {
            *acc = *acc + value(start + lane);
        }
    }
    let lanes = acc.iter().fold(T::zero(), |sum, &v| sum + v);
    (whole..len).fold(lanes, |sum, i| sum + value(i))
}

/// Calls `func(i)` for each `i` below `n_threads`, in parallel.
pub fn par_for_each(n_threads: usize, func: impl Fn(usize) + Send + Sync) {
    par_range(0, n_threads, n_threads, func);
}

/// Calls `func(i)` for each `i` in `lo..up`, split into at most `n_threads` parallel runs.
pub fn par_range(lo: usize, up: usize, n_threads: usize, func: impl Fn(usize) + Send + Sync) {
    if lo >= up {
        return;
    }
    let run = (up - lo).div_ceil(n_threads.max(1));
    if run == up - lo {
        return (lo..up).for_each(func);
    }
    threads::for_each((up - lo).div_ceil(run), &|i| {
        let start = lo + i * run;
        (start..up.min(start + run)).for_each(&func);
    });
}
