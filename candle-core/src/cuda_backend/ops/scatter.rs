//! Writing and adding elements by index.
#![allow(unused)]

use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
#[allow(unused_imports)]
use crate::{DType, Layout, Result};

pub(in crate::cuda_backend) struct Updates<'a> {
    pub(in crate::cuda_backend) ids: &'a CudaStorage,
    pub(in crate::cuda_backend) ids_l: &'a Layout,
    pub(in crate::cuda_backend) src: &'a CudaStorage,
    pub(in crate::cuda_backend) src_l: &'a Layout,
    pub(in crate::cuda_backend) dim: usize,
}
pub(in crate::cuda_backend) fn scatter(
    dst: &mut CudaStorage,
    layout: &Layout,
    updates: Updates<'_>,
    add: bool,
) -> Result<()> {
    Err(dst
        .device()
        .unsupported("scatter", dst.dtype(), "this op has no CUDA form yet"))
}
pub(in crate::cuda_backend) fn index_add(
    src: &CudaStorage,
    layout: &Layout,
    ids: &CudaStorage,
    ids_l: &Layout,
    updates: &CudaStorage,
    updates_l: &Layout,
    dim: usize,
) -> Result<CudaStorage> {
    Err(src
        .device()
        .unsupported("index-add", src.dtype(), "this op has no CUDA form yet"))
}
