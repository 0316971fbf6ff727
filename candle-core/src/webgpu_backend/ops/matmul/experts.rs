//! Rows times matrices of a stack, selected by a router. The selection stays on the device: a workgroup of the vector kernel reads the
//! offset of its matrix.

use super::extras::Input;
use super::plan::MOST_BLOCKS_K;
use super::{elem_bytes, vector, Access, MatmulParams, Problem, Rhs, Run};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Elem, Shader};
use crate::webgpu_backend::ops::indexing::{ids_elem, number, reads_ids};
use crate::webgpu_backend::ops::windows::fit;
use crate::webgpu_backend::ops::{bind, elementwise, index, Views, EXPERT_ROWS as OP};
use crate::webgpu_backend::quantized::{Blocks, QWebGpuStorage};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result, Shape};

/// A stack of matrices `(count, n, k)`, contiguous.
#[derive(Clone, Copy)]
pub(crate) enum Stack<'a> {
    Dense(Input<'a>),
    Quantized(&'a QWebGpuStorage),
}

/// The matrix of a stack that multiplies each row.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    /// Element type of the ids, which are bound after the result, one for each row.
    pub(super) elem: Elem,
    first: usize,
    /// Matrices in the stack.
    count: usize,
}

impl Choice {
    pub(super) fn fill(self, params: &mut MatmulParams) -> Result<()> {
        params.ids_offset = index(self.first)?;
        params.size = index(self.count)?;
        params.op = number(OP);
        Ok(())
    }
}

impl Shader {
    /// `rhs_offset(i)`: the offset of the matrix that the ids select for row `i`.
    pub(super) fn chosen_offsets(self, ids: Elem) -> Self {
        self.input("ids", ids)
            .status()
            .text(&reads_ids(ids, false))
            .text(
                "fn rhs_offset(i: u32) -> u32 {\n\
                 \x20 let id = id_at(p.ids_offset + i);\n\
                 \x20 return p.rhs_offset + select(id, 0u, id == NOTHING) * p.n * p.k;\n}",
            )
    }
}

/// `lhs (tokens, used, k)` times the matrices selected by `ids (tokens, used)`, transposed: `(tokens, used, n)` in the dtype of `lhs`.
/// `None` if no kernel computes it: for a stack that exceeds a binding or has another dtype than `lhs`, for dtypes for which matmul speed
/// does not matter, and for rows that are not read in groups. An id that is out of range is an error of the next readback.
pub(crate) fn expert_rows(
    stack: Stack<'_>,
    (count, n, k): (usize, usize, usize),
    (lhs, lhs_l): Input<'_>,
    (ids, ids_l): Input<'_>,
) -> Result<Option<WebGpuStorage>> {
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), OP)?;
    let pairs = ids_l.shape().elem_count();
    // Offsets in the stack have 32 bits.
    let counted = u32::try_from(count * n * k).is_ok();
    if pairs * n == 0 || k == 0 || k > MOST_BLOCKS_K || !counted || !elem.in_wide_kernels() {
        return Ok(None);
    }
    let floats = |floats: &WebGpuStorage, first| {
        let group = 16 / elem_bytes(elem);
        let same = floats.dtype() == lhs.dtype();
        (
            Rhs::Dense(elem),
            group,
            first,
            same && floats.fits_binding(),
        )
    };
    let (rhs, group, first, reaches) = match stack {
        Stack::Dense((storage, layout)) => floats(storage, layout.start_offset()),
        Stack::Quantized(weight) => match weight.blocks() {
            Blocks::Floats(storage) => floats(storage, 0),
            Blocks::Planes(format) => (Rhs::Blocks(format), 8, 0, weight.fits_binding()),
        },
    };
    let (tokens, used) = ids_l.shape().dims2()?;
    let row = Layout::new(
        Shape::from((tokens, used)),
        lhs_l.stride()[..2].to_vec(),
        lhs_l.start_offset(),
    );
    let mut views = Views::new([&row, &row])?;
    views.offsets[1] = index(first)?;
    let problem = Problem {
        batch: pairs,
        m: 1,
        n,
        k,
        views,
        lhs: (k, lhs_l.stride()[2]),
        rhs: (k, 1),
        dst_row: n,
        dst_first: 0,
    };
    let in_groups = problem.access(0, group) == Access::Inner && first.is_multiple_of(group);
    let bytes = (pairs * n * 4) as u64;
    if !(reaches && in_groups && fit([lhs, ids]) && bytes <= device.max_binding()) {
        return Ok(None);
    }
    let ids_copy;
    let ids = if ids_l.is_contiguous() {
        (ids, ids_l.start_offset())
    } else {
        ids_copy = elementwise::copy(ids, ids_l)?;
        (&ids_copy, 0)
    };
    let choice = Choice {
        elem: ids_elem(device, ids.0, OP)?,
        first: ids.1,
        count,
    };
    // As in other products, rows of an odd length share words of a packed dtype.
    let packs = n.is_multiple_of(elem.lanes() as usize);
    let dtype = if packs { lhs.dtype() } else { DType::F32 };
    let dst = device.alloc(pairs * n, dtype, OP)?;
    let out = device.elem(dtype, OP)?;
    let window;
    let mut bindings = vec![bind(lhs)];
    match stack {
        Stack::Dense((floats, _)) => bindings.push(bind(floats)),
        Stack::Quantized(weight) => match weight.blocks() {
            Blocks::Floats(floats) => bindings.push(bind(floats)),
            Blocks::Planes(format) => {
                window = weight.window(format, 0, count * n * k)?;
                bindings.extend(window.bindings());
            }
        },
    }
    bindings.extend([bind(&dst), bind(ids.0), Binding::Status]);
    let run = Run {
        choice: Some(choice),
        ..Run::new(device, &bindings, &problem, (elem, rhs, out))
    };
    let caps = &device.kernels().caps;
    run.vector(match rhs {
        Rhs::Dense(_) => vector::plan(&problem, out.lanes(), false, group as u32, caps),
        Rhs::Blocks(_) => vector::plan_blocks(&problem, false, caps),
    })?;
    if packs {
        return Ok(Some(dst));
    }
    elementwise::to_dtype(&dst, &Layout::contiguous((pairs, n)), lhs.dtype()).map(Some)
}
