//! Products by f16 matrices of operands that are not f16: blocks, bf16, and f32 where it is asked for.
//!
//! Rows of both sides are converted, those of lhs once, the weight piece by piece. Converting it apart from the product costs a write
//! and a read of memory, but happens once and not for every tile down the rows of lhs. Sums are f32.
//!
//! Powers of two keep both sides in the range of f16: one for each row of lhs, and one for each row of a dense weight or for all of a
//! quantised one. f16 has three bits of mantissa more than bf16, so what was bf16 is exact unless it is 2^28 times smaller than its
//! row's largest element.

use std::sync::atomic::{AtomicBool, Ordering};

use super::operand::Scales;
use super::plan::Plan;
use super::{Access, Extras, Problem, Rhs, Run};
use crate::backend::BackendStorage;
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::{params, Elem, Kernel, Shader};
use crate::webgpu_backend::ops::quantized::{dequantize, Format};
use crate::webgpu_backend::ops::{bind, index, Views, WORKGROUP};
use crate::webgpu_backend::quantized::QWebGpuStorage;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

const OP: &str = "matmul";

static REDUCED_F32: AtomicBool = AtomicBool::new(false);

/// Whether products of f32 matrices may round their operands to f16's mantissa of 10 bits, which is that of TF32, on adapters with
/// cooperative matrices. Sums stay f32. Off at first.
pub fn gemm_reduced_precision_f32() -> bool {
    REDUCED_F32.load(Ordering::Relaxed)
}

/// Sets [`gemm_reduced_precision_f32`] for all devices of the process.
pub fn set_gemm_reduced_precision_f32(reduced: bool) {
    REDUCED_F32.store(reduced, Ordering::Relaxed);
}

/// Rows of floats: where they begin in a storage, and from row to row, both multiples of [`GROUP`]. Elements of a row are in order.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) floats: &'a WebGpuStorage,
    pub(super) offset: usize,
    pub(super) row: usize,
}

/// Elements that are read at once.
pub(super) const GROUP: usize = 8;

/// The rows of a quantised weight from `first` on.
#[derive(Clone, Copy)]
pub(in crate::webgpu_backend) struct WeightRows<'a> {
    pub(in crate::webgpu_backend) weight: &'a QWebGpuStorage,
    pub(in crate::webgpu_backend) format: Format,
    pub(in crate::webgpu_backend) first: usize,
}

/// The side of a product that is converted in pieces.
#[derive(Clone, Copy)]
pub(super) enum Weight<'a> {
    Blocks(WeightRows<'a>),
    Floats(Rows<'a>),
}

/// Bytes of a weight in f16 that are made at a time, at the most: little beside the weights, and enough that a piece has tiles for
/// all of a large GPU. Smaller pieces do not pay: what is read back from a cache is read while a product computes.
pub(super) const PIECE_BYTES: usize = 128 << 20;
/// What the columns of a piece are a multiple of, so that only the last one has tiles that are not full.
pub(super) const PIECE_UNIT: usize = 256;

/// Rows from which on a dense weight is converted. Converting it moves 6 bytes an element, some 1.4 picoseconds at 4.3 TB/s; tiles in f32
/// take one multiplication for each row, of which the GPU does some 14 a picosecond. Estimated.
const LEAST_ROWS: usize = 20;

/// The longest rows that a workgroup converts: an invocation takes eight elements in a step, in two loops.
pub(super) const MOST_F16_K: usize = 1 << 22;

/// Whether a dense product goes this way: it is a linear layer's, with rows that can be read in groups, and its dtype asks for it, f32
/// with `reduced` precision only.
pub(super) fn takes(problem: &Problem, elem: Elem, reduced: bool, caps: &Caps) -> bool {
    let dtype = match elem {
        Elem::BF16 => true,
        Elem::F32 => reduced,
        _ => false,
    };
    let in_rows = |operand| problem.access(operand, GROUP) == Access::Inner;
    // What is made of a piece of the weight, and of lhs.
    let bytes = 2 * problem.k * PIECE_UNIT.max(problem.m);
    dtype
        && caps.cooperative
        && problem.batch == 1
        && problem.m >= LEAST_ROWS
        && problem.k <= MOST_F16_K
        && problem
            .k
            .is_multiple_of(super::cooperative::COOP_K as usize)
        && in_rows(0)
        && in_rows(1)
        && bytes as u64 <= caps.limits.max_storage_buffer_binding_size
}

/// The operands of a dense product that [`takes`] takes.
pub(super) fn operands<'a>(
    problem: &Problem,
    lhs: &'a WebGpuStorage,
    rhs: &'a WebGpuStorage,
) -> (Rows<'a>, Weight<'a>) {
    let rows = |floats, operand: usize, row| Rows {
        floats,
        offset: problem.views.offsets[operand] as usize,
        row,
    };
    (
        rows(lhs, 0, problem.lhs.0),
        Weight::Floats(rows(rhs, 1, problem.rhs.0)),
    )
}

