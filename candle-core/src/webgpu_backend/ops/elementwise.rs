//! Elementwise ops: one argument (functions, casts, copies), two (arithmetic, comparison), and `where`.

use super::windows::{fit, Operand, Split};
use super::{bind, index, Views, DIVISION_BY_ZERO, WORKGROUP};
use crate::backend::BackendStorage;
use crate::op::CmpOp;
use crate::webgpu_backend::kernel::{params, Elem, Key, Shader};
use crate::webgpu_backend::queue::Binding;
use crate::webgpu_backend::WebGpuStorage;
use crate::{DType, Layout, Result};

params!(MapParams {
    dims: Dims,
    src_stride: Dims,
    src_offset: u32,
    dst_offset: u32,
    len: u32,
    a: u32,
    b: u32,
    // The upper words of 64-bit parameters.
    a_high: u32,
    b_high: u32,
});

params!(ZipParams {
    dims: Dims,
    lhs_stride: Dims,
    rhs_stride: Dims,
    lhs_offset: u32,
    rhs_offset: u32,
    len: u32,
});

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

/// Functions of one argument; a kernel's `f(x)` is `f_NAME(x)` of `shaders/unary_*.wgsl`. The list's order is the key's.
const UNARY: [&str; 25] = [
    "id", "affine", "powf", "elu", "abs", "neg", "recip", "sqr", "sqrt", "exp", "log", "sin",
    "cos", "tanh", "erf", "gelu", "gelu_erf", "relu", "silu", "ceil", "floor", "round", "sign",
    "sigmoid", "to_dtype",
];
/// Those that integers have too.
const UNARY_INT: [&str; 11] = [
    "id", "affine", "abs", "neg", "sqr", "relu", "ceil", "floor", "round", "sign", "to_dtype",
];

const BINARY: [&str; 13] = [
    "add", "sub", "mul", "div", "minimum", "maximum", "silu_mul", "eq", "ne", "lt", "le", "gt",
    "ge",
];

fn place(list: &[&str], name: &str) -> Option<u32> {
    list.iter().position(|n| *n == name).map(|i| i as u32)
}

/// The WGSL functions for a type of arithmetic.
pub(super) fn functions(elem: Elem) -> &'static str {
    match elem.arithmetic() {
        "f32" => include_str!("../shaders/functions_float.wgsl"),
        "f64" => concat!(
            include_str!("../shaders/functions_float64.wgsl"),
            "fn f_id(x: f64) -> f64 { return x; }\n"
        ),
        "u32" => include_str!("../shaders/functions_uint.wgsl"),
        "i32" => include_str!("../shaders/functions_int.wgsl"),
        _ => include_str!("../shaders/functions_int64.wgsl"),
    }
}

/// The WGSL functions of one argument that take parameters.
fn parametrised(elem: Elem) -> &'static str {
    match elem.arithmetic() {
        "f32" => include_str!("../shaders/map_float.wgsl"),
        "f64" => include_str!("../shaders/map_float64.wgsl"),
        "u32" => "fn f_affine(x: u32) -> u32 { return x * p.a + p.b; }",
        "i32" => "fn f_affine(x: i32) -> i32 { return x * bitcast<i32>(p.a) + bitcast<i32>(p.b); }",
        _ => {
            "fn f_affine(x: vec2<u32>) -> vec2<u32> { \
             return f_add(f_mul(x, vec2<u32>(p.a, p.a_high)), vec2<u32>(p.b, p.b_high)); }"
        }
    }
}

/// Where a one-argument kernel writes.
struct Target<'a> {
    dst: &'a WebGpuStorage,
    offset: usize,
    /// Whether elements before and after the written range must stay.
    inside: bool,
}

