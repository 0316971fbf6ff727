//! The parts of convolutional networks other than convolutions.

use candle_core::{Module, ModuleT, Result, Tensor};
use candle_nn::{batch_norm, Activation, BatchNorm, Linear, VarBuilder};

use super::conv::{is_trained, scale_and_shift};
use super::{pooled, ConvNorm, ConvSpec};

/// The result of `load` for weights that a file may lack: `None` if the tensor `name` is missing. A tensor that exists and does not fit is
/// an error.
pub(crate) fn optional<T>(
    vb: &VarBuilder,
    name: &str,
    load: impl FnOnce(&VarBuilder) -> Result<T>,
) -> Result<Option<T>> {
    // Tried first: a `VarMap` makes what it does not have.
    match load(vb) {
        Ok(loaded) => Ok(Some(loaded)),
        Err(err) if vb.contains_tensor(name) => Err(err),
        Err(_) => Ok(None),
    }
}

/// The multiple of `divisor` near `size` that is not below nine tenths of it: how mobile networks round channels.
pub(crate) fn make_divisible(size: f64, divisor: usize) -> usize {
    let rounded = (size + divisor as f64 / 2.) as usize / divisor * divisor;
    let rounded = rounded.max(divisor);
    if (rounded as f64) < 0.9 * size {
        rounded + divisor
    } else {
        rounded
    }
}

/// A 1x1 convolution with a bias as a linear layer over the last dimension.
pub(crate) fn pointwise(inputs: usize, outputs: usize, vb: VarBuilder) -> Result<Linear> {
    let conv = ConvSpec::new(inputs, outputs, 1).load(vb)?;
    let weight = conv.weight().reshape((outputs, inputs))?;
    Ok(Linear::new(weight, conv.bias().cloned()))
}

/// A factor for each channel at `name`, of shape `shape` in the file: (1, channels, 1, 1).
pub(crate) fn channel_scale(
    channels: usize,
    shape: &[usize],
    name: &str,
    vb: &VarBuilder,
) -> Result<Tensor> {
    vb.get(shape, name)?.reshape((1, channels, 1, 1))
}

/// (batch, channels, height, width) as (batch, height, width, channels), where linear layers and norms run over the last dimension.
pub(crate) fn channels_last(xs: &Tensor) -> Result<Tensor> {
    xs.permute((0, 2, 3, 1))?.contiguous()
}

/// Back from [`channels_last`].
pub(crate) fn channels_first(xs: &Tensor) -> Result<Tensor> {
    xs.permute((0, 3, 1, 2))?.contiguous()
}

/// A convolution, its norm and activation, padded with zeros so that the output's sides are the input's over the stride, rounded up. An odd
/// one of the zeros is at the bottom and the right: TensorFlow's `SAME`.
#[derive(Debug, Clone)]
pub(crate) struct SameConv {
    conv: ConvNorm,
    /// The kernel and stride, where the padding depends on the image.
    pads: Option<(usize, usize)>,
}

impl SameConv {
    /// [`ConvSpec::load_norm_eps`]; the padding of `spec` does not matter.
    pub(crate) fn load(
        spec: ConvSpec,
        eps: f64,
        activation: Option<Activation>,
        conv: VarBuilder,
        norm: VarBuilder,
    ) -> Result<Self> {
        let (spec, pads) = if spec.stride == 1 && spec.kernel % 2 == 1 {
            (spec.padding(spec.kernel / 2), None)
        } else {
            (spec.padding(0), Some((spec.kernel, spec.stride)))
        };
        let conv = spec.load_norm_eps(eps, conv, norm)?.maybe(activation);
        Ok(Self { conv, pads })
    }
}

impl Module for SameConv {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let Some((kernel, stride)) = self.pads else {
            return self.conv.forward(xs);
        };
        let mut padded = xs.clone();
        for dim in [2, 3] {
            let size = xs.dim(dim)?;
            let covered = size.div_ceil(stride).saturating_sub(1) * stride + kernel;
            let missing = covered.saturating_sub(size);
            if missing > 0 {
                padded = padded.pad_with_zeros(dim, missing / 2, missing - missing / 2)?;
            }
        }
        self.conv.forward(&padded)
    }
}

/// A batch norm in inference that cannot be folded into a convolution, of the second dimension: two kernels instead of five. Weights that
/// are variables are read each time, as in [`ConvNorm`].
#[derive(Debug, Clone)]
pub(crate) enum Shift {
    Fixed {
        /// (channels)
        scale: Tensor,
        shift: Tensor,
    },
    Trained(BatchNorm),
}

impl Shift {
    pub(crate) fn load(channels: usize, eps: f64, vb: VarBuilder) -> Result<Self> {
        let norm = batch_norm(channels, eps, vb)?;
        if is_trained(&norm) {
            return Ok(Self::Trained(norm));
        }
        let (scale, shift) = scale_and_shift(&norm)?;
        let dtype = norm.running_mean().dtype();
        Ok(Self::Fixed {
            scale: scale.to_dtype(dtype)?,
            shift: shift.to_dtype(dtype)?,
        })
    }
}

impl Module for Shift {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        match self {
            Self::Fixed { scale, shift } => {
                let mut dims = vec![1; xs.rank()];
                dims[1] = scale.elem_count();
                let ys = xs.broadcast_mul(&scale.reshape(dims.as_slice())?)?;
                ys.broadcast_add(&shift.reshape(dims)?)
            }
            Self::Trained(norm) => norm.forward_t(xs, false),
        }
    }
}

/// Channels weighted by what the whole image is like: squeeze and excitation, [arXiv 1709.01507](https://arxiv.org/abs/1709.01507).
#[derive(Debug, Clone)]
pub(crate) struct SqueezeExcite {
    reduce: Linear,
    expand: Linear,
    activation: Activation,
}

impl SqueezeExcite {
    /// From the 1x1 convolutions `fc1` and `fc2`.
    pub(crate) fn load(
        channels: usize,
        squeezed: usize,
        activation: Activation,
        vb: &VarBuilder,
    ) -> Result<Self> {
        Ok(Self {
            reduce: pointwise(channels, squeezed, vb.pp("fc1"))?,
            expand: pointwise(squeezed, channels, vb.pp("fc2"))?,
            activation,
        })
    }

    /// [`SqueezeExcite::load`] with a ReLU, if `vb` has it.
    pub(crate) fn optional(
        channels: usize,
        squeezed: usize,
        vb: &VarBuilder,
    ) -> Result<Option<Self>> {
        optional(vb, "fc1.weight", |vb| {
            Self::load(channels, squeezed, Activation::Relu, vb)
        })
    }
}

impl Module for SqueezeExcite {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let squeezed = self.reduce.forward(&pooled(xs)?)?;
        let squeezed = self.activation.forward(&squeezed)?;
        let factors = candle_nn::ops::sigmoid(&self.expand.forward(&squeezed)?)?;
        xs.broadcast_mul(&factors.unsqueeze(2)?.unsqueeze(3)?)
    }
}
