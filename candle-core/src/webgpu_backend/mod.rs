//! Tensors on any GPU with WebGPU: Vulkan, Metal and DX12 natively, the browser's own in a page.
//!
//! # Layers
//! A file uses only files of the same layer and of the layers below; the test `tests/rooms.rs` checks it. From the top:
//! - `backend.rs` implements Candle's two traits by calling `ops`; `custom.rs` runs kernels from other crates. Ops reach both through
//!   `watch.rs`, which logs, verifies and falls back if the environment requests it.
//! - `ops/` and `shaders/`: from layouts to dispatches: kernel selection, workgroup counts, parameters. `quantized.rs`: GGML's blocks on
//!   the device.
//! - `device.rs`, `storage.rs`: Candle's dtypes and elements over the GPU's memory.
//! - `gpu.rs`: the GPU, without dtypes, layouts and ops. It owns the files below: `readback.rs`, copies to the host; `queue.rs`, the
//!   ordered list of dispatches not yet submitted; `warm_up.rs`, kernels compiled in advance; `kernel.rs`, kernels as values; `shader.rs`,
//!   WGSL generation, with loop unrolling in `unroll.rs`; `pipelines.rs`, compiled pipelines; `memory.rs` and `pool.rs`, buffers;
//!   `profile.rs`, times; `pipeline_cache.rs`, pipelines on disk; `adapter.rs`, the adapter, its features and limits, or the reason for
//!   having none.
//! - `limits.rs`, `status.rs`, `elem.rs`: sizes, reports of kernels, and storage formats of dtypes.
//!
//! # When it waits
//! Ops only append to the queue. It is submitted in parts while it grows. The host waits only when results are read back
//! ([`WebGpuStorage`]'s `to_cpu_storage`, the asynchronous readers of `Tensor`) and in `synchronize`.
//!
//! # Dtypes
//! | dtype | stored as | arithmetic in |
//! |---|---|---|
//! | f32, u32, i32 | itself | itself |
//! | f16, bf16 | two to a u32 | f32, rounded to nearest even |
//! | f8e4m3 | four to a u32 | f32, rounded to nearest even, at most 448 |
//! | f64 | itself, on adapters with SHADER_F64 and SHADER_INT64 | itself |
//! | u8 | four to a u32 | u32, wrapped |
//! | i16 | two to a u32 | i32, wrapped |
//! | i64 | a pair of u32 | pairs of u32 |
//!
//! Other dtypes return [`Error::UnsupportedOnDevice`](crate::Error::UnsupportedOnDevice). Kernels that move elements without computing copy
//! their bits unchanged. Only f64 needs an optional feature of the adapter: subgroups and cooperative matrices only make kernels faster. A
//! kernel that writes a packed dtype writes whole words, one invocation per word, so there are neither races nor atomics.
//!
//! # Quantised weights
//! [`QWebGpuStorage`] holds GGML's blocks, packed again so that a kernel reads words: codes, further bits and scales in separate planes.
//! Products dequantise them on use, to f32. With cooperative matrices and more than 8 rows, rows of the dense side and the weight are
//! converted to f16, with powers of two that keep them in range: the weight in the product's kernel, or for many rows in parts before it.
//! Products of bf16 convert both sides to f16 in the same way, and products of f32 do so with [`set_gemm_reduced_precision_f32`].
//!
//! # Environment
//! Variables named `CANDLE_WEBGPU_*` select the adapter, limit it, log, verify and dump: `docs/debugging.md` in the repository lists them.

mod adapter;
mod backend;
mod custom;
mod device;
mod elem;
mod free_memory;
mod gpu;
mod kernel;
mod limits;
#[cfg(test)]
mod loops;
mod memory;
pub mod ops;
mod pipeline_cache;
mod pipelines;
mod pool;
mod profile;
mod quantized;
mod queue;
mod readback;
mod shader;
mod shared;
mod status;
mod storage;
mod unroll;
mod upload;
mod warm_up;

pub use crate::kernel_time::KernelTime;
#[cfg(feature = "metal")]
pub(crate) use adapter::has_metal;
pub use adapter::{adapters, AdapterReport, Options};
pub use custom::WgslKernel;
pub use device::{Stats, WebGpuDevice};
pub(crate) use ops::matmul::{expert_rows, Stack};
pub use ops::matmul::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
pub use pipeline_cache::PipelineCacheReport;
pub use quantized::QWebGpuStorage;
pub use storage::{PendingRead, WebGpuStorage};
pub use warm_up::WarmUp;
