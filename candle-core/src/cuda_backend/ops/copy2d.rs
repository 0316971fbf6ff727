//! Rows copied from one storage into another: concatenation, and appending to a cache.

use crate::backend::BackendStorage;
use crate::cuda_backend::elem::{bits_type, common_unit};
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{Error, Layout, Result, Shape};

/// `d1` rows of `d2` elements. Row strides and offsets are in elements.
pub(in crate::cuda_backend) struct Rows {
    pub(in crate::cuda_backend) d1: usize,
    pub(in crate::cuda_backend) d2: usize,
    pub(in crate::cuda_backend) src_stride: usize,
    pub(in crate::cuda_backend) dst_stride: usize,
    pub(in crate::cuda_backend) src_offset: usize,
    pub(in crate::cuda_backend) dst_offset: usize,
}

/// Copies rows, in units of up to 16 bytes; elements of `dst` between and around them are unchanged.
pub(in crate::cuda_backend) fn copy2d(
    src: &CudaStorage,
    dst: &mut CudaStorage,
    rows: Rows,
) -> Result<()> {
    const OP: &str = "copy2d";
    if src.dtype() != dst.dtype() {
        return Err(Error::DTypeMismatchBinaryOp {
            lhs: src.dtype(),
            rhs: dst.dtype(),
            op: OP,
        }
        .bt());
    }
    if rows.d1 == 0 || rows.d2 == 0 {
        return Ok(());
    }
    let size = dst.dtype().size_in_bytes();
    let steps = match rows.d1 {
        1 => [0, 0],
        _ => [rows.src_stride, rows.dst_stride],
    };
    let places = [rows.d2, rows.src_offset, rows.dst_offset];
    let bytes = steps.into_iter().chain(places).map(|n| (n * size) as u64);
    let unit = common_unit(bytes.chain([src.address(), dst.address()])).max(size);
    let lanes = unit / size;
    let layout = |stride: usize, offset: usize| {
        let shape = Shape::from((rows.d1, rows.d2 / lanes));
        Layout::new(shape, vec![stride / lanes, 1], offset / lanes)
    };
    let walk = Walk::new([
        &layout(steps[0], rows.src_offset),
        &layout(steps[1], rows.dst_offset),
    ])?;
    let kernel = Kernel::new(source!("copy2d"))
        .define("BITS", bits_type(unit))
        .define("RANK", walk.rank)
        .define("INDEX", walk.index());
    let args = Args::new().storage(src).storage(dst).value(walk.views);
    dst.device()
        .launch(&kernel, Grid::of_threads(walk.len()), args)
}
