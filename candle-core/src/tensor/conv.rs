//! Convolutions, plain and transposed, over one and two dimensions.
//!
//! They are cross-correlations, as usual in machine learning: the kernel is not reversed.

use crate::backend::BackendStorage;
use crate::conv::{
    check_groups, CudnnFwdAlgo, ParamsConv1D, ParamsConv2D, ParamsConvTranspose1D,
    ParamsConvTranspose2D, Steps,
};
use crate::op::{BackpropOp, Op};
use crate::{Error, Result, Shape, Tensor};

impl Tensor {
    /// 1D convolution of `(batch, c_in, length)` with a kernel `(c_out, c_in / groups, k)`; gives `(batch, c_out, l_out)` with
    /// `l_out = (length + 2 * padding - dilation * (k - 1) - 1) / stride + 1`.
    ///
    /// With `groups`, channels are split into that many groups, which are convolved independently.
    ///
    /// ```
    /// use candle_core::{Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let xs = Tensor::new(&[[[1f32, 2., 3., 4.]]], &Device::Cpu)?;
    /// let kernel = Tensor::new(&[[[1f32, 10.]]], &Device::Cpu)?;
    /// let ys = xs.conv1d(&kernel, 0, 1, 1, 1)?;
    /// assert_eq!(ys.to_vec3::<f32>()?, [[[21., 32., 43.]]]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Conv1dInvalidArgs` when the shapes, steps and groups do not match, such as a kernel larger than the padded
    /// input; when ranks are not 3, or dtypes or devices differ.
    pub fn conv1d(
        &self,
        kernel: &Self,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Self> {
        self.conv1d_with_algo(kernel, padding, stride, dilation, groups, None)
    }

    /// Like [`Tensor::conv1d`], with the algorithm for cuDNN; other backends ignore it.
    ///
    /// # Errors
    /// As [`Tensor::conv1d`].
    pub fn conv1d_with_algo(
        &self,
        kernel: &Self,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
        cudnn_fwd_algo: Option<CudnnFwdAlgo>,
    ) -> Result<Self> {
        const OP: &str = "conv1d";
        let invalid = |msg| {
            Error::Conv1dInvalidArgs {
                inp_shape: self.shape().clone(),
                k_shape: kernel.shape().clone(),
                padding,
                stride,
                msg,
            }
            .bt()
        };
        let (b_size, c_in, l_in) = self.dims3()?;
        let (c_out, group_c_in, k_size) = kernel.dims3()?;
        check_groups(groups, c_in, c_out, group_c_in).map_err(invalid)?;
        let steps = Steps {
            padding,
            stride,
            dilation,
        };
        let l_out = steps.conv_size(l_in, k_size).map_err(invalid)?;
        self.same_kind(kernel, OP)?;
        let params = ParamsConv1D {
            b_size,
            l_in,
            c_out,
            c_in,
            k_size,
            padding,
            stride,
            dilation,
            groups,
            cudnn_fwd_algo,
        };
        self.convolve(
            kernel,
            &[b_size, c_out, l_out],
            |arg, kernel| Op::Conv1D {
                arg,
                kernel,
                padding,
                stride,
                dilation,
            },
            || {
                let (inp, k) = (self.storage(), kernel.storage());
                map_backend!(OP, (&*inp, self.layout()), (&*k, kernel.layout()) => |a, b| a.conv1d(self.layout(), b, kernel.layout(), &params))
            },
        )
    }

    /// 2D convolution of `(batch, c_in, height, width)` with a kernel `(c_out, c_in / groups, k_h, k_w)`; returns `(batch, c_out, h_out,
    /// w_out)` with sizes as in [`Tensor::conv1d`]. Padding, stride and dilation apply to both dimensions.
    ///
    /// ```
    /// use candle_core::{DType, Device, Tensor};
    /// # fn main() -> candle_core::Result<()> {
    /// let image = Tensor::ones((1, 3, 8, 8), DType::F32, &Device::Cpu)?;
    /// let kernel = Tensor::ones((16, 3, 3, 3), DType::F32, &Device::Cpu)?;
    /// let ys = image.conv2d(&kernel, 1, 2, 1, 1)?;
    /// assert_eq!(ys.dims(), [1, 16, 4, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the shapes, steps and groups do not match, such as a kernel larger than the padded input; when ranks are
    /// not 4, or dtypes or devices differ.
    pub fn conv2d(
        &self,
        kernel: &Self,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Self> {
        self.conv2d_with_algo(kernel, padding, stride, dilation, groups, None)
    }

    /// Like [`Tensor::conv2d`], with the algorithm for cuDNN; other backends ignore it.
    ///
    /// # Errors
    /// As [`Tensor::conv2d`].
    pub fn conv2d_with_algo(
        &self,
        kernel: &Self,
        padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
        cudnn_fwd_algo: Option<CudnnFwdAlgo>,
    ) -> Result<Self> {
        const OP: &str = "conv2d";
        let steps = Steps {
            padding,
            stride,
            dilation,
        };
        let invalid = |msg| self.invalid_conv(OP, msg, kernel, steps, groups);
        let (b_size, c_in, i_h, i_w) = self.dims4()?;
        let (c_out, group_c_in, k_h, k_w) = kernel.dims4()?;
        check_groups(groups, c_in, c_out, group_c_in).map_err(invalid)?;
        let h_out = steps.conv_size(i_h, k_h).map_err(invalid)?;
        let w_out = steps.conv_size(i_w, k_w).map_err(invalid)?;
        self.same_kind(kernel, OP)?;
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
            cudnn_fwd_algo,
        };
        self.convolve(
            kernel,
            &[b_size, c_out, h_out, w_out],
            |arg, kernel| Op::Conv2D {
                arg,
                kernel,
                padding,
                stride,
                dilation,
            },
            || {
                let (inp, k) = (self.storage(), kernel.storage());
                map_backend!(OP, (&*inp, self.layout()), (&*k, kernel.layout()) => |a, b| a.conv2d(self.layout(), b, kernel.layout(), &params))
            },
        )
    }

    /// Transposed 1D convolution of `(batch, c_in, length)` with a kernel `(c_in, c_out / groups, k)`; gives
    /// `(batch, c_out, l_out)` with `l_out = (length - 1) * stride + dilation * (k - 1) + output_padding + 1 - 2 * padding`.
    ///
    /// It is the gradient of a convolution with the same padding, stride and dilation: each element of the input adds a
    /// multiple of the kernel to the result. `output_padding` makes the result longer at its end.
    ///
    /// # Errors
    /// When the shapes, steps and groups do not match; when ranks are not 3, or dtypes or devices differ.
    pub fn conv_transpose1d(
        &self,
        kernel: &Self,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
        groups: usize,
    ) -> Result<Self> {
        const OP: &str = "conv_transpose1d";
        let steps = Steps {
            padding,
            stride,
            dilation,
        };
        let invalid = |msg| self.invalid_conv(OP, msg, kernel, steps, groups);
        let (b_size, c_in, l_in) = self.dims3()?;
        let (kernel_c_in, group_c_out, k_size) = kernel.dims3()?;
        check_transposed_groups(groups, c_in, kernel_c_in).map_err(invalid)?;
        let l_out = steps
            .transposed_size(l_in, k_size, output_padding)
            .map_err(invalid)?;
        self.same_kind(kernel, OP)?;
        let c_out = group_c_out.saturating_mul(groups);
        let params = ParamsConvTranspose1D {
            b_size,
            l_in,
            c_out,
            c_in,
            k_size,
            padding,
            output_padding,
            stride,
            dilation,
            groups,
        };
        self.convolve(
            kernel,
            &[b_size, c_out, l_out],
            |arg, kernel| Op::ConvTranspose1D {
                arg,
                kernel,
                padding,
                output_padding,
                stride,
                dilation,
            },
            || {
                let (inp, k) = (self.storage(), kernel.storage());
                map_backend!(OP, (&*inp, self.layout()), (&*k, kernel.layout()) => |a, b| {
                    a.conv_transpose1d(self.layout(), b, kernel.layout(), &params)
                })
            },
        )
    }

    /// Transposed 2D convolution of `(batch, c_in, height, width)` with a kernel `(c_in, c_out, k_h, k_w)`; gives
    /// `(batch, c_out, h_out, w_out)` with sizes as in [`Tensor::conv_transpose1d`].
    ///
    /// # Errors
    /// When the shapes and steps do not match; when ranks are not 4, or dtypes or devices differ.
    pub fn conv_transpose2d(
        &self,
        kernel: &Self,
        padding: usize,
        output_padding: usize,
        stride: usize,
        dilation: usize,
    ) -> Result<Self> {
        let steps = Steps {
            padding,
            stride,
            dilation,
        };
        self.conv_transpose2d_in_groups(kernel, steps, output_padding, 1)
    }

    /// Like [`Tensor::conv_transpose2d`], with `groups` and a kernel `(c_in, c_out / groups, k_h, k_w)`: the gradient of a convolution with
    /// groups.
    pub(crate) fn conv_transpose2d_in_groups(
        &self,
        kernel: &Self,
        steps: Steps,
        output_padding: usize,
        groups: usize,
    ) -> Result<Self> {
        const OP: &str = "conv_transpose2d";
        let Steps {
            padding,
            stride,
            dilation,
        } = steps;
        let invalid = |msg| self.invalid_conv(OP, msg, kernel, steps, groups);
        let (b_size, c_in, i_h, i_w) = self.dims4()?;
        let (kernel_c_in, group_c_out, k_h, k_w) = kernel.dims4()?;
        check_transposed_groups(groups, c_in, kernel_c_in).map_err(invalid)?;
        let size = |size, k| steps.transposed_size(size, k, output_padding);
        let h_out = size(i_h, k_h).map_err(invalid)?;
        let w_out = size(i_w, k_w).map_err(invalid)?;
        self.same_kind(kernel, OP)?;
        let c_out = group_c_out.saturating_mul(groups);
        let params = ParamsConvTranspose2D {
            b_size,
            i_h,
            i_w,
            k_h,
            k_w,
            c_out,
            c_in,
            padding,
            output_padding,
            stride,
            dilation,
            groups,
        };
        self.convolve(
            kernel,
            &[b_size, c_out, h_out, w_out],
            |arg, kernel| Op::ConvTranspose2D {
                arg,
                kernel,
                padding,
                output_padding,
                stride,
                dilation,
            },
            || {
                let (inp, k) = (self.storage(), kernel.storage());
                map_backend!(OP, (&*inp, self.layout()), (&*k, kernel.layout()) => |a, b| {
                    a.conv_transpose2d(self.layout(), b, kernel.layout(), &params)
                })
            },
        )
    }

    /// Records the result of shape `dims` that `compute` returns in the graph. The graph's ops do not store the number of groups: it
    /// follows from the channels of both operands.
    fn convolve(
        &self,
        kernel: &Self,
        dims: &[usize],
        op: impl FnOnce(Self, Self) -> Op,
        compute: impl FnOnce() -> Result<crate::Storage>,
    ) -> Result<Self> {
        let shape = Shape::from(dims);
        shape.checked_byte_count(self.dtype().size_in_bytes())?;
        let backprop = BackpropOp::new2(self, kernel, op);
        Ok(Self::from_storage(compute()?, shape, backprop, false))
    }

    fn invalid_conv(
        &self,
        op: &str,
        msg: &str,
        kernel: &Self,
        steps: Steps,
        groups: usize,
    ) -> Error {
        Error::Msg(format!(
            "{op}: {msg}: input {:?}, kernel {:?}, padding {}, stride {}, dilation {}, groups {groups}",
            self.shape(),
            kernel.shape(),
            steps.padding,
            steps.stride,
            steps.dilation,
        ))
        .bt()
    }
}

/// An error unless a transposed kernel for `kernel_c_in` channels fits.
fn check_transposed_groups(
    groups: usize,
    c_in: usize,
    kernel_c_in: usize,
) -> std::result::Result<(), &'static str> {
    if groups == 0 {
        return Err("groups must be at least 1");
    }
    if kernel_c_in != c_in {
        return Err("the kernel's input channels differ from the input's");
    }
    if !c_in.is_multiple_of(groups) {
        return Err("the groups must divide the input channels");
    }
    Ok(())
}
