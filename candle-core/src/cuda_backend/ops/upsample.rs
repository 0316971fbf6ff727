//! Resizing of images. Offsets are computed on the card, equal to the last bit to those of `resample.rs` for the CPU and for gradients.

use super::planes::Planes;
use crate::backend::BackendStorage;
use crate::cuda_backend::elem::bits_type;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid, BLOCK, MAX_GRID_YZ};
use crate::cuda_backend::CudaStorage;
use crate::{Layout, Result};

/// Blocks per multiprocessor; the same threads process further planes in sequence.
const BLOCKS_EACH: usize = 16;

/// `struct Axis` of `kernels/upsample.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Axis {
    size: u64,
    target: u64,
    step: f64,
    shift: f64,
}

impl Axis {
    fn new(size: usize, target: usize, step: f64, shift: f64) -> Self {
        Self {
            size: size as u64,
            target: target as u64,
            step,
            shift,
        }
    }

    /// The parameters of `resample::nearest`.
    fn nearest(size: usize, target: usize) -> Self {
        Self::new(size, target, size as f64 / target as f64, 0.)
    }

    /// The parameters of `resample::linear`.
    fn linear(size: usize, target: usize, align_corners: bool, scale: Option<f64>) -> Self {
        let step = match scale {
            _ if align_corners && target <= 1 => 0.,
            _ if align_corners => (size - 1) as f64 / (target - 1) as f64,
            Some(scale) => 1. / scale,
            None => size as f64 / target as f64,
        };
        let shift = if align_corners { 0. } else { 0.5 };
        Self::new(size, target, step, shift)
    }
}

/// `struct Image` of `kernels/upsample.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Image {
    places: [u64; 5],
    channels: u64,
    planes: u64,
    axes: [Axis; 2],
}

// SAFETY: words of 64 bits only, without padding.
unsafe impl bytemuck::Zeroable for Image {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Image {}

/// Nearest neighbours, of an input `(batch, channels, height, width)` or, as one row, `(batch, channels, length)`.
pub(in crate::cuda_backend) fn nearest(
    src: &CudaStorage,
    layout: &Layout,
    (o_h, o_w): (usize, usize),
    op: &'static str,
) -> Result<CudaStorage> {
    let planes = Planes::new(layout);
    let axes = [
        Axis::nearest(planes.size[0], o_h),
        Axis::nearest(planes.size[1], o_w),
    ];
    // Only moves elements.
    let ty = bits_type(src.dtype().size_in_bytes());
    resample(src, &planes, axes, (ty, false), op)
}

/// Bilinear interpolation of an input `(batch, channels, height, width)`.
pub(in crate::cuda_backend) fn bilinear(
    src: &CudaStorage,
    layout: &Layout,
    (o_h, o_w): (usize, usize),
    align_corners: bool,
    (scale_h, scale_w): (Option<f64>, Option<f64>),
) -> Result<CudaStorage> {
    const OP: &str = "upsample_bilinear2d";
    let planes = Planes::new(layout);
    let axes = [
        Axis::linear(planes.size[0], o_h, align_corners, scale_h),
        Axis::linear(planes.size[1], o_w, align_corners, scale_w),
    ];
    let ty = src.device().c_type(src.dtype(), OP)?;
    resample(src, &planes, axes, (ty, true), OP)
}

fn resample(
    src: &CudaStorage,
    planes: &Planes,
    axes: [Axis; 2],
    (ty, mix): (&'static str, bool),
    op: &'static str,
) -> Result<CudaStorage> {
    let device = src.device();
    let area = (axes[0].target * axes[1].target) as usize;
    let len = planes.count() * area;
    let dst = device.new_storage(len, src.dtype(), op)?;
    if len == 0 {
        return Ok(dst);
    }
    let kernel = Kernel::new(source!("upsample"))
        .define("T", ty)
        .define("MIX", mix)
        .define("INDEX", planes.index(len));
    let image = Image {
        places: planes.places(),
        channels: planes.channels as u64,
        planes: planes.count() as u64,
        axes,
    };
    // Small images use small blocks.
    let threads = area.next_multiple_of(32).min(BLOCK as usize);
    let across = area.div_ceil(threads);
    let wanted = (device.card().multiprocessors * BLOCKS_EACH).div_ceil(across);
    let down = planes.count().min(wanted).min(MAX_GRID_YZ);
    let grid = Grid::new([across as u32, down as u32, 1], threads as u32);
    let args = Args::new().storage(src).storage(&dst).value(image);
    device.launch(&kernel, grid, args)?;
    Ok(dst)
}
