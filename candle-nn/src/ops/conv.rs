//! Convolutions fused with the rest of their layer.

use super::linear::kernel;
use super::{check_dtypes, same_backend};
use crate::conv::Conv2dConfig;
use crate::Activation;
use candle_core::fused::{self, Fused, Operand};
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor};

/// A convolution with `config`, and what follows it in this order: the bias of each channel, a residual, an activation.
pub(crate) struct ConvLayer<'a> {
    pub(crate) weight: &'a Tensor,
    pub(crate) config: Conv2dConfig,
    pub(crate) bias: Option<&'a Tensor>,
    /// Of the result's shape.
    pub(crate) residual: Option<&'a Tensor>,
    pub(crate) activation: Option<Activation>,
}

impl ConvLayer<'_> {
    pub(crate) fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let others = [Some(self.weight), self.bias, self.residual];
        let tensors: Vec<_> = [xs]
            .into_iter()
            .chain(others.into_iter().flatten())
            .collect();
        let more = tensors.len() > 2 || self.activation.is_some();
        let fuses = more
            && super::has_fused(xs.device())
            && xs.dtype() != DType::F64
            && self.config.cudnn_fwd_algo.is_none();
        if !fuses || super::in_graph(&tensors) {
            return self.plain(xs);
        }
        check_dtypes("conv2d", &tensors)?;
        let activation = self.activation.map(|act| (act, kernel(act)));
        let op = Fused2d {
            layer: self,
            activation: activation.and_then(|(_, kernel)| kernel),
        };
        let ys = xs.apply_op2_no_bwd(self.weight, &op)?;
        match activation {
            Some((act, None)) => ys.apply(&act),
            _ => Ok(ys),
        }
    }

    /// The same, composed of other ops.
    pub(crate) fn plain(&self, xs: &Tensor) -> Result<Tensor> {
        let c = &self.config;
        let mut ys = xs.conv2d_with_algo(
            self.weight,
            c.padding,
            c.stride,
            c.dilation,
            c.groups,
            c.cudnn_fwd_algo,
        )?;
        if let Some(bias) = self.bias {
            ys = ys.broadcast_add(&bias.reshape((1, bias.elem_count(), 1, 1))?)?;
        }
        if let Some(residual) = self.residual {
            ys = (ys + residual)?;
        }
        match &self.activation {
            Some(activation) => ys.apply(activation),
            None => Ok(ys),
        }
    }
}

/// The op of (xs, weight), with the activation that its kernels compute.
struct Fused2d<'a> {
    layer: &'a ConvLayer<'a>,
    activation: Option<fused::Activation>,
}

impl Fused2d<'_> {
    fn on_device<S: Fused>(&self, [xs, weight]: [Operand<'_, S>; 2]) -> Result<(S, Shape)> {
        let ConvLayer {
            config,
            bias,
            residual,
            ..
        } = *self.layer;
        let held = [bias, residual].map(|tensor| tensor.map(Tensor::storage_and_layout));
        let mut others = [None; 2];
        for ((other, held), what) in others.iter_mut().zip(&held).zip(["bias", "residual"]) {
            if let Some((storage, layout)) = held {
                *other = Some((same_backend::<S>(storage, self.name(), what)?, *layout));
            }
        }
        let [bias, residual] = others;
        let conv = fused::Conv2d {
            padding: config.padding,
            stride: config.stride,
            dilation: config.dilation,
            groups: config.groups,
            bias,
            residual,
            activation: self.activation,
        };
        <S as Fused>::conv2d(xs, weight, conv)
    }
}

impl CustomOp2 for Fused2d<'_> {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("conv2d: the CPU composes a layer from other ops")
    }

    super::on_devices!(xs xs_l, weight weight_l);
}
