//! Convolutions as matrix products.
//!
//! Forward: `unfold` writes each window of the input as a column, and the kernel, seen as a matrix, multiplies them. Transposed: the
//! kernel multiplies the input, and `fold` adds what the windows have in common. Matrix products are where the backend is
//! quick; the columns cost memory, so a large problem is done in pieces. A 1D convolution is a 2D one of height 1.

use super::copy2d::{copy2d, Rows};
use super::elementwise::functions;
use super::reduce::accumulator;
use super::windows::{fit, window_bytes, Operand, Split};
use super::{bind, elementwise, index, matmul};
use crate::backend::BackendStorage;
use crate::conv::Geometry;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

/// The most bytes of columns at a time. More at once gains nothing: the products are large by then.
const MAX_COLUMN_BYTES: usize = 64 << 20;

params!(UnfoldParams {
    src_offset: u32,
    src_batch: u32,
    src_channel: u32,
    src_row: u32,
    src_col: u32,
    channels: u32,
    i_h: u32,
    i_w: u32,
    k_h: u32,
    k_w: u32,
    padding_h: u32,
    padding_w: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_h: u32,
    dilation_w: u32,
    o_w: u32,
    first_row: u32,
    // The first row of the input that is there.
    top: u32,
    columns: u32,
    len: u32,
});

