//! Products of a convolution's kernel and windows of its input, both in contiguous rows.

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

/// `kernel (m, k)`, from an element on, times `windows (n, k)` transposed, both f16, at `place` in `dst`, with the extras of a convolution.
/// If dst is packed, planes and `n` are whole words.
pub(in super::super) fn rows_of_windows(
    (kernel, offset): (&WebGpuStorage, usize),
    windows: &WebGpuStorage,
    (m, n, k): (usize, usize, usize),
    place: Place,
    extras: Extras<'_>,
    dst: &WebGpuStorage,
) -> Result<()> {
    let device = dst.device();
    let problem = Problem {
        dst_row: place.plane,
        dst_first: place.first,
        ..via_f16::problem((m, k, n), k, [offset, 0])?
    };
    let bindings = [bind(kernel), bind(windows), bind(dst)];
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
        channels: m,
        ..Run::new(device, &bindings, &problem, form)
    };
    run.run(plan)
}
