//! Loops over slices, written so that the compiler vectorises them.
//!
//! Sums and dot products keep many partial results: the compiler may not reorder float additions itself, and one chain of them
//! waits for each addition to finish.

use std::ops::{Add, Mul};

use float8::F8E4M3;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::threads;

/// Partial results of a float dot product: eight AVX2 registers.
const LANES: usize = 32;

/// Elements that are widened to f32 at a time, on the stack.
const WIDEN: usize = 256;

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

    /// Writes the largest element to `res`; leaves it as it is if `len` is 0.
    ///
    /// # Safety
    /// `xs` must be readable for `len` elements, `res` must be writable.
    #[inline(always)]
    unsafe fn vec_reduce_max(xs: *const Self, res: *mut Self, len: usize) {
        if let Some(max) = fold(unsafe { slice(xs, len) }, Self::max) {
            unsafe { *res = max };
        }
    }

    /// Writes the smallest element to `res`; leaves it as it is if `len` is 0.
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
/// As for `std::slice::from_raw_parts`, but any pointer does where `len` is 0.
#[inline(always)]
unsafe fn slice<'a, T>(data: *const T, len: usize) -> &'a [T] {
    match len {
        0 => &[],
        _ => unsafe { std::slice::from_raw_parts(data, len) },
    }
}

/// `ys = f(xs)`.
#[inline(always)]
pub(crate) fn map_slice<T: Copy, U>(xs: &[T], ys: &mut [U], f: impl Fn(T) -> U) {
    for (y, &x) in ys.iter_mut().zip(xs) {
        *y = f(x);
    }
}

/// `ys = f(lhs, rhs)`.
#[inline(always)]
pub(crate) fn zip_slices<T: Copy, U>(lhs: &[T], rhs: &[T], ys: &mut [U], f: impl Fn(T, T) -> U) {
    for ((y, &l), &r) in ys.iter_mut().zip(lhs).zip(rhs) {
        *y = f(l, r);
    }
}

/// Runs an f32 function over 16-bit floats: half's conversions of slices use the CPU's instructions, those of single values
/// look for them each time.
pub(crate) fn map_through_f32<T>(xs: &[T], ys: &mut [T], f: impl Fn(&[f32], &mut [f32]))
where
    [T]: HalfFloatSliceExt,
{
    let (mut x, mut y) = ([0f32; WIDEN], [0f32; WIDEN]);
    for (xs, ys) in xs.chunks(WIDEN).zip(ys.chunks_mut(WIDEN)) {
        let (x, y) = (&mut x[..xs.len()], &mut y[..xs.len()]);
        xs.convert_to_f32_slice(x);
        f(x, y);
        ys.convert_from_f32_slice(y);
    }
}

/// As [`map_through_f32`], for a function of two slices.
pub(crate) fn zip_through_f32<T>(
    lhs: &[T],
    rhs: &[T],
    ys: &mut [T],
    f: impl Fn(&[f32], &[f32], &mut [f32]),
) where
    [T]: HalfFloatSliceExt,
{
    let mut r = [0f32; WIDEN];
    for ((lhs, rhs), ys) in lhs
        .chunks(WIDEN)
        .zip(rhs.chunks(WIDEN))
        .zip(ys.chunks_mut(WIDEN))
    {
        let r = &mut r[..rhs.len()];
        rhs.convert_to_f32_slice(r);
        map_through_f32(lhs, ys, |l, y| f(l, r, y));
    }
}

/// Folds with 16 partial results where there are as many elements; `None` for an empty slice.
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

/// The dot product with `rhs` widened element by element; `FMA` only where the CPU has it, as it is slow in software.
#[inline(always)]
fn dot_lanes<const FMA: bool, T: Copy>(lhs: &[f32], rhs: &[T], widen: impl Fn(T) -> f32) -> f32 {
    let mut acc = [0f32; LANES];
    let (l, r) = (lhs.chunks_exact(LANES), rhs.chunks_exact(LANES));
    let tail = l.remainder().iter().zip(r.remainder());
    for (l, r) in l.zip(r) {
        for i in 0..LANES {
            let r = widen(r[i]);
            acc[i] = if FMA {
                l[i].mul_add(r, acc[i])
            } else {
                acc[i] + l[i] * r
            };
        }
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            acc[i] += acc[i + width];
        }
        width /= 2;
    }
    tail.fold(acc[0], |acc, (&l, &r)| acc + l * widen(r))
}

/// A dot product compiled twice on x86-64: for every CPU, and for those with AVX2 and FMA.
macro_rules! dot {
    ($(#[$doc:meta])* $name:ident, $ty:ty, $widen:expr) => {
        $(#[$doc])*
        pub(crate) fn $name(lhs: &[f32], rhs: &[$ty]) -> f32 {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn with_fma(lhs: &[f32], rhs: &[$ty]) -> f32 {
                    dot_lanes::<true, _>(lhs, rhs, $widen)
                }
                if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                    // SAFETY: the CPU has both features.
                    return unsafe { with_fma(lhs, rhs) };
                }
            }
            dot_lanes::<{ cfg!(target_arch = "aarch64") }, _>(lhs, rhs, $widen)
        }
    };
}

dot! {
    /// The dot product of two f32 slices of the same length.
    dot_f32, f32, |v| v
}

dot! {
    /// The dot product of an f32 and a bf16 slice of the same length, in f32.
    dot_bf16, bf16, |v: bf16| f32::from_bits(u32::from(v.to_bits()) << 16)
}

/// The dot product of an f32 and an f16 slice of the same length, in f32.
pub(crate) fn dot_f16(lhs: &[f32], rhs: &[f16]) -> f32 {
    let mut buffer = [0f32; WIDEN];
    let mut sum = 0.;
    for (lhs, rhs) in lhs.chunks(WIDEN).zip(rhs.chunks(WIDEN)) {
        let buffer = &mut buffer[..rhs.len()];
        rhs.convert_to_f32_slice(buffer);
        sum += dot_f32(lhs, buffer);
    }
    sum
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

/// Floats, whose sums and dot products are made from `$acc` partial results.
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

/// Calls `func(i)` for each `i` in `lo..up`, split into at most `n_threads` runs that go on in parallel.
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
