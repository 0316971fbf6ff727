//! Rows times matrices out of a stack, which a router has chosen for them. The choice stays on the device: a block reads which matrix it
//! takes.

use super::activations::{Activations, Order};
use super::vector::{self, Choice};
use super::{c_format, has_blocks, Extras, Input, Product};
use crate::backend::BackendStorage;
use crate::cuda_backend::faults;
use crate::cuda_backend::kernel::{source, Kernel};
use crate::cuda_backend::launch::{Args, Grid, BLOCK};
use crate::cuda_backend::quantized::QCudaStorage;
use crate::cuda_backend::views::Walk;
use crate::cuda_backend::CudaStorage;
use crate::{DType, Error, Layout, Result, Shape};

const OP: &str = faults::EXPERT_ROWS;

/// A stack of matrices `(count, n, k)`, contiguous.
#[derive(Clone, Copy)]
pub(crate) enum Stack<'a> {
    Dense(Input<'a>),
    Quantized(&'a QCudaStorage),
}

/// `lhs (tokens, used, k)` times the matrices that `ids (tokens, used)` names, transposed: `(tokens, used, n)` in the dtype of `lhs`, or
/// `None` for a dense stack of another dtype. An id that is out of range is an error with the next result that is read.
pub(crate) fn expert_rows(
    stack: Stack<'_>,
    sizes: (usize, usize, usize),
    lhs: Input<'_>,
    ids: Input<'_>,
) -> Result<Option<CudaStorage>> {
    match stack {
        Stack::Dense((weight, _)) if weight.dtype() != lhs.0.dtype() => Ok(None),
        Stack::Dense((weight, weight_l)) => {
            let dtype = weight.dtype();
            let first = weight_l.start_offset() * dtype.size_in_bytes();
            let c_type = weight.device().c_type(dtype, OP)?;
            dense((weight.address() + first as u64, c_type), sizes, lhs, ids).map(Some)
        }
        Stack::Quantized(weight) => quantized(weight, sizes, lhs, ids).map(Some),
    }
}

fn check(lhs: &CudaStorage, ids: &CudaStorage) -> Result<()> {
    if !matches!(lhs.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::UnsupportedDTypeForOp(lhs.dtype(), OP).bt());
    }
    match ids.dtype().is_int() {
        true => Ok(()),
        false => {
            let hint = "ids must be integers: convert them";
            Err(lhs.device().unsupported(OP, ids.dtype(), hint))
        }
    }
}

/// As [`expert_rows`], with a stack of blocks.
pub(in crate::cuda_backend) fn quantized(
    weight: &QCudaStorage,
    (count, n, k): (usize, usize, usize),
    (lhs, lhs_l): Input<'_>,
    ids: Input<'_>,
) -> Result<CudaStorage> {
    check(lhs, ids.0)?;
    if !has_blocks(weight.dtype()) {
        let stack = (weight.address(), c_format(weight.dtype()));
        return dense(stack, (count, n, k), (lhs, lhs_l), ids);
    }
    let (tokens, used) = ids.1.shape().dims2()?;
    let rows = tokens * used;
    if rows * n * k == 0 {
        return zeros(lhs, rows * n);
    }
    // A row that all of a token's experts get is turned into bytes once.
    let shared = lhs_l.stride()[1] == 0;
    let x_l = if shared {
        lhs_l.narrow(1, 0, 1)?
    } else {
        lhs_l.clone()
    };
    let product = Product {
        weight,
        first: 0,
        rows,
        n,
        k,
        extras: Extras::default(),
    };
    let choice = Choice {
        ids,
        count,
        per: if shared { used } else { 1 },
    };
    let x = Activations::new((lhs, &x_l), k, None, Order::Rows)?;
    vector::run(&product, Some(&choice), &x, lhs.dtype())
}

fn zeros(like: &CudaStorage, len: usize) -> Result<CudaStorage> {
    let mut dst = like.device().new_storage(len, like.dtype(), OP)?;
    dst.clear()?;
    Ok(dst)
}

/// As [`expert_rows`], with floats from an address on.
fn dense(
    (weight, c_type): (u64, &'static str),
    (count, n, k): (usize, usize, usize),
    (lhs, lhs_l): Input<'_>,
    (ids, ids_l): Input<'_>,
) -> Result<CudaStorage> {
    check(lhs, ids)?;
    let device = lhs.device();
    let (tokens, used) = ids_l.shape().dims2()?;
    let rows = tokens * used;
    if rows * n * k == 0 {
        return zeros(lhs, rows * n);
    }
    let dst = device.new_storage(rows * n, lhs.dtype(), OP)?;
    let row = |layout: &Layout| {
        Layout::new(
            Shape::from((tokens, used)),
            layout.stride()[..2].to_vec(),
            layout.start_offset(),
        )
    };
    let walk = Walk::new([&row(lhs_l), ids_l])?;
    let kernel = Kernel::new(source!("expert_rows"))
        .define("W", c_type)
        .define("T", device.c_type(lhs.dtype(), OP)?)
        .define("IDS", device.c_type(ids.dtype(), OP)?)
        .define("RANK", walk.rank)
        .define("FAULT", faults::code(OP));
    let args = Args::new()
        .value(weight)
        .storage(lhs)
        .storage(ids)
        .storage(&dst)
        .value(walk.views)
        .value([count as u64, n as u64, k as u64, lhs_l.stride()[2] as u64])
        .value(device.faults().address());
    let blocks = n.div_ceil(BLOCK as usize / 32) * rows;
    device.launch(&kernel, Grid::of_rows(blocks, BLOCK), args)?;
    Ok(dst)
}
