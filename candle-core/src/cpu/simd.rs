//! Function multiversioning: a loop is compiled for several instruction sets, and the best is selected at run time.
//!
//! A build without `target-cpu` is limited to SSE2 on x86-64. [`multiversioned!`] compiles its body a second time for
//! AVX2, FMA and F16C, which nearly all CPUs have. It never fuses multiply and add, so both versions give the same
//! bits.

/// Whether this CPU has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Prefetch distance in bytes.
///
/// Intel's hardware prefetchers do not reach far enough ahead to hide the latency of the L3 cache. AMD's do (measured on a Zen 4): there,
/// software prefetching that far costs up to a fifth of the speed, so only the next cache lines are prefetched, for page ends.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ahead() -> usize {
    use std::arch::x86_64::__cpuid;
    use std::sync::LazyLock;
    /// `cpuid` is slow in a virtual machine, so the answer is cached.
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

/// Prefetches the cache line at `p`, which may be any address.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch<T>(p: *const T) {
    use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
    // SAFETY: a prefetch is a hint; any address is valid.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
}

/// Number of partial results of a fold over neighbours: four AVX2 registers of f32.
pub(crate) const LANES: usize = 32;

/// Merges partial results pairwise, each with the one half of the remaining width further on, until one is left.
///
/// `black_box` hides the last whole register from the compiler, which would otherwise optimise the main loop for the few instructions that
/// merge halves and quarters of a register. Hiding all registers would cost a short row more stores and loads than it has additions.
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

/// Functions over slices, compiled for each instruction set. Generic parameters are in brackets: `fn f[T: Copy](xs:
/// &[T]) {}`.
///
/// Functions that the body calls have to be `#[inline(always)]` to be compiled for the same instruction set; small
/// closures are inlined anyway.
macro_rules! multiversioned {
    ($(
        $(#[$meta:meta])*
        $vis:vis fn $name:ident [$($generics:tt)*] ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    )+) => {$(
        $(#[$meta])*
        // A call costs nothing compared with a slice, and every byte of a page's module is downloaded: one copy, not one per caller.
        #[cfg_attr(target_arch = "wasm32", inline(never))]
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
                    // SAFETY: the CPU has AVX2, FMA and F16C; every CPU with these also has the others.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    )+};
}

pub(crate) use multiversioned;
