//! Functions of two arguments of the same shape, and comparisons.

use super::{function, functions, lanes};
use crate::backend::BackendStorage;
use crate::cuda_backend::faults::DIVISION_BY_ZERO;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::op::CmpOp;
use crate::{DType, Layout, Result};

const BINARY: &[(&str, &str)] = functions![
    "add", "sub", "mul", "div", "minimum", "maximum", "eq", "ne", "lt", "le", "gt", "ge",
];
/// Gates, which integers lack.
const GATES: &[(&str, &str)] = functions![
    "silu_mul",
    "gelu_mul",
    "gelu_tanh_mul",
    "quick_gelu_mul",
    "relu_mul",
    "relu2_mul",
    "sigmoid_mul",
    "clamped_swiglu",
];

/// `f(lhs, rhs)`, contiguous, in `dtype`.
fn zip(
    (lhs, lhs_l): (&CudaStorage, &Layout),
    (rhs, rhs_l): (&CudaStorage, &Layout),
    name: &'static str,
    dtype: DType,
) -> Result<CudaStorage> {
    let device = lhs.device();
    let src = lhs.dtype();
    let (from, to) = (device.c_type(src, name)?, device.c_type(dtype, name)?);
    let Some(f) = function(BINARY, name).or_else(|| function(GATES, name)) else {
        return Err(device.unsupported(name, src, "this function has no CUDA kernel"));
    };
    if src.is_int() && function(GATES, name).is_some() {
        return Err(device.unsupported(name, src, "convert to a float dtype first"));
    }
    let walk = Walk::new([lhs_l, rhs_l])?;
    let dst = device.new_storage(walk.len(), dtype, name)?;
    let [lhs_offset, rhs_offset] = walk.views.offsets;
    let lanes = lanes(&walk, [(lhs, lhs_offset), (rhs, rhs_offset), (&dst, 0)]);
    let divides = name == "div" && src.is_int();
    let kernel = Kernel::new(source!("functions", => "zip"))
        .define("F", f)
        .define("SRC", from)
        .define("DST", to)
        .define("RANK", walk.rank)
        .define("INDEX", walk.index())
        .define("LANES", lanes)
        .define("LHS_IS_ONE", lanes > 1 && walk.is_same_in_runs(0))
        .define("RHS_IS_ONE", lanes > 1 && walk.is_same_in_runs(1))
        .define("DIVIDES", if divides { DIVISION_BY_ZERO } else { 0 });
    let args = Args::new()
        .storage(lhs)
        .storage(rhs)
        .storage(&dst)
        .value(walk.views)
        .value(device.faults().address());
    device.launch(&kernel, Grid::of_threads(walk.len().div_ceil(lanes)), args)?;
    Ok(dst)
}

pub(in crate::cuda_backend) fn binary(
    lhs: &CudaStorage,
    rhs: &CudaStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
    name: &'static str,
) -> Result<CudaStorage> {
    zip((lhs, lhs_l), (rhs, rhs_l), name, lhs.dtype())
}

pub(in crate::cuda_backend) fn cmp(
    lhs: &CudaStorage,
    op: CmpOp,
    rhs: &CudaStorage,
    lhs_l: &Layout,
    rhs_l: &Layout,
) -> Result<CudaStorage> {
    let name = match op {
        CmpOp::Eq => "eq",
        CmpOp::Ne => "ne",
        CmpOp::Lt => "lt",
        CmpOp::Le => "le",
        CmpOp::Gt => "gt",
        CmpOp::Ge => "ge",
    };
    zip((lhs, lhs_l), (rhs, rhs_l), name, DType::U8)
}
