//! Gradients of reductions.

use super::{masked, Grads, Node};
use crate::op::ReduceOp;
use crate::{Error, Result, Tensor};

/// The node has kept the reduced dimensions, with size 1.
pub(super) fn reduce(grads: &mut Grads, node: &Node, arg: &Tensor, op: ReduceOp) -> Result<()> {
    let spread = |t: &Tensor| t.broadcast_as(arg.shape());
    grads.add(arg, || match op {
        ReduceOp::Sum => spread(&node.grad),
        // Every element that equals the extreme gets the whole gradient, as in Candle.
        ReduceOp::Min | ReduceOp::Max => masked(
            &node.arg(arg).eq(&spread(&node.res)?)?,
            &spread(&node.grad)?,
        ),
        ReduceOp::ArgMin | ReduceOp::ArgMax => {
            Err(Error::BackwardNotSupported { op: op.name() }.bt())
        }
    })
}
