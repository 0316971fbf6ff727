//! Products with quantised weights, straight from their blocks.

use super::cooperative::CoopTile;
use super::extras::Input;
use super::plan::{tiles, Plan};
use super::{elem_bytes, product, vector, Access, Extras, Problem, Rhs, Run, Views};
use crate::backend::{BackendDevice, BackendStorage};
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::ops::copy2d::{copy2d, Rows};
use crate::webgpu_backend::ops::quantized::{dequantize, Format};
use crate::webgpu_backend::ops::windows::Split;
use crate::webgpu_backend::ops::{as_rows, bind, elementwise, index, WORKGROUP};
use crate::webgpu_backend::quantized::{Blocks, QWebGpuStorage};
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

const OP: &str = "qmatmul";

/// `lhs`, whose rows have `k` elements and are `m` in all, times the rows `first_row .. first_row + n` of `weight`, `k` elements each,
/// transposed: `(m, n)` in the dtype of `lhs`.
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

/// The rows of a quantised weight from `first` on.
#[derive(Clone, Copy)]
pub(in crate::webgpu_backend) struct WeightRows<'a> {
    pub(in crate::webgpu_backend) weight: &'a QWebGpuStorage,
    pub(in crate::webgpu_backend) format: Format,
    pub(in crate::webgpu_backend) first: usize,
}

/// `lhs (m, k)` times rows of a weight transposed, with `extras`, or `None` where no kernel does both. `n` counts the columns of the
/// result, and nothing is of size 0.
pub(in crate::webgpu_backend) fn fused_blocks(
    (lhs, lhs_l): Input<'_>,
    rhs: WeightRows<'_>,
    (m, k, n): (usize, usize, usize),
    extras: Extras<'_>,
) -> Result<Option<WebGpuStorage>> {
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), OP)?;
    let vector = m <= extras.most_vector_rows();
    let kernel_has_them = vector || !extras.need_vector();
    // The gate and what it is multiplied with are `n` rows apart, and read through one binding.
    let at_once = rhs.weight.window_rows(rhs.format, k);
    let reaches = extras.gate.is_none() || at_once >= 2 * n;
    let fits = extras.fit(16 / elem_bytes(elem)) && extras.each().all(WebGpuStorage::fits_binding);
    // The result may be made in f32 first.
    let bytes = lhs.dtype().size_in_bytes().max(4);
    let one_box = lhs.fits_binding() && (m * n * bytes) as u64 <= device.max_binding();
    let alone = extras.is_none();
    if !(kernel_has_them && reaches && fits && (one_box || alone)) {
        return Ok(None);
    }
    if !one_box {
        return in_boxes((lhs, lhs_l), rhs, (m, k, n), bytes).map(Some);
    }
    // Rows are read in groups, from places that are multiples of one.
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
    let operands = Operands {
        rhs,
        lhs,
        row,
        offset,
        extras,
    };
    // As in a dense product: rows of an odd length share words of a packed dtype. So do columns that are made an odd number at a time.
    let lanes = elem.lanes() as usize;
    let packs = n.is_multiple_of(lanes) && (at_once >= n || at_once.is_multiple_of(lanes));
    let out_dtype = if packs { lhs.dtype() } else { DType::F32 };
    let dst = device.alloc(m * n, out_dtype, OP)?;
    let caps = &device.kernels().caps;
    let piece_fits = (PIECE_UNIT * 2 * k) as u64 <= device.max_binding();
    if !vector && caps.cooperative && piece_fits {
        let plan = |problem: &Problem| {
            let (tile, splits) = CoopTile::choose(problem, &caps.limits);
            Plan::Cooperative { tile, splits }
        };
        via_f16(&operands, (m, k, n), &dst, PIECE_BYTES, plan)?;
    } else {
        direct(&operands, elem, vector, (m, k, n), &dst)?;
    }
    if packs {
        return Ok(Some(dst));
    }
    elementwise::to_dtype(&dst, &Layout::contiguous((m, n)), lhs.dtype()).map(Some)
}

/// A product of which one binding does not reach `lhs (m, k)` or the result, with `bytes` for each element: boxes of rows and columns.
fn in_boxes(
    (lhs, lhs_l): Input<'_>,
    rhs: WeightRows<'_>,
    (m, k, n): (usize, usize, usize),
    bytes: usize,
) -> Result<WebGpuStorage> {
    // lhs does not move over n.
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
        let all = Rows::range(made.len(), 0, part.offset);
        copy2d(&made, &mut part.dst.share(), all)
    })?;
    Ok(dst)
}

/// Elements of lhs that kernels with blocks read at once.
const GROUP: usize = 8;

