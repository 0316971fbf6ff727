//! Rows of floats as bytes.

use super::{Input, MATMUL};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Rows as bytes with a scale for every 32 elements: `kernels/ggml_activations.cu`.
pub(super) struct Activations {
    pub(super) codes: CudaStorage,
    pub(super) scales: CudaStorage,
}

impl Activations {
    /// Elements in order, a multiple of 32 a row.
    pub(super) fn new((x, x_l): Input<'_>) -> Result<Self> {
        let device = x.device();
        let count = x_l.shape().elem_count();
        let this = Self {
            codes: device.new_storage(count, DType::U8, MATMUL)?,
            scales: device.new_storage(count / 32, DType::F32, MATMUL)?,
        };
        let walk = Walk::new([x_l])?;
        let four = 4 * x.dtype().size_in_bytes() as u64;
        let start = x.address() + walk.views.offsets[0] * four / 4;
        let kernel = Kernel::new(source!("ggml_activations"))
            .define("SRC", device.c_type(x.dtype(), MATMUL)?)
            .define("RANK", walk.rank)
            .define("LANES", walk.rank == 0 && start.is_multiple_of(four));
        let args = Args::new()
            .storage(x)
            .storage(&this.codes)
            .storage(&this.scales)
            .value(walk.views);
        device.launch(&kernel, Grid::of_threads(count / 4), args)?;
        Ok(this)
    }
}
