//! Reductions.
#![allow(unused)]

use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
#[allow(unused_imports)]
use crate::{DType, Layout, Result};

use crate::op::ReduceOp;
pub(in crate::cuda_backend) fn reduce(
    src: &CudaStorage,
    op: ReduceOp,
    layout: &Layout,
    dims: &[usize],
) -> Result<CudaStorage> {
    Err(src
        .device()
        .unsupported(op.name(), src.dtype(), "this op has no CUDA form yet"))
}
