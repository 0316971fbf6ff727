//! Gradients of convolutions, which are convolutions again: the input's is the transposed convolution; the kernel's
//! convolves input and gradient with batch and channels swapped, and stride and dilation too.

use super::{Grads, Node};
use crate::conv::Steps;
use crate::{Result, Tensor};

impl Steps {
    /// As `self`, over `(batch, channels, length)` or `(batch, channels, height, width)`.
    fn conv(self, arg: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let (padding, stride, dilation) = (self.padding, self.stride, self.dilation);
        match arg.rank() {
            3 => arg.conv1d(kernel, padding, stride, dilation, 1),
            _ => arg.conv2d(kernel, padding, stride, dilation, 1),
        }
    }

    /// The transposed convolution, with at least the sizes of `like`.
    fn conv_transpose(self, arg: &Tensor, kernel: &Tensor, like: &Tensor) -> Result<Tensor> {
        let (padding, stride, dilation) = (self.padding, self.stride, self.dilation);
        // The remainder of the input after the last stride may still be in the last window, in place of padding.
        let rest = |dim: usize| {
            let reached = (arg.dims()[dim] - 1) * stride + (kernel.dims()[dim] - 1) * dilation + 1;
            like.dims()[dim] + 2 * padding - reached
        };
        let rest = (2..arg.rank()).map(rest).max().unwrap_or(0);
        match arg.rank() {
            3 => arg.conv_transpose1d(kernel, padding, rest, stride, dilation, 1),
            _ => arg.conv_transpose2d(kernel, padding, rest, stride, dilation),
        }
    }

    /// The gradient of the kernel: of all products of an element of `input` and one of `windows` that meet in the kernel's
    /// element `j`, at `i * stride + j * dilation - padding` in `input`. Both are `(batch, channels, ...)`; gives
    /// `(windows' channels, input's channels, ...)` with the kernel's sizes.
    fn kernel(self, input: &Tensor, windows: &Tensor, kernel: &Tensor) -> Result<Tensor> {
        let swapped = Self {
            stride: self.dilation,
            dilation: self.stride,
            ..self
        };
        let products = swapped.conv(&input.transpose(0, 1)?, &windows.transpose(0, 1)?)?;
        // Input elements that no window reached can give more positions than the kernel has.
        cut(&products.transpose(0, 1)?, kernel)
    }
}

/// Cuts the dimensions after the first two to the sizes of `like`.
fn cut(t: &Tensor, like: &Tensor) -> Result<Tensor> {
    let mut sizes = like.dims().iter().enumerate().skip(2);
    sizes.try_fold(t.clone(), |t, (dim, &size)| t.narrow(dim, 0, size))
}

pub(super) fn conv(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    kernel: &Tensor,
    steps: Steps,
) -> Result<()> {
    grads.add(arg, || {
        let kernel = node.arg(kernel);
        cut(&steps.conv_transpose(&node.grad, &kernel, arg)?, arg)
    })?;
    grads.add(kernel, || steps.kernel(&node.arg(arg), &node.grad, kernel))
}

pub(super) fn conv_transpose(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    kernel: &Tensor,
    steps: Steps,
) -> Result<()> {
    // With much output padding a convolution finds more windows than the input has elements.
    grads.add(arg, || {
        cut(&steps.conv(&node.grad, &node.arg(kernel))?, arg)
    })?;
    grads.add(kernel, || steps.kernel(&node.grad, &node.arg(arg), kernel))
}