/// The operands of a product with blocks.
struct Operands<'a> {
    rhs: WeightRows<'a>,
    lhs: &'a WebGpuStorage,
    /// Where lhs, whose rows are contiguous, begins, and from row to row.
    offset: usize,
    row: usize,
    extras: Extras<'a>,
}

/// A problem whose operands have rows of `k` elements in order; those of lhs are `row` apart.
fn problem((m, k, n): (usize, usize, usize), row: usize, offsets: [usize; 2]) -> Result<Problem> {
    Ok(Problem {
        batch: 1,
        m,
        n,
        k,
        views: Views {
            len: index(m * n)?,
            rank: 0,
            dims: [1; 8],
            strides: [[0; 8]; 2],
            offsets: [index(offsets[0])?, index(offsets[1])?],
        },
        lhs: (row, 1),
        rhs: (k, 1),
        dst_row: n,
        dst_first: 0,
    })
}

/// The kernels that decode blocks where they use them.
fn direct(
    operands: &Operands<'_>,
    elem: Elem,
    vector: bool,
    (m, k, n): (usize, usize, usize),
    dst: &WebGpuStorage,
) -> Result<()> {
    let Operands { rhs, extras, .. } = *operands;
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
            ..problem(
                (m, k, columns),
                operands.row,
                [operands.offset, window.offset],
            )?
        };
        let mut bindings = vec![bind(operands.lhs)];
        bindings.extend(window.bindings());
        bindings.push(bind(dst));
        let run = Run {
            device,
            bindings: &bindings,
            problem: &problem,
            lhs: elem,
            rhs: Rhs::Blocks(rhs.format),
            windows: None,
            scaled: false,
            out,
            extras,
            splits: 1,
            choice: None,
        };
        run.run(if vector {
            vector::plan_blocks(&problem, extras.gate.is_some(), &device.kernels().caps)
        } else {
            tiles(&problem, Access::Inner, Access::Inner)
        })?;
    }
    Ok(())
}

/// Bytes of a weight in f16 that are made at a time, at the most: little beside the weights, and enough that a piece has tiles for
/// all of a large GPU. Smaller pieces do not pay: what is read back from a cache is read while a product computes.
const PIECE_BYTES: usize = 128 << 20;
/// What the columns of a piece are a multiple of, so that only the last one has tiles that are not full.
const PIECE_UNIT: usize = 256;

/// The product by f16 matrices with f32 sums: rows of `lhs` are converted to f16 once, the weight piece by piece. Decoding it apart
/// from the product costs a write and a read of a cache, but happens once and not for every tile down the rows of lhs.
///
/// Powers of two keep both in the range of f16: one for each row of lhs, one for the weight.
fn via_f16(
    operands: &Operands<'_>,
    (m, k, n): (usize, usize, usize),
    dst: &WebGpuStorage,
    piece_bytes: usize,
    plan: impl Fn(&Problem) -> Plan,
) -> Result<()> {
    let WeightRows {
        weight,
        format,
        first: first_row,
    } = operands.rhs;
    let device = dst.device();
    let factor = weight.f16_factor();
    let (lhs, scales) = rows_as_f16(operands, (m, k), 1. / factor)?;
    // Cooperative matrices come with shader-f16.
    let converts = device.kernels().caps.cooperative;
    // Pieces of one size: a small last one would leave most of the GPU idle.
    let pieces = n.div_ceil((piece_bytes / (2 * k)).max(1));
    let piece = n.div_ceil(pieces).next_multiple_of(PIECE_UNIT);
    let bound = device.max_binding() as usize / (2 * k) / PIECE_UNIT;
    let piece = piece.min(bound.max(1) * PIECE_UNIT);
    for first in (0..n).step_by(piece) {
        let columns = piece.min(n - first);
        let rows = ((first_row + first) * k, columns * k);
        let rhs = dequantize(weight, format, rows, factor, (DType::F16, converts))?;
        let problem = Problem {
            dst_row: n,
            dst_first: first,
            ..problem((m, k, columns), k, [0, 0])?
        };
        let run = Run {
            device,
            bindings: &[bind(&lhs), bind(&rhs), bind(&scales), bind(dst)],
            problem: &problem,
            lhs: Elem::F16,
            rhs: Rhs::Dense(Elem::F16),
            windows: None,
            scaled: true,
            out: device.elem(dst.dtype(), OP)?,
            extras: operands.extras,
            splits: 1,
            choice: None,
        };
        run.run(plan(&problem))?;
    }
    Ok(())
}

params!(RowsParams {
    rows: u32,
    k: u32,
    lhs_offset: u32,
    lhs_row: u32,
    scale: f32,
});

