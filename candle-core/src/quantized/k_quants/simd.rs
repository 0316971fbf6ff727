//! The vector instructions that products need ([`Simd`]), and detection of this CPU's instruction sets ([`Level`]).
//!
//! The formats are written once, over [`Simd`] (`products.rs`). An implementation is a type without values; its functions are inlined into
//! one function per instruction set, which [`dispatch`] calls after checking that the CPU supports it.

use half::f16;

use super::activations::Bytes32;
use super::fit::largest_of;
use super::lanes::PanelKernel;
use super::one_row::OneRow;
use super::panels::PanelWeights;
use super::{BlockQ4K, BlockQ8K, BlockQ8_0};
use crate::quantized::utils::{nearest, nearest_away};

/// Vectors of 32 bytes, and of 8 sums.
///
/// # Safety
/// Every function may use its type's instruction set: it must be called on a CPU that has it, from a function compiled
/// for it. Pointers must be valid for the number of bytes that each function states, at any alignment.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Simd: Copy + 'static {
    /// 32 bytes, signed or not.
    type Bytes: Copy;
    /// 32 signed bytes, prepared for [`dot_signed`](Self::dot_signed).
    type Signed: Copy;
    /// 16 integers of 16 bits.
    type Words: Copy;
    /// The scales of the 16 sixteenths of 256 elements.
    type Scales: Copy;
    /// 8 integers of 32 bits: sums of products, in some order.
    type Ints: Copy;
    /// 8 floats.
    type Floats: Copy;

    /// Prefetches the cache line at `p`, which may be any address. Does nothing if there is no instruction for it.
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
    /// Prefetch distance in bytes.
    #[inline(always)]
    fn ahead() -> usize {
        0
    }
    /// The 32 bytes at `p`.
    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// The nibbles of the 16 bytes at `p`: the low ones, then the high ones.
    unsafe fn nibbles(p: *const u8) -> Self::Bytes;
    /// The bits of 4 bytes as 32 bytes, 16 for a set bit and 0 otherwise.
    unsafe fn fifth_bits(bits: [u8; 4]) -> Self::Bytes;
    /// `(b >> BY) & mask` in every byte.
    unsafe fn right<const BY: i32>(b: Self::Bytes, mask: u8) -> Self::Bytes;
    /// `(b << BY) & mask` in every byte.
    unsafe fn left<const BY: i32>(b: Self::Bytes, mask: u8) -> Self::Bytes;
    /// Bitwise or.
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// `b - by` in every byte.
    unsafe fn less(b: Self::Bytes, by: u8) -> Self::Bytes;

    /// The table's entry for each byte, which is below 16.
    #[cfg_attr(not(feature = "all-ggml-types"), allow(dead_code))]
    unsafe fn look_up(codes: Self::Bytes, table: &[i8; 16]) -> Self::Bytes;

    /// Signed bytes, ready for [`dot_signed`](Self::dot_signed).
    unsafe fn signed(b: Self::Bytes) -> Self::Signed;
    /// The products of signed bytes. None of `y` may be -128.
    unsafe fn dot_signed(x: Self::Signed, y: Self::Bytes) -> Self::Ints;
    /// The products of bytes in `0..=127` with signed bytes.
    unsafe fn dot(x: Self::Bytes, y: Self::Bytes) -> Self::Ints;
    /// The products of any signed bytes.
    unsafe fn dot_wide(x: Self::Bytes, y: Self::Bytes) -> Self::Ints;

    /// 16 signed bytes as scales, the first in the lowest byte of the first word.
    unsafe fn scales_of_16(bytes: [u64; 2]) -> Self::Scales;
    /// 8 bytes in `0..=127` as scales, each for two sixteenths.
    unsafe fn scales_of_32(bytes: u64) -> Self::Scales;
    /// `sum` plus the products of bytes in `0..=63` with signed bytes: the first 16 times scale `2 * J`, the others times scale `2 * J +
    /// 1`.
    unsafe fn dot_scaled<const J: usize>(
        sum: Self::Ints,
        x: Self::Bytes,
        y: Self::Bytes,
        scales: Self::Scales,
    ) -> Self::Ints;

    /// The 16 integers at `p`.
    unsafe fn load_words(p: *const i16) -> Self::Words;
    /// 16 signed bytes.
    unsafe fn words_of_16(bytes: [u64; 2]) -> Self::Words;
    /// 8 bytes in `0..=127`, each twice.
    unsafe fn words_of_32(bytes: u64) -> Self::Words;
    /// The products of 16 integers.
    unsafe fn dot_words(x: Self::Words, y: Self::Words) -> Self::Ints;

    /// Zeros.
    unsafe fn no_ints() -> Self::Ints;
    /// `a + b`
    unsafe fn add_ints(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Horizontal sum, broadcast to all lanes.
    unsafe fn total(x: Self::Ints) -> Self::Ints;
    /// `a - (b << BY)`
    unsafe fn sub_shifted<const BY: i32>(a: Self::Ints, b: Self::Ints) -> Self::Ints;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::Floats;
    /// `x` in every lane.
    unsafe fn splat_f16(x: f16) -> Self::Floats;
    /// Converts to floats.
    unsafe fn floats(x: Self::Ints) -> Self::Floats;
    /// `a * b`
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`
    unsafe fn mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// `c - a * b`
    unsafe fn neg_mul_add(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Lane 0.
    unsafe fn first(x: Self::Floats) -> f32;

    /// [`OneRowWeights::one_row`](super::one_row::OneRowWeights::one_row) for blocks that begin with a scale, and have 32 codes with an
    /// offset.
    #[inline(always)]
    unsafe fn rows_with_a_scale<T: PanelWeights<Activations = Bytes32>>(
        _xs: &[T],
        _y: &OneRow<Bytes32>,
        _dst: &mut [f32],
    ) -> bool {
        false
    }

    /// The same for blocks that begin with a scale, one for minima, and [12 bytes](super::BlockQ4K::scales) of scales and minima.
    #[inline(always)]
    unsafe fn rows_with_minima<T: PanelWeights<Activations = BlockQ8K>>(
        _xs: &[T],
        _y: &OneRow<BlockQ8K>,
        _dst: &mut [f32],
    ) -> bool {
        false
    }

    /// The same for blocks that begin with a scale, and have 32 signed codes.
    #[inline(always)]
    unsafe fn rows_of_bytes(_xs: &[BlockQ8_0], _y: &OneRow<Bytes32>, _dst: &mut [f32]) -> bool {
        false
    }

    /// Like [`rows_with_minima`](Self::rows_with_minima), for the format whose codes are only nibbles.
    #[inline(always)]
    unsafe fn rows_of_nibbles(xs: &[BlockQ4K], y: &OneRow<BlockQ8K>, dst: &mut [f32]) -> bool {
        Self::rows_with_minima(xs, y, dst)
    }

    /// The largest element and the largest negated one, or zero. NaN is skipped.
    #[inline(always)]
    unsafe fn extremes(xs: &[f32]) -> (f32, f32) {
        (largest_of(xs, 0., |x| x), largest_of(xs, 0., |x| -x))
    }

    /// The nearest integers to `by` times the elements, within `-127..=127`. With `AWAY`, ties round away from zero and NaN gives 0;
    /// without, ties round to even and NaN gives any number.
    #[inline(always)]
    unsafe fn codes<const AWAY: bool>(xs: &[f32; 32], by: f32) -> [i8; 32] {
        xs.map(|x| {
            let x = (by * x).clamp(-127., 127.);
            if AWAY {
                nearest_away(x) as i8
            } else {
                nearest(x) as i8
            }
        })
    }

    /// The sums of each half of the codes.
    #[inline(always)]
    unsafe fn sums_of_halves(codes: &[i8; 32]) -> [i16; 2] {
        let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum();
        [sum(&codes[..16]), sum(&codes[16..])]
    }
}

/// A kernel that is compiled for every instruction set.
pub(crate) trait Kernel {
    type Output;
    /// Whether the kernel multiplies bytes or words, for which there may be better instructions than AVX2's.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    const PRODUCTS: bool;

    /// Runs the kernel. Must be `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2, and products of four bytes in one instruction (AVX-VNNI).
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// The same for 512-bit vectors (AVX512-VNNI).
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// NEON, which every AArch64 has.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON, and products of four bytes in one instruction (FEAT_DotProd).
    #[cfg(target_arch = "aarch64")]
    NeonDotProd,
    /// WebAssembly's `simd128`, chosen at compile time.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128,
}

