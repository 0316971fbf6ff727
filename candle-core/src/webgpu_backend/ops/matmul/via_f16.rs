//! Products through f16 matrices of operands that are not f16: blocks, bf16, and f32 if requested.
//!
//! Rows of both sides are converted, those of lhs once, the weight part by part. A separate conversion costs a write and a read of memory,
//! but happens once instead of for every tile down the rows of lhs. Sums are f32.
//!
//! Powers of two keep both sides in the range of f16: one for each row of lhs, and one for each row of a dense weight or for all of a
//! quantised one. f16 has three bits of mantissa more than bf16, so a bf16 element is exact unless it is 2^28 times smaller than its row's
//! largest element.

use std::sync::atomic::{AtomicBool, Ordering};

use super::operand::Scales;
use super::plan::Plan;
use super::rows_as_f16::{normed_rows_as_f16, rows_as_f16, Rows, GROUP, MOST_F16_K};
use super::{Access, Extras, Problem, Rhs, Run};
use crate::backend::BackendStorage;
use crate::webgpu_backend::adapter::Caps;
use crate::webgpu_backend::kernel::Elem;
use crate::webgpu_backend::ops::quantized::{dequantize, Format};
use crate::webgpu_backend::ops::{bind, index, Views};
use crate::webgpu_backend::quantized::QWebGpuStorage;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Result};

pub(super) const OP: &str = "matmul";

static REDUCED_F32: AtomicBool = AtomicBool::new(false);

/// Whether products of f32 matrices and convolutions of f32 may round their operands to f16's mantissa of 10 bits, which is that of TF32, on
/// adapters with cooperative matrices. Sums stay f32. Off by default.
pub fn gemm_reduced_precision_f32() -> bool {
    REDUCED_F32.load(Ordering::Relaxed)
}

/// Sets [`gemm_reduced_precision_f32`] for all devices of the process.
pub fn set_gemm_reduced_precision_f32(reduced: bool) {
    REDUCED_F32.store(reduced, Ordering::Relaxed);
}

/// The rows of a quantised weight from `first` on.
#[derive(Clone, Copy)]
pub(in crate::webgpu_backend) struct WeightRows<'a> {
    pub(in crate::webgpu_backend) weight: &'a QWebGpuStorage,
    pub(in crate::webgpu_backend) format: Format,
    pub(in crate::webgpu_backend) first: usize,
}

/// The side of a product that is converted in parts.
#[derive(Clone, Copy)]
pub(super) enum Weight<'a> {
    Blocks(WeightRows<'a>),
    Floats(Rows<'a>),
}

/// Maximum number of bytes of a weight in f16 that are computed at a time: little compared with the weights, and enough for tiles on all of
/// a large GPU. Smaller parts do not pay: reads from a cache overlap with a product's arithmetic.
pub(super) const PIECE_BYTES: usize = 128 << 20;
/// Granularity of a part's columns, so that only the last part has incomplete tiles.
pub(super) const PIECE_UNIT: usize = 256;

/// Minimum number of rows to convert a dense weight. The conversion moves 6 bytes per element, about 1.4 picoseconds at 4.3 TB/s; tiles in
/// f32 take one multiplication for each row, of which the GPU does about 14 per picosecond. Estimated.
const LEAST_ROWS: usize = 20;

/// Whether a dense product is computed through f16: it has the form of a linear layer, its rows can be read in groups, and its dtype is
/// bf16, or f32 with `reduced` precision.
pub(super) fn takes(problem: &Problem, elem: Elem, reduced: bool, caps: &Caps) -> bool {
    let dtype = match elem {
        Elem::BF16 => true,
        Elem::F32 => reduced,
        _ => false,
    };
    let in_rows = |operand| problem.access(operand, GROUP) == Access::Inner;
    // The sizes of a part of the weight, and of lhs, in f16.
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

/// The operands of a dense product for which [`takes`] returns true.
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

/// A problem whose operands have contiguous rows of `k` elements; those of lhs have stride `row`.
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

/// `lhs (m, k)`, after the norm of `extras` for shapes of [`takes_norm`](super::rows_as_f16::takes_norm), times a weight `(n, k)` transposed, into `dst (m, n)`, by the kernel that `plan` selects for a part.
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
    let scale = 1. / weight.factor();
    let (lhs, lhs_scales) = normed_rows_as_f16(lhs, (m, k), extras.norm, scale, false)?;
    let extras = Extras {
        norm: None,
        ..extras
    };
    // Parts of equal size: a small last one would leave most of the GPU idle.
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
    /// The factor of all elements in the conversion to f16.
    fn factor(&self) -> f32 {
        match self {
            Self::Blocks(rows) => rows.weight.f16_factor(),
            Self::Floats(_) => 1.,
        }
    }

    /// Rows `first .. first + rows` as f16, and if each has a power of two, the reciprocals of those.
    fn as_f16(
        &self,
        (first, rows): (usize, usize),
        k: usize,
    ) -> Result<(WebGpuStorage, Option<WebGpuStorage>)> {
        match self {
            Self::Blocks(blocks) => {
                let WeightRows { weight, format, .. } = *blocks;
                // Adapters with cooperative matrices have shader-f16.
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

#[cfg(test)]
#[path = "via_f16_tests.rs"]
mod tests;
