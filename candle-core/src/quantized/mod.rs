//! Weights in the block formats of GGML, and the files that hold them.
//!
//! A [`QTensor`] stores its elements in blocks of 32 or 256 that share scales ([`GgmlDType`]). A product with it, usually through
//! [`QMatMul`], quantises the other side to 8 bits and multiplies integers.
//!
//! # Contents
//! - [`QTensor`], [`QMatMul`]: the types for models.
//! - [`gguf_file`], [`ggml_file`], [`imatrix_file`]: files; `tokenizer` (feature `tokenizers`): the tokenizer in a GGUF file.
//! - [`k_quants`]: the block formats; [`GgmlType`] is the interface of a format.
//! - [`QStorage`], [`QuantizedType`]: blocks on a device, in any format; [`SpareMemory`]: memory for weights that are copied there in turn.

#![deny(clippy::undocumented_unsafe_blocks)]

mod absent;
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
pub mod avx;
#[cfg(target_arch = "x86_64")]
mod avx512_rows;
#[cfg(target_arch = "x86_64")]
mod avx_panels;
#[cfg(target_arch = "x86_64")]
mod avx_rows;
mod blocks;
mod dtype;
mod experts;
pub mod ggml_file;
pub mod gguf_file;
pub mod imatrix_file;
pub mod k_quants;
mod matmul;
#[cfg(feature = "metal")]
pub mod metal {
    //! Blocks on Metal devices.
    pub use crate::metal_backend::QMetalStorage;
}
#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_panels;
mod qmatmul;
mod qtensor;
mod reader;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub mod simd128;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128_panels;
mod spare;
mod storage;
#[cfg(any(
    all(feature = "tokenizers", not(target_arch = "wasm32")),
    all(feature = "wasm-tokenizer", target_arch = "wasm32")
))]
pub mod tokenizer;
mod traits;
pub mod utils;

#[cfg(feature = "cuda")]
pub use crate::cuda_backend::compat::{fast_mmq, fast_mmvq, quantized as cuda};
pub use dtype::GgmlDType;
pub use qmatmul::QMatMul;
pub use qtensor::QTensor;
pub use spare::SpareMemory;
#[cfg(feature = "cuda")]
pub(crate) use storage::bytes;
pub use storage::QStorage;
pub use traits::{GgmlType, QuantizedType};
