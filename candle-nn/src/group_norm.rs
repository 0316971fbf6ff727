//! Group norm: normalises groups of channels of each example.

use crate::{ops, Init, VarBuilder};
use candle_core::{bail, Module, Result, Tensor};

/// Subtracts the mean and divides by the deviation of each group of channels of each example, then scales and shifts each channel;
/// see <https://arxiv.org/abs/1803.08494>.
#[derive(Clone, Debug)]
pub struct GroupNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
    num_channels: usize,
    num_groups: usize,
}

impl GroupNorm {
    /// A layer from its weights, both of shape (num_channels).
    ///
    /// # Errors
    /// `num_channels` is not a multiple of `num_groups`.
    pub fn new(
        weight: Tensor,
        bias: Tensor,
        num_channels: usize,
        num_groups: usize,
        eps: f64,
    ) -> Result<Self> {
        if num_groups == 0 || !num_channels.is_multiple_of(num_groups) {
            bail!("group-norm: {num_channels} channels cannot be split into {num_groups} groups")
        }
        Ok(Self {
            weight,
            bias,
            eps,
            num_channels,
            num_groups,
        })
    }
}

/// From (batch, num_channels, n, …) to the same shape; 16-bit floats are normalised in f32.
impl Module for GroupNorm {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let dims = xs.dims();
        let &[batch, channels, _, ..] = dims else {
            bail!("group-norm: the input is {dims:?}; it must have at least 3 dimensions")
        };
        if channels != self.num_channels {
            bail!(
                "group-norm: the input {dims:?} has {channels} channels, but the layer has {}",
                self.num_channels
            )
        }
        if xs.elem_count() == 0 {
            return ops::zeros_of(dims, xs, &[xs, &self.weight, &self.bias]);
        }
        let groups = xs.reshape((batch, self.num_groups, ()))?;
        let wide = groups.to_dtype(ops::compute_dtype(xs.dtype()))?;
        let normed = ops::normed(&ops::centred(&wide)?, self.eps)?;
        let mut per_channel = vec![1; dims.len()];
        per_channel[1] = channels;
        normed
            .to_dtype(xs.dtype())?
            .reshape(dims)?
            .broadcast_mul(&self.weight.reshape(per_channel.as_slice())?)?
            .broadcast_add(&self.bias.reshape(per_channel)?)
    }
}

/// A layer from the tensors `weight` and `bias` of `vb`, of shape (num_channels). New ones start at 1 and 0.
///
/// # Errors
/// A tensor is missing or has another shape, or `num_channels` is not a multiple of `num_groups`.
pub fn group_norm(
    num_groups: usize,
    num_channels: usize,
    eps: f64,
    vb: VarBuilder,
) -> Result<GroupNorm> {
    let weight = vb.get_with_hints(num_channels, "weight", Init::Const(1.))?;
    let bias = vb.get_with_hints(num_channels, "bias", Init::Const(0.))?;
    GroupNorm::new(weight, bias, num_channels, num_groups, eps)
}
