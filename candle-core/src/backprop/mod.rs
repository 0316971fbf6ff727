//! Gradients: [`Tensor::backward`] traverses the graph of ops from a result back to the variables, and [`GradStore`]
//! holds the gradients.
//!
//! ```
//! use candle_core::{Device, Tensor, Var};
//! # fn main() -> candle_core::Result<()> {
//! let x = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
//! let w = Var::new(&[4f32, 5., 6.], &Device::Cpu)?;
//! let loss = ((x.as_tensor() * w.as_tensor())? + x.sqr()?)?.sum_all()?;
//! let grads = loss.backward()?;
//! assert_eq!(grads.get(&w).unwrap().to_vec1::<f32>()?, [1., 2., 3.]);
//! assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [6., 9., 12.]);
//! # Ok(())
//! # }
//! ```
//! Scope:
//! - The graph starts at variables ([`Var`](crate::Var)). A tensor that does not depend on one has no gradient, and none is computed.
//! - The graph starts at variables ([`Var`](crate::Var)). A tensor that comes from none has no gradient, and none is computed.
//! - Floats only. The graph ends at integer tensors, so at comparisons, indices and `to_dtype` to or from integers, and at
//!   [`Tensor::detach`].
//! - `floor`, `ceil`, `round` and `sign` are steps, with a derivative of 0 between jumps: the graph ends there as well.
//! - A custom op without `bwd` is [`Error::BackwardNotSupported`], so that the graph is not cut silently; one applied
//!   by `apply_op1_no_bwd` and the like ends the graph explicitly, and so do ops in place.
//!
//! Where a function has no derivative, the choices are PyTorch's: `abs` and `relu` have 0 at 0; of equal sides of `maximum` and `minimum`
//! each gets half; equal extremes in `max` and `min` share the gradient equally (`amax`); in `max_pool2d` the first of a window gets all;
//! `clamp` has 1 at its limits.
//!
//! Memory: the gradient of an intermediate tensor is dropped after it is propagated; only those of the variables remain. They have no graph
//! themselves, unless the environment variable `CANDLE_GRAD_DO_NOT_DETACH` is set to something other than an empty value or `0`: then they
//! can be differentiated again.
//!
//! One file per family of ops. Gradients are composed of tensor ops, so every device supports them.

mod conv;
mod elementwise;
mod indexing;
mod matmul;
mod movement;
mod pool;
mod reduce;
mod resample;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

pub(crate) use resample::ScaledBilinear;

use crate::op::{Op, UnaryOp};
use crate::{Error, Result, Shape, Tensor, TensorId};

/// Gradients by tensor, returned by [`Tensor::backward`].
#[derive(Debug, Default)]
pub struct GradStore(HashMap<TensorId, Tensor>);

impl GradStore {
    /// The gradient with respect to a tensor; it has the tensor's shape and dtype. `None` for tensors that have none.
    pub fn get(&self, tensor: &Tensor) -> Option<&Tensor> {
        self.get_id(tensor.id())
    }

    /// The gradient with respect to the tensor of that id.
    pub fn get_id(&self, id: TensorId) -> Option<&Tensor> {
        self.0.get(&id)
    }

    /// The ids of the tensors that have a gradient.
    pub fn get_ids(&self) -> impl Iterator<Item = &TensorId> {
        self.0.keys()
    }

    /// Sets the gradient with respect to a tensor; returns the previous one.
    ///
    /// Gradient clipping, for example, replaces the gradient by a scaled one.
    pub fn insert(&mut self, tensor: &Tensor, grad: Tensor) -> Option<Tensor> {
        self.insert_id(tensor.id(), grad)
    }

    /// Sets the gradient with respect to the tensor of that id; returns the previous one.
    pub fn insert_id(&mut self, id: TensorId, grad: Tensor) -> Option<Tensor> {
        self.0.insert(id, grad)
    }

    /// Removes the gradient with respect to a tensor.
    pub fn remove(&mut self, tensor: &Tensor) -> Option<Tensor> {
        self.0.remove(&tensor.id())
    }

    /// Adds the gradients of another store, such as that of the next part of a batch.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// # fn main() -> candle_core::Result<()> {
    /// let x = Var::new(3f32, &Device::Cpu)?;
    /// let mut grads = x.sqr()?.backward()?;
    /// grads.extend((x.as_tensor() * 10.)?.backward()?)?;
    /// assert_eq!(grads.get(&x).unwrap().to_scalar::<f32>()?, 16.);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When both have a gradient for one tensor and their shapes, dtypes or devices differ.
    pub fn extend(&mut self, other: Self) -> Result<()> {
        let mut others = other.0.into_iter();
        others.try_for_each(|(id, grad)| self.accumulate(id, grad))
    }

