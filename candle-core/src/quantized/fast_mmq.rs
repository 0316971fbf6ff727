//! Products with many rows on CUDA devices, under upstream's name.

use super::cuda::QCudaStorage;
use crate::cuda_backend::quantized::try_tiles;
use crate::{CudaStorage, Layout, Result, Shape};

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
    try_tiles(qstorage, self_shape, rhs, rhs_l)
}
