//! Products of a convolution's kernel and windows of its input, both in contiguous rows.

use super::operand::Scales;
use super::plan::{self, MOST_TILE_K};
use super::{bind, cooperative, via_f16, Access, Extras, Problem, Rhs, Run};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::Elem;
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// The length of rows is a multiple of this.
pub(in super::super) const WINDOW_UNIT: usize = cooperative::COOP_K as usize;
/// Maximum length of a window, so that a product whose parts a binding cannot hold has one part.
pub(in super::super) const MOST_WINDOW: usize = MOST_TILE_K - WINDOW_UNIT;

/// The location of a product's columns in planes: dst is `(planes, m, plane)`, and the columns count over the planes.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Place {
    pub(in super::super) plane: usize,
    /// The first column.
    pub(in super::super) first: usize,
}

/// Rows of f16 from an element of a storage on.
#[derive(Clone, Copy)]
pub(in super::super) struct HalfRows<'a> {
    pub(in super::super) storage: &'a WebGpuStorage,
    pub(in super::super) offset: usize,
    /// The factor of each row's products, if they are not 1. Both operands have them, or none.
    pub(in super::super) scales: Option<&'a WebGpuStorage>,
}

/// `kernel (m, k)` times `windows (n, k)` transposed at `place` in `dst`, with the extras of a convolution. If dst is packed, planes and `n`
/// are whole words.
pub(in super::super) fn rows_of_windows(
    kernel: HalfRows<'_>,
    windows: HalfRows<'_>,
    (m, n, k): (usize, usize, usize),
    place: Place,
    extras: Extras<'_>,
    dst: &WebGpuStorage,
) -> Result<()> {
    let device = dst.device();
    let problem = Problem {
        dst_row: place.plane,
        dst_first: place.first,
        ..via_f16::problem((m, k, n), k, [kernel.offset, windows.offset])?
    };
    let mut bindings = vec![bind(kernel.storage), bind(windows.storage)];
    let scales = match (kernel.scales, windows.scales) {
        (Some(rows), Some(columns)) => {
            bindings.extend([bind(rows), bind(columns)]);
            Scales::Both
        }
        _ => Scales::None,
    };
    bindings.push(bind(dst));
    let rhs = Rhs::Dense(Elem::F16);
    let form = (Elem::F16, rhs, device.elem(dst.dtype(), "conv")?);
    let caps = &device.kernels().caps;
    let plan = if caps.cooperative {
        plan::cooperative(&problem, rhs, caps)
    } else {
        plan::tiles(&problem, Access::Inner, Access::Inner)
    };
    let run = Run {
        extras,
        scales,
        channels: m,
        ..Run::new(device, &bindings, &problem, form)
    };
    run.run(plan)
}
