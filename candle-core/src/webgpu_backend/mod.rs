//! Tensors on any GPU that speaks WebGPU: Vulkan, Metal and DX12 natively, the browser's own in a tab.
//!
//! # Rooms
//! Each file names only files of its room and of those below; the test in `rooms.rs` holds them to it. From the top:
//! - `backend.rs` implements Candle's two traits by calling `ops`; `custom.rs` runs kernels from outside of this crate. Ops reach
//!   both by way of `watch.rs`, which logs, verifies and falls back where the environment says so.
//! - `ops/` and `shaders/`: from layouts to dispatches. Which kernel, how many workgroups, which parameters; nothing else.
//!   `quantized.rs`: GGML's blocks on the device.
//! - `device.rs`, `storage.rs`: Candle's dtypes and elements over the GPU's memory.
//! - `gpu.rs`: the GPU, without dtypes, layouts and ops. It owns what the files below are: `readback.rs`, what comes back to the host;
//!   `queue.rs`, the ordered list of dispatches that were not submitted yet; `warm_up.rs`, kernels compiled ahead; `kernel.rs`, kernels as
//!   values; `shader.rs`, their WGSL put together, with loops written out by `unroll.rs`; `pipelines.rs`, what was compiled;
//!   `memory.rs` and `pool.rs`, buffers; `profile.rs`, times; `pipeline_cache.rs`, pipelines on disk; `adapter.rs`, which adapter, its features and limits, or the reason why there is none.
//! - `limits.rs`, `status.rs`, `elem.rs`: sizes, what kernels report, and how dtypes are stored.
//!
//! # When it waits
//! Ops only append to the queue. It is submitted in parts while it grows, and the host waits in two places: when results
//! are read back ([`WebGpuStorage`]'s `to_cpu_storage`, the asynchronous readers of `Tensor`) and in `synchronize`.
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
//! Others give [`Error::UnsupportedOnDevice`](crate::Error::UnsupportedOnDevice). What moves elements without computing takes
//! their bits as they are. Nothing but f64 needs an optional feature of the adapter: subgroups and cooperative matrices are used
//! where the adapter has them and only make things faster. A kernel that writes a packed dtype writes whole words, one invocation a
//! word, so there are neither races nor atomics.
//!
//! # Quantised weights
//! [`QWebGpuStorage`] holds GGML's blocks, laid out anew so that a kernel reads words: codes, further bits and scales apart. Products
//! decode them where they use them, in f32. With cooperative matrices and more than 8 rows, rows of the dense side and the weight are
//! converted to f16, with powers of two that keep them in range: the weight in the product's kernel, for many rows in pieces before it.
//! So are both sides of products of bf16, and with [`set_gemm_reduced_precision_f32`] of f32.
//!
//! # Environment
//! Variables named `CANDLE_WEBGPU_*` choose the adapter, limit it, log, verify and dump: `docs/debugging.md` in the repository lists them.

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
#[cfg(test)]
mod rooms;
mod shader;
mod shared;
mod status;
mod storage;
mod unroll;
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
