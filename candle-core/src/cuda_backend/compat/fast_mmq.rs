//! Products with many rows on CUDA devices, under upstream's name.

use crate::backend::BackendStorage;
use crate::cuda_backend::ops::quantized::is_vector;
use crate::cuda_backend::quantized::QCudaStorage;
use crate::{CudaStorage, DType, Layout, Result, Shape};

/// `rhs (.., k)` times the weight `self_shape (n, k)` transposed, like [`QCudaStorage::fwd`]; `None` for few rows, which
/// [`fast_mmvq::try_fwd`](super::fast_mmvq::try_fwd) supports, and for dtypes other than f32, f16 and bf16.
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
    let floats = matches!(rhs.dtype(), DType::F32 | DType::F16 | DType::BF16);
    if floats && !is_vector(qstorage, rhs.dtype(), rows) {
        qstorage.fwd(self_shape, rhs, rhs_l).map(Some)
    } else {
        Ok(None)
    }
}
