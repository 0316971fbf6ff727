//! Products of few rows: a warp reads a row of the weight once and multiplies it with all of them. The other parts of a transformer's
//! linear layer are fused with the product.

use super::{Addend, Product};
use crate::backend::BackendStorage;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::CudaStorage;
use crate::fused::{Activation, Gate};
use crate::{DType, Result};

/// Maximum number of rows: more are faster with matrix instructions.
const MAX_ROWS: usize = 8;
/// The same of 16-bit floats where cuBLASLt is installed: 8 rows of an 8B model take an H200 11.5 ms with this kernel, 32 rows 4.9 ms with Lt.
const MAX_ROWS_BESIDE_LT: usize = 2;
/// Threads of a block: few, so that blocks come and go evenly.
const THREADS: u32 = 128;
/// Minimum number of columns for two per warp: with fewer, multiprocessors would be idle.
const MANY_COLUMNS: usize = 8192;

/// The prologue and epilogue of the product, in addition to its addends.
#[derive(Clone, Copy, Default)]
pub(in crate::cuda_backend::ops) struct Around<'a> {
    /// Weights `(k)` of the rows' RMS norm, and epsilon.
    pub(in crate::cuda_backend::ops) norm: Option<(Addend<'a>, f32)>,
    pub(in crate::cuda_backend::ops) gate: Option<Gate>,
    pub(in crate::cuda_backend::ops) activation: Option<Activation>,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Sizes {
    n: u64,
    k: u64,
    x_row: u64,
    weight_row: u64,
    residual_row: u64,
}

/// Computes the product and returns true if it has few rows and the rows of the weight are contiguous.
pub(super) fn run(product: &Product<'_>, dst: &CudaStorage) -> Result<bool> {
    few_rows(product, Around::default(), dst)
}

/// Like [`run`], with the prologue and epilogue `around`. With a gate, `n` counts the columns of the result.
pub(super) fn few_rows(
    product: &Product<'_>,
    around: Around<'_>,
    dst: &CudaStorage,
) -> Result<bool> {
    let (lhs, rhs) = (product.lhs, product.rhs);
    let dtype = lhs.storage.dtype();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Ok(false);
    }
    let lanes = 16 / dtype.size_in_bytes();
    let [rhs_at, lhs_at] = product.addresses();
    let norm_at = around.norm.map_or(0, |(alpha, _)| alpha.address());
    let aligned = [rhs_at, lhs_at, norm_at]
        .iter()
        .all(|at| at.is_multiple_of(16));
    let sizes = [product.k, lhs.row, rhs.column];
    let device = dst.device();
    let most = match dtype {
        DType::F16 | DType::BF16 if device.lt()?.is_some() => MAX_ROWS_BESIDE_LT,
        _ => MAX_ROWS,
    };
    let fits = product.m <= most
        && product.batches.len() == 1
        && lhs.column == 1
        && rhs.row == 1
        && aligned
        && sizes.iter().all(|size| size.is_multiple_of(lanes));
    if !fits {
        return Ok(false);
    }
    let columns = if product.n >= MANY_COLUMNS && around.gate.is_none() {
        2
    } else {
        1
    };
    let kernel = Kernel::new(source!("functions", => "matmul_vector"))
        .define("T", device.c_type(dtype, "matmul")?)
        .define("OUT", device.c_type(dst.dtype(), "matmul")?)
        .define("ROWS", product.m)
        .define("COLUMNS", columns)
        .define("NORM", around.norm.is_some())
        .define("BIAS", product.bias.is_some())
        .define("GATED", around.gate.is_some())
        .define("GATE", around.gate.map_or("0", gate_function))
        .define("ACTIVATES", around.activation.is_some())
        .define(
            "ACTIVATION",
            around.activation.map_or("0", activation_function),
        )
        .define("RESIDUAL", product.residual.is_some());
    let address = |addend: Option<Addend<'_>>| addend.map_or(0, |addend| addend.address());
    let args = Args::new()
        .value(lhs_at)
        .value(rhs_at)
        .storage(dst)
        .value(Sizes {
            n: product.n as u64,
            k: product.k as u64,
            x_row: lhs.row as u64,
            weight_row: rhs.column as u64,
            residual_row: product.residual.map_or(0, |residual| residual.row) as u64,
        })
        .value(norm_at)
        .value(around.norm.map_or(0., |(_, eps)| eps))
        .value(address(product.bias))
        .value(address(product.residual));
    let warps = product.n.div_ceil(columns);
    let blocks = warps.div_ceil(THREADS as usize / 32);
    device.launch(&kernel, Grid::of_rows(blocks, THREADS), args)?;
    Ok(true)
}

/// The gate's function in `kernels/functions.cu`.
pub(in crate::cuda_backend::ops) fn gate_function(gate: Gate) -> &'static str {
    match gate {
        Gate::Silu => "f_silu_mul",
        Gate::Gelu => "f_gelu_mul",
        Gate::GeluTanh => "f_gelu_tanh_mul",
        Gate::QuickGelu => "f_quick_gelu_mul",
        Gate::Relu => "f_relu_mul",
        Gate::Relu2 => "f_relu2_mul",
        Gate::Sigmoid => "f_sigmoid_mul",
        Gate::ClampedSwiglu => "f_clamped_swiglu",
    }
}

/// The activation's function in `kernels/functions.cu`.
pub(in crate::cuda_backend::ops) fn activation_function(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "f_silu",
        Activation::Gelu => "f_gelu_erf",
        Activation::GeluTanh => "f_gelu",
        Activation::Relu => "f_relu",
        Activation::Relu2 => "f_relu2",
        Activation::Sigmoid => "f_sigmoid",
    }
}