    fn accumulate(&mut self, id: TensorId, grad: Tensor) -> Result<()> {
        match self.0.entry(id) {
            Entry::Vacant(entry) => {
                entry.insert(grad);
            }
            Entry::Occupied(mut entry) => {
                let sum = entry.get().add(&grad)?;
                entry.insert(sum);
            }
        }
        Ok(())
    }
}

/// Collects the gradients of an op's arguments.
struct Grads<'a> {
    store: GradStore,
    /// The tensors from which a path leads to a variable.
    wanted: &'a HashSet<TensorId>,
    keep_graph: bool,
}

impl Grads<'_> {
    /// Adds to the gradient of an argument; does nothing if no variable depends on it.
    fn add(&mut self, arg: &Tensor, grad: impl FnOnce() -> Result<Tensor>) -> Result<()> {
        if !self.wanted.contains(&arg.id()) {
            return Ok(());
        }
        let grad = grad()?;
        let grad = if self.keep_graph { grad } else { grad.detach() };
        self.store.accumulate(arg.id(), grad)
    }

    /// Adds to the part from `start` on along `dim` of an argument's gradient. An existing gradient is changed in place: otherwise each
    /// step over a sequence would cost as much as the whole sequence.
    fn add_part(&mut self, arg: &Tensor, dim: usize, start: usize, part: &Tensor) -> Result<()> {
        let len = part.dims()[dim];
        if let Some(grad) = self.store.get(arg).filter(|_| !self.keep_graph) {
            if grad.owns_storage() {
                let sum = (grad.narrow(dim, start, len)? + part)?;
                return grad.slice_set(&sum, dim, start);
            }
        }
        let right = arg.dims()[dim] - start - len;
        self.add(arg, || movement::pad(part, dim, start, right))
    }
}

/// The input of a gradient rule: an op's result and its gradient.
struct Node {
    res: Tensor,
    grad: Tensor,
    keep_graph: bool,
}

impl Node {
    /// The elements of an argument, detached unless gradients are to be differentiated again: otherwise a gradient
    /// would keep the graph in memory.
    fn arg(&self, arg: &Tensor) -> Tensor {
        if self.keep_graph {
            arg.clone()
        } else {
            arg.detach()
        }
    }
}

/// Zeros of the dtype and on the device of `like`.
fn zeros<S: Into<Shape>>(shape: S, like: &Tensor) -> Result<Tensor> {
    Tensor::zeros(shape, like.dtype(), like.device())
}

/// `grad` where the condition holds and 0 elsewhere, also where `grad` is infinite or NaN.
fn masked(cond: &Tensor, grad: &Tensor) -> Result<Tensor> {
    cond.where_cond(grad, &no_grad(grad)?)
}

/// One zero in `grad`'s shape.
fn no_grad(grad: &Tensor) -> Result<Tensor> {
    zeros((), grad)?.broadcast_as(grad.shape())
}

/// Whether the op lets gradients through to its arguments.
fn passes_gradient(op: &Op) -> bool {
    !matches!(
        op,
        Op::Unary(
            _,
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Sign
        )
    )
}

/// Whether `CANDLE_GRAD_DO_NOT_DETACH` asks for gradients that can be differentiated.
fn keep_graph_by_env() -> bool {
    match std::env::var("CANDLE_GRAD_DO_NOT_DETACH") {
        Ok(value) => !matches!(value.as_str(), "" | "0"),
        Err(_) => false,
    }
}

