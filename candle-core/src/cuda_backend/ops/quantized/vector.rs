//! Few rows times blocks, by bytes.

use super::activations::Activations;
use super::{c_format, Input, Product, MATMUL};
use crate::backend::BackendStorage;
use crate::cuda_backend::faults;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid};
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::quantized::GgmlDType;
use crate::{DType, Layout, Result};

/// Which matrix of a stack each row of the result comes from.
pub(super) struct Choice<'a> {
    pub(super) ids: Input<'a>,
    /// Matrices in the stack.
    pub(super) count: usize,
    /// Rows of the result for a row of x.
    pub(super) per: usize,
}

/// `struct Sizes` of `kernels/ggml_vector.cu`.
type Sizes = [u64; 5];

/// Warps of a block.
const WARPS: usize = 4;

/// Elements that a lane reads at once: `Unit` of `kernels/ggml_units.cu`.
fn unit_elements(dtype: GgmlDType) -> usize {
    match dtype {
        GgmlDType::Q8_0 | GgmlDType::Q8_1 | GgmlDType::Q8K => 8,
        GgmlDType::Q6K => 16,
        _ => 32,
    }
}

/// How a product is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Rows of the weight that a warp has.
    rows: usize,
    /// Warps that share the columns of their rows.
    split: usize,
}

impl Cut {
    /// Enough warps to fill the card, then as few as keep its lanes busy: a warp with many rows reads x once for all of them.
    fn choose(product: &Product<'_>, m: usize, outputs: usize, multiprocessors: usize) -> Self {
        let units = product.k / unit_elements(product.weight.dtype());
        let wanted = multiprocessors * 32;
        let gated = product.extras.gate.is_some();
        let rows = match m {
            1 if outputs / 4 >= 2 * wanted => 4,
            1 | 2 if outputs / 2 >= wanted / 2 => 2,
            3.. if outputs / 2 >= wanted / 2 => 2,
            _ => 1,
        };
        // A gate and what passes it are two rows of the weight.
        let rows = if gated { (rows / 2).max(1) } else { rows };
        let mut split = 1;
        while split < WARPS && outputs / rows * split < wanted && units >= 64 * split {
            split *= 2;
        }
        Self { rows, split }
    }
}

/// The result `(rows, n)` in `dtype`, of at most eight rows, or with a choice of any number.
pub(super) fn run(
    product: &Product<'_>,
    choice: Option<&Choice<'_>>,
    x: &Activations,
    dtype: DType,
) -> Result<CudaStorage> {
    let Product {
        rows, n, k, extras, ..
    } = *product;
    let device = product.weight.device();
    let dst = device.new_storage(rows * n, dtype, MATMUL)?;
    // With a choice each row is one product.
    let (m, blocks) = if choice.is_some() {
        (1, rows)
    } else {
        (rows, 1)
    };
    let cut = Cut::choose(product, m, n * blocks, device.card().multiprocessors);
    let none = Layout::contiguous(0);
    let (ids, ids_l) = match choice {
        Some(choice) => (Some(choice.ids.0), choice.ids.1),
        None => (None, &none),
    };
    let walk = Walk::new([ids_l])?;
    let ids_type = ids.map_or(Ok("u32"), |ids| device.c_type(ids.dtype(), MATMUL))?;
    let kernel = Kernel::new(source!("functions", "ggml", "ggml_units", => "ggml_vector"))
        .define("FORMAT", c_format(product.weight.dtype()))
        .define("DST", device.c_type(dtype, MATMUL)?)
        .define("M", m)
        .define("ROWS", cut.rows)
        .define("WARPS", WARPS)
        .define("SPLIT", cut.split)
        .define("CHOOSES", ids.is_some())
        .define("IDS", ids_type)
        .define("RANK", walk.rank)
        .define("FAULT", faults::code(faults::EXPERT_ROWS));
    let kernel = extras.define(kernel);
    let per = choice.map_or(1, |choice| choice.per);
    let count = choice.map_or(1, |choice| choice.count);
    let sizes: Sizes = [rows, n, k, per, count].map(|size| size as u64);
    let (bias, residual, residual_row) = extras.args();
    let args = Args::new()
        .value(product.address())
        .storage(&x.codes)
        .storage(&x.scales)
        .storage(&dst)
        .value(sizes)
        .value(bias)
        .value(residual)
        .size(residual_row)
        .storage_or_null(ids)
        .value(walk.views)
        .value(device.faults().address());
    let blocks = blocks * n.div_ceil(WARPS / cut.split * cut.rows);
    device.launch(&kernel, Grid::of_rows(blocks, WARPS as u32 * 32), args)?;
    Ok(dst)
}
