//! What this build and this machine offer.

/// Number of threads for work on the CPU: `RAYON_NUM_THREADS` where it is set, else what the machine has.
pub fn get_num_threads() -> usize {
    let asked = std::env::var("RAYON_NUM_THREADS")
        .ok()
        .and_then(|value| value.parse().ok());
    match asked {
        Some(count) if count > 0 => count,
        _ => std::thread::available_parallelism().map_or(1, usize::from),
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

/// Whether a WebGPU adapter can be used. In a browser this cannot be known without waiting; see
/// `Device::new_webgpu_async`.
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
