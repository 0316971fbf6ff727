//! The inner loop of a convolution: a register tile, for each vector type of the supported CPUs.
//!
//! The compiler does not reliably keep a tile of arrays in registers, so intrinsics are used where the CPU is known.

use super::super::element::Accumulator;
use super::product::{ConvTask, ConvTaskRunner};

/// Number of elements after the end of a source that a tile may read: the width of the widest tile.
pub(super) const SLACK: usize = 32;

/// A vector of elements.
pub(super) trait ConvVector<A>: Copy {
    const LEN: usize;

    /// # Safety
    /// `LEN` elements must be readable, and the CPU must have the instructions.
    unsafe fn load(src: *const A) -> Self;

    /// # Safety
    /// `LEN` elements must be writable, and the CPU must have the instructions.
    unsafe fn store(self, dst: *mut A);

    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn splat(v: A) -> Self;

    /// `self * rhs + sum`.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn times_plus(self, rhs: Self, sum: Self) -> Self;
}

/// Rows of a tile of portable vectors: NEON has 32 registers, SSE and wasm 16.
const PORTABLE_ROWS: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };

/// Auto-vectorised vectors, for any CPU.
#[derive(Clone, Copy)]
struct Portable<A, const N: usize>([A; N]);

impl<A: Kernels, const N: usize> ConvVector<A> for Portable<A, N> {
    const LEN: usize = N;

    #[inline(always)]
    unsafe fn load(src: *const A) -> Self {
        Self(unsafe { src.cast::<[A; N]>().read() })
    }

    #[inline(always)]
    unsafe fn store(self, dst: *mut A) {
        unsafe { dst.cast::<[A; N]>().write(self.0) }
    }

    #[inline(always)]
    unsafe fn splat(v: A) -> Self {
        Self([v; N])
    }

    #[inline(always)]
    unsafe fn times_plus(self, rhs: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|i| {
            self.0[i].times_plus(rhs.0[i], sum.0[i])
        }))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    macro_rules! lanes {
        ($($vector:ty, $ty:ty, $len:literal, $load:ident $store:ident $splat:ident $fma:ident;)+) => {$(
            impl super::ConvVector<$ty> for $vector {
                const LEN: usize = $len;

                #[inline(always)]
                unsafe fn load(src: *const $ty) -> Self {
                    unsafe { $load(src) }
                }

                #[inline(always)]
                unsafe fn store(self, dst: *mut $ty) {
                    unsafe { $store(dst, self) }
                }

                #[inline(always)]
                unsafe fn splat(v: $ty) -> Self {
                    unsafe { $splat(v) }
                }

                #[inline(always)]
                unsafe fn times_plus(self, rhs: Self, sum: Self) -> Self {
                    unsafe { $fma(self, rhs, sum) }
                }
            }
        )+};
    }

    lanes! {
        __m256, f32, 8, _mm256_loadu_ps _mm256_storeu_ps _mm256_set1_ps _mm256_fmadd_ps;
        __m256d, f64, 4, _mm256_loadu_pd _mm256_storeu_pd _mm256_set1_pd _mm256_fmadd_pd;
        __m512, f32, 16, _mm512_loadu_ps _mm512_storeu_ps _mm512_set1_ps _mm512_fmadd_ps;
        __m512d, f64, 8, _mm512_loadu_pd _mm512_storeu_pd _mm512_set1_pd _mm512_fmadd_pd;
    }
}

/// The weights of a tile's rows: the first one and the stride.
#[derive(Clone, Copy)]
pub(super) struct WeightRows<A> {
    pub start: *const A,
    pub stride: usize,
}

