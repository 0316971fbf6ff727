//! Tensors on the CPU and on any GPU that speaks WebGPU, with the public interface of Hugging Face's Candle 0.11.1.
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
//! A program that uses crates.io's `candle-core` switches by two lines of `[patch.crates-io]`, which the repository's README shows, and
//! goes back by deleting them.
//!
//! A [`Tensor`] has a shape, a dtype ([`DType`]) and a device ([`Device`]). Ops return new tensors; slices, transposes and broadcasts
//! are views of the same memory. A [`Var`] is a tensor that training changes, and [`Tensor::backward`] computes gradients with respect
//! to variables:
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
//! Weights come from files: [`safetensors`], GGUF and GGML ([`quantized`]), NumPy ([`npy`]), PyTorch ([`pickle`]).
//! Quantised weights keep GGML's block formats, in memory and on the GPU ([`quantized::QMatMul`]). An op of your own implements
//! [`CustomOp1`] or one of its relatives.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `webgpu` | the WebGPU backend: Vulkan, Metal and DirectX 12 natively, the browser's GPU on wasm32. Turned on here, it reaches every crate above, such as candle-nn |
//! | `cuda` | the CUDA backend for NVIDIA's GPUs. It needs nothing of CUDA to build; the driver and NVRTC are looked for when a device is opened |
//! | `nccl`, `cudnn` | `cuda`, and cudarc's bindings of these libraries (`cuda_backend::cudarc::nccl`, `::cudnn`) for programs that call them. No op does |
//! | `mkl` | products of f32 and f64 matrices on the CPU by an installed Intel MKL, found by `MKLROOT` or pkg-config. Tried on x86-64 Linux with oneMKL 2026.2, linked statically |
//! | `accelerate` | the same by Apple's Accelerate; elsewhere it changes nothing. Not tried |
//! | `tokenizers` (default) | `quantized::tokenizer`, the tokenizer in a GGUF file; on wasm32 it changes nothing |
//! | `wasm-tokenizer` | the same on wasm32 |
//! | `metal` | [`Device::new_metal`] on Apple's systems, through the WebGPU backend, which comes with it; elsewhere it opens nothing |
//! | `cutile`, `metal-debug-labels` | as `cuda` and `metal`: accepted so that manifests resolve |
//!
//! # Devices
//!
//! - [`Device::Cpu`] is always there. It chooses AVX2, AVX-512 or NEON when the program runs, and uses as many threads as
//!   `RAYON_NUM_THREADS` says.
//! - `Device::WebGpu`: [`Device::new_webgpu`] opens an adapter. Ops are queued; the host waits when a result is read back and in
//!   [`Device::synchronize`]. In a browser a thread must not wait: there the asynchronous forms are used, such as
//!   [`Tensor::to_vec1_async`].
//! - [`Device::Cuda`]: [`Device::new_cuda`] opens a card of compute capability 7.5 or later. One program runs with a card and without: what
//!   is missing is an error that lists where it was looked for and how to get it. Without the feature `cuda` the error is "not compiled
//!   with" ([`Error::NotCompiledWithCudaSupport`]).
//! - [`Device::Metal`]: [`Device::new_metal`] opens one of Metal's adapters, by the feature `metal` on Apple's systems. It holds a WebGPU
//!   device (`Device::as_wgpu`) and runs its kernels; there is no native Metal backend. Elsewhere it is the error
//!   [`Error::NotCompiledWithMetalSupport`].
//! - [`Device::best_available`] takes the best of these, and [`Device::probe`] says why a device is not there.
//!
//! `docs/webgpu-ops.md` in the repository lists which op has which dtypes on WebGPU, `docs/debugging.md` the environment variables.
//!
//! # Errors
//!
//! Everything that can fail returns [`Result`]; bad shapes and bad files do not panic. An [`Error`] names the op, what was asked for
//! and what was found. What a device cannot do is [`Error::UnsupportedOnDevice`]; nothing falls back to the CPU silently.
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
//! A damaged or hostile file is an error that names the file and its part. Reading one neither panics nor takes memory that its length
//! does not justify, and reading a pickle calls nothing that the file names. Each format has a fuzz target in `candle-core/fuzz`. The
//! functions that map a file into memory are `unsafe`, because the file must not change while it is mapped.
//!
//! # Where things are
//!
//! - [`Tensor`] (`tensor/`): shapes, views and the graph for autograd; knows no device.
//! - [`Storage`] (`storage.rs`): one line per op; the match over backends is written once, in `dispatch.rs`.
//! - [`backend`]: the two traits that a backend implements; `cpu_backend/`, `webgpu_backend/` and `cuda_backend/` implement them, and
//!   `metal_backend/` over WebGPU's. A backend that is not compiled in is a type without values (`absent.rs`).
//! - `compat/`: what exists only so that programs written for upstream compile.

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
pub mod utils;
mod variable;
mod watch;
#[cfg(feature = "webgpu")]
pub mod webgpu_backend;
mod zip_archive;

// Upstream's paths to what exists only for its sake.
/// Stand-in for the CUDA backend, which this build does not have.
#[cfg(not(feature = "cuda"))]
pub use compat::cuda;
/// Upstream's name for the stand-in of the CUDA backend in a build without it.
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

/// The programs in the READMEs compile and run.
#[cfg(doctest)]
mod readmes {
    #[doc = include_str!("../../README.md")]
    struct Workspace;
    #[doc = include_str!("../README.md")]
    struct Crate;
}
