//! Products with quantised weights, directly from their blocks.

use super::blocks::{self, BlocksShape};
use super::extras::Input;
use super::operand::Scales;
use super::plan::{cooperative, decodes_within, tiles, Plan, MOST_BLOCKS_K};
use super::rows::{rows_as_bytes, RowsShape, LEAST_ROWS};
use super::rows_as_f16::{normed_rows_as_f16, takes_norm, Rows, GROUP, MOST_F16_K};
use super::via_f16::{problem, via_f16, Weight, WeightRows, PIECE_BYTES, PIECE_UNIT};
use super::{elem_bytes, product, vector, Access, Extras, Problem, Rhs, Run};
use crate::backend::{BackendDevice, BackendStorage};
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::Elem;
use crate::webgpu_backend::limits::MAX_BUFFERS;
use crate::webgpu_backend::ops::copy2d::{self, copy2d};
use crate::webgpu_backend::ops::quantized::Format;
use crate::webgpu_backend::ops::windows::Split;
use crate::webgpu_backend::ops::{as_rows, bind, elementwise};
use crate::webgpu_backend::quantized::{Blocks, QWebGpuStorage};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

const OP: &str = "qmatmul";

/// `lhs`, with `m` rows of `k` elements in total, times the rows `first_row .. first_row + n` of `weight`, `k` elements each, transposed:
/// `(m, n)` in the dtype of `lhs`.
pub(in crate::webgpu_backend) fn matmul_t(
    weight: &QWebGpuStorage,
    first_row: usize,
    (m, k, n): (usize, usize, usize),
    lhs: &WebGpuStorage,
    lhs_l: &Layout,
) -> Result<WebGpuStorage> {
    let device = lhs.device();
    if !device.elem(lhs.dtype(), OP)?.in_wide_kernels() {
        return Err(device.unsupported(OP, lhs.dtype(), "convert to f32, f16 or bf16 first"));
    }
    if m == 0 || n == 0 || k == 0 {
        return device.zeros_impl(&Shape::from((m, n)), lhs.dtype());
    }
    let (lhs, lhs_l) = as_rows((lhs, lhs_l), (m, k))?;
    match weight.blocks() {
        Blocks::Planes(format) => {
            let rows = WeightRows {
                weight,
                format,
                first: first_row,
            };
            let dst = fused_blocks((&lhs, &lhs_l), rows, (m, k, n), Extras::default())?;
            Ok(dst.expect("a product without extras has a kernel for every problem"))
        }
        Blocks::Floats(floats) => {
            let mut rhs_l = Layout::contiguous_with_offset((n, k), first_row * k);
            let converted;
            let rhs = if floats.dtype() == lhs.dtype() {
                floats
            } else {
                converted = elementwise::to_dtype(floats, &rhs_l, lhs.dtype())?;
                rhs_l = Layout::contiguous((n, k));
                &converted
            };
            let rhs_l = rhs_l.transpose(0, 1)?;
            product(&lhs, rhs, (1, m, n, k), &lhs_l, &rhs_l, lhs.dtype())
        }
    }
}

