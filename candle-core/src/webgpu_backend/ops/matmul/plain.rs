//! Products of the dtypes that the other kernels do not support: each invocation computes one word of the result, in the dtype's own
//! arithmetic, through any strides.

use super::{MatmulParams, Problem};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::ops::bind;
use crate::webgpu_backend::ops::elementwise::functions;
use crate::webgpu_backend::WebGpuStorage;
use crate::Result;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MatmulPlain {
    elem: Elem,
    out: Elem,
    rank: usize,
}

impl Kernel for MatmulPlain {
    type Params = MatmulParams;

    fn shader(&self, _: &Caps) -> Shader {
        Shader::default()
            .input("lhs", self.elem)
            .input("rhs", self.elem)
            .output("dst", self.out)
            .strided("lhs", self.rank)
            .strided("rhs", self.rank)
            .text(functions(self.elem))
            .each_element::<MatmulParams>(include_str!("../../shaders/matmul_plain.wgsl"))
    }
}

/// `dst = lhs x rhs`; `dst` has the operands' dtype, or that of its sums.
pub(super) fn product(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    dst: &WebGpuStorage,
    problem: &Problem,
) -> Result<()> {
    let device = lhs.device();
    let kernel = MatmulPlain {
        elem: device.elem(lhs.dtype(), "matmul")?,
        out: device.elem(dst.dtype(), "matmul")?,
        rank: problem.views.rank,
    };
    device.run(
        &kernel,
        &[bind(lhs), bind(rhs), bind(dst)],
        &problem.params()?,
        device.grid_of_words(dst.len(), kernel.out),
    )
}