/// `lhs (m, k)` in f16, each row times a power of two, and for each row `scale` over that power.
fn rows_as_f16(
    operands: &Operands<'_>,
    (m, k): (usize, usize),
    scale: f32,
) -> Result<(WebGpuStorage, WebGpuStorage)> {
    let lhs = operands.lhs;
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), OP)?;
    let dst = device.alloc(m * k, DType::F16, OP)?;
    let scales = device.alloc(m, DType::F32, OP)?;
    let shader = || {
        Shader::new(format!("rows_as_f16 {elem:?}"))
            .input("lhs", elem)
            .output_words("dst", "u32")
            .output_words("scales", "f32")
            .constant("WG", WORKGROUP)
            .body::<RowsParams>(include_str!("../../shaders/rows_as_f16.wgsl"))
    };
    device.launch(
        Key::new("rows_as_f16").elem(elem),
        shader,
        &[bind(lhs), bind(&dst), bind(&scales)],
        &RowsParams {
            rows: index(m)?,
            k: index(k)?,
            lhs_offset: index(operands.offset)?,
            lhs_row: index(operands.row)?,
            scale,
        },
        device.grid(m, 1),
    )?;
    Ok((dst, scales))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantized::{GgmlDType, QTensor};
    use crate::{CpuStorage, Device, Tensor};

    /// Software adapters have no cooperative matrices: here the tile kernel takes the f16 operands in their place.
    #[test]
    fn products_via_f16() -> Result<()> {
        let Device::WebGpu(device) = Device::new_webgpu(0)? else {
            unreachable!("a WebGPU device was asked for")
        };
        // Long enough for the inner dimension to be cut.
        let (m, k, n) = (9, 512, 600);
        let rows = |rows: usize, step: usize| {
            let row = move |r: usize| (0..k).map(move |i| ((r * 31 + i * step) % 23) as f32 - 11.);
            (0..rows).flat_map(row).collect::<Vec<f32>>()
        };
        // Far beyond f16 on one side, far below on the other.
        for (lhs_size, rhs_size) in [(1f32, 1f32), (1e9, 1e-4), (1e-12, 1e3), (1e30, 1e-3)] {
            let mut x = rows(m, 7);
            // Rows of very different size.
            for (r, row) in x.chunks_mut(k).enumerate() {
                let size = lhs_size * 10f32.powi(r as i32 % 4);
                row.iter_mut().for_each(|x| *x *= size);
            }
            let dense = rows(n, 5).iter().map(|w| w * rhs_size).collect();
            let dense = Tensor::from_vec::<_, f32>(dense, (n, k), &Device::Cpu)?;
            let blocks = QTensor::quantize(&dense, GgmlDType::Q8_0)?;
            let weight = QWebGpuStorage::from_data(&device, GgmlDType::Q8_0, &blocks.data()?)?;
            let lhs = device.storage_from_slice(&x)?;
            // As large as the products, from the second element of a storage on.
            let added = |i: usize| ((i * 7) % 13) as f32 * lhs_size * rhs_size;
            let added = (0..m * n + 1).map(added).collect::<Vec<_>>();
            let residual = device.storage_from_slice(&added)?;
            let residual_l = Layout::contiguous_with_offset((m, n), 1);
            let dst = device.alloc(m * n, DType::F32, OP)?;
            let operands = Operands {
                rhs: WeightRows {
                    weight: &weight,
                    format: Format::of(GgmlDType::Q8_0).expect("a quantised format"),
                    first: 0,
                },
                lhs: &lhs,
                offset: 0,
                row: k,
                extras: Extras {
                    residual: Some((&residual, &residual_l)),
                    ..Extras::default()
                },
            };
            // Three pieces: 256, 256 and 88 columns.
            via_f16(&operands, (m, k, n), &dst, 256 * 2 * k, |problem| {
                tiles(problem, Access::Inner, Access::Inner)
            })?;
            let CpuStorage::F32(got) = dst.to_cpu_storage()? else {
                unreachable!("dst is f32")
            };
            let weight = blocks.dequantize(&Device::Cpu)?.to_vec2::<f32>()?;
            for (i, x) in x.chunks(k).enumerate() {
                for (j, w) in weight.iter().enumerate() {
                    let products = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let first = f64::from(added[i * n + j + 1]);
                    let (sum, size) =
                        products.fold((first, first), |(s, n), p| (s + p, n + p.abs()));
                    // Both sides are rounded to 11 bits.
                    let off = (f64::from(got[i * n + j]) - sum).abs();
                    assert!(
                        off <= size * 2f64.powi(-10),
                        "{lhs_size} {rhs_size} ({i}, {j}): {off} of {size}"
                    );
                }
            }
        }
        Ok(())
    }
}
