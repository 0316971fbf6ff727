//! Products with quantised blocks, and their elements.
//!
//! Blocks are read as a file has them. Up to [`VECTOR_ROWS`] rows are multiplied by bytes: the rows are brought to 8 bits, with a scale
//! for every 32 elements, as the CPU's products do it.

mod decode;
mod experts;
mod vector;

pub(in crate::cuda_backend) use decode::{dequantize, embedding};
pub(in crate::cuda_backend) use experts::quantized as experts;
pub(crate) use experts::{expert_rows, Stack};

use crate::backend::BackendStorage;
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

/// `x (.., k)` of any strides times the rows `first .. first + n` of a weight transposed: `(.., n)`, contiguous, in the dtype of `x`.
pub(in crate::cuda_backend) fn matmul(
    (x, x_l): Input<'_>,
    weight: &QCudaStorage,
    first: usize,
    (n, k): (usize, usize),
) -> Result<CudaStorage> {
    let device = x.device();
    let dtype = x.dtype();
    if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDTypeForOp(dtype, MATMUL).bt());
    }
    let rows: usize = x_l.dims().iter().rev().skip(1).product();
    if rows * n * k == 0 {
        let mut dst = device.new_storage(rows * n, dtype, MATMUL)?;
        dst.clear()?;
        return Ok(dst);
    }
    if is_vector(weight, dtype, rows) {
        return vector::matmul((x, x_l), (weight, first), (rows, n, k));
    }
    let rhs = dequantize(weight, first * k, n * k, dtype)?;
    let rhs_l = Layout::contiguous((n, k)).transpose(0, 1)?;
    let (x, start) = crate::cuda_backend::ops::elementwise::in_order(x, x_l)?;
    let x_l = Layout::contiguous_with_offset(Shape::from((rows, k)), start);
    dense::matmul(&x, &rhs, (1, rows, n, k), &x_l, &rhs_l)
}
