//! An emulator of the parts of NVIDIA's driver and NVRTC that candle-core's CUDA backend calls. Copied to a folder as
//! `libcuda.so.1` and as `libnvrtc.so.13`, this library compiles kernels with the host's C++ compiler and runs their
//! threads sequentially on the CPU. README.md describes its use in tests.
#![cfg(unix)]
// Names and signatures are the driver's; NVIDIA's reference has the requirements on pointers.
#![allow(
    non_snake_case,
    clippy::missing_safety_doc,
    clippy::not_unsafe_ptr_arg_deref,
    clippy::too_many_arguments
)]

mod compile;
pub mod copy;
pub mod device;
mod elf;
pub mod event;
pub mod graph;
pub mod launch;
mod loader;
pub mod memory;
pub mod module;
pub mod nvrtc;
mod real;
pub mod status;
pub mod stream;
mod text;
pub mod unsupported;
