//! Taking elements and slices by index.
#![allow(unused)]

use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
#[allow(unused_imports)]
use crate::{DType, Layout, Result};

pub(in crate::cuda_backend) fn gather(
    src: &CudaStorage,
    layout: &Layout,
    ids: &CudaStorage,
    ids_l: &Layout,
    dim: usize,
) -> Result<CudaStorage> {
    Err(src
        .device()
        .unsupported("gather", src.dtype(), "this op has no CUDA form yet"))
}
pub(in crate::cuda_backend) fn index_select(
    src: &CudaStorage,
    ids: &CudaStorage,
    layout: &Layout,
    ids_l: &Layout,
    dim: usize,
) -> Result<CudaStorage> {
    Err(src
        .device()
        .unsupported("index-select", src.dtype(), "this op has no CUDA form yet"))
}
