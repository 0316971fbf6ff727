//! Compiling a loop for more than one instruction set, and choosing when the program runs.
//!
//! A build without `target-cpu` may use no more than SSE2 on x86-64. What [`multiversioned!`] wraps is compiled a second time for
//! CPUs with AVX2, FMA and F16C, which nearly all have. Multiplications and additions are never fused by it, so both forms give
//! the same bits.

/// Whether this CPU has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Bytes between what is worked on and what is fetched meanwhile.
///
/// Intel's processors do not look as far ahead by themselves as it takes to reach the third-level cache. AMD's do (measured on a Zen 4), and
/// lose up to a fifth of their speed where as much is asked for; there it is only the next lines, for where a page ends.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ahead() -> usize {
    use std::arch::x86_64::__cpuid;
    use std::sync::LazyLock;
    /// A virtual machine answers it slowly, so it is asked once.
    static AHEAD: LazyLock<usize> = LazyLock::new(|| {
        let id = __cpuid(0);
        let vendor = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
        match vendor.as_flattened() {
            b"AuthenticAMD" => 512,
            _ => 4096,
        }
    });
    *AHEAD
}

/// Asks for what lies at `p`, which may be anywhere.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
    // SAFETY: a hint, for which no address is wrong.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
}

/// Partial results of a fold over neighbours: four AVX2 registers of f32.
pub(crate) const LANES: usize = 32;

/// Merges partial results, each with the one half of them further on, until one is left.
///
/// The compiler cannot see through what is left of whole registers, or it would shape the loop that made them after the few instructions that
/// join halves and quarters of a register. To hide all of them would cost more stores and loads than a short row has additions.
#[inline(always)]
pub(crate) fn joined<T: Copy>(mut lanes: [T; LANES], merge: impl Fn(T, T) -> T) -> T {
    for width in [16, 8] {
        for lane in 0..width {
            lanes[lane] = merge(lanes[lane], lanes[lane + width]);
        }
    }
    let [a, b, c, d, e, f, g, h, ..] = lanes;
    let mut lanes = std::hint::black_box([a, b, c, d, e, f, g, h]);
    for width in [4, 2, 1] {
        for lane in 0..width {
            lanes[lane] = merge(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}

/// Functions over slices, compiled for each instruction set. The generic parameters stand in brackets: `fn f[T: Copy](xs: &[T]) {}`.
///
/// What the body calls has to be `#[inline(always)]` to be compiled along with it, small closures excepted.
macro_rules! multiversioned {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident [$($generics:tt)*] ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )+) => {$(
        $(#[$meta])*
        $vis fn $name<$($generics)*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$($generics)*>($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
                fn avx2<$($generics)*>($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if $crate::cpu::simd::has_avx2() {
                    // SAFETY: the CPU has AVX2, FMA and F16C; every CPU that has these has the others too.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    )+};
}

pub(crate) use multiversioned;
