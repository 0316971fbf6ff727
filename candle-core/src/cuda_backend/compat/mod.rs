//! Upstream's interface for programs with separate kernels: functions loaded by name, parameters, traits that pass on a storage's
//! elements with their type, and modules of `quantized`. Nothing in this backend needs it.

pub mod fast_mmq;
pub mod fast_mmvq;
pub mod kernels;
pub mod quantized;

mod func;
mod gemm;
mod htod_cache;
mod map;
mod params;

pub(super) use func::Modules;
pub use func::{CompiledModule, CudaFunc};
pub use gemm::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32,
    set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16,
    set_gemm_reduced_precision_f32,
};
pub use htod_cache::CudaGraphHtodCacheGuard;
pub use map::{Map1, Map1Any, Map2, Map2Any, Map2InPlace, Map3};
pub use params::SlicePtrOrNull;

/// A kernel's name in upstream's modules: `{root}_{dtype}`, such as `affine_f32`.
pub fn kernel_name<T: crate::WithDType>(root: &str) -> String {
    format!("{root}_{}", T::DTYPE.as_str())
}
