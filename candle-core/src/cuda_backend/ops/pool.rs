//! Pooling: each element of the result is the mean or the maximum of a window.

use super::planes::Planes;
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::CudaStorage;
use crate::{Layout, Result};

/// The reduction of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda_backend) enum Pool {
    Mean,
    Max,
}

/// Maximum number of elements of a window for one thread; a warp shares larger ones.
const MOST_ALONE: usize = 64;
/// Maximum side of windows that are compiled in.
const MOST_COMPILED: usize = 4;

/// Pools windows of `kernel` elements with stride `stride` (both `(height, width)`), of an input `(batch, channels, height, width)`.
pub(in crate::cuda_backend) fn pool2d(
    src: &CudaStorage,
    layout: &Layout,
    kernel: (usize, usize),
    stride: (usize, usize),
    pool: Pool,
) -> Result<CudaStorage> {
    let op = match pool {
        Pool::Mean => "avg_pool2d",
        Pool::Max => "max_pool2d",
    };
    let device = src.device();
    let ty = device.c_type(src.dtype(), op)?;
    let planes = Planes::new(layout);
    let o_h = (planes.size[0] - kernel.0) / stride.0 + 1;
    let o_w = (planes.size[1] - kernel.1) / stride.1 + 1;
    let len = planes.count() * o_h * o_w;
    let dst = device.new_storage(len, src.dtype(), op)?;
    let team = if kernel.0 * kernel.1 > MOST_ALONE {
        32
    } else {
        1
    };
    let compiled = kernel.0.max(kernel.1) <= MOST_COMPILED;
    let side = |size: usize| if compiled { size } else { 0 };
    let program = Kernel::new(source!("pool"))
        .define("T", ty)
        .define("MEAN", pool == Pool::Mean)
        .define("TEAM", team)
        .define("K_H", side(kernel.0))
        .define("K_W", side(kernel.1))
        .define("INDEX", planes.index(len.saturating_mul(team)));
    let sizes = [
        planes.channels,
        kernel.0,
        kernel.1,
        // With a single window, the stride is not used and may have any size.
        if o_h > 1 { stride.0 } else { 0 },
        if o_w > 1 { stride.1 } else { 0 },
        o_h,
        o_w,
        len,
    ];
    let args = Args::new()
        .storage(src)
        .storage(&dst)
        .value(Parameters(planes.places(), sizes.map(|size| size as u64)));
    device.launch(&program, Grid::of_threads(len * team), args)?;
    Ok(dst)
}

/// `struct Pool` of `kernels/pool.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters([u64; 5], [u64; 8]);

// SAFETY: u64 only, without padding.
unsafe impl bytemuck::Zeroable for Parameters {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Parameters {}
