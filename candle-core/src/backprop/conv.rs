//! Gradients of convolutions, which are convolutions themselves. The input's gradient is the transposed convolution. The kernel's gradient
//! convolves input and gradient with batch and channels swapped, and with stride and dilation swapped. Both use the groups of the
//! convolution.

use super::{Grads, Node};
use crate::conv::Steps;
use crate::{Result, Tensor};

impl Steps {
    /// The convolution with the parameters of `self`, over `(batch, channels, length)` or `(batch, channels, height, width)`.
    fn conv(self, arg: &Tensor, kernel: &Tensor, groups: usize) -> Result<Tensor> {
        let (padding, stride, dilation) = (self.padding, self.stride, self.dilation);
        match arg.rank() {
            3 => arg.conv1d(kernel, padding, stride, dilation, groups),
            _ => arg.conv2d(kernel, padding, stride, dilation, groups),
        }
    }

    /// The transposed convolution, with at least the sizes of `like`.
    fn conv_transpose(
        self,
        arg: &Tensor,
        kernel: &Tensor,
        like: &Tensor,
        groups: usize,
    ) -> Result<Tensor> {
        let (padding, stride, dilation) = (self.padding, self.stride, self.dilation);
        // The remainder of the input after the last stride may still be in the last window, instead of padding.
        let rest = |dim: usize| {
            let reached = (arg.dims()[dim] - 1) * stride + (kernel.dims()[dim] - 1) * dilation + 1;
            like.dims()[dim] + 2 * padding - reached
        };
        let rest = (2..arg.rank()).map(rest).max().unwrap_or(0);
        match arg.rank() {
            3 => arg.conv_transpose1d(kernel, padding, rest, stride, dilation, groups),
            _ => arg.conv_transpose2d_in_groups(kernel, self, rest, groups),
        }
    }

    /// The gradient of the kernel: of all products of an element of `input` and one of `windows` that meet in the kernel's
    /// element `j`, at `i * stride + j * dilation - padding` in `input`. Both are `(batch, channels, ...)`; gives
    /// `(windows' channels, a group's channels of input, ...)` with the kernel's sizes.
    fn kernel(
        self,
        input: &Tensor,
        windows: &Tensor,
        kernel: &Tensor,
        groups: usize,
    ) -> Result<Tensor> {
        let swapped = Self {
            stride: self.dilation,
            dilation: self.stride,
            ..self
        };
        // Within a group the sum runs over the batch: `(a group's channels, (group, batch), ...)`.
        let (batch, channels) = (input.dims()[0], input.dims()[1]);
        let rest = &input.dims()[2..];
        let input = match groups {
            1 => input.transpose(0, 1)?,
            _ => input
                .reshape([&[batch, groups, channels / groups][..], rest].concat())?
                .transpose(0, 2)?
                .reshape([&[channels / groups, groups * batch][..], rest].concat())?,
        };
        let products = swapped.conv(&input, &windows.transpose(0, 1)?, groups)?;
        // Input elements that no window reached can give more positions than the kernel has.
        cut(&products.transpose(0, 1)?, kernel)
    }
}

/// Number of groups of `channels`, for a kernel `(_, channels / groups, ...)`.
fn groups(channels: usize, kernel: &Tensor) -> usize {
    (channels / kernel.dims()[1].max(1)).max(1)
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
    let groups = groups(arg.dims()[1], kernel);
    grads.add(arg, || {
        let kernel = node.arg(kernel);
        let reached = steps.conv_transpose(&node.grad, &kernel, arg, groups)?;
        cut(&reached, arg)
    })?;
    grads.add(kernel, || {
        steps.kernel(&node.arg(arg), &node.grad, kernel, groups)
    })
}

pub(super) fn conv_transpose(
    grads: &mut Grads,
    node: &Node,
    arg: &Tensor,
    kernel: &Tensor,
    steps: Steps,
) -> Result<()> {
    let groups = groups(node.grad.dims()[1], kernel);
    // With large output padding the convolution has more windows than the input has elements.
    grads.add(arg, || {
        cut(&steps.conv(&node.grad, &node.arg(kernel), groups)?, arg)
    })?;
    grads.add(kernel, || {
        steps.kernel(&node.grad, &node.arg(arg), kernel, groups)
    })
}
