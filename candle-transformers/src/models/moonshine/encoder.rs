//! From samples to vectors.

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{Conv1d, Conv1dConfig, GroupNorm, Init};

use super::{Config, FAMILY};
use crate::blocks::seq2seq::{load_layers, Angles, AttentionNames, Layer, LayerNames, Visible};
use crate::blocks::{Norm, RotaryTables, Weights};

/// Samples that each convolution looks at, and how far it moves.
const CONVOLUTIONS: [(usize, usize); 3] = [(127, 64), (7, 3), (3, 2)];
/// Minimum number of samples that give a vector.
pub const MIN_SAMPLES: usize = 895;
/// The most vectors; 33 minutes and more memory than there is for their attention.
const MOST: usize = 1 << 16;

pub(super) const ATTENTION: AttentionNames = AttentionNames {
    q: "self_attn.q_proj",
    k: "self_attn.k_proj",
    v: "self_attn.v_proj",
    output: "self_attn.o_proj",
    norm: "input_layernorm",
};
const NAMES: LayerNames = LayerNames {
    attention: ATTENTION,
    cross: ATTENTION,
    up: "mlp.fc1",
    gate: "",
    down: "mlp.fc2",
    mlp_norm: "post_attention_layernorm",
};

/// Convolutions over the samples themselves, and layers over what they return: 41.7 vectors a second.
#[derive(Debug, Clone)]
pub struct Encoder {
    convolutions: [Conv1d; 3],
    norm: GroupNorm,
    layers: Vec<Layer>,
    tables: RotaryTables,
    last_norm: Norm,
    /// The dtype of the stream between layers.
    stream: DType,
    dtype: DType,
    device: Device,
}

impl Encoder {
    pub(super) async fn load(config: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        let spec = config.layer(false)?;
        let (hidden, prefix) = (spec.hidden, "model.encoder");
        let channels = [(1, hidden), (hidden, 2 * hidden), (2 * hidden, hidden)];
        let mut convolutions = Vec::new();
        for (i, ((size, stride), (from, to))) in CONVOLUTIONS.into_iter().zip(channels).enumerate()
        {
            let name = format!("{prefix}.conv{}", i + 1);
            let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
            let weight = format!("{name}.weight");
            let weight = weights.dense(&weight, &[to, from, size], init).await?;
            let bias = match i {
                0 => None,
                _ => {
                    let bias = format!("{name}.bias");
                    Some(weights.dense(&bias, &[to], Init::Const(0.)).await?)
                }
            };
            let moves = Conv1dConfig {
                stride,
                ..Conv1dConfig::default()
            };
            convolutions.push(Conv1d::new(weight, bias, moves));
        }
        let Ok(convolutions) = <[Conv1d; 3]>::try_from(convolutions) else {
            bail!("{FAMILY}: expected 3 convolutions")
        };
        let mut of_norm = Vec::new();
        for (name, value) in [("weight", 1.), ("bias", 0.)] {
            let name = format!("{prefix}.groupnorm.{name}");
            of_norm.push(weights.dense(&name, &[hidden], Init::Const(value)).await?);
        }
        let bias = of_norm.remove(1);
        let stream = spec.stream_dtype(weights.dtype());
        let rotary = config.rotary(spec.head_dim)?;
        let layers = format!("{prefix}.layers");
        let count = config.encoder_num_hidden_layers;
        let last_norm = format!("{prefix}.layer_norm");
        Ok(Self {
            convolutions,
            norm: GroupNorm::new(of_norm.remove(0), bias, hidden, 1, 1e-5)?,
            layers: load_layers(&spec, count, weights, &NAMES, &layers).await?,
            tables: RotaryTables::new(&rotary, MOST, weights.dtype(), weights.device()),
            last_norm: weights
                .norm_as(stream, &last_norm, hidden, spec.norm)
                .await?,
            stream,
            dtype: weights.dtype(),
            device: weights.device().clone(),
        })
    }

    /// The vectors of `samples` at 16 kHz, (batch, n): (batch, t, hidden), one for each 384 samples but for the margins of the convolutions.
    ///
    /// # Errors
    /// Fewer than [`MIN_SAMPLES`] of them, or the device fails.
    pub fn forward(&mut self, samples: &Tensor) -> Result<Tensor> {
        let (_, n) = samples.dims2()?;
        if n < MIN_SAMPLES {
            bail!("{FAMILY}: {n} samples; at least {MIN_SAMPLES} are needed: pad with zeros")
        }
        let xs = samples.to_device(&self.device)?.to_dtype(self.dtype)?;
        let [first, second, third] = &self.convolutions;
        let xs = first.forward(&xs.unsqueeze(1)?)?.tanh()?;
        let xs = second.forward(&self.norm.forward(&xs)?)?.gelu_erf()?;
        let xs = third.forward(&xs)?.gelu_erf()?;
        let mut xs = xs.transpose(1, 2)?.contiguous()?.to_dtype(self.stream)?;
        let angles = Angles::of(&self.tables, 0, xs.dim(1)?)?;
        let visible = Visible {
            rotation: Some(angles.rotation()),
            ..Visible::default()
        };
        for layer in &mut self.layers {
            xs = layer.forward(xs, &visible, None)?;
        }
        self.last_norm.forward(&xs)?.to_dtype(self.dtype)
    }
}