impl Tensor {
    /// The tensors on a path from this one to a variable, variables included, each before the tensors that it was computed from. Empty if
    /// this tensor does not depend on a variable.
    pub fn sorted_nodes(&self) -> Vec<&Tensor> {
        enum Visit<'a> {
            Arrive(&'a Tensor),
            /// All arguments have been visited.
            Leave(&'a Tensor, &'a Op),
        }
        let mut nodes = vec![];
        // Whether a tensor depends on a variable; also false while its arguments are being visited.
        let mut wanted = HashMap::new();
        // An explicit stack: recursion would overflow on long chains.
        let mut stack = vec![Visit::Arrive(self)];
        while let Some(visit) = stack.pop() {
            match visit {
                Visit::Arrive(node) => {
                    if wanted.contains_key(&node.id()) {
                        continue;
                    }
                    wanted.insert(node.id(), false);
                    if !node.dtype().is_float() {
                        continue;
                    }
                    if node.is_variable() {
                        wanted.insert(node.id(), true);
                        nodes.push(node);
                    } else if let Some(op) = node.op().as_ref().filter(|op| passes_gradient(op)) {
                        stack.push(Visit::Leave(node, op));
                        op.for_each_arg(|arg| stack.push(Visit::Arrive(arg)));
                    }
                }
                Visit::Leave(node, op) => {
                    let mut leads_on = false;
                    op.for_each_arg(|arg| leads_on |= wanted.get(&arg.id()) == Some(&true));
                    if leads_on {
                        wanted.insert(node.id(), true);
                        nodes.push(node);
                    }
                }
            }
        }
        nodes.reverse();
        nodes
    }

    /// Computes the gradients of this tensor, or of the sum of its elements if it has several, with respect to the variables that it
    /// depends on. See [`backprop`](crate::backprop) for the rules.
    ///
    /// ```
    /// use candle_core::{Device, Var};
    /// # fn main() -> candle_core::Result<()> {
    /// let x = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
    /// let grads = x.sqr()?.sum_all()?.backward()?;
    /// assert_eq!(grads.get(&x).unwrap().to_vec1::<f32>()?, [2., 4., 6.]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::BackwardNotSupported`] if an op has no gradient, such as a custom op without `bwd`. An error if the device does not support
    /// an op that a gradient uses.
    pub fn backward(&self) -> Result<GradStore> {
        self.backward_keeping(keep_graph_by_env())
    }

    /// As [`Tensor::backward`]; with `keep_graph` the gradients can be differentiated.
    fn backward_keeping(&self, keep_graph: bool) -> Result<GradStore> {
        let nodes = self.sorted_nodes();
        let wanted = nodes.iter().map(|node| node.id()).collect();
        let mut grads = Grads {
            store: GradStore::default(),
            wanted: &wanted,
            keep_graph,
        };
        grads.store.insert(self, self.ones_like()?);
        for node in nodes {
            let Some(op) = node.op().as_ref().filter(|_| !node.is_variable()) else {
                continue;
            };
            // `None` if an op returned no gradient although a path leads to a variable: a custom op may return `None` for 0.
            if let Some(grad) = grads.store.remove(node) {
                let step = Node {
                    res: if keep_graph {
                        node.clone()
                    } else {
                        node.detach()
                    },
                    grad,
                    keep_graph,
                };
                propagate(&mut grads, &step, op)?;
            }
        }
        for grad in grads.store.0.values_mut() {
            *grad = grad.alone()?;
        }
        Ok(grads.store)
    }

    /// The tensor with an unshared storage of exactly its elements, so that in-place ops on one gradient do not change
    /// others.
    fn alone(&self) -> Result<Self> {
        if self.owns_storage() {
            return Ok(self.clone());
        }
        self.copy()
    }
}

