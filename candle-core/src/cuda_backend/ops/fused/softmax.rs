//! Softmax over the last dimension.

use super::float_type;
use super::rows::Rows;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::Args;
use crate::cuda_backend::CudaStorage;
use crate::{Layout, Result};

const OP: &str = "softmax-last-dim";

/// `exp(x) / sum(exp(x))` over the last dimension, stable for large inputs; the result is contiguous.
///
/// # Errors
/// If the dtype is not a float that kernels compute with, or the input is a scalar.
pub fn softmax_last_dim(x: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
    let device = x.device();
    let c_type = float_type(device, x.dtype(), OP)?;
    let rows = Rows::new([layout], OP)?;
    let dst = device.new_storage(rows.count * rows.len, x.dtype(), OP)?;
    if rows.len == 0 {
        return Ok(dst);
    }
    let kernel = Kernel::new(source!("functions", => "softmax")).define("T", c_type);
    let (kernel, grid) = rows.share_out(kernel, rows.lanes(&[(x, layout)], &[]));
    let args = Args::new()
        .storage(x)
        .storage(&dst)
        .value(rows.starts)
        .size(rows.count)
        .size(rows.len)
        .size(rows.steps[0]);
    device.launch(&kernel, grid, args)?;
    Ok(dst)
}
