//! Functions of one argument, casts, copies.

use super::super::windows::{fit, Operand, Split};
use super::super::{bind, index, Views, WORKGROUP};
use super::functions;
use crate::backend::BackendStorage;
use crate::webgpu_backend::kernel::{params, Caps, Elem, Kernel, Shader};
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

/// Functions of one argument; a kernel's `f(x)` is `f_NAME(x)` of `shaders/functions_*.wgsl`.
const UNARY: [&str; 25] = [
    "id", "affine", "powf", "elu", "abs", "neg", "recip", "sqr", "sqrt", "exp", "log", "sin",
    "cos", "tanh", "erf", "gelu", "gelu_erf", "relu", "silu", "ceil", "floor", "round", "sign",
    "sigmoid", "to_dtype",
];
/// The functions that support integers too.
const UNARY_INT: [&str; 11] = [
    "id", "affine", "abs", "neg", "sqr", "relu", "ceil", "floor", "round", "sign", "to_dtype",
];

/// The WGSL functions of one argument that have parameters.
fn parametrised(elem: Elem) -> &'static str {
    match elem.arithmetic() {
        "f32" => include_str!("../../shaders/map_float.wgsl"),
        "f64" => include_str!("../../shaders/map_float64.wgsl"),
        "u32" => "fn f_affine(x: u32) -> u32 { return x * p.a + p.b; }",
        "i32" => "fn f_affine(x: i32) -> i32 { return x * bitcast<i32>(p.a) + bitcast<i32>(p.b); }",
        _ => {
            "fn f_affine(x: vec2<u32>) -> vec2<u32> { \
             return f_add(f_mul(x, vec2<u32>(p.a, p.a_high)), vec2<u32>(p.b, p.b_high)); }"
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Map {
    function: &'static str,
    from: Elem,
    to: Elem,
    rank: usize,
    keep: bool,
}

impl Kernel for Map {
    type Params = MapParams;

    fn shader(&self, _: &Caps) -> Shader {
        let Self { from, to, .. } = *self;
        let f = match self.function {
            "to_dtype" => cast(from, to).to_string(),
            name => format!("f_{name}(x)"),
        };
        Shader::default()
            .view("src", from, self.rank)
            .output("dst", to)
            .constant("WG", WORKGROUP)
            .constant("KEEP", self.keep)
            .text("alias T = src_t;")
            .text(functions(from))
            .text(parametrised(from))
            .text(&format!("fn f(x: src_t) -> dst_t {{ return {f}; }}"))
            .body::<MapParams>(include_str!("../../shaders/map.wgsl"))
    }
}

/// The destination of a one-argument kernel.
struct Target<'a> {
    dst: &'a WebGpuStorage,
    offset: usize,
    /// Whether elements before and after the written range must be preserved.
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
    if !UNARY.contains(&name) {
        return Err(device.unsupported(name, src.dtype(), "this function has no WGSL kernel"));
    }
    if !from.is_float() && !UNARY_INT.contains(&name) {
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
    let kernel = Map {
        function: name,
        from,
        to,
        rank: views.rank,
        keep: target.inside && !whole,
    };
    device.run(
        &kernel,
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

/// The conversion of `x` with the semantics of Rust's `as`, which saturates and converts NaN to 0.
fn cast(from: Elem, to: Elem) -> &'static str {
    use Elem::*;
    match (from.arithmetic(), to) {
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
        ("u32" | "i32", F32 | F16 | BF16 | F8E4M3) if matches!(from, U32 | I32) => "to_float(x)",
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
    }
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

pub(in crate::webgpu_backend) fn unary(
    src: &WebGpuStorage,
    layout: &Layout,
    name: &'static str,
) -> Result<WebGpuStorage> {
    mapped(src, layout, name, [0; 2], src.dtype())
}

pub(in crate::webgpu_backend) fn copy(
    src: &WebGpuStorage,
    layout: &Layout,
) -> Result<WebGpuStorage> {
    unary(src, layout, "id")
}

/// The elements contiguously, and the index of the first: copied unless they are already contiguous.
pub(in crate::webgpu_backend::ops) fn in_order(
    (storage, layout): Operand<'_>,
) -> Result<(WebGpuStorage, usize)> {
    if layout.is_contiguous() {
        Ok((storage.share(), layout.start_offset()))
    } else {
        Ok((copy(storage, layout)?, 0))
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

pub(in crate::webgpu_backend) fn affine(
    src: &WebGpuStorage,
    layout: &Layout,
    mul: f64,
    add: f64,
) -> Result<WebGpuStorage> {
    let dtype = src.dtype();
    let params = [scalar_bits(mul, dtype), scalar_bits(add, dtype)];
    mapped(src, layout, "affine", params, dtype)
}

/// Like [`scalar_bits`], for functions whose parameter has the type of arithmetic.
fn argument_bits(value: f64, dtype: DType) -> u64 {
    match dtype {
        DType::F64 => scalar_bits(value, dtype),
        _ => scalar_bits(value, DType::F32),
    }
}

pub(in crate::webgpu_backend) fn powf(
    src: &WebGpuStorage,
    layout: &Layout,
    exponent: f64,
) -> Result<WebGpuStorage> {
    let params = [argument_bits(exponent, src.dtype()), 0];
    mapped(src, layout, "powf", params, src.dtype())
}

pub(in crate::webgpu_backend) fn elu(
    src: &WebGpuStorage,
    layout: &Layout,
    alpha: f64,
) -> Result<WebGpuStorage> {
    let params = [argument_bits(alpha, src.dtype()), 0];
    mapped(src, layout, "elu", params, src.dtype())
}

pub(in crate::webgpu_backend) fn to_dtype(
    src: &WebGpuStorage,
    layout: &Layout,
    dtype: DType,
) -> Result<WebGpuStorage> {
    mapped(src, layout, "to_dtype", [0; 2], dtype)
}

pub(in crate::webgpu_backend) fn copy_strided_src(
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

/// Like [`to_dtype`], written to `dst` from element `offset` on; other elements are unchanged.
pub(in crate::webgpu_backend::ops) fn convert_into(
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

#[cfg(test)]
mod tests {
    use super::{Map, UNARY, UNARY_INT};
    use crate::webgpu_backend::kernel::{assert_valid, Elem};

    #[test]
    fn every_function_and_cast_is_valid_wgsl() {
        for from in Elem::ALL {
            let valid = |function, to, keep| {
                assert_valid(&Map {
                    function,
                    from,
                    to,
                    rank: 2,
                    keep,
                })
            };
            for to in Elem::ALL {
                valid("to_dtype", to, true);
            }
            for function in if from.is_float() {
                &UNARY[..]
            } else {
                &UNARY_INT
            } {
                valid(function, from, false);
            }
        }
    }
}
