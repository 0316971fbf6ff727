//! Tensors on the CPU, on NVIDIA GPUs and on any GPU with WebGPU, with the public interface of Hugging Face's Candle 0.11.1.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu; // or Device::new_webgpu(0)?, or Device::best_available()?
//! let lhs = Tensor::arange(0f32, 6., &device)?.reshape((2, 3))?;
//! let rhs = Tensor::arange(0f32, 12., &device)?.reshape((3, 4))?;
//! let product = lhs.matmul(&rhs)?;
//! assert_eq!(product.dims(), &[2, 4]);
//! assert_eq!(product.to_vec2::<f32>()?[0], [20., 23., 26., 29.]);
//! # Ok(())
//! # }
//! ```
//!
//! # Usage
//!
//! Two lines of `[patch.crates-io]`, shown in the repository's README, switch a program from crates.io's `candle-core` to this crate;
//! deleting them switches back.
//!
//! A [`Tensor`] has a shape, a dtype ([`DType`]) and a device ([`Device`]). Ops return new tensors; slices, transposes and broadcasts
//! are views of the same memory. A [`Var`] is a trainable tensor, and [`Tensor::backward`] computes gradients with respect to variables:
//!
//! ```
//! use candle_core::{Device, Var};
//! # fn main() -> candle_core::Result<()> {
//! let x = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
//! let loss = x.as_tensor().sqr()?.sum_all()?;
//! let grads = loss.backward()?;
//! assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [2., 4., 6.]);
//! # Ok(())
//! # }
//! ```
//!
//! Weights are loaded from files: [`safetensors`], GGUF and GGML ([`quantized`]), NumPy ([`npy`]), PyTorch ([`pickle`]).
//! Quantised weights keep GGML's block formats, in memory and on the GPU ([`quantized::QMatMul`]). A custom op implements [`CustomOp1`],
//! [`CustomOp2`] or [`CustomOp3`].
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `webgpu` | the WebGPU backend: Vulkan, Metal and DirectX 12 natively, the browser's GPU on wasm32. Enabling it here enables it in dependent crates, such as candle-nn |
//! | `cuda` | the CUDA backend for NVIDIA's GPUs. The build needs no CUDA toolkit; the driver and NVRTC are loaded when a device is opened |
//! | `nccl`, `cudnn` | `cuda`, and cudarc's bindings of these libraries (`cuda_backend::cudarc::nccl`, `::cudnn`) for programs that call them. No op uses them |
//! | `mkl` | products of f32 and f64 matrices on the CPU with an installed Intel MKL, found through `MKLROOT` or pkg-config. Tested on x86-64 Linux with oneMKL 2026.2, linked statically |
//! | `accelerate` | the same with Apple's Accelerate; no effect on other systems. Not tested |
//! | `tokenizers` (default) | `quantized::tokenizer`, the tokenizer in a GGUF file; no effect on wasm32 |
//! | `wasm-tokenizer` | the same on wasm32 |
//! | `metal` | [`Device::new_metal`] on Apple systems, through the WebGPU backend, which it enables; an error on other systems |
//! | `cutile`, `metal-debug-labels` | aliases of `cuda` and `metal`, accepted so that manifests resolve |
//!
//! # Devices
//!
//! - [`Device::Cpu`] is always available. It selects AVX2, AVX-512 or NEON at run time; `RAYON_NUM_THREADS` sets the number of
//!   threads.
//! - `Device::WebGpu`: [`Device::new_webgpu`] opens an adapter. Ops are queued; the host waits when a result is read back and in
//!   [`Device::synchronize`]. A browser thread must not wait: use the asynchronous functions there, such as
//!   [`Tensor::to_vec1_async`].
//! - [`Device::Cuda`]: [`Device::new_cuda`] opens a card of compute capability 7.5 or later. The same program runs without a
//!   card: a missing library is an error that lists the searched locations and the way to install it. Without the feature `cuda`, the
//!   error is [`Error::NotCompiledWithCudaSupport`].
//! - [`Device::Metal`]: [`Device::new_metal`] opens a Metal adapter, with the feature `metal` on Apple systems. It holds a WebGPU
//!   device (`Device::as_wgpu`) and runs its kernels; there is no native Metal backend. On other systems it returns
//!   [`Error::NotCompiledWithMetalSupport`].
//! - [`Device::best_available`] selects the best of these, and [`Device::probe`] reports why a device is unavailable.
//!
//! `docs/webgpu-ops.md` in the repository lists the dtypes that each op supports on WebGPU, `docs/debugging.md` the environment variables.
//!
//! # Errors
//!
//! Fallible functions return [`Result`]; bad shapes and bad files do not panic. An [`Error`] names the op, the request and the actual
//! value. Unsupported ops return [`Error::UnsupportedOnDevice`]; nothing falls back to the CPU silently.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! let lhs = Tensor::zeros((2, 3), DType::F32, &Device::Cpu)?;
//! let rhs = Tensor::zeros((4, 5), DType::F32, &Device::Cpu)?;
//! let error = lhs.matmul(&rhs).unwrap_err().to_string();
//! assert!(error.contains("matmul") && error.contains("[2, 3]") && error.contains("[4, 5]"), "{error}");
//! # Ok(())
//! # }
//! ```
//!
//! # Untrusted input
//!
//! A damaged or hostile file returns an error that names the file and the damaged part. Reading one neither panics nor allocates more
//! than the file's length justifies, and reading a pickle calls no function that the file names. Each format has a fuzz target in `candle-core/fuzz`. The
//! functions that map a file into memory are `unsafe`, because the file must not change while it is mapped.
//!
//! # Modules
//!
//! - [`Tensor`] (`tensor/`): shapes, views and the autograd graph; independent of devices.
//! - [`Storage`] (`storage.rs`): one line per op; the match over backends is written once, in `dispatch.rs`.
//! - [`backend`]: the two traits that a backend implements; `cpu_backend/`, `webgpu_backend/` and `cuda_backend/` implement them, and
//!   `metal_backend/` does so on top of WebGPU's. A backend that is not compiled in is a type without values (`absent.rs`).
//! - `compat/`: items that exist only for compatibility with programs written for upstream.