/// `dst[offset..] = f(src)`, with up to two parameters of `f`.
fn map(
    src: &WebGpuStorage,
    layout: &Layout,
    name: &'static str,
    params: [u64; 2],
    target: Target<'_>,
) -> Result<()> {
    if !fit([src, target.dst]) {
        let split = Split {
            op: name,
            dims: layout.dims(),
            unit: 1,
            bytes: target.dst.dtype().size_in_bytes(),
            inputs: [(src, layout)],
            anywhere: true,
        };
        return split.run(target.dst, target.offset, &mut |part| {
            let [(src, layout)] = &part.inputs;
            let target = Target {
                dst: &part.dst,
                offset: part.offset,
                inside: true,
            };
            map(src, layout, name, params, target)
        });
    }
    let device = src.device();
    let mut from = device.elem(src.dtype(), name)?;
    let mut to = device.elem(target.dst.dtype(), name)?;
    if name == "id" {
        (from, to) = (from.bits(), to.bits());
    }
    let Some(function) = place(&UNARY, name) else {
        return Err(device.unsupported(name, src.dtype(), "there is no WGSL for this function"));
    };
    if !from.is_float() && place(&UNARY_INT, name).is_none() {
        return Err(device.unsupported(name, src.dtype(), "convert to a float dtype first"));
    }
    let views = Views::new([layout])?;
    if views.len == 0 {
        return Ok(());
    }
    let lanes = to.lanes() as usize;
    let first = target.offset / lanes;
    let last = (target.offset + views.len as usize).div_ceil(lanes);
    let whole = target.offset.is_multiple_of(lanes) && (views.len as usize).is_multiple_of(lanes);
    let keep = target.inside && !whole;
    let key = Key::new("map")
        .with(function, 5)
        .elem(from)
        .elem(to)
        .with(views.rank as u32, 4)
        .with(keep.into(), 1);
    device.launch(
        key,
        || {
            let f = match name {
                "to_dtype" => cast(from, to),
                _ => format!("fn f(x: src_t) -> dst_t {{ return f_{name}(x); }}"),
            };
            Shader::new(format!("{name} {from:?}->{to:?} rank{}", views.rank))
                .input("src", from)
                .output("dst", to)
                .strided("src", views.rank)
                .constant("WG", WORKGROUP)
                .constant("KEEP", keep)
                .text("alias T = src_t;")
                .text(functions(from))
                .text(parametrised(from))
                .text(&f)
                .body::<MapParams>(include_str!("../shaders/map.wgsl"))
        },
        &[bind(src), bind(target.dst)],
        &MapParams {
            dims: views.dims,
            src_stride: views.strides[0],
            src_offset: views.offsets[0],
            dst_offset: index(target.offset)?,
            len: views.len,
            a: params[0] as u32,
            b: params[1] as u32,
            a_high: (params[0] >> 32) as u32,
            b_high: (params[1] >> 32) as u32,
        },
        device.grid(last - first, WORKGROUP),
    )
}

/// The conversion of one element: Rust's `as`, which saturates and takes NaN to 0.
fn cast(from: Elem, to: Elem) -> String {
    use Elem::*;
    let expression = match (from.arithmetic(), to) {
        // To a narrow integer: saturated from floats, the low bits from wider integers.
        ("f32", U8) => "u32(clamp(select(x, 0.0, is_nan(x)), 0.0, 255.0))",
        ("f32", I16) => "i32(clamp(select(x, 0.0, is_nan(x)), -32768.0, 32767.0))",
        ("f64", U8) => "min(float_to_u32(x), 255u)",
        ("f64", I16) => "clamp(float_to_i32(x), -32768, 32767)",
        ("f32" | "f64", U32) => "float_to_u32(x)",
        ("f32" | "f64", I32) => "float_to_i32(x)",
        ("f32" | "f64", I64) => "float_to_i64(x)",
        ("f64", F16 | BF16 | F8E4M3) => "to_odd(x)",
        ("f64", F32) => "f32(x)",
        ("f32", F64) => "f64(x)",
        ("f32" | "f64", _) => "x",
        ("u32" | "i32", F32 | F16 | BF16 | F8E4M3) => "f32(x)",
        ("u32" | "i32", F64) => "f64(x)",
        ("u32", I32 | I16) => "bitcast<i32>(x)",
        ("u32", I64) => "vec2<u32>(x, 0u)",
        ("i32", U32 | U8) => "bitcast<u32>(x)",
        ("i32", I64) => "vec2<u32>(bitcast<u32>(x), bitcast<u32>(x >> 31u))",
        ("u32" | "i32", _) => "x",
        (_, F32 | F16 | BF16 | F8E4M3) => "i64_to_float(x)",
        (_, F64) => "f64(bitcast<i32>(x.y)) * 4294967296.0lf + f64(x.x)",
        (_, U32 | U8) => "x.x",
        (_, I32 | I16) => "bitcast<i32>(x.x)",
        (_, I64) => "x",
    };
    format!("fn f(x: src_t) -> dst_t {{ return {expression}; }}")
}