/// A problem whose operands have rows of `k` elements in order; those of lhs are `row` apart.
pub(super) fn problem(
    (m, k, n): (usize, usize, usize),
    row: usize,
    offsets: [usize; 2],
) -> Result<Problem> {
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

/// `lhs (m, k)` times a weight `(n, k)` transposed, into `dst (m, n)`, by the kernel that `plan` chooses for a piece.
pub(super) fn via_f16(
    lhs: Rows<'_>,
    weight: Weight<'_>,
    (m, k, n): (usize, usize, usize),
    extras: Extras<'_>,
    dst: &WebGpuStorage,
    piece_bytes: usize,
    plan: impl Fn(&Problem) -> Plan,
) -> Result<()> {
    let device = dst.device();
    let (lhs, lhs_scales) = rows_as_f16(lhs, (m, k), 1. / weight.factor(), false)?;
    // Pieces of one size: a small last one would leave most of the GPU idle.
    let pieces = n.div_ceil((piece_bytes / (2 * k)).max(1));
    let piece = n.div_ceil(pieces).next_multiple_of(PIECE_UNIT);
    let bound = device.max_binding() as usize / (2 * k) / PIECE_UNIT;
    let piece = piece.min(bound.max(1) * PIECE_UNIT);
    for first in (0..n).step_by(piece) {
        let columns = piece.min(n - first);
        let (rhs, rhs_scales) = weight.as_f16((first, columns), k)?;
        let problem = Problem {
            dst_row: n,
            dst_first: first,
            ..problem((m, k, columns), k, [0, 0])?
        };
        let mut bindings = vec![bind(&lhs), bind(&rhs), bind(&lhs_scales)];
        bindings.extend(rhs_scales.as_ref().map(bind));
        bindings.push(bind(dst));
        let out = device.elem(dst.dtype(), OP)?;
        let form = (Elem::F16, Rhs::Dense(Elem::F16), out);
        let run = Run {
            extras,
            scales: match rhs_scales {
                Some(_) => Scales::Both,
                None => Scales::Rows,
            },
            ..Run::new(device, &bindings, &problem, form)
        };
        run.run(plan(&problem))?;
    }
    Ok(())
}

impl Weight<'_> {
    /// What all elements are multiplied by when they become f16.
    fn factor(&self) -> f32 {
        match self {
            Self::Blocks(rows) => rows.weight.f16_factor(),
            Self::Floats(_) => 1.,
        }
    }

    /// Rows `first .. first + rows` as f16, and where each has a power of two, one over those.
    fn as_f16(
        &self,
        (first, rows): (usize, usize),
        k: usize,
    ) -> Result<(WebGpuStorage, Option<WebGpuStorage>)> {
        match self {
            Self::Blocks(blocks) => {
                let WeightRows { weight, format, .. } = *blocks;
                // Cooperative matrices come with shader-f16.
                let converts = weight.device().kernels().caps.cooperative;
                let range = ((blocks.first + first) * k, rows * k);
                let factor = weight.f16_factor();
                let floats = dequantize(weight, format, range, factor, (DType::F16, converts))?;
                Ok((floats, None))
            }
            Self::Floats(floats) => {
                let converts = floats.floats.device().kernels().caps.cooperative;
                let part = Rows {
                    offset: floats.offset + first * floats.row,
                    ..*floats
                };
                let (floats, scales) = rows_as_f16(part, (rows, k), 1., converts)?;
                Ok((floats, Some(scales)))
            }
        }
    }
}

params!(RowsParams {
    rows: u32,
    k: u32,
    src_offset: u32,
    src_row: u32,
    scale: f32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RowsAsF16 {
    elem: Elem,
    converts: bool,
}

impl Kernel for RowsAsF16 {
    type Params = RowsParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .input_eight("src", self.elem)
            .stores_eight(Elem::F16, self.converts)
            .output_words("scales", "f32")
            .constant("WG", WORKGROUP)
            .body::<RowsParams>(include_str!("../../shaders/rows_as_f16.wgsl"))
    }
}

/// `src (m, k)` in f16, each row times a power of two, and for each row `scale` over that power. With `converts`, which needs
/// shader-f16, numbers are rounded as the GPU does it.
pub(super) fn rows_as_f16(
    src: Rows<'_>,
    (m, k): (usize, usize),
    scale: f32,
    converts: bool,
) -> Result<(WebGpuStorage, WebGpuStorage)> {
    let device = src.floats.device();
    let elem = device.elem(src.floats.dtype(), OP)?;
    let dst = device.alloc(m * k, DType::F16, OP)?;
    let scales = device.alloc(m, DType::F32, OP)?;
    device.run(
        &RowsAsF16 { elem, converts },
        &[bind(src.floats), bind(&dst), bind(&scales)],
        &RowsParams {
            rows: index(m)?,
            k: index(k)?,
            src_offset: index(src.offset)?,
            src_row: index(src.row)?,
            scale,
        },
        device.grid(m, 1),
    )?;
    Ok((dst, scales))
}

#[cfg(test)]
#[path = "via_f16_tests.rs"]
mod tests;
