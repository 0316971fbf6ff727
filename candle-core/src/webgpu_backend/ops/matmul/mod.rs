//! Matrix products, in four regimes, by dtype and by the number of rows `m`:
//!
//! - *vector* (`m` up to 8, as in generation): a workgroup computes a few columns of the result and reads their weights once. Most block
//!   formats have a variant that stages lhs through workgroup memory (`blocks.rs`), and from three rows on one for rows that were converted
//!   to 8 bits before (`rows.rs`).
//! - *tile*: a workgroup computes a tile of the result and stages both operands through workgroup memory. Convolutions are products of this
//!   kind (`conv.rs`).
//! - *cooperative*: like tile, in 16x16x16 matrices of a subgroup, for f16 on adapters that have them; for bf16 and blocks via f16
//!   (`via_f16.rs`).
//! - *plain*: one element of the result per invocation, for dtypes for which matmul speed does not matter: f64, f8e4m3 and integers.
//!
//! All support any strides; if the inner dimension is contiguous and aligned they read many elements at once. Sums are f32. If there are
//! too few tiles to keep a GPU busy, `k` is split into parts whose sums a second kernel joins. The other parts of a linear layer can be
//! fused with its product: [`Extras`].
//!
//! Operands differ in how their elements are read from their bindings. `operand.rs` defines that for dense ones, by dtype, and
//! `ops/quantized/loader.rs` for quantised blocks; the kernels call these functions, and are independent of dtypes and formats.

mod blocks;
mod conv;
mod cooperative;
mod experts;
mod extras;
mod operand;
mod plain;
mod plan;
mod problem;
mod quantized;
mod rows;
mod rows_as_f16;
mod run;
mod split;
mod split_k;
mod tile;
mod vector;
mod via_f16;
mod window_rows;

use conv::Windows;
pub use extras::{Extras, Input};
use plan::{plan, Plan};
pub(super) use problem::Problem;
use problem::{Access, MatmulParams};
use run::{Form, Rhs, Run};

use super::windows::fit;
use super::{bind, MOST_STEPS};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::Elem;
use crate::webgpu_backend::{WebGpuDevice, WebGpuStorage};
use crate::{DType, Layout, Result, Shape};

pub(super) use conv::{convolution, Image, MOST_COMPILED};
pub(crate) use experts::{expert_rows, Stack};
pub(in super::super) use quantized::{fused_blocks, matmul_t};
pub(super) use rows_as_f16::{rows_as_f16, Rows as FloatRows, GROUP as FLOAT_GROUP};
pub(in super::super) use via_f16::WeightRows;
pub use via_f16::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
pub(super) use window_rows::{rows_of_windows, HalfRows, Place, MOST_WINDOW, WINDOW_UNIT};

fn elem_bytes(elem: Elem) -> usize {
    4 / elem.lanes() as usize
}

/// `lhs (b, m, k) x rhs (b, k, n)`, in the operands' dtype.
pub(in super::super::super) fn matmul(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<WebGpuStorage> {
    product(lhs, rhs, bmnk, lhs_l, rhs_l, lhs.dtype())
}

/// Maximum `k` of one product: an invocation of the plain kernel computes a word of the result alone, and the parts into which the other
/// kernels split `k` have to fit a binding.
fn longest_k(elem: Elem, len: usize, device: &WebGpuDevice) -> usize {
    if elem.in_wide_kernels() {
        // A usize has 32 bits in a browser.
        let parts = device.max_binding() / (4 * len as u64).max(1);
        let parts = usize::try_from(parts.max(1)).unwrap_or(usize::MAX);
        plan::MOST_TILE_K.saturating_mul(parts)
    } else {
        MOST_STEPS / elem.lanes() as usize
    }
}

/// Like [`matmul`], with a result of dtype `to`: the operands' own, or that of sums.
pub(super) fn product(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    bmnk: (usize, usize, usize, usize),
    lhs_l: &Layout,
    rhs_l: &Layout,
    to: DType,
) -> Result<WebGpuStorage> {
    const OP: &str = "matmul";
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), OP)?;
    let (b, m, n, k) = bmnk;
    if b * m * n == 0 || k == 0 {
        let shape = Shape::from((b, m, n));
        return crate::backend::BackendDevice::zeros_impl(device, &shape, to);
    }
    // The result may be computed in f32 first.
    let fits = (b * m * n * to.size_in_bytes().max(4)) as u64 <= device.max_binding();
    if !(fits && fit([lhs, rhs])) || k > longest_k(elem, b * m * n, device) {
        return split::product((lhs, lhs_l), (rhs, rhs_l), bmnk, to);
    }
    let problem = Problem::new(bmnk, lhs_l, rhs_l)?;
    if !elem.in_wide_kernels() {
        let dst = device.alloc(b * m * n, to, OP)?;
        plain::product(lhs, rhs, &dst, &problem)?;
        return Ok(dst);
    }
    let fused = fused_product(lhs, rhs, &problem, Extras::default(), to)?;
    Ok(fused.expect("a product without extras has a kernel for every problem"))
}

