//! Tensors on NVIDIA's cards.
//!
//! The build needs nothing of CUDA, and one program runs with a card and without: the driver, the compiler (NVRTC) and cuBLASLt are
//! searched when the first device is opened. Kernels are source in `kernels/`, compiled for the card on first use, and cached on disk.
//!
//! # Layers
//! A file uses only files of the same layer and of the layers below; the test `tests/rooms.rs` checks it. From the top:
//! - `backend.rs` implements Candle's two traits by calling `ops`; they reach it through `watch.rs`, which logs, verifies and falls back if
//!   the environment requests it. `graph.rs`: recordings. `nccl/`: sums, gathers and broadcasts over several cards. `compat/`: upstream's
//!   interface for programs with separate kernels.
//! - `ops/` and `kernels/`: from layouts to launches: kernel selection, numbers of blocks, parameters. `quantized.rs`: blocks of GGML, in a
//!   file's format.
//! - `device.rs`, `storage.rs`: Candle's dtypes and elements over the GPU's memory; `readback.rs`: their copies to the host.
//! - `gpu.rs`: the card with a stream, without dtypes, layouts and ops. `launch.rs`: parameters by value; `memory.rs`: allocations and
//!   copies; `htod_cache.rs`: copies from the host while a CUDA graph is captured. It owns the files below: `blas.rs`, handles of cuBLAS
//!   and of cuBLASLt, whose products are in `lt.rs`; `profile.rs`, times; `kernel.rs`, CUDA C++ generated for dtypes and layouts;
//!   `cubin_cache.rs`, machine code on disk; `faults.rs`, reports of kernels; `pool.rs`, the driver's memory pool; `pinned.rs`, memory of
//!   the host that the card accesses.
//! - `libraries.rs`: the location of NVIDIA's libraries, or an error with the searched locations; `card.rs`: properties of cards;
//!   `nvrtc.rs`: the compiler.
//! - `error.rs`, `elem.rs`, `views.rs`, `precision.rs`: errors, C++ types of dtypes, layouts in the kernels' form, and settings.
//!
//! # When it waits
//! All work of a device is in one stream, in the order of the calls. Memory is freed in stream order as well. The host waits when results
//! are read back and in `synchronize`. Copies of 1 MiB or more from the host are in a second stream (`upload.rs`); events order them with
//! the kernels around them. A program with other streams orders them with events. Collectives of [`NcclGroup`] are in the stream
//! too; a card waits there for the others.
//!
//! # Dtypes
//! All dtypes are stored unchanged. f16, bf16 and f8e4m3 compute in f32 and round to nearest even; integers wrap. Layouts are passed to
//! kernels by value, so no op copies shapes to the card; offsets have 64 bits if 32 are too few.
//!
//! # Environment
//! | variable | meaning |
//! | --- | --- |
//! | `CANDLE_CUDA_PATH` | folders, separated as in `PATH`, that are searched for libraries first |
//! | `CANDLE_CUDA_CACHE` | the folder for compiled kernels; `0` keeps none |
//! | `CANDLE_CUDA_LOG` | prints each launch with its op and its time |
//! | `CANDLE_CUDA_VERIFY` | runs every op on the CPU too, and reports the first element that differs |
//! | `CANDLE_CUDA_FALLBACK` | runs unsupported ops on the CPU, with a warning each time |
//! | `CANDLE_CUDA_DUMP` | a file for the source of a kernel that does not compile |

mod backend;
mod blas;
mod card;
pub(crate) mod compat;
mod cubin_cache;
mod device;
mod elem;
mod error;
mod faults;
mod gpu;
mod graph;
mod htod_cache;
mod kernel;
mod launch;
pub(crate) mod libraries;
mod lt;
mod memory;
mod nccl;
mod nvrtc;
pub(crate) mod ops;
mod pinned;
mod pool;
mod precision;
mod profile;
pub(crate) mod quantized;
mod readback;
mod spares;
mod storage;
mod upload;
mod views;

pub use crate::kernel_time::KernelTime;
pub use card::{cards, CardReport};
pub use compat::{
    kernel_name, kernels, CompiledModule, CudaFunc, Map1, Map1Any, Map2, Map2Any, Map2InPlace,
    Map3, SlicePtrOrNull,
};
pub use cudarc;
pub use device::{CudaDevice, Stats};
pub use error::{CudaError, WrapErr};
pub use gpu::DeviceId;
pub use graph::Recording;
pub use htod_cache::CudaGraphHtodCacheGuard;
pub use libraries::{libraries_report, LibraryReport};
pub use nccl::NcclGroup;
pub(crate) use nccl::NcclLinks;
pub(crate) use ops::quantized::{expert_rows, Stack};
pub use precision::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32,
    set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16,
    set_gemm_reduced_precision_f32,
};
pub use readback::PendingRead;
pub(crate) use spares::Spares;
/// Upstream's short name.
pub use storage::CudaStorageSlice as S;
pub use storage::{CudaDType, CudaStorage, CudaStorageSlice};