params!(FoldParams {
    src_offset: u32,
    src_tap: u32,
    src_row: u32,
    i_h: u32,
    i_w: u32,
    k_h: u32,
    k_w: u32,
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

/// Elements of the kernel in one channel.
fn taps(g: &Geometry) -> usize {
    g.kernel[0] * g.kernel[1]
}

fn input_len(g: &Geometry) -> usize {
    g.input[0] * g.input[1]
}

fn output_len(g: &Geometry) -> usize {
    g.output[0] * g.output[1]
}

/// Whether every window is one element, in order: the columns are the input itself.
fn is_pointwise(g: &Geometry) -> bool {
    taps(g) == 1 && g.steps.iter().all(|s| s.stride == 1 && s.padding == 0)
}

/// The operands of a convolution: the input `(batch, c_in, height, width)` (height left out in 1D) and the kernel.
pub(in super::super) struct Operands<'a> {
    src: &'a WebGpuStorage,
    src_l: &'a Layout,
    kernel: &'a WebGpuStorage,
    kernel_l: &'a Layout,
}

impl<'a> Operands<'a> {
    pub(in super::super) fn new(
        src: &'a WebGpuStorage,
        src_l: &'a Layout,
        kernel: &'a WebGpuStorage,
        kernel_l: &'a Layout,
    ) -> Self {
        Self {
            src,
            src_l,
            kernel,
            kernel_l,
        }
    }

    fn elem(&self, op: &'static str) -> Result<Elem> {
        self.src.device().elem(self.src.dtype(), op)
    }

    /// The input's strides over batch, channel, row and column.
    fn src_strides(&self) -> [usize; 4] {
        match *self.src_l.stride() {
            [batch, channel, col] => [batch, channel, 0, col],
            [batch, channel, row, col] => [batch, channel, row, col],
            _ => [0; 4],
        }
    }
}

/// A storage and a layout in which it is contiguous; copied only if it was not.
fn contiguous(src: &WebGpuStorage, layout: &Layout) -> Result<(Option<WebGpuStorage>, usize)> {
    if layout.is_contiguous() {
        return Ok((None, layout.start_offset()));
    }
    Ok((Some(elementwise::copy(src, layout)?), 0))
}

/// `(batch, group, row, column)`.
fn matrices(dims: [usize; 4], stride: [usize; 4], offset: usize) -> Layout {
    Layout::new(Shape::from(dims.to_vec()), stride.to_vec(), offset)
}

/// A convolution; of a plain one the kernel is `(c_out, c_in / groups, height, width)`, of a transposed one
/// `(c_in, c_out / groups, height, width)`.
pub(in super::super) fn run(operands: Operands<'_>, g: Geometry) -> Result<WebGpuStorage> {
    match g.transposed {
        false => forward(operands, g),
        true => transposed(operands, g),
    }
}

fn forward(operands: Operands<'_>, g: Geometry) -> Result<WebGpuStorage> {
    let elem = operands.elem(g.op)?;
    let device = operands.src.device();
    let dtype = operands.src.dtype();
    let mut dst = device.alloc(g.b * g.c_out * output_len(&g), dtype, g.op)?;
    if dst.is_empty() {
        return Ok(dst);
    }
    let (c_in, c_out) = (g.c_in / g.groups, g.c_out / g.groups);
    let k = c_in * taps(&g);
    let (copied, kernel_offset) = contiguous(operands.kernel, operands.kernel_l)?;
    let kernel = copied.as_ref().unwrap_or(operands.kernel);
    let multiply = |columns: &WebGpuStorage, batch: usize, n: usize, columns_l: &Layout| {
        let kernel_l = matrices(
            [batch, g.groups, c_out, k],
            [0, c_out * k, k, 1],
            kernel_offset,
        );
        let bmnk = (batch * g.groups, c_out, n, k);
        matmul::matmul(kernel, columns, bmnk, &kernel_l, columns_l)
    };

    let [batch_step, channel_step, row_step, col_step] = operands.src_strides();
    if is_pointwise(&g) && (g.input[0] == 1 || row_step == g.input[1] * col_step) {
        let n = output_len(&g);
        let strides = [batch_step, c_in * channel_step, channel_step, col_step];
        let offset = operands.src_l.start_offset();
        let columns_l = matrices([g.b, g.groups, k, n], strides, offset);
        return multiply(operands.src, g.b, n, &columns_l);
    }

    for piece in Piece::all(
        &g,
        g.groups * k * dtype.size_in_bytes(),
        most_rows(&operands, &g),
    ) {
        let n = piece.rows * g.output[1];
        let columns = unfold(&operands, &g, elem, &piece)?;
        let columns_l = Layout::contiguous((piece.batch, g.groups, k, n));
        let product = multiply(&columns, piece.batch, n, &columns_l)?;
        if piece.batch == g.b && piece.rows == g.output[0] {
            return Ok(product);
        }
        // Several whole images, or a band of rows of one image in every channel.
        let first = piece.first_batch * g.c_out * output_len(&g);
        let rows = Rows {
            d1: piece.batch * g.c_out,
            d2: n,
            src_stride: n,
            dst_stride: output_len(&g),
            src_offset: 0,
            dst_offset: first + piece.first_row * g.output[1],
        };
        copy2d(&product, &mut dst, rows)?;
    }
    Ok(dst)
}

/// What is unfolded at a time: some images, or, where one is too large, some rows of one.
struct Piece {
    first_batch: usize,
    batch: usize,
    first_row: usize,
    rows: usize,
}

impl Piece {
    /// Pieces in order, of at most `most_rows` rows; `column_bytes` is the size of one column.
    fn all(g: &Geometry, column_bytes: usize, most_rows: usize) -> Vec<Self> {
        let budget = (MAX_COLUMN_BYTES / (column_bytes * g.output[1]).max(1)).max(1);
        let rows = budget.min(g.output[0]).min(most_rows);
        let batch = match rows < g.output[0] {
            true => 1,
            false => (budget / g.output[0]).clamp(1, g.b),
        };
        let mut pieces = Vec::new();
        for first_batch in (0..g.b).step_by(batch) {
            for first_row in (0..g.output[0]).step_by(rows) {
                pieces.push(Self {
                    first_batch,
                    batch: batch.min(g.b - first_batch),
                    first_row,
                    rows: rows.min(g.output[0] - first_row),
                });
            }
        }
        pieces
    }
}

/// The most rows of results of which one channel's columns, and the input that they are made of, are within a binding's reach.
fn most_rows(operands: &Operands<'_>, g: &Geometry) -> usize {
    let size = operands.src.dtype().size_in_bytes();
    let most = window_bytes(operands.src.device()) / size;
    let columns = most / (taps(g) * g.output[1]).max(1);
    let input = (most / g.input[1].max(1)).saturating_sub(g.steps[0].dilation * g.kernel[0]);
    columns.min(input / g.steps[0].stride).max(1)
}

/// The windows of a piece as columns: `(batch, c_in * taps, rows * o_w)`.
fn unfold(
    operands: &Operands<'_>,
    g: &Geometry,
    elem: Elem,
    piece: &Piece,
) -> Result<WebGpuStorage> {
    // Only moves elements.
    let elem = elem.bits();
    let dtype = operands.src.dtype();
    let plane = taps(g) * piece.rows * g.output[1];
    let device = operands.src.device();
    let dst = device.alloc(piece.batch * g.c_in * plane, dtype, g.op)?;
    if dst.is_empty() {
        return Ok(dst);
    }
    // The rows of the input that the windows reach; one of the padding reaches none.
    let step = &g.steps[0];
    let first = piece.first_row * step.stride;
    let end = first + (piece.rows - 1) * step.stride + (g.kernel[0] - 1) * step.dilation + 1;
    let top = first.saturating_sub(step.padding).min(g.input[0] - 1);
    let bottom = end.saturating_sub(step.padding).clamp(top + 1, g.input[0]);
    let [batch_step, channel_step, row_step, col_step] = operands.src_strides();
    let src_l = Layout::new(
        Shape::from((piece.batch, g.c_in, bottom - top, g.input[1])),
        vec![batch_step, channel_step, row_step, col_step],
        operands.src_l.start_offset() + piece.first_batch * batch_step + top * row_step,
    );
    if fit([operands.src, &dst]) {
        unfold_into(&dst, (operands.src, &src_l), g, elem, piece, top)?;
        return Ok(dst);
    }
    let split = Split {
        op: g.op,
        dims: &[piece.batch, g.c_in],
        unit: plane,
        bytes: plane * dtype.size_in_bytes(),
        inputs: [(operands.src, &src_l)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let [(src, src_l)] = &part.inputs;
        unfold_into(&part.dst, (src, src_l), g, elem, piece, top)
    })?;
    Ok(dst)
}

/// `src_l` has the input's rows from `top` on.
fn unfold_into(
    dst: &WebGpuStorage,
    (src, src_l): Operand<'_>,
    g: &Geometry,
    elem: Elem,
    piece: &Piece,
    top: usize,
) -> Result<()> {
    let device = dst.device();
    let columns = piece.rows * g.output[1];
    let (batch, channels, _, _) = src_l.shape().dims4()?;
    let len = batch * channels * taps(g) * columns;
    let steps = src_l.stride();
    device.launch(
        Key::new("unfold").elem(elem),
        || {
            Shader::new(format!("unfold {elem:?}"))
                .input("src", elem)
                .output("dst", elem)
                .each_element::<UnfoldParams>(include_str!("../shaders/unfold.wgsl"))
        },
        &[bind(src), bind(dst)],
        &UnfoldParams {
            src_offset: index(src_l.start_offset())?,
            src_batch: index(steps[0])?,
            src_channel: index(steps[1])?,
            src_row: index(steps[2])?,
            src_col: index(steps[3])?,
            channels: index(channels)?,
            i_h: index(g.input[0])?,
            i_w: index(g.input[1])?,
            k_h: index(g.kernel[0])?,
            k_w: index(g.kernel[1])?,
            padding_h: index(g.steps[0].padding)?,
            padding_w: index(g.steps[1].padding)?,
            stride_h: index(g.steps[0].stride)?,
            stride_w: index(g.steps[1].stride)?,
            dilation_h: index(g.steps[0].dilation)?,
            dilation_w: index(g.steps[1].dilation)?,
            o_w: index(g.output[1])?,
            first_row: index(piece.first_row)?,
            top: index(top)?,
            columns: index(columns)?,
            len: index(len)?,
        },
        device.grid_of_words(len, elem),
    )
}

fn transposed(operands: Operands<'_>, g: Geometry) -> Result<WebGpuStorage> {
    let device = operands.src.device();
    let dtype = operands.src.dtype();
    let mut dst = device.alloc(g.b * g.c_out * output_len(&g), dtype, g.op)?;
    if dst.is_empty() {
        return Ok(dst);
    }
    let (c_in, c_out) = (g.c_in / g.groups, g.c_out / g.groups);
    let (taps, n) = (taps(&g), input_len(&g));
    let (kernel_copy, kernel_offset) = contiguous(operands.kernel, operands.kernel_l)?;
    let kernel = kernel_copy.as_ref().unwrap_or(operands.kernel);
    let (src_copy, src_offset) = contiguous(operands.src, operands.src_l)?;
    let src = src_copy.as_ref().unwrap_or(operands.src);

    // What falls on one element is added up before it is rounded to the dtype.
    let sums = accumulator(dtype);
    // A piece is some images; of one that is too large, some groups; of one group, some channels.
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
    // Where an image's columns are past a binding's reach, some rows of it at a time.
    let step = &g.steps[0];
    let most = window_bytes(device) / columns.dtype().size_in_bytes();
    let input_rows = (most / (taps(g) * g.input[1])).saturating_sub(1) * step.stride;
    let rows = input_rows
        .saturating_sub((g.kernel[0] - 1) * step.dilation)
        .min(most / g.output[1])
        .clamp(1, g.output[0]);
    for first in (0..g.output[0]).step_by(rows) {
        let rows = rows.min(g.output[0] - first);
        // The rows of the input whose windows reach these.
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
    let from = device.elem(columns.dtype(), g.op)?;
    let elem = device.elem(dst.dtype(), g.op)?;
    let (planes, _, i_h, i_w) = columns_l.shape().dims4()?;
    let steps = columns_l.stride();
    let len = planes * rows * g.output[1];
    // A place above the first row wraps, as one in the padding does.
    let padding_h = index(g.steps[0].padding + first)?;
    let padding_h = padding_h.wrapping_sub(index(top * g.steps[0].stride)?);
    device.launch(
        Key::new("fold").elem(from).elem(elem),
        || {
            Shader::new(format!("fold {from:?}->{elem:?}"))
                .input("src", from)
                .output("dst", elem)
                .text(functions(from))
                .each_element::<FoldParams>(include_str!("../shaders/fold.wgsl"))
        },
        &[bind(columns), bind(dst)],
        &FoldParams {
            src_offset: index(columns_l.start_offset())?,
            src_tap: index(steps[1])?,
            src_row: index(steps[2])?,
            i_h: index(i_h)?,
            i_w: index(i_w)?,
            k_h: index(g.kernel[0])?,
            k_w: index(g.kernel[1])?,
            padding_h,
            padding_w: index(g.steps[1].padding)?,
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
