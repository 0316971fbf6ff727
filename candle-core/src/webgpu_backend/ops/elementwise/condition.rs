//! `where`: selects elements of one tensor or another.

use super::super::windows::{fit, Operand, Split};
use super::super::{bind, Views};
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
use crate::webgpu_backend::WebGpuStorage;
use crate::{Layout, Result};

params!(WhereParams {
    dims: Dims,
    cond_stride: Dims,
    lhs_stride: Dims,
    rhs_stride: Dims,
    cond_offset: u32,
    lhs_offset: u32,
    rhs_offset: u32,
    len: u32,
});

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Where {
    cond: Elem,
    elem: Elem,
    rank: usize,
}

impl Kernel for Where {
    type Params = WhereParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { cond, elem, rank } = *self;
        Shader::default()
            .view("cond", cond, rank)
            .view("lhs", elem, rank)
            .view("rhs", elem, rank)
            .output("dst", elem)
            .each_element::<WhereParams>(include_str!("../../shaders/where.wgsl"))
    }
}

pub(in crate::webgpu_backend) fn where_cond(
    cond: &WebGpuStorage,
    cond_l: &Layout,
    on_true: &WebGpuStorage,
    on_true_l: &Layout,
    on_false: &WebGpuStorage,
    on_false_l: &Layout,
) -> Result<WebGpuStorage> {
    let len = cond_l.shape().elem_count();
    let dst = cond.device().alloc(len, on_true.dtype(), "where_cond")?;
    where_into(
        &dst,
        (cond, cond_l),
        (on_true, on_true_l),
        (on_false, on_false_l),
    )?;
    Ok(dst)
}

fn where_into(
    dst: &WebGpuStorage,
    (cond, cond_l): Operand<'_>,
    (on_true, on_true_l): Operand<'_>,
    (on_false, on_false_l): Operand<'_>,
) -> Result<()> {
    const OP: &str = "where_cond";
    if !fit([cond, on_true, on_false, dst]) {
        let split = Split {
            op: OP,
            dims: cond_l.dims(),
            unit: 1,
            bytes: dst.dtype().size_in_bytes(),
            inputs: [(cond, cond_l), (on_true, on_true_l), (on_false, on_false_l)],
            anywhere: false,
        };
        return split.run(dst, 0, &mut |part| {
            let [cond, on_true, on_false] = part.inputs.each_ref().map(|(s, l)| (s, l));
            where_into(&part.dst, cond, on_true, on_false)
        });
    }
    let device = cond.device();
    let views = Views::new([cond_l, on_true_l, on_false_l])?;
    let test = device.elem(cond.dtype(), OP)?;
    if test.is_float() {
        return Err(device.unsupported(OP, cond.dtype(), "the condition must be an integer"));
    }
    let elem = device.elem(on_true.dtype(), OP)?.bits();
    if views.len == 0 {
        return Ok(());
    }
    let kernel = Where {
        cond: test,
        elem,
        rank: views.rank,
    };
    device.run(
        &kernel,
        &[bind(cond), bind(on_true), bind(on_false), bind(dst)],
        &WhereParams {
            dims: views.dims,
            cond_stride: views.strides[0],
            lhs_stride: views.strides[1],
            rhs_stride: views.strides[2],
            cond_offset: views.offsets[0],
            lhs_offset: views.offsets[1],
            rhs_offset: views.offsets[2],
            len: views.len,
        },
        device.grid_of_words(views.len as usize, elem),
    )
}
