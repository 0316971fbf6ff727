//! Which rows go to which expert of a mixture.

use std::collections::BTreeMap;

use crate::{DType, Error, Result, Tensor};

const OP: &str = "indexed_moe_forward";

/// Sends every row of `x` to the experts that `ids` names: `product(expert, rows)` is called once for each expert with
/// all of its rows `(rows, k)`, and returns `(rows, n)`. `weight` is `(experts, n, k)`; for the shapes of `x`, `ids`
/// and the result see `QTensor::indexed_moe_forward`.
pub(super) fn route(
    x: &Tensor,
    ids: &Tensor,
    weight: (usize, usize, usize),
    product: impl Fn(usize, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (count, n, k) = weight;
    let (batch, slots, x_k) = x.dims3()?;
    let (ids_batch, topk) = ids.dims2()?;
    if ids_batch != batch || x_k != k || (slots != 1 && slots != topk) {
        return Err(Error::Msg(format!(
            "{OP}: x {:?} and ids {:?} do not go with weights ({count}, {n}, {k}): x is (batch, 1 or topk, k), ids (batch, topk)",
            x.shape(),
            ids.shape()
        ))
        .bt());
    }
    if batch * topk == 0 {
        return Tensor::zeros((batch, topk, n), x.dtype(), x.device());
    }
    let ids = ids.flatten_all()?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    // For each expert its rows of `x`, and the rows of the result for their products.
    let mut groups = BTreeMap::<usize, (Vec<u32>, Vec<usize>)>::new();
    for (at, id) in ids.into_iter().enumerate() {
        let expert = usize::try_from(id).unwrap_or(usize::MAX);
        if expert >= count {
            return Err(Error::Msg(format!("{OP}: {id} is none of {count} experts")).bt());
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
