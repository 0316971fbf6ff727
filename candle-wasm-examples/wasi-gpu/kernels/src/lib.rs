//! The interface `wasi:gpu@0.1.0` as a trait, and its backends over Candle's devices.
//!
//! [`GpuBackend`] has a method for each function of the interface, with the same parameters. This crate does not depend on WebAssembly: a
//! host (`wasi-gpu`, in the folder next to it) connects it to a guest's imports, natively or in a browser, and a Rust program can call it
//! directly.
//!
//! ```
//! use candle_core::Device;
//! use candle_wasi_gpu::{backend, BootstrapParams, BufferUsage, Limits};
//!
//! let gpu = backend(&Device::Cpu, Limits::default())?;
//! let indices = gpu.buffer_create(4 * 4, BufferUsage::STORAGE)?;
//! let params = BootstrapParams { n_samples: 4, seed: 42, max_index: 10_000 };
//! gpu.kernel_bootstrap_sample(params, indices)?;
//! let bytes = gpu.buffer_read(indices, 0, 16)?;
//! assert_eq!(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]), 6485);
//! # Ok::<(), candle_wasi_gpu::GpuError>(())
//! ```
//!
//! # How it is made
//! - `guest.rs` implements [`GpuBackend`] once: the table of buffers, the quota, and the order of checks. What reaches a device is valid.
//! - `checks.rs` says what is valid: counts, sizes, aliasing.
//! - `runtime.rs` is what a device must do: `cpu/` in Rust, `webgpu/` in WGSL, `cuda/` (feature `cuda`) in CUDA C++.
//! - `plan.rs` cuts a GPU's work into dispatches of bounded length.
//! - `fault.rs` has what a kernel can find wrong with a buffer's contents. The CPU returns it at once; a GPU's kernel writes it to the
//!   backend's status buffer, which the next read brings along.
//!
//! # Devices
//! A backend belongs to one guest, and so should its [`Device`]: a lost device is lost for all backends on it. WebGPU kernels run on a
//! [`Device::Metal`] too, by the feature `metal`.
//!
//! # In a browser
//! The crate builds for `wasm32-unknown-unknown` with the feature `webgpu`. A browser's thread must not wait: there
//! [`buffer_read`](GpuBackend::buffer_read) is an error, [`sync`](GpuBackend::sync) returns at once, and results come by
//! [`begin_read`](GpuBackend::begin_read). Memory that the GPU does not have is noticed later there, as a lost device.

mod backend;
mod buffers;
mod checks;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod error;
mod fault;
mod guest;
mod order;
mod params;
#[cfg_attr(not(any(feature = "webgpu", feature = "cuda")), allow(dead_code))]
mod plan;
mod runtime;
#[cfg(feature = "webgpu")]
mod webgpu;

use candle_core::Device;

pub use backend::{BufferId, BufferUsage, DeviceInfo, GpuBackend, PendingRead};
pub use error::GpuError;
pub use params::{
    AverageParams, BatchPredictParams, BootstrapParams, ElementwiseOp, ElementwiseParams,
    FindSplitParams, MatmulParams, ReduceOp, ReduceParams,
};

/// A [`GpuBackend`]'s answer.
pub type Result<T> = std::result::Result<T, GpuError>;

/// The resources of a device that one guest may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Total bytes of its buffers; reported to the guest as the device's memory.
    pub memory: u64,
    /// Maximum number of buffers at a time.
    pub buffers: usize,
}

impl Default for Limits {
    /// 1 GiB in 4096 buffers.
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            buffers: 4096,
        }
    }
}

/// A backend for one guest on `device`.
///
/// # Errors
/// [`GpuError::InvalidParams`] if `limits.memory` is 0, which would tell the guest that there is no device, or if this crate was built
/// without the device's feature. [`GpuError::OutOfMemory`] and [`GpuError::DeviceUnavailable`] as the device says.
pub fn backend(device: &Device, limits: Limits) -> Result<Box<dyn GpuBackend>> {
    if limits.memory == 0 {
        return Err(GpuError::InvalidParams(
            "a guest with 0 bytes of memory would take the device for absent: give it some".into(),
        ));
    }
    match device {
        Device::Cpu => Ok(Box::new(guest::Guest::new(cpu::Cpu::default(), limits))),
        #[cfg(feature = "webgpu")]
        Device::WebGpu(device) => {
            let runtime = webgpu::WebGpu::new(device.clone())?;
            Ok(Box::new(guest::Guest::new(runtime, limits)))
        }
        #[cfg(feature = "metal")]
        Device::Metal(device) => {
            let runtime = webgpu::WebGpu::new(device.webgpu().clone())?;
            Ok(Box::new(guest::Guest::new(runtime, limits)))
        }
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let runtime = cuda::Cuda::new(device.clone())?;
            Ok(Box::new(guest::Guest::new(runtime, limits)))
        }
        #[allow(unreachable_patterns)]
        other => Err(GpuError::InvalidParams(format!(
            "this build has no kernels for {:?}: build candle-wasi-gpu with that device's feature",
            other.location()
        ))),
    }
}
