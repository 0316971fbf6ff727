//! Tensors on NVIDIA's cards.
//!
//! Nothing of CUDA is needed to build this, and one program runs with a card and without: the driver, the compiler (NVRTC) and cuBLASLt
//! are looked for when the first device is opened. Kernels are text in `kernels/`, compiled for the card at hand the first time that
//! they are used, and kept on disk.
//!
//! # Layers
//! - `ops/` and `kernels/`: from layouts to launches. Which kernel, how many blocks, which parameters; nothing else.
//! - `launch.rs`: parameters by value, in one stream; `views.rs`: layouts as kernels take them; `faults.rs`: what kernels report.
//! - `kernel.rs`: CUDA C++ put together for dtypes and layouts, and compiled; `cubin_cache.rs`: machine code on disk; `elem.rs`: what
//!   dtypes are in C++.
//! - `card.rs`: what cards are; `libraries.rs`: where NVIDIA's libraries are, or the error that says where they were looked for.
//! - `nccl/`: sums, gathers and broadcasts over several cards.
//! - `compat/`: upstream's interface for programs that bring kernels of their own.
//!
//! `quantized.rs`: blocks of GGML, with the bytes that a file has. `memory.rs` allocates. `device.rs` and `storage.rs` implement Candle's
//! two traits by calling `ops`. Ops reach them by way of `watch.rs`, which logs, verifies and falls back where the environment says so.
//!
//! # When it waits
//! All work of a device is in one stream, in the order of the calls. Memory is freed in the order of the stream as well. The host waits
//! when results are read back and in `synchronize`. A program that brings other streams orders them with events.
//! Collectives of [`NcclGroup`] are in the stream too; a card waits there for the others.
//!
//! # Dtypes
//! All of them are stored as they are. f16, bf16 and f8e4m3 compute in f32 and round to nearest even; integers wrap. Layouts go to
//! kernels by value, so no op copies shapes to the card; 64-bit places are used where 32 bits do not reach.
//!
//! # Environment
//! | variable | meaning |
//! | --- | --- |
//! | `CANDLE_CUDA_PATH` | folders, separated as in `PATH`, where libraries are looked for first |
//! | `CANDLE_CUDA_CACHE` | the folder for compiled kernels; `0` keeps none |
//! | `CANDLE_CUDA_LOG` | prints each launch with the op that it belongs to, and its time |
//! | `CANDLE_CUDA_VERIFY` | does every op on the CPU too, and reports the first element that differs |
//! | `CANDLE_CUDA_FALLBACK` | does on the CPU what the card cannot, with a warning each time |
//! | `CANDLE_CUDA_DUMP` | a file for the text of a kernel that does not compile |

mod blas;
mod card;
mod compat;
mod cubin_cache;
mod device;
mod elem;
mod error;
mod faults;
mod graph;
mod kernel;
mod launch;
pub(crate) mod libraries;
mod memory;
mod nccl;
pub mod ops;
mod profile;
pub(crate) mod quantized;
mod readback;
mod storage;
mod views;

pub use crate::kernel_time::KernelTime;
pub use card::{cards, CardReport};
pub use compat::{
    gemm_reduced_precision_bf16, gemm_reduced_precision_f16, gemm_reduced_precision_f32,
    kernel_name, kernels, set_gemm_reduced_precision_bf16, set_gemm_reduced_precision_f16,
    set_gemm_reduced_precision_f32, CompiledModule, CudaFunc, CudaGraphHtodCacheGuard, Map1,
    Map1Any, Map2, Map2Any, Map2InPlace, Map3, SlicePtrOrNull,
};
pub use cudarc;
pub use device::{CudaDevice, DeviceId, Stats};
pub use error::{CudaError, WrapErr};
pub use graph::Recording;
pub use libraries::{libraries_report, LibraryReport};
pub use nccl::NcclGroup;
pub(crate) use ops::quantized::{expert_rows, Stack};
pub use readback::PendingRead;
/// Upstream's short name.
pub use storage::CudaStorageSlice as S;
pub use storage::{CudaDType, CudaStorage, CudaStorageSlice};