fn mapped(
    src: &WebGpuStorage,
    layout: &Layout,
    name: &'static str,
    params: [u64; 2],
    dtype: DType,
) -> Result<WebGpuStorage> {
    let dst = src
        .device()
        .alloc(layout.shape().elem_count(), dtype, name)?;
    let target = Target {
        dst: &dst,
        offset: 0,
        inside: false,
    };
    map(src, layout, name, params, target)?;
    Ok(dst)
}

pub(in super::super) fn unary(
    src: &WebGpuStorage,
    layout: &Layout,
    name: &'static str,
) -> Result<WebGpuStorage> {
    mapped(src, layout, name, [0; 2], src.dtype())
}

pub(in super::super) fn copy(src: &WebGpuStorage, layout: &Layout) -> Result<WebGpuStorage> {
    unary(src, layout, "id")
}

/// The elements side by side, and the place of the first: a copy, unless they lie so already.
pub(super) fn in_order((storage, layout): Operand<'_>) -> Result<(WebGpuStorage, usize)> {
    match layout.is_contiguous() {
        true => Ok((storage.share(), layout.start_offset())),
        false => Ok((copy(storage, layout)?, 0)),
    }
}

/// A scalar parameter as the bits that kernels of `dtype` expect.
fn scalar_bits(value: f64, dtype: DType) -> u64 {
    let float = |value: f32| u64::from(value.to_bits());
    match dtype {
        DType::U8 => u64::from(value as u8),
        DType::U32 => u64::from(value as u32),
        DType::I16 => u64::from(value as i16 as u32),
        DType::I32 => u64::from(value as i32 as u32),
        DType::I64 => value as i64 as u64,
        DType::F64 => value.to_bits(),
        // A 16-bit or 8-bit tensor computes with the parameter rounded to its own dtype, as on the CPU.
        DType::F16 => float(half::f16::from_f64(value).to_f32()),
        DType::BF16 => float(half::bf16::from_f64(value).to_f32()),
        DType::F8E4M3 => float(float8::F8E4M3::from_f64(value).to_f32()),
        _ => float(value as f32),
    }
}

pub(in super::super) fn affine(
    src: &WebGpuStorage,
    layout: &Layout,
    mul: f64,
    add: f64,
) -> Result<WebGpuStorage> {
    let dtype = src.dtype();
    let params = [scalar_bits(mul, dtype), scalar_bits(add, dtype)];
    mapped(src, layout, "affine", params, dtype)
}

/// As [`scalar_bits`], for functions that take their parameter in the type that they compute in.
fn argument_bits(value: f64, dtype: DType) -> u64 {
    match dtype {
        DType::F64 => scalar_bits(value, dtype),
        _ => scalar_bits(value, DType::F32),
    }
}

pub(in super::super) fn powf(
    src: &WebGpuStorage,
    layout: &Layout,
    exponent: f64,
) -> Result<WebGpuStorage> {
    let params = [argument_bits(exponent, src.dtype()), 0];
    mapped(src, layout, "powf", params, src.dtype())
}

pub(in super::super) fn elu(
    src: &WebGpuStorage,
    layout: &Layout,
    alpha: f64,
) -> Result<WebGpuStorage> {
    let params = [argument_bits(alpha, src.dtype()), 0];
    mapped(src, layout, "elu", params, src.dtype())
}

pub(in super::super) fn to_dtype(
    src: &WebGpuStorage,
    layout: &Layout,
    dtype: DType,
) -> Result<WebGpuStorage> {
    mapped(src, layout, "to_dtype", [0; 2], dtype)
}

