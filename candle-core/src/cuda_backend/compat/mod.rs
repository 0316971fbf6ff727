//! Upstream's interface for programs with separate kernels: functions loaded by name, parameters, traits that pass on a storage's
//! elements with their type, and modules of `quantized`. Nothing in this backend needs it.

pub mod fast_mmq;
pub mod fast_mmvq;
pub mod kernels;
pub mod quantized;

mod device;
mod func;
mod map;
mod params;

pub use func::{CompiledModule, CudaFunc};
pub use map::{Map1, Map1Any, Map2, Map2Any, Map2InPlace, Map3};
pub use params::SlicePtrOrNull;

/// A kernel's name in upstream's modules: `{root}_{dtype}`, such as `affine_f32`.
pub fn kernel_name<T: crate::WithDType>(root: &str) -> String {
    format!("{root}_{}", T::DTYPE.as_str())
}
