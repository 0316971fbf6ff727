//! Capabilities of this build and this machine, and threads for work on the CPU.

mod barrier_pool;
mod work_stealing;

pub use barrier_pool::{barrier_pool, set_barrier_pool, BarrierPool};

/// Number of threads for work on the CPU: `RAYON_NUM_THREADS` if set, else the machine's number of cores.
pub fn get_num_threads() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS")
        .ok()
        .and_then(|value| value.parse().ok());
    match asked {
        Some(count) if count > 0 => count,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
    }
}

/// Creates rayon's process-wide thread pool: [`get_num_threads`] threads, each with [`set_thread_affinity`]. Does nothing if the pool
/// exists, as it does after the first parallel op.
pub fn init_global_threadpool() {
    static DONE: std::sync::Once = std::sync::Once::new();
    DONE.call_once(|| {
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(get_num_threads())
            .thread_name(|i| format!("candle-rayon-{i}"))
            .start_handler(|_| set_thread_affinity());
        // The only errors are that the pool exists, or that threads cannot be created; rayon then works with what it has.
        let _ = threads.build_global();
    });
}

/// Runs `f` on one of the process's threads for parallel work, after [`init_global_threadpool`]. Parallel loops in `f`
/// then start without switching threads, which pays for many short loops.
///
/// ```
/// let threads = candle_core::utils::with_threadpool(|| rayon::current_num_threads());
/// assert!(threads >= 1);
/// ```
pub fn with_threadpool<F: FnOnce() -> R + Send, R: Send>(f: F) -> R {
    init_global_threadpool();
    rayon::scope(|_| f())
}

/// Requests that the system run this thread on its fast cores. Apple's systems have two kinds of cores and choose by a thread's quality of
/// service, which becomes "user interactive"; no effect on other systems.
pub fn set_thread_affinity() {
    #[cfg(target_os = "macos")]
    {
        extern "C" {
            fn pthread_set_qos_class_self_np(class: u32, relative_priority: i32) -> i32;
        }
        /// From Apple's `sys/qos.h`.
        const QOS_CLASS_USER_INTERACTIVE: u32 = 0x21;
        // SAFETY: the call affects only the calling thread. A refusal changes nothing.
        unsafe { pthread_set_qos_class_self_np(QOS_CLASS_USER_INTERACTIVE, 0) };
    }
}

/// Whether this build multiplies f32 and f64 matrices with Apple's Accelerate (feature `accelerate` on
/// Apple's systems).
pub fn has_accelerate() -> bool {
    cfg!(all(feature = "accelerate", target_vendor = "apple"))
}

/// Whether this build multiplies f32 and f64 matrices with Intel's MKL (feature `mkl`).
pub fn has_mkl() -> bool {
    cfg!(feature = "mkl")
}

/// Whether a CUDA device can be used.
pub fn cuda_is_available() -> bool {
    crate::Device::new_cuda(0).is_ok()
}

/// Whether a Metal device can be used.
pub fn metal_is_available() -> bool {
    crate::Device::new_metal(0).is_ok()
}

/// Whether a WebGPU adapter can be used. In a browser finding out requires waiting; see `Device::new_webgpu_async`.
#[cfg(feature = "webgpu")]
pub fn webgpu_is_available() -> bool {
    crate::Device::new_webgpu(0).is_ok()
}

/// Whether this build may use AVX2.
pub fn with_avx() -> bool {
    cfg!(target_feature = "avx2")
}

/// Whether this build may use NEON.
pub fn with_neon() -> bool {
    cfg!(target_feature = "neon")
}

/// Whether this build may use WebAssembly's SIMD.
pub fn with_simd128() -> bool {
    cfg!(target_feature = "simd128")
}

/// Whether this build may convert half-precision floats in hardware.
pub fn with_f16c() -> bool {
    cfg!(target_feature = "f16c")
}
