//! Resampling.
#![allow(unused)]

use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
#[allow(unused_imports)]
use crate::{DType, Layout, Result};

pub(in crate::cuda_backend) fn nearest(
    src: &CudaStorage,
    layout: &Layout,
    size: (usize, usize),
    op: &'static str,
) -> Result<CudaStorage> {
    Err(src.device().unsupported(
        "upsample_nearest",
        src.dtype(),
        "this op has no CUDA form yet",
    ))
}
pub(in crate::cuda_backend) fn bilinear(
    src: &CudaStorage,
    layout: &Layout,
    size: (usize, usize),
    align_corners: bool,
    scale: (Option<f64>, Option<f64>),
) -> Result<CudaStorage> {
    Err(src.device().unsupported(
        "upsample_bilinear2d",
        src.dtype(),
        "this op has no CUDA form yet",
    ))
}
