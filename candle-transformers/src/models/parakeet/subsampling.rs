//! From frames of a spectrogram to fewer vectors.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Conv2d, Conv2dConfig, Init};

use super::EncoderConfig;
use crate::blocks::{LinearSpec, Projection, Weights};

/// Convolutions that leave out every second frame and band, and a linear layer over what is left of the bands.
#[derive(Debug, Clone)]
pub(super) struct Subsampling {
    /// With whether an activation follows.
    convolutions: Vec<(Conv2d, bool)>,
    linear: Projection,
}

impl Subsampling {
    pub(super) async fn load(config: &EncoderConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let channels = config.subsampling_conv_channels;
        let size = config.subsampling_conv_kernel_size;
        let halves = Conv2dConfig {
            padding: (size - 1) / 2,
            stride: config.subsampling_conv_stride,
            ..Conv2dConfig::default()
        };
        let by_channel = Conv2dConfig {
            groups: channels,
            ..halves
        };
        let rounds = config.subsampling_factor.ilog2() as usize;
        // Numbers of layers count the activations.
        let mut plan = vec![(0, size, halves, true)];
        for round in 1..rounds {
            plan.push((3 * round - 1, size, by_channel, false));
            plan.push((3 * round, 1, Conv2dConfig::default(), true));
        }
        let mut convolutions = Vec::with_capacity(plan.len());
        for (number, size, moves, activated) in plan {
            let name = format!("encoder.subsampling.layers.{number}");
            let inputs = if number == 0 {
                1
            } else {
                channels / moves.groups
            };
            let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
            let shape = [channels, inputs, size, size];
            let weight = format!("{name}.weight");
            let weight = weights.dense(&weight, &shape, init).await?;
            let bias = format!("{name}.bias");
            let bias = weights.dense(&bias, &[channels], Init::Const(0.)).await?;
            convolutions.push((Conv2d::new(weight, Some(bias), moves), activated));
        }
        let linear = LinearSpec {
            name: "encoder.subsampling.linear".to_string(),
            in_dim: channels * (config.num_mel_bins >> rounds),
            out_dim: config.hidden_size,
            bias: true,
        };
        Ok(Self {
            convolutions,
            linear: weights.linear(&linear).await?,
        })
    }

    /// From (batch, frames, bands) to (batch, t, hidden).
    pub(super) fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let mut xs = features.unsqueeze(1)?;
        for (convolution, activated) in &self.convolutions {
            xs = convolution.forward(&xs)?;
            if *activated {
                xs = xs.relu()?;
            }
        }
        let (b, channels, t, bands) = xs.dims4()?;
        let xs = xs.transpose(1, 2)?.reshape((b, t, channels * bands))?;
        self.linear.forward(&xs)
    }
}
