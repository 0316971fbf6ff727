//! Products of the dtypes that the other kernels do not take: an invocation adds up one word of the result by itself, in the
//! dtype's own arithmetic, through any strides.

use super::{MatmulParams, Problem};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Key, Shader};
use crate::webgpu_backend::ops::bind;
use crate::webgpu_backend::ops::elementwise::functions;
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

/// `dst = lhs x rhs`; `dst` has the operands' dtype, or the one that its sums are kept in.
pub(super) fn product(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    dst: &WebGpuStorage,
    problem: &Problem,
) -> Result<()> {
    let device = lhs.device();
    let elem = device.elem(lhs.dtype(), "matmul")?;
    let out = device.elem(dst.dtype(), "matmul")?;
    let rank = problem.views.rank;
    device.launch(
        Key::new("matmul_plain")
            .elem(elem)
            .elem(out)
            .with(rank as u32, 4),
        || {
            Shader::new(format!("matmul_plain {elem:?}->{out:?} rank{rank}"))
                .input("lhs", elem)
                .input("rhs", elem)
                .output("dst", out)
                .strided("lhs", rank)
                .strided("rhs", rank)
                .text(functions(elem))
                .each_element::<MatmulParams>(include_str!("../../shaders/matmul_plain.wgsl"))
        },
        &[bind(lhs), bind(rhs), bind(dst)],
        &problem.params()?,
        device.grid_of_words(dst.len(), out),
    )
}
