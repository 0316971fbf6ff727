//! The operations: names for the backends, their meaning for each dtype, and the graph that autograd walks.

mod elementwise;

use std::sync::Arc;

pub use elementwise::{
    Abs, Add, BinaryOpT, Ceil, Cos, Div, Erf, Exp, Floor, Gelu, GeluErf, Log, Maximum, Minimum,
    Mul, Neg, Recip, Relu, Round, Sign, Silu, Sin, Sqr, Sqrt, Sub, Tanh, UnaryOpT,
};

use crate::{CustomOp1, CustomOp2, CustomOp3, Tensor};

/// A comparison of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CmpOp {
    /// `lhs == rhs`
    Eq,
    /// `lhs != rhs`
    Ne,
    /// `lhs <= rhs`
    Le,
    /// `lhs >= rhs`
    Ge,
    /// `lhs < rhs`
    Lt,
    /// `lhs > rhs`
    Gt,
}

/// A reduction over dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// The sum; 0 over no elements.
    Sum,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
    /// The index of the first smallest element.
    ArgMin,
    /// The index of the first largest element.
    ArgMax,
}

impl ReduceOp {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::ArgMin => "argmin",
            Self::ArgMax => "argmax",
        }
    }
}

/// An elementwise function of two arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryOp {
    /// `lhs + rhs`
    Add,
    /// `lhs * rhs`
    Mul,
    /// `lhs - rhs`
    Sub,
    /// `lhs / rhs`
    Div,
    /// The larger of the two.
    Maximum,
    /// The smaller of the two.
    Minimum,
}

/// An elementwise function of one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnaryOp {
    /// e to the power of x.
    Exp,
    /// The natural logarithm.
    Log,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
    /// The absolute value.
    Abs,
    /// `-x`
    Neg,
    /// `1 / x`
    Recip,
    /// `x * x`
    Sqr,
    /// The square root.
    Sqrt,
    /// The Gaussian error linear unit, by its approximation with tanh.
    Gelu,
    /// The Gaussian error linear unit, exact.
    GeluErf,
    /// The error function.
    Erf,
    /// `max(x, 0)`
    Relu,
    /// `x / (1 + exp(-x))`
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// Rounds down.
    Floor,
    /// Rounds up.
    Ceil,
    /// Rounds to the nearest integer, halves away from 0.
    Round,
    /// -1, 0 or 1.
    Sign,
}

/// The operation that computed a tensor, and its arguments.
#[allow(missing_docs, reason = "the fields are those of the ops on Tensor")]
#[derive(Clone)]
pub enum Op {
    /// Elementwise function of two tensors.
    Binary(Tensor, Tensor, BinaryOp),
    /// Elementwise function of one tensor.
    Unary(Tensor, UnaryOp),
    /// Comparison with 0 or with the other tensor; has no gradient.
    Cmp(Tensor, CmpOp),
    /// Reduction over the dimensions listed.
    Reduce(Tensor, ReduceOp, Vec<usize>),
    /// Matrix product.
    Matmul(Tensor, Tensor),
    /// Elements of the tensor, by the indexes, along a dimension.
    Gather(Tensor, Tensor, usize),
    /// The first tensor with elements of the third set by the second's indexes.
    Scatter(Tensor, Tensor, Tensor, usize),
    /// The first tensor with elements of the third added by the second's indexes.
    ScatterAdd(Tensor, Tensor, Tensor, usize),
    /// Slices of the tensor, by the indexes, along a dimension.
    IndexSelect(Tensor, Tensor, usize),
    /// The first tensor with slices of the third added by the second's indexes.
    IndexAdd(Tensor, Tensor, Tensor, usize),
    /// Condition, value if true, value if false.
    WhereCond(Tensor, Tensor, Tensor),
    /// 1D convolution.
    Conv1D {
        arg: Tensor,
        kernel: Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
    },
    /// Transposed 1D convolution.
    ConvTranspose1D {
        arg: Tensor,
        kernel: Tensor,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
    },
    /// 2D convolution.
    Conv2D {
        arg: Tensor,
        kernel: Tensor,
        padding: usize,
        stride: usize,
        dilation: usize,
    },
    /// Transposed 2D convolution.
    ConvTranspose2D {
        arg: Tensor,
        kernel: Tensor,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
    },
    /// Average pooling.
    AvgPool2D {
        arg: Tensor,
        kernel_size: (usize, usize),
        stride: (usize, usize),
    },
    /// Maximum pooling.
    MaxPool2D {
        arg: Tensor,
        kernel_size: (usize, usize),
        stride: (usize, usize),
    },
    /// Nearest-neighbour resampling of one dimension.
    UpsampleNearest1D { arg: Tensor, target_size: usize },
    /// Nearest-neighbour resampling of two dimensions.
    UpsampleNearest2D {
        arg: Tensor,
        target_h: usize,
        target_w: usize,
    },
    /// Bilinear resampling of two dimensions.
    UpsampleBilinear2D {
        arg: Tensor,
        target_h: usize,
        target_w: usize,
        align_corners: bool,
    },
    /// Concatenation along a dimension.
    Cat(Vec<Tensor>, usize),
    /// `arg * mul + add`
    Affine { arg: Tensor, mul: f64, add: f64 },
    /// Conversion to another dtype.
    ToDType(Tensor),
    /// A copy in a new storage.
    Copy(Tensor),
    /// Repetition along dimensions of stride 0.
    Broadcast(Tensor),
    /// Dimension, start, length.
    Narrow(Tensor, usize, usize, usize),
    /// The first tensor with the second written over its rows from an offset on.
    SliceScatter0(Tensor, Tensor, usize),
    /// The same elements in another shape.
    Reshape(Tensor),
    /// Copied to another device.
    ToDevice(Tensor),
    /// Two dimensions swapped.
    Transpose(Tensor, usize, usize),
    /// Dimensions reordered.
    Permute(Tensor, Vec<usize>),
    /// Exponential linear unit with its `alpha`.
    Elu(Tensor, f64),
    /// Power with its exponent.
    Powf(Tensor, f64),
    /// A custom op of one tensor.
    CustomOp1(Tensor, Arc<Box<dyn CustomOp1 + Send + Sync>>),
    /// A custom op of two tensors.
    CustomOp2(Tensor, Tensor, Arc<Box<dyn CustomOp2 + Send + Sync>>),
    /// A custom op of three tensors.
    CustomOp3(
        Tensor,
        Tensor,
        Tensor,
        Arc<Box<dyn CustomOp3 + Send + Sync>>,
    ),
}

