//! Elements of blocks as floats.

use super::{c_format, has_blocks, Input};
use crate::backend::BackendStorage;
use crate::cuda_backend::faults;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::quantized::QCudaStorage;
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Layout, Result};

const EMBEDDING: &str = "quantized embedding";

/// `count` elements from element `first` on, which begins a block, in `dtype`.
pub(in crate::cuda_backend) fn dequantize(
    blocks: &QCudaStorage,
    first: usize,
    count: usize,
    dtype: DType,
) -> Result<CudaStorage> {
    let dst = blocks.device().new_storage(count, dtype, "dequantize")?;
    let none = Layout::contiguous(0);
    decode(blocks, first, &dst, (None, &none), (count.max(1), 1))?;
    Ok(dst)
}

/// Rows of the table `(rows, hidden)` by their ids, as f32.
pub(in crate::cuda_backend) fn embedding(
    table: &QCudaStorage,
    (ids, ids_l): Input<'_>,
    (rows, hidden): (usize, usize),
) -> Result<CudaStorage> {
    let device = table.device();
    if !ids.dtype().is_int() {
        return Err(device.unsupported(
            EMBEDDING,
            ids.dtype(),
            "ids must be integers: convert them",
        ));
    }
    let count = ids_l.shape().elem_count() * hidden;
    let dst = device.new_storage(count, DType::F32, EMBEDDING)?;
    decode(table, 0, &dst, (Some(ids), ids_l), (hidden.max(1), rows))?;
    Ok(dst)
}

/// All of `dst`: elements from `first` on, or `rows` of `row` elements that ids name.
fn decode(
    blocks: &QCudaStorage,
    first: usize,
    dst: &CudaStorage,
    (ids, ids_l): (Option<&CudaStorage>, &Layout),
    (row, rows): (usize, usize),
) -> Result<()> {
    let device = blocks.device();
    let format = blocks.dtype();
    let walk = Walk::new([ids_l])?;
    let ids_type = ids.map_or(Ok("u32"), |ids| device.c_type(ids.dtype(), EMBEDDING))?;
    let kernel = Kernel::new(source!("ggml", => "ggml_dequantize"))
        .define("FORMAT", c_format(format))
        .define("DST", device.c_type(dst.dtype(), "dequantize")?)
        .define("BY_ID", ids.is_some())
        .define("IDS", ids_type)
        .define("RANK", walk.rank)
        .define("FAULT", faults::code(EMBEDDING));
    let at_once = if has_blocks(format) { 8 } else { 1 };
    let offset = first / format.block_size() * format.type_size();
    let args = Args::new()
        .value(blocks.address() + offset as u64)
        .storage(dst)
        .size(dst.len())
        .storage_or_null(ids)
        .value(walk.views)
        .size(row)
        .size(rows)
        .value(device.faults().address());
    let threads = dst.len().div_ceil(at_once);
    device.launch(&kernel, Grid::of_threads(threads), args)
}
