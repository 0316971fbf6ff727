//! Routing of rows to the experts of a mixture.

use std::collections::BTreeMap;

use super::QMatMul;
#[cfg(any(feature = "cuda", feature = "webgpu"))]
use crate::Storage;
use crate::{DType, Error, Result, Tensor};

const OP: &str = "indexed_moe_forward";

/// Routes every row of `x` to the experts in `ids`: calls `product(expert, rows)` once for each expert with all of its rows `(rows, k)`; it
/// returns `(rows, n)`. `weight` is `(experts, n, k)`; for the shapes of `x`, `ids` and the result see `QTensor::indexed_moe_forward`.
pub(super) fn route(
    x: &Tensor,
    ids: &Tensor,
    weight: (usize, usize, usize),
    product: impl Fn(usize, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (count, n, k) = weight;
    let (batch, slots, topk) = check(x, ids, weight)?;
    if batch * topk == 0 {
        return Tensor::zeros((batch, topk, n), x.dtype(), x.device());
    }
    let ids = ids.flatten_all()?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    // For each expert its rows of `x`, and the result's rows for their products.
    let mut groups = BTreeMap::<usize, (Vec<u32>, Vec<usize>)>::new();
    for (at, id) in ids.into_iter().enumerate() {
        let expert = usize::try_from(id).unwrap_or(usize::MAX);
        if expert >= count {
            return Err(Error::Msg(format!(
                "{OP}: expert {id} is out of range; there are {count}"
            ))
            .bt());
        }
        let row = if slots == 1 { at / topk } else { at };
        let (rows, places) = groups.entry(expert).or_default();
        rows.push(row as u32);
        places.push(at);
    }
    let x = x.reshape((batch * slots, k))?;
    let mut products = Vec::with_capacity(groups.len());
    let mut order = vec![0u32; batch * topk];
    let mut done = 0;
    for (expert, (rows, places)) in groups {
        for place in places {
            order[place] = done;
            done += 1;
        }
        let rows = Tensor::new(rows, x.device())?;
        products.push(product(expert, &x.index_select(&rows, 0)?)?);
    }
    let order = Tensor::new(order, x.device())?;
    Tensor::cat(&products, 0)?
        .index_select(&order, 0)?
        .reshape((batch, topk, n))
}

/// The number of tokens, of rows of `x` per token, and of experts per token.
fn check(
    x: &Tensor,
    ids: &Tensor,
    (count, n, k): (usize, usize, usize),
) -> Result<(usize, usize, usize)> {
    let (batch, slots, x_k) = x.dims3()?;
    let (ids_batch, topk) = ids.dims2()?;
    if ids_batch != batch || x_k != k || (slots != 1 && slots != topk) {
        return Err(Error::Msg(format!(
            "{OP}: x {:?} and ids {:?} do not match the weights ({count}, {n}, {k}): x must be (batch, 1 or topk, k), ids (batch, topk)",
            x.shape(),
            ids.shape()
        ))
        .bt());
    }
    Ok((batch, slots, topk))
}

/// Like [`route`], without reading `ids` back; `None` if the device has no kernel for it, or if a gradient is required.
pub(super) fn on_device(
    weight: &QMatMul,
    x: &Tensor,
    ids: &Tensor,
    sizes: (usize, usize, usize),
) -> Result<Option<Tensor>> {
    let (batch, _, topk) = check(x, ids, sizes)?;
    let (_, n, k) = sizes;
    let trained = match weight {
        QMatMul::Tensor(weight) | QMatMul::TensorF16(weight) => weight.track_op(),
        QMatMul::QTensor(_) => false,
    };
    if trained || x.track_op() {
        return Ok(None);
    }
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let x = x.broadcast_as((batch, topk, k))?;
        let ys = cuda(weight, &x, ids, sizes)?;
        return Ok(ys.map(|ys| super::qtensor::result(ys, (batch, topk, n).into())));
    }
    #[cfg(feature = "webgpu")]
    if x.device().is_wgpu() {
        let x = x.broadcast_as((batch, topk, k))?;
        let ys = webgpu(weight, &x, ids, sizes)?;
        return Ok(ys.map(|ys| super::qtensor::result(ys, (batch, topk, n).into())));
    }
    let _ = (batch, topk, n, k);
    Ok(None)
}

#[cfg(feature = "cuda")]
fn cuda(
    weight: &QMatMul,
    x: &Tensor,
    ids: &Tensor,
    sizes: (usize, usize, usize),
) -> Result<Option<Storage>> {
    use crate::backend::BackendStorage;
    use crate::cuda_backend::{expert_rows, Stack};
    let (x, x_l) = x.storage_and_layout();
    let (ids, ids_l) = ids.storage_and_layout();
    let (Storage::Cuda(xs), Storage::Cuda(chosen)) = (&*x, &*ids) else {
        return Err(elsewhere(&x, &ids));
    };
    let args = ((xs, x_l), (chosen, ids_l));
    let ys = match weight {
        QMatMul::QTensor(weight) => {
            let blocks = weight.on_cuda(xs.device(), OP)?;
            expert_rows(Stack::Quantized(blocks), sizes, args.0, args.1)?
        }
        QMatMul::Tensor(weight) | QMatMul::TensorF16(weight) => {
            let (weight, layout) = weight.storage_and_layout();
            match &*weight {
                Storage::Cuda(weight) if layout.is_contiguous() => {
                    expert_rows(Stack::Dense((weight, layout)), sizes, args.0, args.1)?
                }
                Storage::Cuda(_) => None,
                _ => return Err(elsewhere(&weight, &x)),
            }
        }
    };
    Ok(ys.map(Storage::Cuda))
}

#[cfg(feature = "webgpu")]
fn webgpu(
    weight: &QMatMul,
    x: &Tensor,
    ids: &Tensor,
    sizes: (usize, usize, usize),
) -> Result<Option<Storage>> {
    use crate::backend::BackendStorage;
    use crate::webgpu_backend::{expert_rows, Stack};
    let (x, x_l) = x.storage_and_layout();
    let (ids, ids_l) = ids.storage_and_layout();
    let (Some(xs), Some(chosen)) = (x.as_wgpu(), ids.as_wgpu()) else {
        return Err(elsewhere(&x, &ids));
    };
    let args = ((xs, x_l), (chosen, ids_l));
    let ys = match weight {
        QMatMul::QTensor(weight) => {
            let blocks = weight.on_webgpu(xs.device(), OP)?;
            expert_rows(Stack::Quantized(blocks), sizes, args.0, args.1)?
        }
        QMatMul::Tensor(weight) | QMatMul::TensorF16(weight) => {
            let (weight, layout) = weight.storage_and_layout();
            match weight.as_wgpu() {
                Some(weight) if layout.is_contiguous() => {
                    expert_rows(Stack::Dense((weight, layout)), sizes, args.0, args.1)?
                }
                Some(_) => None,
                None => return Err(elsewhere(&weight, &x)),
            }
        }
    };
    Ok(ys.map(|ys| x.wrap_wgpu(ys)))
}

#[cfg(any(feature = "cuda", feature = "webgpu"))]
fn elsewhere(lhs: &Storage, rhs: &Storage) -> Error {
    let [lhs, rhs] = [lhs, rhs].map(|storage| storage.device().location());
    Error::DeviceMismatchBinaryOp { lhs, rhs, op: OP }.bt()
}
