//! `quantized::cuda`: quantised blocks on CUDA devices.

use crate::cuda_backend::CudaDevice;
use crate::quantized::{GgmlType, QStorage};
use crate::Result;

pub use crate::cuda_backend::quantized::{QCudaStorage, MATRIX_ROW_PADDING};

/// Threads of a warp.
pub const WARP_SIZE: usize = 32;
/// Upstream's; not used here.
pub const MMQ_X_Q4_0_AMPERE: usize = 4;
/// Upstream's; not used here.
pub const MMQ_Y_Q4_0_AMPERE: usize = 32;
/// Upstream's; not used here.
pub const NWARPS_Q4_0_AMPERE: usize = 4;
/// Upstream's; not used here.
pub const GGML_CUDA_MMV_X: usize = 32;
/// Upstream's; not used here.
pub const GGML_CUDA_MMV_Y: usize = 1;
/// Upstream's; not used here.
pub const CUDA_QUANTIZE_BLOCK_SIZE: usize = 256;
/// Upstream's; not used here.
pub const CUDA_DEQUANTIZE_BLOCK_SIZE: usize = 256;
/// Upstream's; not used here.
pub const CUDA_GET_ROWS_BLOCK_SIZE: usize = 256;

/// Upstream's selection of kernels that read activations as floats. This backend has one kernel for few rows, so it has no effect.
pub fn set_force_dmmv(_force: bool) {}

/// Uploads blocks.
///
/// # Errors
/// When the device cannot allocate the memory.
pub fn load_quantized<T: GgmlType + Send + Sync + 'static>(
    device: &CudaDevice,
    data: &[T],
) -> Result<QStorage> {
    // SAFETY: blocks are plain numbers without padding, and the bytes are borrowed with them.
    let bytes = unsafe {
        std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), std::mem::size_of_val(data))
    };
    QCudaStorage::from_parts(device, T::DTYPE, &[bytes]).map(QStorage::Cuda)
}
