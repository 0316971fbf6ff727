//! Parakeet with a CTC head, a model of speech: a FastConformer, [arXiv 2305.05084](https://arxiv.org/abs/2305.05084), that says of each 80 ms
//! which token they are or end, or none.
//!
//! Weights and `config.json` are those of Transformers (`parakeet_ctc`), as of
//! [nvidia/parakeet-ctc-0.6b](https://huggingface.co/nvidia/parakeet-ctc-0.6b).
//!
//! ```
//! use candle_core::{DType, Device};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::parakeet::{Config, EncoderConfig, Parakeet};
//!
//! # fn main() -> candle_core::Result<()> {
//! # let encoder_config = EncoderConfig { hidden_size: 16, num_hidden_layers: 1, intermediate_size: 16, subsampling_conv_channels: 2,
//! #     num_mel_bins: 8, ..EncoderConfig::default() };
//! # let config = Config { vocab_size: 8, pad_token_id: None, encoder_config };
//! // A real model: its config.json, and VarBuilder::from_mmaped_safetensors.
//! let model = Parakeet::new(&config, VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! // Samples at 16 kHz, from -1 to 1.
//! let text = model.transcribe(&[0.; 16_000])?;
//! println!("{:?}", text.tokens);
//! # Ok(())
//! # }
//! ```

mod config;
mod features;
mod layer;
mod subsampling;
mod text;

use candle_core::{bail, DType, Device, Module, Result, Tensor};
use candle_nn::{Init, Linear, VarBuilder};

pub use config::{Config, EncoderConfig};
pub use features::{features, HOP_LENGTH};
pub use text::Text;

use crate::blocks::{at_once, Projection, Weights};
use layer::{distances, Layer};
use subsampling::Subsampling;

const FAMILY: &str = "parakeet";

/// An encoder of spectrograms, and a layer over the tokens.
#[derive(Debug, Clone)]
pub struct Parakeet {
    subsampling: Subsampling,
    /// The factor of its vectors.
    scale: Option<f64>,
    layers: Vec<Layer>,
    head: Projection,
    bands: usize,
    hidden: usize,
    blank: u32,
    dtype: DType,
    device: Device,
}

impl Parakeet {
    /// Loads what is below `encoder`, and `ctc_head`.
    ///
    /// # Errors
    /// The configuration contradicts itself, or a weight is missing or has another shape than it says.
    pub fn new(config: &Config, vb: VarBuilder) -> Result<Self> {
        let (dtype, device, mut vb) = (vb.dtype(), vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, dtype, &device);
        at_once(Self::load(config, &mut weights))
    }

    async fn load(config: &Config, weights: &mut Weights<'_>) -> Result<Self> {
        let (vocab, encoder) = (config.vocab_size, &config.encoder_config);
        let (head_dim, blank) = (encoder.check()?, config.blank()?);
        let hidden = encoder.hidden_size;
        let subsampling = Subsampling::load(encoder, weights).await?;
        let mut layers = Vec::new();
        for i in 0..encoder.num_hidden_layers {
            let prefix = format!("encoder.layers.{i}");
            layers.push(Layer::load(encoder, head_dim, weights, &prefix).await?);
        }
        // Files have it as a convolution.
        let init = candle_nn::init::DEFAULT_KAIMING_NORMAL;
        let shape = [vocab, hidden, 1];
        let weight = weights.dense("ctc_head.weight", &shape, init).await?;
        let (shape, zeros) = ([vocab], Init::Const(0.));
        let bias = weights.dense("ctc_head.bias", &shape, zeros).await?;
        Ok(Self {
            subsampling,
            scale: encoder.scale_input.then(|| (hidden as f64).sqrt()),
            layers,
            head: Linear::new(weight.squeeze(2)?, Some(bias)).into(),
            bands: encoder.num_mel_bins,
            hidden,
            blank,
            dtype: weights.dtype(),
            device: weights.device().clone(),
        })
    }

    /// The logits of each vector, (batch, t, vocab), of the spectrograms `features`, (batch, frames, bands) as [`features`] makes them; all of
    /// one length.
    ///
    /// # Errors
    /// `features` have no frame or another number of bands than the model, or the device fails.
    pub fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let (_, frames, bands) = features.dims3()?;
        if frames == 0 || bands != self.bands {
            bail!(
                "{FAMILY}: features of {:?}; expected (batch, frames, {}) with at least one frame",
                features.dims(),
                self.bands
            )
        }
        let xs = features.to_device(&self.device)?.to_dtype(self.dtype)?;
        let mut xs = self.subsampling.forward(&xs)?;
        if let Some(scale) = self.scale {
            xs = (xs * scale)?;
        }
        let distances = distances(xs.dim(1)?, self.hidden, self.dtype, &self.device)?;
        for layer in &self.layers {
            xs = layer.forward(&xs, &distances)?;
        }
        self.head.forward(&xs)
    }
}
