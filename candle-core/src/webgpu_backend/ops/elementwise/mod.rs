//! Elementwise ops: one argument (functions, casts, copies), two (arithmetic, comparison), and `where`.

mod condition;
mod map;
mod zip;

pub(in crate::webgpu_backend) use condition::where_cond;
pub(in crate::webgpu_backend) use map::{
    affine, copy, copy_strided_src, elu, powf, to_dtype, unary,
};
pub(in crate::webgpu_backend::ops) use map::{convert_into, in_order};
pub(in crate::webgpu_backend) use zip::{binary, cmp};

use crate::webgpu_backend::kernel::Elem;

/// The WGSL functions for a type of arithmetic.
pub(super) fn functions(elem: Elem) -> &'static str {
    match elem.arithmetic() {
        "f32" => include_str!("../../shaders/functions_float.wgsl"),
        "f64" => concat!(
            include_str!("../../shaders/functions_float64.wgsl"),
            "fn f_id(x: f64) -> f64 { return x; }\n"
        ),
        "u32" => include_str!("../../shaders/functions_uint.wgsl"),
        "i32" => include_str!("../../shaders/functions_int.wgsl"),
        _ => include_str!("../../shaders/functions_int64.wgsl"),
    }
}
