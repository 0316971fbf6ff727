//! Products of many rows: the weight is decoded to 16 bits and multiplied by cuBLASLt, whose matrix instructions then save more time than
//! decoding takes.
//!
//! Rows of f32 are rounded to f16, as blocks have less precision anyway. Where the greatest element is too large for f16, all are divided
//! by a power of two, and the product is multiplied by it; the card finds it, and the host does not wait for it.

use super::{dequantize, Extras, Input, MATMUL};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::ops::elementwise::in_order;
use crate::cuda_backend::ops::matmul;
use crate::cuda_backend::quantized::QCudaStorage;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Layout, Result, Shape};

/// Fewer rows are multiplied faster by bytes.
pub(super) const LEAST_ROWS: usize = 96;

/// `x (rows, k)` times the rows `first .. first + n` of a weight transposed, with bias and residual of `extras`; `None` where cuBLASLt is
/// not installed or has no form for it.
pub(super) fn linear(
    (x, x_l): Input<'_>,
    (weight, first): (&QCudaStorage, usize),
    (rows, n, k): (usize, usize, usize),
    extras: Extras<'_>,
) -> Result<Option<CudaStorage>> {
    let device = x.device();
    if device.lt()?.is_none() {
        return Ok(None);
    }
    let dtype = x.dtype();
    let (x, offset) = in_order(x, x_l)?;
    let by_lt = |x: &CudaStorage, offset: usize, scales: Option<&CudaStorage>| {
        let weight = dequantize(weight, first * k, n * k, x.dtype())?;
        let dst = device.new_storage(rows * n, dtype, MATMUL)?;
        let x_l = Layout::contiguous_with_offset(Shape::from((rows, k)), offset);
        let done = matmul::by_lt((x, &x_l), &weight, (rows, n, k), extras, scales, &dst)?;
        Ok(done.then_some(dst))
    };
    if dtype != DType::F32 {
        return by_lt(&x, offset, None);
    }
    let (x, scales) = as_f16(&x, offset, rows * k)?;
    by_lt(&x, 0, Some(&scales))
}

/// `count` elements of f32 as f16, divided by a power of two where that is needed; and what a product of them has to be multiplied with,
/// followed by 0 and 1.
fn as_f16(x: &CudaStorage, offset: usize, count: usize) -> Result<(CudaStorage, CudaStorage)> {
    let device = x.device();
    let halves = device.new_storage(count, DType::F16, MATMUL)?;
    let scales = device.new_storage(3, DType::F32, MATMUL)?;
    let mut greatest = device.new_storage(1, DType::U32, MATMUL)?;
    greatest.clear()?;
    let at = x.address() + (offset * size_of::<f32>()) as u64;
    let lanes = if at.is_multiple_of(16) { 4 } else { 1 };
    let grid = Grid::of_threads(count.div_ceil(lanes));
    let find = Kernel::new(source!("greatest")).define("LANES", lanes);
    let args = Args::new().value(at).storage(&greatest).size(count);
    device.launch(&find, grid, args)?;
    let convert = Kernel::new(source!("scaled_f16")).define("LANES", lanes);
    let args = Args::new()
        .value(at)
        .storage(&greatest)
        .storage(&halves)
        .storage(&scales)
        .size(count);
    device.launch(&convert, grid, args)?;
    Ok((halves, scales))
}