/// `sums = weights * source` for `M` rows of `N` vectors, or `sums += ...` unless `first`; `at(p)` is the start of the source's elements
/// for weight `p`.
///
/// # Safety
/// `M` rows of `k` weights and the elements at each `at(p)` must be readable, `M` rows of sums writable; the CPU must have the
/// instructions.
#[inline(always)]
pub(super) unsafe fn tile<A: Copy, V: ConvVector<A>, const M: usize, const N: usize>(
    weights: WeightRows<A>,
    source: *const A,
    at: impl Fn(usize) -> usize,
    k: usize,
    sums: *mut A,
    first: Option<A>,
) {
    unsafe {
        let place = |i: usize, j: usize| sums.add((i * N + j) * V::LEN);
        let mut acc: [[V; N]; M] = match first {
            Some(zero) => [[V::splat(zero); N]; M],
            None => std::array::from_fn(|i| std::array::from_fn(|j| V::load(place(i, j)))),
        };
        for p in 0..k {
            let start = source.add(at(p));
            let vs: [V; N] = std::array::from_fn(|j| V::load(start.add(j * V::LEN)));
            for (i, acc) in acc.iter_mut().enumerate() {
                let weight = V::splat(*weights.start.add(i * weights.stride + p));
                for (acc, v) in acc.iter_mut().zip(vs) {
                    *acc = v.times_plus(weight, *acc);
                }
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (j, acc) in acc.iter().enumerate() {
                acc.store(place(i, j));
            }
        }
    }
}

/// The kernels for one vector type.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind<A: Clone> {
    /// Computes a task's part of a product; safe on the CPU that the program runs on.
    pub run: unsafe fn(&mut ConvTaskRunner<A>, &ConvTask),
    /// Rows of a tile.
    pub rows: usize,
    /// Columns of a tile.
    pub columns: usize,
}

/// An accumulator type.
pub(super) trait Kernels: Accumulator + Default {
    /// The kernels that the CPU can run, the fastest first; the last is for any CPU.
    fn kinds() -> Vec<Kind<Self>>;

    /// `self * rhs + sum`, on any CPU.
    fn times_plus(self, rhs: Self, sum: Self) -> Self;
}

/// For each accumulator type its `times_plus`, then its kernels: the CPU's architecture and features, the vector, and the tile's rows and
/// vectors per row. Last, the elements of a vector for any CPU.
macro_rules! kernels {
    ($($ty:ty, $times_plus:expr => $([$arch:literal, ($($feature:tt)+), $vector:ty, $m:literal, $n:literal])* $portable:literal;)+) => {$(
        impl Kernels for $ty {
            fn kinds() -> Vec<Kind<$ty>> {
                let mut kinds: Vec<Kind<$ty>> = Vec::with_capacity(3);
                $(
                    #[cfg(target_arch = $arch)]
                    if $(is_x86_feature_detected!($feature))&&+ {
                        $(#[target_feature(enable = $feature)])+
                        fn run(runner: &mut ConvTaskRunner<$ty>, task: &ConvTask) {
                            // SAFETY: the function has the features that the vector needs.
                            unsafe { runner.run::<$vector, $m, $n>(task) }
                        }
                        let columns = $n * <$vector as ConvVector<$ty>>::LEN;
                        kinds.push(Kind { run, rows: $m, columns });
                    }
                )*
                fn run(runner: &mut ConvTaskRunner<$ty>, task: &ConvTask) {
                    // SAFETY: portable vectors need no feature.
                    unsafe { runner.run::<Portable<$ty, $portable>, PORTABLE_ROWS, 2>(task) }
                }
                kinds.push(Kind { run, rows: PORTABLE_ROWS, columns: 2 * $portable });
                kinds
            }

            #[inline(always)]
            fn times_plus(self, rhs: Self, sum: Self) -> Self {
                let times_plus: fn($ty, $ty, $ty) -> $ty = $times_plus;
                times_plus(self, rhs, sum)
            }
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};

kernels! {
    f32, |l, r, sum| if cfg!(target_arch = "aarch64") { l.mul_add(r, sum) } else { l * r + sum } =>
        ["x86_64", ("avx512f"), __m512, 8, 2]
        ["x86_64", ("avx2" "fma"), __m256, 6, 2]
        4;
    f64, |l, r, sum| if cfg!(target_arch = "aarch64") { l.mul_add(r, sum) } else { l * r + sum } =>
        ["x86_64", ("avx512f"), __m512d, 8, 2]
        ["x86_64", ("avx2" "fma"), __m256d, 6, 2]
        2;
    u8, |l, r, sum| sum.wrapping_add(l.wrapping_mul(r)) => 16;
    i16, |l, r, sum| sum.wrapping_add(l.wrapping_mul(r)) => 8;
    u32, |l, r, sum| sum.wrapping_add(l.wrapping_mul(r)) => 4;
    i32, |l, r, sum| sum.wrapping_add(l.wrapping_mul(r)) => 4;
    i64, |l, r, sum| sum.wrapping_add(l.wrapping_mul(r)) => 2;
}
