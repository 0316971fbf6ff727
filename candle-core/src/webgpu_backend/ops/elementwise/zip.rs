//! Arithmetic and comparison of two tensors.

use super::super::windows::{fit, Operand, Split};
use super::super::{bind, Views};
use super::functions;
use crate::backend::BackendStorage;
use crate::fault_codes::DIVISION_BY_ZERO;
use crate::op::CmpOp;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result};

params!(ZipParams {
    dims: Dims,
    lhs_stride: Dims,
    rhs_stride: Dims,
    lhs_offset: u32,
    rhs_offset: u32,
    len: u32,
});

/// Functions of two arguments.
const BINARY: [&str; 12] = [
    "add", "sub", "mul", "div", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge",
];
/// The functions that only floats support.
const BINARY_FLOAT: [&str; 8] = [
    "silu_mul",
    "gelu_mul",
    "gelu_tanh_mul",
    "quick_gelu_mul",
    "relu_mul",
    "relu2_mul",
    "sigmoid_mul",
    "clamped_swiglu",
];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Zip {
    function: &'static str,
    from: Elem,
    to: Elem,
    rank: usize,
}

impl Zip {
    /// Whether it has to report a division by zero: WGSL defines its result, but the CPU returns an error.
    fn divides(&self) -> bool {
        self.function == "div" && !self.from.is_float()
    }
}

impl Kernel for Zip {
    type Params = ZipParams;

    fn shader(&self, _: &Caps) -> Shader {
        let shader = Shader::default()
            .view("lhs", self.from, self.rank)
            .view("rhs", self.from, self.rank)
            .output("dst", self.to);
        let (shader, report) = if self.divides() {
            (
                shader.status(),
                format!("if (all(b == T())) {{ atomicStore(&status[0], {DIVISION_BY_ZERO}u); }} "),
            )
        } else {
            (shader, String::new())
        };
        let name = self.function;
        shader
            .text("alias T = lhs_t;")
            .text(functions(self.from))
            .text(&format!(
                "fn f(a: T, b: T) -> dst_t {{ {report}return f_{name}(a, b); }}"
            ))
            .each_element::<ZipParams>(include_str!("../../shaders/zip.wgsl"))
    }
}

/// `f(lhs, rhs)` for two tensors of the same shape and dtype.
fn zip(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
    name: &'static str,
    dtype: DType,
) -> Result<WebGpuStorage> {
    let len = lhs_l.shape().elem_count();
    let dst = lhs.device().alloc(len, dtype, name)?;
    zip_into(&dst, (lhs, lhs_l), (rhs, rhs_l), name)?;
    Ok(dst)
}

fn zip_into(
    dst: &WebGpuStorage,
    (lhs, lhs_l): Operand<'_>,
    (rhs, rhs_l): Operand<'_>,
    name: &'static str,
) -> Result<()> {
    if !fit([lhs, rhs, dst]) {
        let split = Split {
            op: name,
            dims: lhs_l.dims(),
            unit: 1,
            bytes: dst.dtype().size_in_bytes(),
            inputs: [(lhs, lhs_l), (rhs, rhs_l)],
            anywhere: false,
        };
        return split.run(dst, 0, &mut |part| {
            let [(lhs, lhs_l), (rhs, rhs_l)] = &part.inputs;
            zip_into(&part.dst, (lhs, lhs_l), (rhs, rhs_l), name)
        });
    }
    let device = lhs.device();
    let views = Views::new([lhs_l, rhs_l])?;
    let from = device.elem(lhs.dtype(), name)?;
    let to = device.elem(dst.dtype(), name)?;
    if views.len == 0 {
        return Ok(());
    }
    let floats_only = BINARY_FLOAT.contains(&name);
    if !floats_only && !BINARY.contains(&name) {
        return Err(device.unsupported(name, lhs.dtype(), "this function has no WGSL kernel"));
    }
    if floats_only && !from.is_float() {
        return Err(device.unsupported(name, lhs.dtype(), "convert to a float dtype first"));
    }
    let kernel = Zip {
        function: name,
        from,
        to,
        rank: views.rank,
    };
    let mut bindings = vec![bind(lhs), bind(rhs), bind(dst)];
    if kernel.divides() {
        bindings.push(Binding::Status);
    }
    device.run(
        &kernel,
        &bindings,
        &ZipParams {
            dims: views.dims,
            lhs_stride: views.strides[0],
            rhs_stride: views.strides[1],
            lhs_offset: views.offsets[0],
            rhs_offset: views.offsets[1],
            len: views.len,
        },
        device.grid_of_words(views.len as usize, to),
    )
}

pub(in crate::webgpu_backend) fn binary(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
    name: &'static str,
) -> Result<WebGpuStorage> {
    zip(lhs, rhs, lhs_l, rhs_l, name, lhs.dtype())
}

pub(in crate::webgpu_backend) fn cmp(
    lhs: &WebGpuStorage,
    op: CmpOp,
    rhs: &WebGpuStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<WebGpuStorage> {
    let name = match op {
        CmpOp::Eq => "eq",
        CmpOp::Ne => "ne",
        CmpOp::Lt => "lt",
        CmpOp::Le => "le",
        CmpOp::Gt => "gt",
        CmpOp::Ge => "ge",
    };
    zip(lhs, rhs, lhs_l, rhs_l, name, DType::U8)
}
