//! Convolutions of images, and the batch norms that follow them.

use candle_core::{bail, Module, ModuleT, Result, Tensor};
use candle_nn::{
    batch_norm, conv2d, conv2d_no_bias, Activation, BatchNorm, Conv2d, Conv2dConfig, VarBuilder,
};

use super::in_f32;

/// A convolution with a square kernel before it has weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConvSpec {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
    pub(crate) groups: usize,
}

impl ConvSpec {
    /// A convolution of stride 1, padded so that an odd kernel keeps the size.
    pub(crate) fn new(inputs: usize, outputs: usize, kernel: usize) -> Self {
        Self {
            inputs,
            outputs,
            kernel,
            stride: 1,
            padding: kernel / 2,
            groups: 1,
        }
    }

    /// One kernel for each channel, with stride 1 and the size kept.
    pub(crate) fn depthwise(channels: usize, kernel: usize) -> Self {
        Self::new(channels, channels, kernel).groups(channels)
    }

    /// Squares that touch and do not overlap.
    pub(crate) fn patches(inputs: usize, outputs: usize, size: usize) -> Self {
        Self::new(inputs, outputs, size).stride(size).padding(0)
    }

    pub(crate) fn stride(self, stride: usize) -> Self {
        Self { stride, ..self }
    }

    pub(crate) fn padding(self, padding: usize) -> Self {
        Self { padding, ..self }
    }

    pub(crate) fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    fn config(&self) -> Conv2dConfig {
        Conv2dConfig {
            padding: self.padding,
            stride: self.stride,
            groups: self.groups,
            ..Default::default()
        }
    }

    /// With a bias.
    pub(crate) fn load(&self, vb: VarBuilder) -> Result<Conv2d> {
        conv2d(self.inputs, self.outputs, self.kernel, self.config(), vb)
    }

    pub(crate) fn load_no_bias(&self, vb: VarBuilder) -> Result<Conv2d> {
        conv2d_no_bias(self.inputs, self.outputs, self.kernel, self.config(), vb)
    }

    /// Without a bias, and the batch norm that follows it.
    pub(crate) fn load_norm(&self, conv: VarBuilder, norm: VarBuilder) -> Result<ConvNorm> {
        self.load_norm_eps(1e-5, conv, norm)
    }

    pub(crate) fn load_norm_eps(
        &self,
        eps: f64,
        conv: VarBuilder,
        norm: VarBuilder,
    ) -> Result<ConvNorm> {
        let norm = batch_norm(self.outputs, eps, norm)?;
        ConvNorm::new(self.load_no_bias(conv)?, norm)
    }
}

/// A convolution, the batch norm that follows it, in inference, and an activation.
///
/// The norm is folded into the convolution's weight and bias: one kernel instead of five. Weights that are variables are not folded, as
/// folding copies them: an optimizer would update tensors that are no longer read.
#[derive(Debug, Clone)]
pub(crate) struct ConvNorm {
    conv: Conv2d,
    /// If it is not folded.
    norm: Option<BatchNorm>,
    activation: Option<Activation>,
}

impl ConvNorm {
    pub(crate) fn new(conv: Conv2d, norm: BatchNorm) -> Result<Self> {
        let (conv, norm) = if conv.weight().track_op() || is_trained(&norm) {
            (conv, Some(norm))
        } else {
            let (weight, bias) = folded(&conv, &norm)?;
            let dtype = conv.weight().dtype();
            let (weight, bias) = (weight.to_dtype(dtype)?, bias.to_dtype(dtype)?);
            (Conv2d::new(weight, Some(bias), *conv.config()), None)
        };
        Ok(Self {
            conv,
            norm,
            activation: None,
        })
    }

    /// Followed by an activation.
    pub(crate) fn then(self, activation: Activation) -> Self {
        Self {
            activation: Some(activation),
            ..self
        }
    }

    /// Followed by an activation, or not.
    pub(crate) fn maybe(self, activation: Option<Activation>) -> Self {
        Self { activation, ..self }
    }
}

impl ConvNorm {
    /// The result plus `residual`, then `activation` instead of the layer's own.
    pub(crate) fn forward_then(
        &self,
        xs: &Tensor,
        residual: Option<&Tensor>,
        activation: Option<Activation>,
    ) -> Result<Tensor> {
        let Some(norm) = &self.norm else {
            return self.conv.forward_then(xs, residual, activation);
        };
        let mut xs = norm.forward_t(&self.conv.forward(xs)?, false)?;
        if let Some(residual) = residual {
            xs = (xs + residual)?;
        }
        match &activation {
            Some(activation) => activation.forward(&xs),
            None => Ok(xs),
        }
    }
}

