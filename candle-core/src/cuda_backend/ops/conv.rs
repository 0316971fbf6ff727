//! Convolutions.
#![allow(unused)]

use crate::backend::BackendStorage;
use crate::cuda_backend::{CudaDevice, CudaStorage};
#[allow(unused_imports)]
use crate::{DType, Layout, Result};

use crate::conv::Geometry;
pub(in crate::cuda_backend) struct Operands<'a> {
    input: &'a CudaStorage,
    input_l: &'a Layout,
    kernel: &'a CudaStorage,
    kernel_l: &'a Layout,
}
impl<'a> Operands<'a> {
    pub(in crate::cuda_backend) fn new(
        input: &'a CudaStorage,
        input_l: &'a Layout,
        kernel: &'a CudaStorage,
        kernel_l: &'a Layout,
    ) -> Self {
        Self {
            input,
            input_l,
            kernel,
            kernel_l,
        }
    }
}
pub(in crate::cuda_backend) fn forward(
    operands: Operands<'_>,
    geometry: Geometry,
) -> Result<CudaStorage> {
    Err(operands.input.device().unsupported(
        "conv",
        operands.input.dtype(),
        "this op has no CUDA form yet",
    ))
}
pub(in crate::cuda_backend) fn transposed(
    operands: Operands<'_>,
    geometry: Geometry,
) -> Result<CudaStorage> {
    Err(operands.input.device().unsupported(
        "conv-transpose",
        operands.input.dtype(),
        "this op has no CUDA form yet",
    ))
}