impl Op {
    /// Calls `f` with each argument of the op, in order.
    pub(crate) fn for_each_arg<'a>(&'a self, mut f: impl FnMut(&'a Tensor)) {
        match self {
            Self::Unary(arg, _)
            | Self::Cmp(arg, _)
            | Self::Reduce(arg, _, _)
            | Self::AvgPool2D { arg, .. }
            | Self::MaxPool2D { arg, .. }
            | Self::UpsampleNearest1D { arg, .. }
            | Self::UpsampleNearest2D { arg, .. }
            | Self::UpsampleBilinear2D { arg, .. }
            | Self::Affine { arg, .. }
            | Self::ToDType(arg)
            | Self::Copy(arg)
            | Self::Broadcast(arg)
            | Self::Narrow(arg, _, _, _)
            | Self::Reshape(arg)
            | Self::ToDevice(arg)
            | Self::Transpose(arg, _, _)
            | Self::Permute(arg, _)
            | Self::Elu(arg, _)
            | Self::Powf(arg, _)
            | Self::CustomOp1(arg, _) => f(arg),
            Self::Binary(arg1, arg2, _)
            | Self::Matmul(arg1, arg2)
            | Self::Gather(arg1, arg2, _)
            | Self::IndexSelect(arg1, arg2, _)
            | Self::SliceScatter0(arg1, arg2, _)
            | Self::CustomOp2(arg1, arg2, _)
            | Self::Conv1D {
                arg: arg1,
                kernel: arg2,
                ..
            }
            | Self::ConvTranspose1D {
                arg: arg1,
                kernel: arg2,
                ..
            }
            | Self::Conv2D {
                arg: arg1,
                kernel: arg2,
                ..
            }
            | Self::ConvTranspose2D {
                arg: arg1,
                kernel: arg2,
                ..
            } => [arg1, arg2].into_iter().for_each(f),
            Self::Scatter(arg1, arg2, arg3, _)
            | Self::ScatterAdd(arg1, arg2, arg3, _)
            | Self::IndexAdd(arg1, arg2, arg3, _)
            | Self::WhereCond(arg1, arg2, arg3)
            | Self::CustomOp3(arg1, arg2, arg3, _) => [arg1, arg2, arg3].into_iter().for_each(f),
            Self::Cat(args, _) => args.iter().for_each(f),
        }
    }
}

/// The [`Op`] that computed a tensor, or `None` if no argument depends on a variable: a backward pass cannot reach such arguments, so they
/// are not kept alive.
#[derive(Clone)]
pub struct BackpropOp(Option<Op>);

impl BackpropOp {
    /// The op of a leaf: a tensor not computed from others.
    pub fn none() -> Self {
        Self(None)
    }

    /// Removes and returns the op.
    pub(crate) fn take(&mut self) -> Option<Op> {
        self.0.take()
    }

    pub(crate) fn new<A: AsRef<Tensor>>(args: &[A], op: impl FnOnce(Vec<Tensor>) -> Op) -> Self {
        let tracked = args.iter().any(|arg| arg.as_ref().track_op());
        Self(tracked.then(|| op(args.iter().map(|arg| arg.as_ref().clone()).collect())))
    }

    pub(crate) fn new1(arg: &Tensor, op: impl FnOnce(Tensor) -> Op) -> Self {
        Self(arg.track_op().then(|| op(arg.clone())))
    }

    pub(crate) fn new2(
        arg1: &Tensor,
        arg2: &Tensor,
        op: impl FnOnce(Tensor, Tensor) -> Op,
    ) -> Self {
        let tracked = arg1.track_op() || arg2.track_op();
        Self(tracked.then(|| op(arg1.clone(), arg2.clone())))
    }

    pub(crate) fn new3(
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        op: impl FnOnce(Tensor, Tensor, Tensor) -> Op,
    ) -> Self {
        let tracked = arg1.track_op() || arg2.track_op() || arg3.track_op();
        Self(tracked.then(|| op(arg1.clone(), arg2.clone(), arg3.clone())))
    }
}

/// Drops the graph iteratively: recursive drops of a long chain would overflow the stack.
impl Drop for BackpropOp {
    #[inline]
    fn drop(&mut self) {
        if let Some(op) = self.0.take() {
            drop_graph(op);
        }
    }
}

#[inline(never)]
fn drop_graph(op: Op) {
    let mut ops = vec![op];
    while let Some(op) = ops.pop() {
        let mut args = vec![];
        op.for_each_arg(|arg| {
            // Stops at leaves and at tensors with other handles.
            if arg.op().is_some() {
                args.push(arg.clone());
            }
        });
        drop(op);
        ops.extend(args.into_iter().filter_map(Tensor::into_op));
    }
}

impl std::ops::Deref for BackpropOp {
    type Target = Option<Op>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
