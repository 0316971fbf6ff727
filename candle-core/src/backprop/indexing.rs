//! Gradients of ops that choose by index. Indices themselves have none.

use super::{masked, Grads, Node};
use crate::{DType, Result, Tensor};

pub(super) fn where_cond(
    grads: &mut Grads,
    node: &Node,
    cond: &Tensor,
    on_true: &Tensor,
    on_false: &Tensor,
) -> Result<()> {
    grads.add(on_true, || masked(cond, &node.grad))?;
    grads.add(on_false, || {
        cond.where_cond(&super::no_grad(&node.grad)?, &node.grad)
    })
}

pub(super) fn gather(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    ids: &Tensor,
    dim: usize,
) -> Result<()> {
    grads.add(arg, || {
        super::zeros(arg.shape(), &node.grad)?.scatter_add(ids, &node.grad, dim)
    })
}

pub(super) fn scatter(
    grads: &mut Grads,
    node: &Node,
    [arg, ids, src]: [&Tensor; 3],
    dim: usize,
) -> Result<()> {
    grads.add(arg, || {
        let replaced = super::zeros(src.shape(), &node.grad)?;
        node.grad.scatter(ids, &replaced, dim)
    })?;
    grads.add(src, || {
        masked(&written(arg, ids, src, dim)?, &node.grad.gather(ids, dim)?)
    })
}

/// 1 where an element of `src` is in the result of a scatter, else 0. If several elements have the same index, only one of them is in the
/// result; scattering their positions in the same way finds it.
fn written(arg: &Tensor, ids: &Tensor, src: &Tensor, dim: usize) -> Result<Tensor> {
    let len = u32::try_from(src.dims()[dim])?;
    let mut dims = vec![1; src.rank()];
    dims[dim] = src.dims()[dim];
    let numbers = Tensor::arange(0, len, src.device())?.reshape(dims)?;
    let numbers = numbers.broadcast_as(src.shape())?;
    let places = Tensor::zeros(arg.shape(), DType::U32, src.device())?;
    places
        .scatter(ids, &numbers, dim)?
        .gather(ids, dim)?
        .eq(&numbers)
}

pub(super) fn scatter_add(
    grads: &mut Grads,
    node: &Node,
    [arg, ids, src]: [&Tensor; 3],
    dim: usize,
) -> Result<()> {
    grads.add(arg, || Ok(node.grad.clone()))?;
    grads.add(src, || node.grad.gather(ids, dim))
}

pub(super) fn index_select(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    ids: &Tensor,
    dim: usize,
) -> Result<()> {
    grads.add(arg, || {
        super::zeros(arg.shape(), &node.grad)?.index_add(ids, &node.grad, dim)
    })
}

pub(super) fn index_add(
    grads: &mut Grads,
    node: &Node,
    [arg, ids, src]: [&Tensor; 3],
    dim: usize,
) -> Result<()> {
    grads.add(arg, || Ok(node.grad.clone()))?;
    grads.add(src, || node.grad.index_select(ids, dim))
}