/// Propagates a node's gradient to the arguments of its op.
fn propagate(grads: &mut Grads, node: &Node, op: &Op) -> Result<()> {
    use crate::conv::Steps;
    use pool::Windows;

    let grad = &node.grad;
    match op {
        Op::Binary(lhs, rhs, op) => elementwise::binary(grads, node, lhs, rhs, *op),
        Op::Unary(arg, op) => elementwise::unary(grads, node, arg, *op),
        Op::Affine { arg, mul, .. } => elementwise::affine(grads, node, arg, *mul),
        Op::Powf(arg, e) => elementwise::powf(grads, node, arg, *e),
        Op::Elu(arg, alpha) => elementwise::elu(grads, node, arg, *alpha),
        // An integer tensor, where the traversal ends.
        Op::Cmp(..) => Err(Error::BackwardNotSupported { op: "cmp" }.bt()),
        Op::Reduce(arg, op, dims) => reduce::reduce(grads, node, arg, *op, dims),
        Op::Matmul(lhs, rhs) => matmul::matmul(grads, node, lhs, rhs),

        Op::Copy(arg) => grads.add(arg, || Ok(grad.clone())),
        Op::ToDType(arg) => grads.add(arg, || grad.to_dtype(arg.dtype())),
        Op::ToDevice(arg) => grads.add(arg, || grad.to_device(arg.device())),
        Op::Reshape(arg) => grads.add(arg, || grad.reshape(arg.shape())),
        Op::Transpose(arg, dim1, dim2) => grads.add(arg, || grad.transpose(*dim1, *dim2)),
        Op::Permute(arg, dims) => movement::permute(grads, node, arg, dims),
        Op::Broadcast(arg) => movement::broadcast(grads, node, arg),
        Op::Narrow(arg, dim, start, _) => grads.add_part(arg, *dim, *start, grad),
        Op::Cat(args, dim) => movement::cat(grads, node, args, *dim),
        Op::SliceScatter0(arg, src, start) => {
            movement::slice_scatter0(grads, node, arg, src, *start)
        }

        Op::WhereCond(cond, on_true, on_false) => {
            indexing::where_cond(grads, node, cond, on_true, on_false)
        }
        Op::Gather(arg, ids, dim) => indexing::gather(grads, node, arg, ids, *dim),
        Op::Scatter(arg, ids, src, dim) => indexing::scatter(grads, node, [arg, ids, src], *dim),
        Op::ScatterAdd(arg, ids, src, dim) => {
            indexing::scatter_add(grads, node, [arg, ids, src], *dim)
        }
        Op::IndexSelect(arg, ids, dim) => indexing::index_select(grads, node, arg, ids, *dim),
        Op::IndexAdd(arg, ids, src, dim) => indexing::index_add(grads, node, [arg, ids, src], *dim),

        &Op::Conv1D {
            ref arg,
            ref kernel,
            padding,
            stride,
            dilation,
        }
        | &Op::Conv2D {
            ref arg,
            ref kernel,
            padding,
            stride,
            dilation,
        } => conv::conv(
            grads,
            node,
            arg,
            kernel,
            Steps {
                padding,
                stride,
                dilation,
            },
        ),
        &Op::ConvTranspose1D {
            ref arg,
            ref kernel,
            padding,
            stride,
            dilation,
            ..
        }
        | &Op::ConvTranspose2D {
            ref arg,
            ref kernel,
            padding,
            stride,
            dilation,
            ..
        } => conv::conv_transpose(
            grads,
            node,
            arg,
            kernel,
            Steps {
                padding,
                stride,
                dilation,
            },
        ),
        &Op::AvgPool2D {
            ref arg,
            kernel_size: size,
            stride,
        } => pool::avg(grads, node, arg, Windows { size, stride }),
        &Op::MaxPool2D {
            ref arg,
            kernel_size: size,
            stride,
        } => pool::max(grads, node, arg, Windows { size, stride }),
        Op::UpsampleNearest1D { arg, .. } | Op::UpsampleNearest2D { arg, .. } => {
            resample::nearest(grads, node, arg)
        }
        Op::UpsampleBilinear2D {
            arg, align_corners, ..
        } => resample::bilinear(grads, node, arg, *align_corners),

        Op::CustomOp1(arg, op) => {
            let arg_grad = op.bwd(&node.arg(arg), &node.res, grad)?;
            custom(grads, op.name(), [(arg, arg_grad)])
        }
        Op::CustomOp2(arg1, arg2, op) => {
            let (grad1, grad2) = op.bwd(&node.arg(arg1), &node.arg(arg2), &node.res, grad)?;
            custom(grads, op.name(), [(arg1, grad1), (arg2, grad2)])
        }
        Op::CustomOp3(arg1, arg2, arg3, op) => {
            let args = [arg1, arg2, arg3].map(|arg| node.arg(arg));
            let (grad1, grad2, grad3) = op.bwd(&args[0], &args[1], &args[2], &node.res, grad)?;
            custom(
                grads,
                op.name(),
                [(arg1, grad1), (arg2, grad2), (arg3, grad3)],
            )
        }
    }
}

/// Adds the gradients that a custom op returned; `None` means 0.
fn custom<const N: usize>(
    grads: &mut Grads,
    op: &str,
    args: [(&Tensor, Option<Tensor>); N],
) -> Result<()> {
    for (i, (arg, grad)) in args.into_iter().enumerate() {
        let Some(grad) = grad else { continue };
        grads.add(arg, || {
            if grad.shape() != arg.shape() {
                crate::bail!(
                    "{op}: bwd gave a gradient of shape {:?} for argument {} of shape {:?}",
                    grad.shape(),
                    i + 1,
                    arg.shape()
                )
            }
            Ok(grad)
        })?;
    }
    Ok(())
}