impl Level {
    /// The sets that are faster than plain Rust, the best first.
    const VECTORS: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::Avx512Vnni,
        #[cfg(target_arch = "x86_64")]
        Self::AvxVnni,
        #[cfg(target_arch = "x86_64")]
        Self::Avx2,
        #[cfg(target_arch = "aarch64")]
        Self::NeonDotProd,
        #[cfg(target_arch = "aarch64")]
        Self::Neon,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Self::Simd128,
    ];

    /// Whether this CPU supports it. The standard library caches the answer.
    #[inline]
    fn is_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        let avx2 = || {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        };
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => avx2() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProd => std::arch::is_aarch64_feature_detected!("dotprod"),
            // Compiled only for targets that have it.
            _ => true,
        }
    }

    /// This CPU's best instruction set.
    #[inline]
    pub(crate) fn best() -> Self {
        let mut levels = Self::VECTORS.iter().copied();
        levels.find(|level| level.is_here()).unwrap_or(Self::Scalar)
    }

    /// Every instruction set of this CPU, for tests.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let here = Self::VECTORS.iter().copied().filter(|l| l.is_here());
        here.chain([Self::Scalar]).collect()
    }
}

/// Runs a kernel with the best instruction set of this CPU.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: `best` returns an instruction set of this CPU.
    unsafe { run_at(Level::best(), kernel) }
}

