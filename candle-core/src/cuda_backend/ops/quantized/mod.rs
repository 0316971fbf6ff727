//! Products with quantised blocks, and their elements.
//!
//! Blocks are read as a file has them. Few rows are multiplied by bytes: they are rounded to 8 bits, with a scale for every 32 elements,
//! much as the CPU's products do it. For many rows it costs less to decode the weight (`decoded.rs`).

mod activations;
mod decode;
mod decoded;
mod experts;
mod stream;
mod tiles;
mod vector;

pub(in crate::cuda_backend) use decode::{dequantize, embedding};
pub(in crate::cuda_backend) use experts::quantized as experts;
pub(crate) use experts::{expert_rows, Stack};

use activations::{Activations, Order};

use crate::backend::BackendStorage;
use crate::cuda_backend::ops::elementwise::in_order;
use crate::cuda_backend::ops::matmul::{self as dense, Extras};
use crate::cuda_backend::quantized::QCudaStorage;
use crate::cuda_backend::CudaStorage;
use crate::quantized::GgmlDType;
use crate::{DType, Error, Layout, Result, Shape};

/// A tensor: its storage and its layout.
pub(crate) type Input<'a> = (&'a CudaStorage, &'a Layout);

const MATMUL: &str = "qmatmul";

/// The most rows that the kernels for few rows take.
const VECTOR_ROWS: usize = 8;
/// The most rows of f16 or bf16 that are multiplied by bytes.
const TILE_ROWS: usize = 512;

/// Whether there are kernels for a format.
pub(in crate::cuda_backend) fn is_supported(dtype: GgmlDType) -> bool {
    !c_format(dtype).is_empty()
}

/// The struct of `kernels/ggml.cu`; nothing for formats without one, of which the device has no blocks.
fn c_format(dtype: GgmlDType) -> &'static str {
    match dtype {
        GgmlDType::F32 => "f32",
        GgmlDType::F16 => "f16",
        GgmlDType::BF16 => "bf16",
        GgmlDType::Q4_0 => "q4_0",
        GgmlDType::Q4_1 => "q4_1",
        GgmlDType::Q5_0 => "q5_0",
        GgmlDType::Q5_1 => "q5_1",
        GgmlDType::Q8_0 => "q8_0",
        GgmlDType::Q8_1 => "q8_1",
        GgmlDType::Q2K => "q2_k",
        GgmlDType::Q3K => "q3_k",
        GgmlDType::Q4K => "q4_k",
        GgmlDType::Q5K => "q5_k",
        GgmlDType::Q6K => "q6_k",
        GgmlDType::Q8K => "q8_k",
        #[cfg(feature = "all-ggml-types")]
        GgmlDType::IQ1S
        | GgmlDType::IQ1M
        | GgmlDType::IQ2XXS
        | GgmlDType::IQ2XS
        | GgmlDType::IQ2S
        | GgmlDType::IQ3XXS
        | GgmlDType::IQ3S
        | GgmlDType::IQ4NL
        | GgmlDType::IQ4XS
        | GgmlDType::TQ1_0
        | GgmlDType::TQ2_0
        | GgmlDType::MXFP4 => "",
    }
}

fn has_blocks(dtype: GgmlDType) -> bool {
    dtype.block_size() > 1
}

/// Whether the kernels for few rows take the product.
pub(in crate::cuda_backend) fn is_vector(weight: &QCudaStorage, dtype: DType, rows: usize) -> bool {
    let floats = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    floats && has_blocks(weight.dtype()) && rows <= VECTOR_ROWS
}

/// `x (.., k)` of any strides times the rows `first .. first + n` of a weight transposed: `(.., n)`, contiguous, in the dtype of `x`.
///
/// # Errors
/// `x` is not f32, f16 or bf16, or the device cannot allocate the memory.
pub(in crate::cuda_backend) fn matmul(
    x: Input<'_>,
    weight: &QCudaStorage,
    first: usize,
    (n, k): (usize, usize),
) -> Result<CudaStorage> {
    let rows: usize = x.1.dims().iter().rev().skip(1).product();
    let size = (rows, n, k);
    if let Some(dst) = linear(x, (weight, first), size, Extras::default())? {
        return Ok(dst);
    }
    let dtype = x.0.dtype();
    if rows * n * k == 0 {
        let mut dst = x.0.device().new_storage(rows * n, dtype, MATMUL)?;
        dst.clear()?;
        return Ok(dst);
    }
    let rhs = dequantize(weight, first * k, n * k, dtype)?;
    let rhs_l = Layout::contiguous((n, k)).transpose(0, 1)?;
    let (x, start) = in_order(x.0, x.1)?;
    let x_l = Layout::contiguous_with_offset(Shape::from((rows, k)), start);
    dense::matmul(&x, &rhs, (1, rows, n, k), &x_l, &rhs_l)
}

/// `x (rows, k)` as in [`matmul`], with `extras`, in kernels that read the blocks. `None` for empty
/// products, float weights, and many rows: from [`decoded::LEAST_ROWS`] on there are kernels for bias and residual alone. With a gate, `n`
/// counts the columns of the result.
///
/// # Errors
/// As `matmul`.
pub(in crate::cuda_backend::ops) fn linear(
    x: Input<'_>,
    (weight, first): (&QCudaStorage, usize),
    (rows, n, k): (usize, usize, usize),
    extras: Extras<'_>,
) -> Result<Option<CudaStorage>> {
    let dtype = x.0.dtype();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDTypeForOp(dtype, MATMUL).bt());
    }
    let few = rows <= VECTOR_ROWS;
    let has_work = rows * n * k > 0;
    let are_sums = extras.are_sums();
    if rows >= decoded::LEAST_ROWS && are_sums && has_work && has_blocks(weight.dtype()) {
        if let Some(dst) = decoded::linear(x, (weight, first), (rows, n, k), extras)? {
            return Ok(Some(dst));
        }
    }
    if !has_work || !has_blocks(weight.dtype()) {
        return Ok(None);
    }
    let product = Product {
        weight,
        first,
        rows,
        n,
        k,
        extras,
    };
    if (stream::LEAST_ROWS..=stream::MOST_ROWS).contains(&rows) {
        if let Some(dst) = stream::run(&product, x)? {
            return Ok(Some(dst));
        }
    }
    let tiles = rows <= TILE_ROWS || dtype == DType::F32;
    if !(few || (tiles && are_sums)) {
        return Ok(None);
    }
    let x = Activations::new(x, k, extras.norm, Order::Rows)?;
    match few {
        true => vector::run(&product, None, &x, dtype).map(Some),
        false => tiles::run(&product, &x, dtype).map(Some),
    }
}

/// A product by bytes.
#[derive(Clone, Copy)]
struct Product<'a> {
    weight: &'a QCudaStorage,
    /// The weight's first row.
    first: usize,
    rows: usize,
    n: usize,
    k: usize,
    extras: Extras<'a>,
}

impl Product<'_> {
    /// The address of the weight's first row.
    fn address(&self) -> u64 {
        let format = self.weight.dtype();
        let blocks = self.first * self.k / format.block_size();
        self.weight.address() + (blocks * format.type_size()) as u64
    }
}
