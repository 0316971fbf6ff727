//! Tensors on NVIDIA's cards.
//!
//! The build needs nothing of CUDA, and one program runs with a card and without: the driver, the compiler (NVRTC) and cuBLASLt are
//! searched when the first device is opened. Kernels are source in `kernels/`, compiled for the card on first use, and cached on disk.
//!
//! # Layers
//! - `ops/` and `kernels/`: from layouts to launches: kernel selection, numbers of blocks, parameters.
//! - `launch.rs`: parameters by value, in one stream; `views.rs`: layouts in the kernels' form; `faults.rs`: reports of kernels.
//! - `kernel.rs`: generation and compilation of CUDA C++ for dtypes and layouts; `cubin_cache.rs`: machine code on disk; `elem.rs`: C++
//!   types of dtypes.
//! - `card.rs`: properties of cards; `libraries.rs`: the location of NVIDIA's libraries, or an error with the searched locations.
//! - `nccl/`: sums, gathers and broadcasts over several cards.
//! - `compat/`: upstream's interface for programs with separate kernels.
//!
//! `quantized.rs`: blocks of GGML, in a file's format. `memory.rs` allocates. `device.rs` and `storage.rs` implement Candle's two traits by
//! calling `ops`. Ops reach them through `watch.rs`, which logs, verifies and falls back if the environment requests it.
//!
//! # When it waits
//! All work of a device is in one stream, in the order of the calls. Memory is freed in stream order as well. The host waits when results
//! are read back and in `synchronize`. A program with other streams orders them with events. Collectives of [`NcclGroup`] are in the stream
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

mod blas;
mod card;
pub(crate) mod compat;
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
mod nvrtc;
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
