//! Convolutions of f16 on cooperative matrices: windows of the input are written as rows, some at a time, and multiplied by the kernel.
//!
//! The cooperative kernel reads both operands in contiguous rows of `k`. The kernel has this form if its windows are a multiple of 32
//! elements long, else it is padded with zeros. Rows of windows count over all images, so that small images fill tiles too; the product
//! stores a column at its position in its image.

use super::{output_len, taps, unfold, Conv, Extras};
use crate::backend::BackendStorage;
use crate::conv::{Geometry, Steps};
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::ops::{elementwise, matmul};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result};

/// Maximum number of bytes of windows at a time.
pub(super) const PIECE_BYTES: usize = 64 << 20;
/// Granularity of a part's positions, so that only the last part has incomplete tiles.
const PIECE_UNIT: usize = 256;
/// Minimum number of channels of the result, of positions and of a window's elements for which tiles are not mostly empty.
const LEAST_CHANNELS: usize = 16;
const LEAST_POSITIONS: usize = 32;
const LEAST_K: usize = 16;

/// Whether a plain convolution of `dtype` is computed here.
pub(super) fn takes(g: &Geometry, dtype: DType, caps: &Caps) -> bool {
    let k = g.c_in * taps(g);
    caps.cooperative
        && dtype == DType::F16
        && g.groups == 1
        && g.c_out >= LEAST_CHANNELS
        && g.b * output_len(g) >= LEAST_POSITIONS
        && (LEAST_K..=matmul::MOST_WINDOW).contains(&k)
}

/// Whether the input is an operand of the cooperative kernel already: its channels are rows of positions that can be read in groups.
pub(super) fn is_product(conv: &Conv<'_>) -> bool {
    let g = &conv.g;
    let [batch, channel, _, col] = conv.src_strides;
    let steps = [conv.src_offset, batch, channel, output_len(g)];
    conv.in_order()
        && col == 1
        && steps.iter().all(|step| step.is_multiple_of(8))
        && g.c_in.is_multiple_of(matmul::WINDOW_UNIT)
}

/// The convolution with `extras` as `(batch, c_out, o_h, o_w)` of dtype `to`, with at most `piece_bytes` of windows at a time.
pub(super) fn run(
    conv: &Conv<'_>,
    extras: Extras<'_>,
    to: DType,
    piece_bytes: usize,
) -> Result<WebGpuStorage> {
    let g = &conv.g;
    let device = conv.src.device();
    let plane = output_len(g);
    let (positions, k) = (g.b * plane, g.c_in * taps(g));
    let row = k.next_multiple_of(matmul::WINDOW_UNIT);
    let (kernel, kernel_offset) = kernel_rows(conv, row)?;

    // Planes of an odd size share words of a packed dtype; such a result is computed in f32 and then converted.
    let packs = plane.is_multiple_of(device.elem(to, g.op)?.lanes() as usize);
    let made = if packs { to } else { DType::F32 };
    let dst = device.alloc(positions * g.c_out, made, g.op)?;

    // Parts of equal size: a small last one would leave most of the GPU idle.
    let most = piece_bytes.min(device.max_binding() as usize);
    let most = (most / (2 * row) / PIECE_UNIT).max(1) * PIECE_UNIT;
    let piece = positions.div_ceil(positions.div_ceil(most));
    let piece = piece.next_multiple_of(PIECE_UNIT);
    for first in (0..positions).step_by(piece) {
        let columns = piece.min(positions - first);
        let windows = unfold::rows(conv, first..first + columns, row)?;
        let place = matmul::Place { plane, first };
        matmul::rows_of_windows(
            (&kernel, kernel_offset),
            &windows,
            (g.c_out, columns, row),
            place,
            extras,
            &dst,
        )?;
    }
    match packs {
        true => Ok(dst),
        false => elementwise::to_dtype(&dst, &Layout::contiguous(dst.len()), to),
    }
}

/// The kernel in contiguous rows of `row` elements, and the offset of the first.
fn kernel_rows(conv: &Conv<'_>, row: usize) -> Result<(WebGpuStorage, usize)> {
    let g = &conv.g;
    let dims = [g.c_out, g.c_in, g.kernel[0], g.kernel[1]];
    let contiguous = [row, taps(g), g.kernel[1], 1];
    let mut steps = dims.iter().zip(conv.kernel_strides.iter().zip(contiguous));
    let in_rows = steps.all(|(dim, (step, contiguous))| *dim == 1 || *step == contiguous);
    if in_rows && g.c_in * taps(g) == row && conv.kernel_offset.is_multiple_of(8) {
        return Ok((conv.kernel.share(), conv.kernel_offset));
    }
    // Each of its rows is the only window of an image.
    let step = Steps {
        padding: 0,
        stride: 1,
        dilation: 1,
    };
    let images = Conv {
        g: Geometry {
            b: g.c_out,
            input: g.kernel,
            output: [1; 2],
            steps: [step; 2],
            ..*g
        },
        start: [0; 2],
        src: conv.kernel,
        src_offset: conv.kernel_offset,
        src_strides: conv.kernel_strides,
        ..*conv
    };
    Ok((unfold::rows(&images, 0..g.c_out, row)?, 0))
}

#[cfg(test)]
#[path = "matrices_tests.rs"]
mod tests;