#![deny(missing_docs)]

#[cfg(all(feature = "wasm-tokenizer", target_arch = "wasm32"))]
extern crate candle_wasm_tokenizers as tokenizers;

#[macro_use]
mod backend_methods;
#[macro_use]
mod dispatch;

mod absent;
pub mod backend;
pub mod backprop;
mod bounded_read;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
mod cache_folder;
mod compat;
pub mod conv;
pub mod cpu;
pub mod cpu_backend;
#[cfg(feature = "cuda")]
pub mod cuda_backend;
mod custom_op;
mod device;
pub mod display;
pub mod distributed;
mod dtype;
pub mod error;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
mod fault_codes;
pub mod fused;
mod indexer;
mod inline_vec;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
mod kernel_time;
pub mod layout;
#[cfg(feature = "metal")]
pub mod metal_backend;
pub mod nditer;
pub mod npy;
pub mod op;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
mod parts;
pub mod pickle;
pub mod quantized;
mod resample;
pub mod safetensors;
pub mod scalar;
pub mod shape;
mod storage;
pub mod streaming;
mod strided_index;
mod tensor;
pub mod test_utils;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
mod updates;
pub mod utils;
mod variable;
mod watch;
#[cfg(feature = "webgpu")]
pub mod webgpu_backend;
mod zip_archive;

// Upstream's paths to items that exist only for compatibility.
/// Replacement for the CUDA backend, which this build does not have.
#[cfg(not(feature = "cuda"))]
pub use compat::cuda;
/// Upstream's name for the replacement of the CUDA backend in a build without it.
pub use compat::cuda as dummy_cuda_backend;
pub use compat::dummy_dtype::{self, F4, F6E2M3, F6E3M2, F8E8M0};
pub use compat::metal::MetalError;
#[cfg(feature = "cuda")]
pub use cuda_backend as cuda;

#[cfg(not(feature = "cuda"))]
pub use absent::{CudaDevice, CudaStorage};
#[cfg(not(feature = "metal"))]
pub use absent::{MetalDevice, MetalStorage};
pub use cpu_backend::{CpuStorage, CpuStorageRef};
#[cfg(feature = "cuda")]
pub use cuda_backend::{CudaDevice, CudaStorage};
#[cfg(feature = "webgpu")]
pub use custom_op::no_webgpu_form;
pub use custom_op::{CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3};
pub use device::{Device, DeviceLocation, DeviceProbe, NdArray};
pub use dtype::{DType, DTypeParseError, FloatDType, IntDType, WithDType};
pub use error::{Context, Error, Result};
pub use indexer::{IndexOp, TensorIndexer};
#[cfg(any(feature = "cuda", feature = "webgpu"))]
pub use kernel_time::KernelTime;
pub use layout::Layout;
#[cfg(feature = "metal")]
pub use metal_backend::{MetalDevice, MetalStorage};
pub use nditer::NdIter;
pub use shape::{Shape, D};
pub use storage::Storage;
pub use streaming::{StreamTensor, StreamingBinOp, StreamingModule};
pub use strided_index::{StridedBlocks, StridedIndex};
pub use tensor::{PendingVec1, StorageMutRef, StorageRef, Tensor, TensorId};
pub use variable::Var;
#[cfg(feature = "webgpu")]
pub use webgpu_backend::{WebGpuDevice, WebGpuStorage};

/// One value or a pair, for sizes that are often square: kernels, strides.
pub trait ToUsize2 {
    /// The pair `(height, width)`.
    fn to_usize2(self) -> (usize, usize);
}

impl ToUsize2 for usize {
    fn to_usize2(self) -> (usize, usize) {
        (self, self)
    }
}

impl ToUsize2 for (usize, usize) {
    fn to_usize2(self) -> (usize, usize) {
        self
    }
}

/// A layer: one tensor in, one tensor out.
pub trait Module {
    /// Applies the layer.
    fn forward(&self, xs: &Tensor) -> Result<Tensor>;
}

impl<T: Fn(&Tensor) -> Result<Tensor>> Module for T {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self(xs)
    }
}

/// `None` is the identity.
impl<M: Module> Module for Option<&M> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Some(module) => module.forward(xs),
            None => Ok(xs.clone()),
        }
    }
}

/// A layer that behaves differently while it is trained (dropout, batch norm).
pub trait ModuleT {
    /// Applies the layer; `train` says whether this is a training step.
    fn forward_t(&self, xs: &Tensor, train: bool) -> Result<Tensor>;
}

impl<M: Module> ModuleT for M {
    fn forward_t(&self, xs: &Tensor, _train: bool) -> Result<Tensor> {
        self.forward(xs)
    }
}

/// Doc tests of the READMEs.
#[cfg(doctest)]
mod readmes {
    #[doc = include_str!("../../README.md")]
    struct Workspace;
    #[doc = include_str!("../README.md")]
    struct Crate;
}