pub(in super::super) fn copy_strided_src(
    src: &WebGpuStorage,
    dst: &WebGpuStorage,
    dst_offset: usize,
    layout: &Layout,
) -> Result<()> {
    let target = Target {
        dst,
        offset: dst_offset,
        inside: true,
    };
    map(src, layout, "id", [0; 2], target)
}

/// As [`to_dtype`], written to `dst` from element `offset` on; other elements stay.
pub(super) fn convert_into(
    src: &WebGpuStorage,
    layout: &Layout,
    dst: &WebGpuStorage,
    offset: usize,
) -> Result<()> {
    let target = Target {
        dst,
        offset,
        inside: true,
    };
    map(src, layout, "to_dtype", [0; 2], target)
}

/// `f(lhs, rhs)` for two tensors of one shape and dtype.
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
    let Some(function) = place(&BINARY, name) else {
        return Err(device.unsupported(name, lhs.dtype(), "there is no WGSL for this function"));
    };
    if name == "silu_mul" && !from.is_float() {
        return Err(device.unsupported(name, lhs.dtype(), "convert to a float dtype first"));
    }
    let divides = name == "div" && !from.is_float();
    let mut bindings = vec![bind(lhs), bind(rhs), bind(dst)];
    if divides {
        bindings.push(Binding::Status);
    }
    let key = Key::new("zip")
        .with(function, 4)
        .elem(from)
        .with(views.rank as u32, 4);
    device.launch(
        key,
        || {
            let shader = Shader::new(format!("{name} {from:?} rank{}", views.rank))
                .input("lhs", from)
                .input("rhs", from)
                .output("dst", to);
            let f = if divides {
                // WGSL defines a quotient by zero; the CPU has an error, and so has this.
                format!(
                    "fn f(a: T, b: T) -> dst_t {{ if (all(b == T())) {{ atomicStore(&status[0], {DIVISION_BY_ZERO}u); }} return f_div(a, b); }}"
                )
            } else {
                format!("fn f(a: T, b: T) -> dst_t {{ return f_{name}(a, b); }}")
            };
            let shader = if divides { shader.status() } else { shader };
            shader
                .strided("lhs", views.rank)
                .strided("rhs", views.rank)
                .text("alias T = lhs_t;")
                .text(functions(from))
                .text(&f)
                .each_element::<ZipParams>(include_str!("../shaders/zip.wgsl"))
        },
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

pub(in super::super) fn binary(
    lhs: &WebGpuStorage,
    rhs: &WebGpuStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
    name: &'static str,
) -> Result<WebGpuStorage> {
    zip(lhs, rhs, lhs_l, rhs_l, name, lhs.dtype())
}

pub(in super::super) fn cmp(
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

pub(in super::super) fn where_cond(
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
    let nonzero = match test {
        Elem::U8 | Elem::U32 => "x != 0u",
        Elem::I32 | Elem::I16 => "x != 0",
        Elem::I64 => "(x.x | x.y) != 0u",
        Elem::F32 | Elem::F16 | Elem::BF16 | Elem::F8E4M3 | Elem::F64 => {
            return Err(device.unsupported(OP, cond.dtype(), "the condition must be an integer"));
        }
    };
    let elem = device.elem(on_true.dtype(), OP)?.bits();
    if views.len == 0 {
        return Ok(());
    }
    let key = Key::new(OP)
        .elem(test)
        .elem(elem)
        .with(views.rank as u32, 4);
    device.launch(
        key,
        || {
            Shader::new(format!("where {test:?} {elem:?} rank{}", views.rank))
                .input("cond", test)
                .input("lhs", elem)
                .input("rhs", elem)
                .output("dst", elem)
                .strided("cond", views.rank)
                .strided("lhs", views.rank)
                .strided("rhs", views.rank)
                .text(&format!(
                    "fn holds(x: cond_t) -> bool {{ return {nonzero}; }}"
                ))
                .each_element::<WhereParams>(include_str!("../shaders/where.wgsl"))
        },
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
