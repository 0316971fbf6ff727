//! Transposed convolutions as products: the kernel multiplies the input, and `fold` adds the columns where windows overlap. The columns
//! cost memory, so a large problem is computed in parts.

use std::ops::Range;

use super::{contiguous, index, input_len, matmul, matrices, output_len, taps, Operands};
use crate::backend::BackendStorage;
use crate::conv::Geometry;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::ops::copy2d::{copy2d, Rows};
use crate::webgpu_backend::ops::elementwise::functions;
use crate::webgpu_backend::ops::reduce::accumulator;
use crate::webgpu_backend::ops::windows::{fit, window_bytes, Operand, Split};
use crate::webgpu_backend::ops::{bind, elementwise, window_parts, MOST_STEPS};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result};

/// Maximum number of bytes of columns at a time. More gains nothing: the products are already large.
const MAX_COLUMN_BYTES: usize = 64 << 20;

params!(FoldParams {
    src_offset: u32,
    src_tap: u32,
    src_row: u32,
    i_h: u32,
    i_w: u32,
    k_h: u32,
    k_w: u32,
    taps: u32,
    taps_w: u32,
    padding_h: u32,
    padding_w: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_h: u32,
    dilation_w: u32,
    o_h: u32,
    o_w: u32,
    len: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Fold {
    from: Elem,
    to: Elem,
}

impl Kernel for Fold {
    type Params = FoldParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .input("src", self.from)
            .output("dst", self.to)
            .text(functions(self.from))
            .each_element::<FoldParams>(include_str!("../../shaders/fold.wgsl"))
    }
}

pub(super) fn run(operands: Operands<'_>, g: Geometry) -> Result<WebGpuStorage> {
    let device = operands.src.device();
    let dtype = operands.src.dtype();
    let mut dst = device.alloc(g.b * g.c_out * output_len(&g), dtype, g.op)?;
    let (c_in, c_out) = g.group_channels();
    let (taps, n) = (taps(&g), input_len(&g));
    let (kernel_copy, kernel_offset) = contiguous(operands.kernel, operands.kernel_l)?;
    let kernel = kernel_copy.as_ref().unwrap_or(operands.kernel);
    let (src_copy, src_offset) = contiguous(operands.src, operands.src_l)?;
    let src = src_copy.as_ref().unwrap_or(operands.src);

    // All contributions to an element are added before the sum is rounded to the dtype.
    let sums = accumulator(dtype);
    // A part is some images; if one image is too large, some groups; of one group, some channels.
    let budget = MAX_COLUMN_BYTES / (taps * n * sums.size_in_bytes()).max(1);
    let channels = budget.clamp(1, c_out);
    let groups = (budget / c_out).clamp(1, g.groups);
    let batch = (budget / g.c_out).clamp(1, g.b);
    for first_batch in (0..g.b).step_by(batch) {
        for first_group in (0..g.groups).step_by(groups) {
            for first_channel in (0..c_out).step_by(channels) {
                let batch = batch.min(g.b - first_batch);
                let groups = groups.min(g.groups - first_group);
                let channels = channels.min(c_out - first_channel);
                let m = channels * taps;
                let kernel_l = matrices(
                    [batch, groups, m, c_in],
                    [0, c_in * c_out * taps, 1, c_out * taps],
                    kernel_offset + (first_group * c_in * c_out + first_channel) * taps,
                );
                let src_l = matrices(
                    [batch, groups, c_in, n],
                    [g.c_in * n, c_in * n, n, 1],
                    src_offset + (first_batch * g.c_in + first_group * c_in) * n,
                );
                let bmnk = (batch * groups, m, n, c_in);
                let columns = matmul::product(kernel, src, bmnk, &kernel_l, &src_l, sums)?;
                let planes = groups * channels;
                let folded = fold(&columns, batch * planes, &g, dtype)?;
                if batch == g.b && planes == g.c_out {
                    return Ok(folded);
                }
                let len = planes * output_len(&g);
                let first = first_batch * g.c_out + first_group * c_out + first_channel;
                let rows = Rows {
                    d1: batch,
                    d2: len,
                    src_stride: len,
                    dst_stride: g.c_out * output_len(&g),
                    src_offset: 0,
                    dst_offset: first * output_len(&g),
                };
                copy2d(&folded, &mut dst, rows)?;
            }
        }
    }
    Ok(dst)
}

/// `planes` images `(o_h, o_w)`, each the sum of its windows: columns `(planes, taps, i_h * i_w)`.
fn fold(
    columns: &WebGpuStorage,
    planes: usize,
    g: &Geometry,
    dtype: DType,
) -> Result<WebGpuStorage> {
    let device = columns.device();
    let mut dst = device.alloc(planes * output_len(g), dtype, g.op)?;
    let columns_l = Layout::contiguous((planes, taps(g), g.input[0], g.input[1]));
    if fit([columns, &dst]) {
        fold_into(&dst, (columns, &columns_l), g, (0, g.output[0]), 0)?;
        return Ok(dst);
    }
    // If an image's columns exceed a binding, some rows of it at a time.
    let step = &g.steps[0];
    let most = window_bytes(device) / columns.dtype().size_in_bytes();
    let input_rows = (most / (taps(g) * g.input[1])).saturating_sub(1) * step.stride;
    let rows = input_rows
        .saturating_sub((g.kernel[0] - 1) * step.dilation)
        .min(most / g.output[1])
        .clamp(1, g.output[0]);
    for first in (0..g.output[0]).step_by(rows) {
        let rows = rows.min(g.output[0] - first);
        // The rows of the input whose windows cover these rows.
        let reach = (first + step.padding).saturating_sub((g.kernel[0] - 1) * step.dilation);
        let top = (reach / step.stride).min(g.input[0] - 1);
        let last = (first + rows - 1 + step.padding) / step.stride;
        let count = last.clamp(top, g.input[0] - 1) + 1 - top;
        let band_l = columns_l.narrow(2, top, count)?;
        let plane = rows * g.output[1];
        let band = device.alloc(planes * plane, dtype, g.op)?;
        let split = Split {
            op: g.op,
            dims: &[planes],
            unit: plane,
            bytes: plane * dtype.size_in_bytes(),
            inputs: [(columns, &band_l)],
            anywhere: false,
        };
        split.run(&band, 0, &mut |part| {
            let [(columns, columns_l)] = &part.inputs;
            fold_into(&part.dst, (columns, columns_l), g, (first, rows), top)
        })?;
        if rows == g.output[0] {
            return Ok(band);
        }
        let rows = Rows {
            d1: planes,
            d2: plane,
            src_stride: plane,
            dst_stride: output_len(g),
            src_offset: 0,
            dst_offset: first * g.output[1],
        };
        copy2d(&band, &mut dst, rows)?;
    }
    Ok(dst)
}

/// Rows `first..first + rows` of the images, from columns `(planes, taps, rows, i_w)` that have the input's rows from `top` on.
fn fold_into(
    dst: &WebGpuStorage,
    (columns, columns_l): Operand<'_>,
    g: &Geometry,
    (first, rows): (usize, usize),
    top: usize,
) -> Result<()> {
    let device = dst.device();
    let elem = device.elem(dst.dtype(), g.op)?;
    let most = MOST_STEPS / elem.lanes() as usize;
    if taps(g) <= most {
        let taps = g.kernel.map(|size| 0..size);
        return fold_taps(dst, (columns, columns_l), g, (first, rows), top, &taps);
    }
    // A kernel with more taps than an invocation may read: some of them at a time, added in the dtype of the columns.
    let all = Layout::contiguous(dst.len());
    let mut sums: Option<WebGpuStorage> = None;
    for taps in window_parts(g.kernel, MOST_STEPS) {
        let part = device.alloc(dst.len(), columns.dtype(), g.op)?;
        fold_taps(&part, (columns, columns_l), g, (first, rows), top, &taps)?;
        sums = Some(match sums {
            Some(sums) => elementwise::binary(&sums, &part, &all, &all, "add")?,
            None => part,
        });
    }
    match sums {
        Some(sums) => elementwise::convert_into(&sums, &all, dst, 0),
        None => Ok(()),
    }
}

/// Like [`fold_into`], for some rows and columns of the kernel.
fn fold_taps(
    dst: &WebGpuStorage,
    (columns, columns_l): Operand<'_>,
    g: &Geometry,
    (first, rows): (usize, usize),
    top: usize,
    [taps_h, taps_w]: &[Range<usize>; 2],
) -> Result<()> {
    let device = dst.device();
    let from = device.elem(columns.dtype(), g.op)?;
    let elem = device.elem(dst.dtype(), g.op)?;
    let (planes, _, i_h, i_w) = columns_l.shape().dims4()?;
    let steps = columns_l.stride();
    let len = planes * rows * g.output[1];
    let first_tap = taps_h.start * g.kernel[1] + taps_w.start;
    // A position above the first row wraps, like one in the padding.
    let padding_h = index(g.steps[0].padding + first)?;
    let padding_h = padding_h.wrapping_sub(index(top * g.steps[0].stride)?);
    let padding_h = padding_h.wrapping_sub(index(taps_h.start * g.steps[0].dilation)?);
    let padding_w = index(g.steps[1].padding)?;
    let padding_w = padding_w.wrapping_sub(index(taps_w.start * g.steps[1].dilation)?);
    device.run(
        &Fold { from, to: elem },
        &[bind(columns), bind(dst)],
        &FoldParams {
            src_offset: index(columns_l.start_offset() + first_tap * steps[1])?,
            src_tap: index(steps[1])?,
            src_row: index(steps[2])?,
            i_h: index(i_h)?,
            i_w: index(i_w)?,
            k_h: index(taps_h.len())?,
            k_w: index(taps_w.len())?,
            taps: index(taps(g))?,
            taps_w: index(g.kernel[1])?,
            padding_h,
            padding_w,
            stride_h: index(g.steps[0].stride)?,
            stride_w: index(g.steps[1].stride)?,
            dilation_h: index(g.steps[0].dilation)?,
            dilation_w: index(g.steps[1].dilation)?,
            o_h: index(rows)?,
            o_w: index(g.output[1])?,
            len: index(len)?,
        },
        device.grid_of_words(len, elem),
    )
}
