//! Convolution layers over one and two dimensions: [plain](Conv1d) ones, and [transposed](ConvTranspose1d) ones, which
//! invert the change of size.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{conv2d, Conv2dConfig, VarBuilder, VarMap};
//! # fn main() -> candle_core::Result<()> {
//! let vars = VarMap::new();
//! let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
//! let config = Conv2dConfig { padding: 1, stride: 2, ..Default::default() };
//! let layer = conv2d(3, 8, 3, config, vb)?;
//! let images = Tensor::zeros((1, 3, 16, 16), DType::F32, &Device::Cpu)?;
//! assert_eq!(layer.forward(&images)?.dims(), &[1, 8, 8, 8]);
//! # Ok(())
//! # }
//! ```

mod plain;
mod transposed;

pub use plain::{
    conv1d, conv1d_no_bias, conv2d, conv2d_no_bias, Conv1d, Conv1dConfig, Conv2d, Conv2dConfig,
};
pub use transposed::{
    conv_transpose1d, conv_transpose1d_no_bias, conv_transpose2d, conv_transpose2d_no_bias,
    ConvTranspose1d, ConvTranspose1dConfig, ConvTranspose2d, ConvTranspose2dConfig,
};

use crate::{Init, VarBuilder};
use candle_core::{Result, Tensor};

/// The constructor from weights and the accessors of a layer `$layer`.
macro_rules! layer {
    ($(#[$doc:meta])* $layer:ident, $config:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $layer {
            weight: Tensor,
            bias: Option<Tensor>,
            config: $config,
        }

        impl $layer {
            /// A layer from its weights, which are checked when it is applied; `bias` is (out_channels).
            pub fn new(weight: Tensor, bias: Option<Tensor>, config: $config) -> Self {
                Self {
                    weight,
                    bias,
                    config,
                }
            }

            /// The stride, padding and dilation of the kernel.
            pub fn config(&self) -> &$config {
                &self.config
            }

            /// The kernel.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// The bias, added to each channel of the result: (out_channels).
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }
        }
    };
}
use layer;

/// `ys` (batch, channels, …) plus the `bias` of each channel.
fn add_bias(ys: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let Some(bias) = bias else {
        return Ok(ys);
    };
    let mut dims = vec![1; ys.rank()];
    dims[1] = bias.elem_count();
    ys.broadcast_add(&bias.reshape(dims)?)
}

/// Uniform within `bound` of 0.
fn within(bound: f64) -> Init {
    Init::Uniform {
        lo: -bound,
        up: bound,
    }
}

/// The tensor `weight` of `vb`, and the tensor `bias` if `bias` says how a new one is filled.
fn weights(
    vb: &VarBuilder,
    dims: &[usize],
    weight: Init,
    out_channels: usize,
    bias: Option<Init>,
) -> Result<(Tensor, Option<Tensor>)> {
    let weight = vb.get_with_hints(dims, "weight", weight)?;
    let bias = bias.map(|init| vb.get_with_hints(out_channels, "bias", init));
    Ok((weight, bias.transpose()?))
}

/// Number of input channels per group.
fn channels_per_group(channels: usize, groups: usize) -> Result<usize> {
    if groups == 0 || !channels.is_multiple_of(groups) {
        candle_core::bail!("conv: {channels} channels cannot be split into {groups} groups")
    }
    Ok(channels / groups)
}
