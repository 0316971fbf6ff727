//! Gradients of reductions.

use super::{masked, Grads, Node};
use crate::op::ReduceOp;
use crate::{DType, Error, Result, Tensor};

/// The gradient of a reduction. The node has kept the reduced dimensions, with size 1.
pub(super) fn reduce(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    op: ReduceOp,
    dims: &[usize],
) -> Result<()> {
    let spread = |t: &Tensor| t.broadcast_as(arg.shape());
    grads.add(arg, || match op {
        ReduceOp::Sum => spread(&node.grad),
        // Elements that equal the extreme share its gradient. Their number may not fit a 16-bit float.
        ReduceOp::Min | ReduceOp::Max => {
            let extreme = node.arg(arg).detach().eq(&spread(&node.res.detach())?)?;
            let dtype = match node.grad.dtype() {
                DType::F64 => DType::F64,
                _ => DType::F32,
            };
            let count = extreme.to_dtype(dtype)?.sum_keepdim(dims)?;
            let share = (node.grad.to_dtype(dtype)? / count)?;
            masked(&extreme, &spread(&share.to_dtype(node.grad.dtype())?)?)
        }
        ReduceOp::ArgMin | ReduceOp::ArgMax => {
            Err(Error::BackwardNotSupported { op: op.name() }.bt())
        }
    })
}
