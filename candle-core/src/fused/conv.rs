//! A convolution with what follows it in a layer.

use super::{Activation, Operand};
#[cfg(any(feature = "cuda", feature = "webgpu"))]
use crate::{
    backend::BackendStorage,
    conv::{check_groups, ParamsConv2D, Steps},
    Error, Layout, Result, Shape,
};

/// A convolution in two dimensions, followed by these, in this order. All tensors have the dtype of its input.
#[derive(Debug)]
pub struct Conv2d<'a, S> {
    /// Zeros on each side of the input.
    pub padding: usize,
    /// Distance between neighbouring windows.
    pub stride: usize,
    /// Distance between neighbouring elements of the kernel.
    pub dilation: usize,
    /// Number of groups of channels.
    pub groups: usize,
    /// Added to each channel: `(c_out)`.
    pub bias: Option<Operand<'a, S>>,
    /// Added to the result, whose shape it has.
    pub residual: Option<Operand<'a, S>>,
    /// Applied to the sum.
    pub activation: Option<Activation>,
}

impl<S> Clone for Conv2d<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Conv2d<'_, S> {}

#[cfg(any(feature = "cuda", feature = "webgpu"))]
impl<S: BackendStorage> Conv2d<'_, S> {
    /// Checks the arguments; returns the convolution's parameters and the shape of its result.
    pub(crate) fn check(
        &self,
        (x, x_l): Operand<'_, S>,
        (kernel, kernel_l): Operand<'_, S>,
    ) -> Result<(ParamsConv2D, Shape)> {
        let Self {
            padding,
            stride,
            dilation,
            groups,
            bias,
            residual,
            ..
        } = *self;
        let invalid = |msg: &str| {
            Error::Msg(format!(
                "conv2d: {msg}: input {:?} {:?}, kernel {:?} {:?}, padding {padding}, stride {stride}, dilation {dilation}, groups {groups}",
                x.dtype(),
                x_l.shape(),
                kernel.dtype(),
                kernel_l.shape(),
            ))
            .bt()
        };
        let (b_size, c_in, i_h, i_w) = x_l.shape().dims4()?;
        let (c_out, group_c_in, k_h, k_w) = kernel_l.shape().dims4()?;
        let steps = Steps {
            padding,
            stride,
            dilation,
        };
        check_groups(groups, c_in, c_out, group_c_in).map_err(invalid)?;
        let o_h = steps.conv_size(i_h, k_h).map_err(invalid)?;
        let o_w = steps.conv_size(i_w, k_w).map_err(invalid)?;
        let shape = Shape::from((b_size, c_out, o_h, o_w));
        shape.checked_byte_count(x.dtype().size_in_bytes())?;
        let fits = |tensor: Option<Operand<'_, S>>, dims: &[usize]| {
            tensor
                .is_none_or(|(tensor, layout)| layout.dims() == dims && tensor.dtype() == x.dtype())
        };
        if kernel.dtype() != x.dtype() {
            return Err(invalid("the dtypes differ"));
        }
        if !fits(bias, &[c_out]) || !fits(residual, shape.dims()) {
            let found = [bias, residual]
                .map(|tensor| tensor.map(|(tensor, layout)| (tensor.dtype(), layout.shape())));
            return Err(invalid(&format!(
                "the bias is to be ({c_out}) and the residual {shape:?}, of the input's dtype; they are {found:?}"
            )));
        }
        let params = ParamsConv2D {
            b_size,
            i_h,
            i_w,
            k_h,
            k_w,
            c_out,
            c_in,
            padding,
            stride,
            dilation,
            groups,
            cudnn_fwd_algo: None,
        };
        Ok((params, shape))
    }

    /// The rest of the layer, by elementwise ops: `binary` and `unary` apply a function by name to contiguous results.
    pub(crate) fn after(
        &self,
        mut dst: S,
        [b, channels, plane]: [usize; 3],
        binary: impl Fn(&S, &S, &Layout, &Layout, &'static str) -> Result<S>,
        unary: impl Fn(&S, &Layout, &'static str) -> Result<S>,
    ) -> Result<S> {
        let shape = Shape::from((b, channels, plane));
        let all = Layout::contiguous(&shape);
        if let Some((bias, layout)) = self.bias {
            let strides = vec![0, layout.stride()[0], 0];
            let layout = Layout::new(shape, strides, layout.start_offset());
            dst = binary(&dst, bias, &all, &layout, "add")?;
        }
        if let Some((residual, layout)) = self.residual {
            let all = Layout::contiguous(layout.shape());
            dst = binary(&dst, residual, &all, layout, "add")?;
        }
        let functions = self.activation.map_or(&[][..], Activation::functions);
        for function in functions {
            dst = unary(&dst, &all, function)?;
        }
        Ok(dst)
    }
}
