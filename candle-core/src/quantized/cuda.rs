//! Quantised blocks on CUDA devices, under upstream's names.

pub use crate::cuda_backend::quantized::{
    load_quantized, set_force_dmmv, QCudaStorage, CUDA_DEQUANTIZE_BLOCK_SIZE,
    CUDA_GET_ROWS_BLOCK_SIZE, CUDA_QUANTIZE_BLOCK_SIZE, GGML_CUDA_MMV_X, GGML_CUDA_MMV_Y,
    MATRIX_ROW_PADDING, MMQ_X_Q4_0_AMPERE, MMQ_Y_Q4_0_AMPERE, NWARPS_Q4_0_AMPERE, WARP_SIZE,
};
