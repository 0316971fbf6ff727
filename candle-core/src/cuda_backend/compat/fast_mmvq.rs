//! Products with few rows on CUDA devices, under upstream's name.

use crate::backend::BackendStorage;
use crate::cuda_backend::ops::quantized::is_vector;
use crate::cuda_backend::quantized::QCudaStorage;
use crate::{CudaStorage, Layout, Result, Shape};

/// `rhs (.., k)`, up to eight rows, times the weight `self_shape (n, k)` transposed, like [`QCudaStorage::fwd`]; `None` for more rows, for
/// dtypes other than f32, f16 and bf16, and for weights that are floats.
///
/// # Errors
/// When the shapes do not match, or the device cannot allocate the memory.
pub fn try_fwd(
    qstorage: &QCudaStorage,
    self_shape: &Shape,
    rhs: &CudaStorage,
    rhs_l: &Layout,
) -> Result<Option<(CudaStorage, Shape)>> {
    let rows = rhs_l.shape().elem_count() / rhs_l.dims().last().copied().unwrap_or(1).max(1);
    if is_vector(qstorage, rhs.dtype(), rows) {
        qstorage.fwd(self_shape, rhs, rhs_l).map(Some)
    } else {
        Ok(None)
    }
}
