//! Pooling.
#![allow(unused)]

use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
#[allow(unused_imports)]
use crate::{DType, Layout, Result};

pub(in crate::cuda_backend) enum Pool {
    Mean,
    Max,
}
pub(in crate::cuda_backend) fn pool2d(
    src: &CudaStorage,
    layout: &Layout,
    kernel: (usize, usize),
    stride: (usize, usize),
    pool: Pool,
) -> Result<CudaStorage> {
    Err(src
        .device()
        .unsupported("pool2d", src.dtype(), "this op has no CUDA form yet"))
}
