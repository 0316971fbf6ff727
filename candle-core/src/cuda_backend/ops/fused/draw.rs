//! Samples a token for each row of logits.

use super::{address, aligned, Operand};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::CudaStorage;
use crate::{DType, Result};

const OP: &str = "draw";
/// Threads of a row. A vocabulary of 128,000 keeps all of them busy.
const THREADS: usize = 1024;

/// See [`Fused::draw`](crate::fused::Fused::draw).
pub fn draw(x: Operand<'_>, draws: Operand<'_>) -> Result<CudaStorage> {
    let [rows, len] = crate::fused::check_draw(x.1, x.0.dtype(), draws.1, draws.0.dtype())?;
    let device = x.0.device();
    let dst = device.new_storage(2 * rows, DType::U32, OP)?;
    let threads = len.div_ceil(4).next_multiple_of(32).min(THREADS);
    let args = Args::new()
        .value(address(x))
        .value(address(draws))
        .storage(&dst)
        .size(rows)
        .size(len);
    let lanes = if len.is_multiple_of(4) && aligned(x, 1, 4) {
        4
    } else {
        1
    };
    let kernel = Kernel::new(source!("functions", "philox", => "draw")).define("LANES", lanes);
    device.launch(&kernel, Grid::of_rows(rows, threads as u32), args)?;
    Ok(dst)
}
