//! Functions of one argument, casts, copies.

use super::{function, functions, lanes};
use crate::backend::BackendStorage;
use crate::cuda_backend::elem::bits_type;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Layout, Result};

const UNARY: &[(&str, &str)] = functions![
    "id", "abs", "neg", "recip", "sqr", "sqrt", "exp", "log", "sin", "cos", "tanh", "erf", "gelu",
    "gelu_erf", "relu", "silu", "ceil", "floor", "round", "sign", "sigmoid", "affine", "powf",
    "elu",
];
/// The functions that support integers too.
const UNARY_INT: [&str; 10] = [
    "id", "affine", "abs", "neg", "sqr", "relu", "ceil", "floor", "round", "sign",
];

/// A function of one argument, with its parameters, if it has any.
#[derive(Clone, Copy)]
struct Function {
    name: &'static str,
    parameters: Option<[f64; 2]>,
}

/// `dst[offset..] = f(src)`, converted to the dtype of `dst`.
fn map(
    (src, layout): (&CudaStorage, &Layout),
    (dst, offset): (&CudaStorage, usize),
    op: &'static str,
    f: Function,
) -> Result<()> {
    let device = src.device();
    let moves = f.name == "id" && src.dtype() == dst.dtype();
    let (from, to) = if moves {
        // Moving elements only uses their bits.
        (
            bits_type(src.dtype().size_in_bytes()),
            bits_type(dst.dtype().size_in_bytes()),
        )
    } else {
        (
            device.c_type(src.dtype(), op)?,
            device.c_type(dst.dtype(), op)?,
        )
    };
    let Some(c_function) = function(UNARY, f.name) else {
        return Err(device.unsupported(op, src.dtype(), "this function has no CUDA kernel"));
    };
    if !moves && src.dtype().is_int() && !UNARY_INT.contains(&f.name) {
        return Err(device.unsupported(op, src.dtype(), "convert to a float dtype first"));
    }
    let walk = Walk::new([layout])?;
    let lanes = lanes(&walk, [(src, walk.views.offsets[0]), (dst, offset as u64)]);
    let kernel = Kernel::new(source!("functions", => "map"))
        .define("F", c_function)
        .define("SRC", from)
        .define("DST", to)
        .define("PARAMETERS", f.parameters.is_some())
        .define("RANK", walk.rank)
        .define("INDEX", walk.index())
        .define("LANES", lanes)
        .define("IS_ONE", lanes > 1 && walk.is_same_in_runs(0));
    let args = Args::new()
        .storage(src)
        .storage(dst)
        .value(walk.views)
        .size(offset);
    let [a, b] = f.parameters.unwrap_or_default();
    let args = parameter(
        parameter(args, a, src.dtype(), f.name),
        b,
        src.dtype(),
        f.name,
    );
    device.launch(&kernel, Grid::of_threads(walk.len().div_ceil(lanes)), args)
}

/// A parameter in the type of arithmetic of `dtype`. Those of `affine` are rounded to the dtype itself, as on the CPU.
fn parameter(args: Args, value: f64, dtype: DType, name: &str) -> Args {
    let rounded = name == "affine";
    match dtype {
        DType::U8 => args.value(value as u8),
        DType::U32 => args.value(value as u32),
        DType::I16 => args.value(value as i16),
        DType::I32 => args.value(value as i32),
        DType::I64 => args.value(value as i64),
        DType::F64 => args.value(value),
        DType::F16 if rounded => args.value(half::f16::from_f64(value).to_f32()),
        DType::BF16 if rounded => args.value(half::bf16::from_f64(value).to_f32()),
        DType::F8E4M3 if rounded => args.value(float8::F8E4M3::from_f64(value).to_f32()),
        _ => args.value(value as f32),
    }
}

fn mapped(
    src: &CudaStorage,
    layout: &Layout,
    op: &'static str,
    f: Function,
    dtype: DType,
) -> Result<CudaStorage> {
    let dst = src
        .device()
        .new_storage(layout.shape().elem_count(), dtype, op)?;
    map((src, layout), (&dst, 0), op, f)?;
    Ok(dst)
}

const ID: Function = Function {
    name: "id",
    parameters: None,
};

pub(in crate::cuda_backend) fn unary(
    src: &CudaStorage,
    layout: &Layout,
    name: &'static str,
) -> Result<CudaStorage> {
    let f = Function {
        name,
        parameters: None,
    };
    mapped(src, layout, name, f, src.dtype())
}

pub(in crate::cuda_backend) fn copy(src: &CudaStorage, layout: &Layout) -> Result<CudaStorage> {
    mapped(src, layout, "copy", ID, src.dtype())
}

/// A storage that is used in place, or a copy.
pub(in crate::cuda_backend) enum Ordered<'a> {
    Given(&'a CudaStorage),
    Made(CudaStorage),
}

impl std::ops::Deref for Ordered<'_> {
    type Target = CudaStorage;

    fn deref(&self) -> &CudaStorage {
        match self {
            Self::Given(storage) => storage,
            Self::Made(storage) => storage,
        }
    }
}

/// The elements contiguously, and the index of the first: copied unless they are already contiguous.
pub(in crate::cuda_backend::ops) fn in_order<'a>(
    storage: &'a CudaStorage,
    layout: &Layout,
) -> Result<(Ordered<'a>, usize)> {
    if layout.is_contiguous() {
        Ok((Ordered::Given(storage), layout.start_offset()))
    } else {
        Ok((Ordered::Made(copy(storage, layout)?), 0))
    }
}

fn with_parameters(
    src: &CudaStorage,
    layout: &Layout,
    name: &'static str,
    parameters: [f64; 2],
) -> Result<CudaStorage> {
    let parameters = Some(parameters);
    mapped(
        src,
        layout,
        name,
        Function { name, parameters },
        src.dtype(),
    )
}

pub(in crate::cuda_backend) fn affine(
    src: &CudaStorage,
    layout: &Layout,
    mul: f64,
    add: f64,
) -> Result<CudaStorage> {
    with_parameters(src, layout, "affine", [mul, add])
}

pub(in crate::cuda_backend) fn powf(
    src: &CudaStorage,
    layout: &Layout,
    exponent: f64,
) -> Result<CudaStorage> {
    with_parameters(src, layout, "powf", [exponent, 0.])
}

pub(in crate::cuda_backend) fn elu(
    src: &CudaStorage,
    layout: &Layout,
    alpha: f64,
) -> Result<CudaStorage> {
    with_parameters(src, layout, "elu", [alpha, 0.])
}

pub(in crate::cuda_backend) fn to_dtype(
    src: &CudaStorage,
    layout: &Layout,
    dtype: DType,
) -> Result<CudaStorage> {
    mapped(src, layout, "to_dtype", ID, dtype)
}

pub(in crate::cuda_backend) fn copy_strided_src(
    src: &CudaStorage,
    dst: &CudaStorage,
    dst_offset: usize,
    layout: &Layout,
) -> Result<()> {
    map((src, layout), (dst, dst_offset), "copy-strided", ID)
}