impl Module for ConvNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.forward_then(xs, None, self.activation)
    }
}

/// Whether the norm's weights are variables.
pub(super) fn is_trained(norm: &BatchNorm) -> bool {
    norm.weight_and_bias()
        .is_some_and(|(weight, bias)| weight.track_op() || bias.track_op())
}

/// Scale and shift of each channel by a batch norm in inference: `(channels)` of f32.
pub(super) fn scale_and_shift(norm: &BatchNorm) -> Result<(Tensor, Tensor)> {
    let deviation = (in_f32(norm.running_var())? + norm.eps())?.sqrt()?;
    let mean = in_f32(norm.running_mean())?;
    let (scale, shift) = match norm.weight_and_bias() {
        Some((weight, bias)) => ((in_f32(weight)? / deviation)?, in_f32(bias)?),
        None => (deviation.recip()?, mean.zeros_like()?),
    };
    let shift = (shift - (&scale * mean)?)?;
    // candle-nn keeps running means and variances as variables.
    Ok((scale.detach(), shift.detach()))
}

/// The weight and bias, of f32, of the convolution that does what `conv` and then `norm` do.
fn folded(conv: &Conv2d, norm: &BatchNorm) -> Result<(Tensor, Tensor)> {
    let (scale, shift) = scale_and_shift(norm)?;
    let per_kernel = scale.reshape((scale.elem_count(), 1, 1, 1))?;
    let weight = in_f32(conv.weight())?.broadcast_mul(&per_kernel)?;
    let bias = match conv.bias() {
        Some(bias) => (shift + (in_f32(bias)? * scale)?)?,
        None => shift,
    };
    Ok((weight, bias))
}

/// One of several convolutions of one input whose results are added: structural re-parametrisation,
/// [arXiv 2101.03697](https://arxiv.org/abs/2101.03697).
pub(crate) struct Branch {
    weight: Tensor,
    bias: Tensor,
}

impl Branch {
    /// The convolution `spec`, whose kernel is not larger than that of the sum, and its norm.
    pub(crate) fn conv(spec: &ConvSpec, conv: VarBuilder, norm: VarBuilder) -> Result<Self> {
        let norm = batch_norm(spec.outputs, 1e-5, norm)?;
        let (weight, bias) = folded(&spec.load_no_bias(conv)?, &norm)?;
        Ok(Self { weight, bias })
    }

    /// A norm of the input alone, for as many outputs as inputs.
    pub(crate) fn identity(spec: &ConvSpec, norm: VarBuilder) -> Result<Self> {
        let (outputs, group) = (spec.outputs, spec.inputs / spec.groups.max(1));
        let norm = batch_norm(outputs, 1e-5, norm)?;
        let (scale, bias) = scale_and_shift(&norm)?;
        let mut kernels = vec![0f32; outputs * group];
        for (i, kernel) in kernels.chunks_exact_mut(group.max(1)).enumerate() {
            kernel[i % group] = 1.;
        }
        let kernels = Tensor::from_vec(kernels, (outputs, group, 1, 1), scale.device())?;
        let weight = kernels.broadcast_mul(&scale.reshape((outputs, 1, 1, 1))?)?;
        Ok(Self { weight, bias })
    }
}

/// The one convolution `spec` that does what all branches do together.
pub(crate) fn merged(spec: &ConvSpec, branches: Vec<Branch>, vb: &VarBuilder) -> Result<Conv2d> {
    let mut branches = branches.into_iter();
    let widened = |branch: Branch| -> Result<Branch> {
        let pad = (spec.kernel - branch.weight.dim(3)?) / 2;
        let weight = match pad {
            0 => branch.weight,
            _ => {
                let weight = branch.weight.pad_with_zeros(2, pad, pad)?;
                weight.pad_with_zeros(3, pad, pad)?
            }
        };
        Ok(Branch {
            weight,
            bias: branch.bias,
        })
    };
    let Some(first) = branches.next() else {
        bail!("a convolution without branches")
    };
    let sum = branches.try_fold(widened(first)?, |sum, branch| -> Result<Branch> {
        let branch = widened(branch)?;
        Ok(Branch {
            weight: (sum.weight + branch.weight)?,
            bias: (sum.bias + branch.bias)?,
        })
    })?;
    let bias = sum.bias.to_dtype(vb.dtype())?;
    Ok(Conv2d::new(
        sum.weight.to_dtype(vb.dtype())?,
        Some(bias),
        spec.config(),
    ))
}
