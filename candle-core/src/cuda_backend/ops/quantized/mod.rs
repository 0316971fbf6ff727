//! Products with quantised blocks, and their elements.
//!
//! Blocks are read as a file has them. Rows are multiplied by bytes: they are brought to 8 bits, with a scale for every 32 elements, much as
//! the CPU's products do it. Beyond [`TILE_ROWS`] rows of f16 or bf16 it costs less to decode the weight to that dtype and to multiply
//! with it.

mod activations;
mod decode;
mod experts;
mod tiles;
mod vector;

pub(in crate::cuda_backend) use decode::{dequantize, embedding};
pub(in crate::cuda_backend) use experts::quantized as experts;
pub(crate) use experts::{expert_rows, Stack};

use activations::Activations;

use crate::backend::BackendStorage;
use crate::cuda_backend::ops::elementwise::in_order;
use crate::cuda_backend::ops::matmul as dense;
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

/// The struct of `kernels/ggml.cu`.
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

/// What is added to a product: a bias `(n)`, and a residual whose rows of `n` elements are so many elements apart. Both have the
/// result's dtype.
#[derive(Clone, Copy, Default)]
pub(in crate::cuda_backend) struct Added<'a> {
    pub(in crate::cuda_backend) bias: Option<(&'a CudaStorage, usize)>,
    pub(in crate::cuda_backend) residual: Option<(&'a CudaStorage, usize, usize)>,
}

impl Added<'_> {
    fn is_none(&self) -> bool {
        self.bias.is_none() && self.residual.is_none()
    }

    /// The addresses of the bias and of the residual, which are of `dtype`, and from row to row of the residual.
    fn args(&self, dtype: DType) -> (u64, u64, usize) {
        let at = |storage: &CudaStorage, first: usize| {
            storage.address() + (first * dtype.size_in_bytes()) as u64
        };
        let (residual, row) = self
            .residual
            .map_or((0, 0), |(storage, first, row)| (at(storage, first), row));
        let bias = self.bias.map_or(0, |(storage, first)| at(storage, first));
        (bias, residual, row)
    }
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
    let sum = linear(x, (weight, first), (n, k), Added::default())?;
    Ok(sum.expect("a product alone has a kernel for every size"))
}

/// As [`matmul`], and what is added to it; `None` where no kernel does both, which is for many rows, for weights that are floats, and for
/// nothing.
///
/// # Errors
/// As `matmul`.
pub(in crate::cuda_backend) fn linear(
    (x, x_l): Input<'_>,
    (weight, first): (&QCudaStorage, usize),
    (n, k): (usize, usize),
    added: Added<'_>,
) -> Result<Option<CudaStorage>> {
    let device = x.device();
    let dtype = x.dtype();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDTypeForOp(dtype, MATMUL).bt());
    }
    let rows: usize = x_l.dims().iter().rev().skip(1).product();
    let by_bytes = has_blocks(weight.dtype()) && (rows <= TILE_ROWS || dtype == DType::F32);
    if rows * n * k == 0 {
        let mut dst = device.new_storage(rows * n, dtype, MATMUL)?;
        dst.clear()?;
        return Ok(added.is_none().then_some(dst));
    }
    if by_bytes {
        let product = Product {
            weight,
            first,
            rows,
            n,
            k,
            added,
        };
        let x = Activations::new((x, x_l))?;
        return match rows <= VECTOR_ROWS {
            true => vector::run(&product, None, &x, dtype).map(Some),
            false => tiles::run(&product, &x, dtype).map(Some),
        };
    }
    if !added.is_none() {
        return Ok(None);
    }
    let rhs = dequantize(weight, first * k, n * k, dtype)?;
    let rhs_l = Layout::contiguous((n, k)).transpose(0, 1)?;
    let (x, start) = in_order(x, x_l)?;
    let x_l = Layout::contiguous_with_offset(Shape::from((rows, k)), start);
    dense::matmul(&x, &rhs, (1, rows, n, k), &x_l, &rhs_l).map(Some)
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
    added: Added<'a>,
}

impl Product<'_> {
    /// The address of the weight's first row.
    fn address(&self) -> u64 {
        let format = self.weight.dtype();
        let blocks = self.first * self.k / format.block_size();
        self.weight.address() + (blocks * format.type_size()) as u64
    }
}
