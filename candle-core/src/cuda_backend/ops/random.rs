//! Random numbers.
#![allow(unused)]

use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
#[allow(unused_imports)]
use crate::{DType, Layout, Result};

pub(in crate::cuda_backend) fn uniform(
    device: &CudaDevice,
    len: usize,
    dtype: DType,
    lo: f64,
    up: f64,
) -> Result<CudaStorage> {
    Err(device.unsupported("rand_uniform", dtype, "this op has no CUDA form yet"))
}
pub(in crate::cuda_backend) fn normal(
    device: &CudaDevice,
    len: usize,
    dtype: DType,
    mean: f64,
    std: f64,
) -> Result<CudaStorage> {
    Err(device.unsupported("rand_normal", dtype, "this op has no CUDA form yet"))
}
