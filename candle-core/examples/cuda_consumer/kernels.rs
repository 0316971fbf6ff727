//! This program's kernels: CUDA C++, compiled for the card on first use.

use candle_core::cuda_backend::cudarc::driver::{LaunchConfig, PushKernelArg};
use candle_core::cuda_backend::{CudaFunc, WrapErr};
use candle_core::{builder_arg, CudaDevice, DType, Result};

const TEXT: &str = include_str!("kernels.cu");

/// A kernel of `kernels.cu` for a dtype.
pub fn of(device: &CudaDevice, name: &str, dtype: DType) -> Result<CudaFunc> {
    let ty = match dtype {
        DType::F32 => "-DTYPE=float",
        DType::F64 => "-DTYPE=double",
        DType::U32 => "-DTYPE=unsigned",
        DType::I64 => "-DTYPE=long long",
        other => candle_core::bail!("{name} of {other:?}"),
    };
    device.compile("kernels.cu", TEXT, &[ty])?.func(name)
}

/// Sets `count` numbers from an address on.
pub fn fill(device: &CudaDevice, address: u64, value: f32, count: u32) -> Result<()> {
    let func = of(device, "fill", DType::F32)?;
    let mut builder = func.builder();
    builder_arg!(builder, address, value, count);
    // SAFETY: the caller guarantees `count` numbers there.
    unsafe { builder.launch(LaunchConfig::for_num_elems(count)) }.w()?;
    Ok(())
}
