//! Gradients of matrix products.

use super::{Grads, Node};
use crate::{Result, Tensor};

/// The gradients of `(..., m, k)` times `(..., k, n)`.
pub(super) fn matmul(grads: &mut Grads, node: &Node, lhs: &Tensor, rhs: &Tensor) -> Result<()> {
    grads.add(lhs, || node.grad.matmul(&node.arg(rhs).t()?))?;
    grads.add(rhs, || node.arg(lhs).t()?.matmul(&node.grad))
}
