//! Tensors on the CPU and on any GPU that speaks WebGPU, with the public interface of Hugging Face's Candle 0.11.
//!
//! ```
//! use candle_core::{Device, Tensor};
//! # fn main() -> candle_core::Result<()> {
//! let lhs = Tensor::arange(0f32, 6., &Device::Cpu)?.reshape((2, 3))?;
//! let rhs = Tensor::arange(0f32, 12., &Device::Cpu)?.reshape((3, 4))?;
//! let product = lhs.matmul(&rhs)?;
//! assert_eq!(product.dims(), &[2, 4]);
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `webgpu`, `Device::new_webgpu(0)?` in place of `Device::Cpu` runs the same lines on a GPU.
//!
//! # Where things are
//! - [`Tensor`] (`tensor/`): shapes, views and the graph for autograd; knows no device.
//! - [`Storage`] (`storage.rs`): one line per op; which backends exist is written once, in `dispatch.rs`.
//! - [`backend`]: the two traits that a backend implements.
//! - `cpu_backend/`, `webgpu_backend/`: the backends. One that is not compiled in is a type without values (`absent.rs`).
//! - `compat/`: what exists only so that programs written for upstream compile.

#![deny(missing_docs)]

#[macro_use]
mod dispatch;

mod absent;
pub mod backend;
pub mod backprop;
mod bounded_read;
mod compat;
pub mod conv;
pub mod cpu;
pub mod cpu_backend;
mod custom_op;
mod device;
pub mod display;
mod dtype;
pub mod error;
mod indexer;
mod inline_vec;
pub mod layout;
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
#[cfg(feature = "webgpu")]
pub mod webgpu_backend;
mod zip_archive;

// Upstream's paths to what exists only for its sake.
/// Stand-in for the CUDA backend, which this build does not have.
pub use compat::cuda;
/// Upstream's name for [`cuda`] in a build without it.
pub use compat::cuda as dummy_cuda_backend;
pub use compat::dummy_dtype::{self, F4, F6E2M3, F6E3M2, F8E8M0};
pub use compat::metal::MetalError;

pub use absent::{CudaDevice, CudaStorage, MetalDevice, MetalStorage};
pub use cpu_backend::{CpuStorage, CpuStorageRef};
#[cfg(feature = "webgpu")]
pub use custom_op::no_webgpu_form;
pub use custom_op::{CustomOp1, CustomOp2, CustomOp3, InplaceOp1, InplaceOp2, InplaceOp3};
pub use device::{Device, DeviceLocation, DeviceProbe, NdArray};
pub use dtype::{DType, DTypeParseError, FloatDType, IntDType, WithDType};
pub use error::{Context, Error, Result};
pub use indexer::{IndexOp, TensorIndexer};
pub use layout::Layout;
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
