//! The convolution that both networks are made of.

use candle_core::{Module, Result, Tensor};
use candle_nn::{batch_norm, conv2d_no_bias, Activation, Conv2d, Conv2dConfig, VarBuilder};

/// A convolution before it has weights. Its kernel is odd and padded, so that a stride of 1 keeps the size.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub inputs: usize,
    pub outputs: usize,
    pub kernel: usize,
    pub stride: usize,
    /// Batch norm epsilon.
    pub eps: f64,
    pub activation: Activation,
}

impl Spec {
    /// Loads the convolution at `conv` and the batch norm at `norm`, and makes one convolution of both.
    pub fn load(&self, conv: VarBuilder, norm: VarBuilder) -> Result<Conv> {
        let config = Conv2dConfig {
            padding: self.kernel / 2,
            stride: self.stride,
            ..Default::default()
        };
        let conv = conv2d_no_bias(self.inputs, self.outputs, self.kernel, config, conv)?;
        let conv = conv.absorb_bn(&batch_norm(self.outputs, self.eps, norm)?)?;
        // A batch norm keeps variables, and all that is computed from one would be kept for a backward pass.
        let bias = conv.bias().map(Tensor::detach);
        Ok(Conv {
            conv: Conv2d::new(conv.weight().detach(), bias, config),
            activation: self.activation,
        })
    }
}

/// A convolution whose batch norm is folded into it, and an activation.
#[derive(Debug, Clone)]
pub struct Conv {
    conv: Conv2d,
    activation: Activation,
}

/// From (batch, inputs, height, width) to (batch, outputs, height / stride, width / stride), rounded up.
impl Module for Conv {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.activation.forward(&self.conv.forward(xs)?)
    }
}
