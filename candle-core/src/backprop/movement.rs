//! Gradients of data movement: each flows back to the element's source.

use super::{Grads, Node};
use crate::{Result, Tensor};

/// The gradient of a repeated element is the sum over its copies.
pub(super) fn broadcast(grads: &mut Grads, node: &Node, arg: &Tensor) -> Result<()> {
    grads.add(arg, || {
        let added = node.grad.rank() - arg.rank();
        let repeated = |i: usize| i < added || arg.dims()[i - added] != node.grad.dims()[i];
        let dims: Vec<usize> = (0..node.grad.rank()).filter(|&i| repeated(i)).collect();
        node.grad.sum_keepdim(dims)?.reshape(arg.shape())
    })
}

pub(super) fn permute(grads: &mut Grads, node: &Node, arg: &Tensor, dims: &[usize]) -> Result<()> {
    grads.add(arg, || {
        let mut inverse = vec![0; dims.len()];
        for (i, &dim) in dims.iter().enumerate() {
            inverse[dim] = i;
        }
        node.grad.permute(inverse)
    })
}

/// Pads a dimension with `left` zeros before and `right` zeros after.
pub(super) fn pad(t: &Tensor, dim: usize, left: usize, right: usize) -> Result<Tensor> {
    let mut parts = vec![t.clone()];
    let zeros = |len| {
        let mut dims = t.dims().to_vec();
        dims[dim] = len;
        super::zeros(dims, t)
    };
    if left > 0 {
        parts.insert(0, zeros(left)?);
    }
    if right > 0 {
        parts.push(zeros(right)?);
    }
    Tensor::cat(&parts, dim)
}

pub(super) fn cat(grads: &mut Grads, node: &Node, args: &[Tensor], dim: usize) -> Result<()> {
    let mut start = 0;
    for arg in args {
        let len = arg.dims()[dim];
        grads.add(arg, || node.grad.narrow(dim, start, len))?;
        start += len;
    }
    Ok(())
}

pub(super) fn slice_scatter0(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    src: &Tensor,
    start: usize,
) -> Result<()> {
    grads.add(arg, || {
        let replaced = super::zeros(src.shape(), &node.grad)?;
        node.grad.slice_scatter0(&replaced, start)
    })?;
    grads.add(src, || node.grad.narrow(0, start, src.dims()[0]))
}
