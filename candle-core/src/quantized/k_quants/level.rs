//! The instruction sets of this CPU ([`Level`]), and the calls of kernels for one of them.
//!
//! A level holds the proof that the CPU has its instructions, a value of its [`Simd`](super::simd::Simd): it cannot be made without.

use super::lanes::{PanelKernel, PanelSimd};
use super::one_row::RowKernel;
use super::scalar::Scalar;
use super::simd::Kernel;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use crate::quantized::simd128::Simd128;
#[cfg(target_arch = "x86_64")]
use crate::quantized::{avx, avx_panels, avx_rows};
#[cfg(target_arch = "aarch64")]
use crate::quantized::{neon, neon_panels};

/// An instruction set of this CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2(avx::Avx<avx::Plain>),
    /// AVX2, and products of four bytes in one instruction (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx::Avx<avx::AvxVnni>),
    /// The same for 512-bit vectors (AVX512-VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(avx::Avx<avx::Avx512Vnni>),
    /// NEON, which every AArch64 has.
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<neon::Plain>),
    /// NEON, and products of four bytes in one instruction (FEAT_DotProd).
    #[cfg(target_arch = "aarch64")]
    NeonDotProd(neon::Neon<neon::DotProd>),
    /// WebAssembly's `simd128`, chosen at compile time.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128(Simd128),
}

impl Level {
    /// The sets that are faster than plain Rust, the best first. The standard library caches what it detects.
    const VECTORS: &[fn() -> Option<Self>] = &[
        #[cfg(target_arch = "x86_64")]
        || avx::Avx::<avx::Avx512Vnni>::detect().map(Self::Avx512Vnni),
        #[cfg(target_arch = "x86_64")]
        || avx::Avx::<avx::AvxVnni>::detect().map(Self::AvxVnni),
        #[cfg(target_arch = "x86_64")]
        || avx::Avx::<avx::Plain>::detect().map(Self::Avx2),
        #[cfg(target_arch = "aarch64")]
        || neon::Neon::<neon::DotProd>::detect().map(Self::NeonDotProd),
        #[cfg(target_arch = "aarch64")]
        || Some(Self::Neon(neon::Neon::<neon::Plain>::new())),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        || Some(Self::Simd128(Simd128)),
    ];

    /// This CPU's best instruction set.
    #[inline]
    pub(crate) fn best() -> Self {
        let mut levels = Self::VECTORS.iter().filter_map(|detect| detect());
        levels.next().unwrap_or(Self::Scalar)
    }

    /// Every instruction set of this CPU, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let here = Self::VECTORS.iter().filter_map(|detect| detect());
        here.chain([Self::Scalar]).collect()
    }

    /// The number of rows of a panel, and whether 128 is added to signed codes there. `None` without [panels](super::panels).
    pub(crate) fn panels(self) -> Option<(usize, bool)> {
        struct Rows;
        impl PanelKernel for Rows {
            type Output = (usize, bool);

            #[inline(always)]
            fn run<S: PanelSimd>(self, _: S) -> (usize, bool) {
                (S::ROWS, S::UNSIGNED)
            }
        }
        run_panels_at(self, Rows)
    }
}

/// Runs a kernel with the best instruction set of this CPU.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    run_at(Level::best(), kernel)
}

/// Runs a kernel with the instructions of a level.
#[inline]
pub(crate) fn run_at<K: Kernel>(level: Level, kernel: K) -> K::Output {
    match level {
        Level::Scalar => kernel.run(Scalar),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(s) => avx::run_avx2(s, kernel),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni(s) if K::PRODUCTS => avx::run_avx_vnni(s, kernel),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni(s) if K::PRODUCTS => avx::run_avx512_vnni(s, kernel),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni(s) => avx::run_avx2(s.plain(), kernel),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni(s) => avx::run_avx2(s.plain(), kernel),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(s) => kernel.run(s),
        #[cfg(target_arch = "aarch64")]
        Level::NeonDotProd(s) => neon::run_dot_prod(s, kernel),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128(s) => kernel.run(s),
    }
}

/// Runs a kernel over panels with the instructions of a level. `None` if it has no panels.
#[inline]
pub(crate) fn run_panels_at<K: PanelKernel>(level: Level, kernel: K) -> Option<K::Output> {
    match level {
        Level::Scalar => {
            let _ = kernel;
            None
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(s) => Some(avx_panels::run_avx2(s, kernel)),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni(s) => Some(avx_panels::run_avx_vnni(s, kernel)),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni(s) => Some(avx_panels::run_avx512_vnni(s, kernel)),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(s) => Some(kernel.run(s)),
        #[cfg(target_arch = "aarch64")]
        Level::NeonDotProd(s) => Some(neon_panels::run_dot_prod(s, kernel)),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128(s) => Some(kernel.run(s)),
    }
}

/// Runs a kernel for single rows of activations with the instructions of a level. `None` if it has no such kernels.
#[inline]
pub(crate) fn run_rows_at<K: RowKernel>(level: Level, kernel: K) -> Option<K::Output> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(s) => Some(avx_rows::run_avx2(s, kernel)),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni(s) => Some(avx_rows::run_avx_vnni(s, kernel)),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni(s) => Some(avx_rows::run_avx512_vnni(s, kernel)),
        _ => {
            let _ = kernel;
            None
        }
    }
}
