//! Rows of floats as bytes.

use super::{Input, MATMUL};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::ops::matmul::Addend;
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

/// Threads for a row that is normed, at the most.
const MOST_THREADS: usize = 1024;

/// The order of codes and scales: `PACKED` in `kernels/ggml_activations.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Row by row.
    Rows,
    /// In tiles of eight rows, of which there are `tiles`; rows past the last are left uninitialised. `nibbles`: see the kernel.
    Packed { tiles: usize, nibbles: bool },
}

/// Rows as bytes with a scale for every 32 elements: `kernels/ggml_activations.cu`.
pub(super) struct Activations {
    pub(super) codes: CudaStorage,
    pub(super) scales: CudaStorage,
}

impl Activations {
    /// Elements in order, rows of `k` elements, a multiple of 32; or the RMS norm of these rows, with weights `(k)` and epsilon.
    pub(super) fn new(
        (x, x_l): Input<'_>,
        k: usize,
        norm: Option<(Addend<'_>, f32)>,
        order: Order,
    ) -> Result<Self> {
        let device = x.device();
        let count = x_l.shape().elem_count();
        let (stored, tiles, nibbles) = match order {
            Order::Rows => (count, 0, false),
            Order::Packed { tiles, nibbles } => (8 * tiles * k, tiles, nibbles),
        };
        let this = Self {
            codes: device.new_storage(stored, DType::U8, MATMUL)?,
            scales: device.new_storage(stored / 32, DType::F32, MATMUL)?,
        };
        let walk = Walk::new([x_l])?;
        let kernel = Kernel::new(source!("ggml_activations"))
            .define("SRC", device.c_type(x.dtype(), MATMUL)?)
            .define("RANK", walk.rank)
            .define("LANES", in_fours(x, &walk))
            .define("NORM", norm.is_some())
            .define("PACKED", tiles > 0)
            .define("NIBBLES", nibbles);
        let args = Args::new()
            .storage(x)
            .storage(&this.codes)
            .storage(&this.scales)
            .value(walk.views)
            .value(norm.map_or(0, |(alpha, _)| alpha.address()))
            .value(norm.map_or(0., |(_, eps)| eps))
            .size(k)
            .size(tiles);
        let grid = match norm {
            Some(_) => {
                let threads = (k / 4).next_multiple_of(32).min(MOST_THREADS);
                Grid::of_rows(count / k, threads as u32)
            }
            None => Grid::of_threads(count / 4),
        };
        device.launch(&kernel, grid, args)?;
        Ok(this)
    }
}

/// Whether elements are contiguous by four, from multiples of four on.
fn in_fours(x: &CudaStorage, walk: &Walk<1>) -> bool {
    let size = x.dtype().size_in_bytes() as u64;
    let [strides] = &walk.views.strides;
    let aligned = (x.address() + walk.views.offsets[0] * size).is_multiple_of(4 * size);
    let Some(last) = walk.rank.checked_sub(1) else {
        return aligned;
    };
    let rows = strides[..last].iter().all(|step| step.is_multiple_of(4));
    aligned && strides[last] == 1 && walk.views.dims[last].is_multiple_of(4) && rows
}