/// Runs a kernel with the instructions of a level.
///
/// # Safety
/// The CPU has these instructions.
#[inline]
pub(crate) unsafe fn run_at<K: Kernel>(level: Level, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    use crate::quantized::avx;
    #[cfg(target_arch = "aarch64")]
    use crate::quantized::neon;
    match level {
        Level::Scalar => kernel.run::<super::scalar::Scalar>(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx::run_avx2(kernel),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni if K::PRODUCTS => avx::run_avx_vnni(kernel),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni if K::PRODUCTS => avx::run_avx512_vnni(kernel),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni | Level::Avx512Vnni => avx::run_avx2(kernel),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => kernel.run::<neon::Neon<neon::Plain>>(),
        #[cfg(target_arch = "aarch64")]
        Level::NeonDotProd => neon::run_dot_prod(kernel),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128 => kernel.run::<crate::quantized::simd128::Simd128>(),
    }
}

impl Level {
    /// The number of rows of a panel, and whether 128 is added to signed codes there. `None` without [panels](super::panels).
    pub(crate) fn panels(self) -> Option<(usize, bool)> {
        #[cfg(target_arch = "x86_64")]
        use crate::quantized::avx::{Avx, Avx512Vnni, AvxVnni, Plain};
        #[cfg(target_arch = "aarch64")]
        use crate::quantized::neon::{DotProd, Neon, Plain};
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        use crate::quantized::simd128::Simd128;
        #[cfg(any(
            target_arch = "x86_64",
            target_arch = "aarch64",
            all(target_arch = "wasm32", target_feature = "simd128")
        ))]
        fn of<S: super::lanes::PanelSimd>() -> Option<(usize, bool)> {
            Some((S::ROWS, S::UNSIGNED))
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => of::<Avx<Plain>>(),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni => of::<Avx<AvxVnni>>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => of::<Avx<Avx512Vnni>>(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => of::<Neon<Plain>>(),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProd => of::<Neon<DotProd>>(),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Self::Simd128 => of::<Simd128>(),
            _ => None,
        }
    }
}

/// Runs a kernel over panels with the instructions of a level that has [panels](Level::panels).
///
/// # Safety
/// The CPU has these instructions.
#[inline]
pub(crate) unsafe fn run_panels_at<K: PanelKernel>(level: Level, kernel: K) {
    #[cfg(target_arch = "x86_64")]
    use crate::quantized::avx_panels as avx;
    #[cfg(target_arch = "aarch64")]
    use crate::quantized::{neon, neon_panels};
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => avx::run_avx2(kernel),
        #[cfg(target_arch = "x86_64")]
        Level::AvxVnni => avx::run_avx_vnni(kernel),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni => avx::run_avx512_vnni(kernel),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => kernel.run::<neon::Neon<neon::Plain>>(),
        #[cfg(target_arch = "aarch64")]
        Level::NeonDotProd => neon_panels::run_dot_prod(kernel),
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Level::Simd128 => kernel.run::<crate::quantized::simd128::Simd128>(),
        _ => {
            let _ = kernel;
            unreachable!("{level:?} has no panels");
        }
    }
}