/// `lhs (m, k)` times rows of a weight transposed, with `extras`, or `None` if no kernel computes both. `n` counts the columns of the
/// result, and no size is 0.
pub(in crate::webgpu_backend) fn fused_blocks(
    (lhs, lhs_l): Input<'_>,
    rhs: WeightRows<'_>,
    (m, k, n): (usize, usize, usize),
    extras: Extras<'_>,
) -> Result<Option<WebGpuStorage>> {
    let device = lhs.device();
    let dtype = lhs.dtype();
    let elem = device.elem(dtype, OP)?;
    let vector =
        m <= blocks::most_rows(rhs.format, &extras, &device.kernels().caps) && k <= MOST_BLOCKS_K;
    let caps = &device.kernels().caps;
    let normed =
        caps.cooperative && extras.gate.is_none() && !too_long(k, caps) && takes_norm((m, k));
    let kernel_has_them = vector || !extras.need_vector() || normed;
    // The rows of gate and up projection are `n` rows apart, and read through one binding.
    let at_once = rhs.weight.window_rows(rhs.format, k);
    let reaches = extras.gate.is_none() || at_once >= 2 * n;
    let fits = extras.fit(16 / elem_bytes(elem)) && extras.each().all(WebGpuStorage::fits_binding);
    // The result may be computed in f32 first.
    let bytes = lhs.dtype().size_in_bytes().max(4);
    let one_box = lhs.fits_binding() && (m * n * bytes) as u64 <= device.max_binding();
    let alone = extras.is_none();
    if !(kernel_has_them && reaches && fits && (one_box || alone)) {
        return Ok(None);
    }
    if !one_box {
        return in_boxes((lhs, lhs_l), rhs, (m, k, n), bytes).map(Some);
    }
    // Rows are read in groups, from offsets that are multiples of the group.
    let in_groups = lhs_l.stride()[1] == 1
        && lhs_l.stride()[0].is_multiple_of(GROUP)
        && lhs_l.start_offset().is_multiple_of(GROUP);
    let copied;
    let (lhs, row, offset) = if in_groups {
        (lhs, lhs_l.stride()[0], lhs_l.start_offset())
    } else {
        copied = elementwise::copy(lhs, lhs_l)?;
        (&copied, k, 0)
    };
    let lhs = Rows {
        floats: lhs,
        offset,
        row,
    };
    // As in a dense product, rows of an odd length share words of a packed dtype. So do columns that are computed an odd number at a time.
    let lanes = elem.lanes() as usize;
    let packs = n.is_multiple_of(lanes) && (at_once >= n || at_once.is_multiple_of(lanes));
    let out_dtype = if packs { dtype } else { DType::F32 };
    let dst = device.alloc(m * n, out_dtype, OP)?;
    let operands = Operands {
        rhs,
        lhs,
        elem,
        beside: Beside::Nothing,
        extras,
    };
    if vector {
        let gated = extras.gate.is_some();
        let shape = |problem: &Problem| BlocksShape::choose(problem, rhs.format, gated, caps);
        match shape(&problem((m, k, n), k, [0, 0])?) {
            Some(shape) if m >= LEAST_ROWS && buffers_fit(rhs.format, &extras) => {
                in_bytes(&operands, (m, k, n), &dst, shape)?
            }
            _ => direct(&operands, (m, k, n), &dst, |problem| match shape(problem) {
                Some(shape) => Plan::Blocks(shape),
                None => Plan::Vector(vector::plan_blocks(problem, gated, caps)),
            })?,
        }
    } else if caps.cooperative {
        by_matrices(&operands, (m, k, n), &dst, caps)?;
    } else {
        by_tiles(&operands, (m, k, n), &dst)?;
    }
    if packs {
        return Ok(Some(dst));
    }
    elementwise::to_dtype(&dst, &Layout::contiguous((m, n)), dtype).map(Some)
}

/// A product whose `lhs (m, k)` or result, of `bytes` per element, exceeds one binding: computed in boxes of rows and columns.
fn in_boxes(
    (lhs, lhs_l): Input<'_>,
    rhs: WeightRows<'_>,
    (m, k, n): (usize, usize, usize),
    bytes: usize,
) -> Result<WebGpuStorage> {
    // lhs has stride 0 over n.
    let [row, col] = [lhs_l.stride()[0], lhs_l.stride()[1]];
    let lhs_l = Layout::new((m, n, k).into(), vec![row, 0, col], lhs_l.start_offset());
    let dst = lhs.device().alloc(m * n, lhs.dtype(), OP)?;
    let split = Split {
        op: OP,
        dims: &[m, n],
        unit: 1,
        bytes,
        inputs: [(lhs, &lhs_l)],
        anywhere: false,
    };
    split.run(&dst, 0, &mut |part| {
        let ([(lhs, lhs_l)], [m, n]) = (&part.inputs, &part.dims[..]) else {
            return Ok(());
        };
        let first = rhs.first + part.start[1];
        let strides = vec![lhs_l.stride()[0], lhs_l.stride()[2]];
        let lhs_l = Layout::new((*m, k).into(), strides, lhs_l.start_offset());
        let made = matmul_t(rhs.weight, first, (*m, k, *n), lhs, &lhs_l)?;
        let all = copy2d::Rows::range(made.len(), 0, part.offset);
        copy2d(&made, &mut part.dst.share(), all)
    })?;
    Ok(dst)
}

/// The operands of a product with blocks.
#[derive(Clone, Copy)]
struct Operands<'a> {
    rhs: WeightRows<'a>,
    lhs: Rows<'a>,
    elem: Elem,
    beside: Beside<'a>,
    extras: Extras<'a>,
}

