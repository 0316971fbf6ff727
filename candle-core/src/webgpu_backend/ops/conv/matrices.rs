//! Convolutions on cooperative matrices: windows of the input are written as rows of f16, some at a time, and multiplied by the kernel.
//!
//! The cooperative kernel reads both operands in contiguous rows of `k`. The kernel has this form if its windows are a multiple of 32
//! elements long, else it is padded with zeros. Rows of windows count over all images, so that small images fill tiles too; the product
//! stores a column at its position in its image.
//!
//! bf16, and f32 if reduced precision is requested, are converted to f16 first (`matmul/rows_as_f16.rs`): each image and each row of the
//! kernel with a power of two.

use super::{contiguous, output_len, strides, taps, unfold, Conv, Extras};
use crate::backend::BackendStorage;
use crate::conv::{Geometry, Steps};
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::ops::{elementwise, matmul};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Error, Layout, Result, Shape};

/// Maximum number of bytes of windows at a time. Measured on an H200 with 32 images through ResNet-50 in f16: 8 MiB 8.6 ms, 16 MiB 7.3, 32
/// MiB 6.9, 64 and 128 MiB 6.7.
pub(super) const PIECE_BYTES: usize = 64 << 20;
/// Granularity of a part's positions, so that only the last part has incomplete tiles.
const PIECE_UNIT: usize = 256;
/// Minimum number of channels of the result, of positions and of a window's elements for which tiles are not mostly empty.
const LEAST_CHANNELS: usize = 16;
const LEAST_POSITIONS: usize = 32;
const LEAST_K: usize = 16;
/// Minimum number of multiplications for which it pays to write the windows. Measured on an H200 with ResNet-50 in f16, most of whose layers
/// have 50 to 120 million for each image: one image takes 1.6 ms by tiles and took 2.0 by matrices; two take 2.2 by tiles and 1.7 by matrices,
/// four 3.0 and 2.2, 32 16.1 and 6.6.
const LEAST_PRODUCTS: usize = 1 << 27;
/// The same if the operands are converted to f16, in up to seven more dispatches: in bf16, four images take 3.0 ms with this and without
/// matrices, 32 8.1 and 16.0.
const LEAST_CONVERTED: usize = 1 << 29;

/// Whether a plain convolution of `dtype` is computed here. `reduced`: products of f32 may round their operands.
pub(super) fn takes(g: &Geometry, dtype: DType, reduced: bool, caps: &Caps) -> bool {
    let k = g.c_in * taps(g);
    let image = g.c_in * g.input[0] * g.input[1];
    let products = (g.b * g.c_out * output_len(g)).saturating_mul(k);
    // Those that are converted are read in groups.
    let converts =
        [k, image].iter().all(|len| len % matmul::FLOAT_GROUP == 0) && products >= LEAST_CONVERTED;
    let dtype = match dtype {
        DType::F16 => products >= LEAST_PRODUCTS,
        DType::BF16 => converts,
        DType::F32 => converts && reduced,
        _ => false,
    };
    caps.cooperative
        && dtype
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
        && conv.src.dtype() == DType::F16
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
    if conv.src.dtype() == DType::F16 {
        return run_f16(conv, None, extras, to, piece_bytes);
    }
    let g = &conv.g;
    let converts = conv.src.device().kernels().caps.cooperative;
    let halves = |storage: &WebGpuStorage, offset, strides: [usize; 4], dims: [usize; 4]| {
        let layout = Layout::new(Shape::from(dims.to_vec()), strides.to_vec(), offset);
        let (mut copied, mut offset) = contiguous(storage, &layout)?;
        if !offset.is_multiple_of(matmul::FLOAT_GROUP) {
            (copied, offset) = (Some(elementwise::copy(storage, &layout)?), 0);
        }
        let len = dims[1..].iter().product();
        let rows = matmul::FloatRows {
            floats: copied.as_ref().unwrap_or(storage),
            offset,
            row: len,
        };
        let (halves, scales) = matmul::rows_as_f16(rows, (dims[0], len), 1., converts)?;
        let strides = strides_of(dims);
        Ok::<_, crate::Error>((halves, scales, strides))
    };
    let dims = [g.b, g.c_in, g.input[0], g.input[1]];
    let (src, images, src_strides) = halves(conv.src, conv.src_offset, conv.src_strides, dims)?;
    let dims = [g.c_out, g.c_in, g.kernel[0], g.kernel[1]];
    let (kernel, rows, kernel_strides) =
        halves(conv.kernel, conv.kernel_offset, conv.kernel_strides, dims)?;
    // One for each position of the result.
    let each = Layout::new(Shape::from((g.b, output_len(g))), vec![1, 0], 0);
    let positions = elementwise::copy(&images, &each)?;
    let conv = Conv {
        src: &src,
        src_offset: 0,
        src_strides,
        kernel: &kernel,
        kernel_offset: 0,
        kernel_strides,
        ..*conv
    };
    run_f16(&conv, Some([&rows, &positions]), extras, to, piece_bytes)
}

fn strides_of(dims: [usize; 4]) -> [usize; 4] {
    strides(&Layout::contiguous(dims.to_vec()))
}

/// [`run`] for f16, with the factors of the kernel's rows and of positions if there are any.
fn run_f16(
    conv: &Conv<'_>,
    scales: Option<[&WebGpuStorage; 2]>,
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
        let of_columns = match scales {
            // Parts begin at multiples of a binding's alignment.
            Some([_, positions]) => Some(window(positions, first, columns)?),
            None => None,
        };
        matmul::rows_of_windows(
            matmul::HalfRows {
                storage: &kernel,
                offset: kernel_offset,
                scales: scales.map(|[rows, _]| rows),
            },
            matmul::HalfRows {
                storage: &windows,
                offset: 0,
                scales: of_columns.as_ref(),
            },
            (g.c_out, columns, row),
            matmul::Place { plane, first },
            extras,
            &dst,
        )?;
    }
    match packs {
        true => Ok(dst),
        false => elementwise::to_dtype(&dst, &Layout::contiguous(dst.len()), to),
    }
}

fn window(scales: &WebGpuStorage, first: usize, len: usize) -> Result<WebGpuStorage> {
    scales.aligned_window(first, len).ok_or_else(|| {
        Error::WebGpu(format!(
            "convolution: {len} factors from {first} on cannot be bound"
        ))
        .bt()
    })
}

/// The kernel in contiguous rows of `row` elements, and the offset of the first.
fn kernel_rows(conv: &Conv<'_>, row: usize) -> Result<(WebGpuStorage, usize)> {
    let g = &conv.g;
    let dims = [g.c_out, g.c_in, g.kernel[0], g.kernel[1]];
    let contiguous = strides_of(dims);
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