/// A product with `extras`, or `None` if no kernel computes both. `problem.n` counts the columns of the result.
pub(super) fn fused_product(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    problem: &Problem,
    extras: Extras<'_>,
    to: DType,
) -> Result<Option<WebGpuStorage>> {
    make(lhs, rhs, problem, extras, Rows::Tokens, to)
}

/// Like [`fused_product`], for a convolution with `channels` of the result: its rows are planes.
pub(super) fn product_of_planes(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    problem: &Problem,
    (extras, channels): (Extras<'_>, usize),
    to: DType,
) -> Result<Option<WebGpuStorage>> {
    make(lhs, rhs, problem, extras, Rows::Planes(channels), to)
}

/// The kind of rows of a result, which decides what their extras are.
enum Rows {
    /// Those of a linear layer.
    Tokens,
    /// Planes of this number of channels.
    Planes(usize),
    /// The same, of a convolution whose rhs is an image: its columns are the windows.
    Windows(usize, Windows),
}

/// Like [`fused_product`], with rows of a kind.
fn make(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    problem: &Problem,
    extras: Extras<'_>,
    rows: Rows,
    to: DType,
) -> Result<Option<WebGpuStorage>> {
    const OP: &str = "matmul";
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), OP)?;
    let (b, m, n) = (problem.batch, problem.m, problem.n);
    // Rows of an odd length share words of a packed dtype; such a result is computed in f32 and then converted.
    let packed = device.elem(to, OP)?;
    let packs = n.is_multiple_of(packed.lanes() as usize);
    let (out, out_dtype) = if packs {
        (packed, to)
    } else {
        (Elem::F32, DType::F32)
    };
    let caps = &device.kernels().caps;
    let (channels, windows) = match rows {
        Rows::Tokens => (0, None),
        Rows::Planes(channels) => (channels, None),
        Rows::Windows(channels, windows) => (channels, Some(windows)),
    };
    let plan = match windows {
        None => plan(problem, elem, out.lanes(), &extras, caps),
        // Neighbours in a row of a tile are neighbours in the image.
        Some(_) => plan::tiles(problem, problem.access(0, 4), Access::Outer),
    };
    let vector = matches!(plan, Plan::Vector(_));
    let kernel_has_them = vector || !extras.need_vector();
    if !extras.fit(16 / elem_bytes(elem)) || !kernel_has_them {
        return Ok(None);
    }
    // The plain products handle operands that exceed a binding: they are split.
    let fits = extras.each().all(WebGpuStorage::fits_binding)
        && (b * m * n * 4) as u64 <= device.max_binding()
        && fit([lhs, rhs]);
    if !fits {
        return Ok(None);
    }
    let dst = device.alloc(b * m * n, out_dtype, OP)?;
    let as_asked = |dst: WebGpuStorage| {
        if packs {
            Ok(Some(dst))
        } else {
            super::elementwise::to_dtype(&dst, &Layout::contiguous((b, m, n)), to).map(Some)
        }
    };
    let reduced = gemm_reduced_precision_f32();
    if !vector && channels == 0 && via_f16::takes(problem, elem, reduced, caps) {
        let (rows, weight) = via_f16::operands(problem, lhs, rhs);
        let mkn = (m, problem.k, n);
        let plan = |problem: &Problem| plan::cooperative(problem, Rhs::Dense(Elem::F16), caps);
        via_f16::via_f16(rows, weight, mkn, extras, &dst, via_f16::PIECE_BYTES, plan)?;
        return as_asked(dst);
    }
    let bindings = [bind(lhs), bind(rhs), bind(&dst)];
    let run = Run {
        extras,
        windows,
        channels,
        ..Run::new(device, &bindings, problem, (elem, Rhs::Dense(elem), out))
    };
    run.run(plan)?;
    as_asked(dst)
}