/// A binding beside a converted lhs.
#[derive(Clone, Copy)]
enum Beside<'a> {
    Nothing,
    /// lhs in f16: the factors of its rows, if the weight is multiplied by a factor.
    Scales(&'a WebGpuStorage, f32),
    /// lhs in 8 bits: the scales and sums of its runs.
    Runs(&'a WebGpuStorage),
}

/// Whether a product after a conversion of lhs has few enough buffers: lhs, what is beside it, dst and the planes, and the extras but the
/// norm, which is a part of the conversion.
fn buffers_fit(format: Format, extras: &Extras<'_>) -> bool {
    let others = extras.each().count() - usize::from(extras.norm.is_some());
    3 + format.bindings() + others <= MAX_BUFFERS
}

/// A product of few rows, which a pass converts to 8 bits.
fn in_bytes(
    operands: &Operands<'_>,
    (m, k, n): (usize, usize, usize),
    dst: &WebGpuStorage,
    shape: BlocksShape,
) -> Result<()> {
    let Operands { lhs, extras, .. } = *operands;
    let (bytes, runs) = rows_as_bytes(lhs, (m, k), extras.norm, shape)?;
    let converted = Operands {
        lhs: Rows {
            floats: &bytes,
            offset: 0,
            row: k,
        },
        beside: Beside::Runs(&runs),
        extras: Extras {
            norm: None,
            ..extras
        },
        ..*operands
    };
    let shape = RowsShape {
        blocks: shape,
        rows: m as u32,
        norm: extras.norm.is_some(),
    };
    direct(&converted, (m, k, n), dst, |_| Plan::Rows(shape))
}

/// A product with cooperative matrices: either its kernel dequantises the blocks, or a pass before it does.
fn by_matrices(
    operands: &Operands<'_>,
    (m, k, n): (usize, usize, usize),
    dst: &WebGpuStorage,
    caps: &Caps,
) -> Result<()> {
    let Operands { rhs, extras, .. } = *operands;
    let blocks = Rhs::Blocks(rhs.format);
    let whole = problem((m, k, n), k, [0, 0])?;
    let within = k <= MOST_F16_K && decodes_within(&cooperative(&whole, blocks, caps), &whole);
    if within && buffers_fit(rhs.format, &extras) {
        return within_f16(operands, (m, k, n), dst, |problem| {
            cooperative(problem, blocks, caps)
        });
    }
    if too_long(k, caps) || k > MOST_F16_K {
        return by_tiles(operands, (m, k, n), dst);
    }
    let (lhs, weight) = (operands.lhs, Weight::Blocks(rhs));
    via_f16(
        lhs,
        weight,
        (m, k, n),
        extras,
        dst,
        PIECE_BYTES,
        |problem| cooperative(problem, Rhs::Dense(Elem::F16), caps),
    )
}

/// Whether a part of a weight in f16 exceeds a binding.
fn too_long(k: usize, caps: &Caps) -> bool {
    (PIECE_UNIT * 2 * k) as u64 > caps.limits.max_storage_buffer_binding_size
}

/// A product whose lhs is converted to f16, and whose blocks are dequantised by the kernel that `plan` selects.
fn within_f16(
    operands: &Operands<'_>,
    (m, k, n): (usize, usize, usize),
    dst: &WebGpuStorage,
    plan: impl Fn(&Problem) -> Plan,
) -> Result<()> {
    let factor = operands.rhs.weight.f16_factor();
    let norm = operands.extras.norm;
    let (lhs, scales) = normed_rows_as_f16(operands.lhs, (m, k), norm, 1. / factor, false)?;
    let converted = Operands {
        lhs: Rows {
            floats: &lhs,
            offset: 0,
            row: k,
        },
        elem: Elem::F16,
        beside: Beside::Scales(&scales, factor),
        extras: Extras {
            norm: None,
            ..operands.extras
        },
        ..*operands
    };
    direct(&converted, (m, k, n), dst, plan)
}

fn by_tiles(
    operands: &Operands<'_>,
    mkn: (usize, usize, usize),
    dst: &WebGpuStorage,
) -> Result<()> {
    direct(operands, mkn, dst, |problem| {
        tiles(problem, Access::Inner, Access::Inner)
    })
}

/// The kernels that dequantise blocks on use.
fn direct(
    operands: &Operands<'_>,
    (m, k, n): (usize, usize, usize),
    dst: &WebGpuStorage,
    plan: impl Fn(&Problem) -> Plan,
) -> Result<()> {
    let Operands {
        rhs,
        lhs,
        elem,
        beside,
        extras,
    } = *operands;
    let (beside, scales, factor) = match beside {
        Beside::Nothing => (None, Scales::None, 1.),
        Beside::Scales(scales, factor) => (Some(scales), Scales::Rows, factor),
        Beside::Runs(runs) => (Some(runs), Scales::None, 1.),
    };
    let device = dst.device();
    let out = device.elem(dst.dtype(), OP)?;
    let step = rhs.weight.window_rows(rhs.format, k).min(n);
    for first in (0..n).step_by(step) {
        let columns = step.min(n - first);
        let rows = if extras.gate.is_some() {
            2 * n
        } else {
            columns
        };
        let window = rhs
            .weight
            .window(rhs.format, (rhs.first + first) * k, rows * k)?;
        let problem = Problem {
            dst_row: n,
            dst_first: first,
            ..problem((m, k, columns), lhs.row, [lhs.offset, window.offset])?
        };
        let mut bindings = vec![bind(lhs.floats)];
        bindings.extend(window.bindings());
        bindings.extend(beside.map(bind));
        bindings.push(bind(dst));
        let form = (elem, Rhs::Blocks(rhs.format), out);
        let run = Run {
            extras,
            scales,
            factor,
            ..Run::new(device, &bindings, &problem, form)
        };
        run.run(plan(&problem))?;
    }
    Ok(())
}
