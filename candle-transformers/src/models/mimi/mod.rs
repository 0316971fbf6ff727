//! Mimi, Kyutai's codec of speech: [arXiv 2410.00037](https://arxiv.org/abs/2410.00037), with the weights of
//! [kyutai/mimi](https://huggingface.co/kyutai/mimi).
//!
//! [SEANet](seanet) turns a sound into 25 frames a second. [Transformers](transformer) attend to ten seconds of them, and each two frames
//! are [quantised](quantization) to codes. Everything is causal, so a sound can be processed in pieces.
//!
//! ```
//! use candle_core::{DType, Device, StreamTensor, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::mimi::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! # let mut config = Config::v0_1(Some(2));
//! # (config.seanet.n_filters, config.seanet.dimension, config.transformer.d_model) = (2, 16, 16);
//! # (config.transformer.num_layers, config.transformer.dim_feedforward) = (1, 16);
//! # (config.quantizer_bins, config.quantizer_dim) = (8, 4);
//! let device = Device::Cpu;
//! # let mut model = Model::new(config, VarBuilder::zeros(DType::F32, &device))?;
//! # /*
//! let mut model = mimi::load("model.safetensors", None, &device)?;
//! # */
//! // 0.12 seconds: one frame, and the half of the next.
//! let piece = Tensor::zeros((1, 1, 2880), DType::F32, &device)?;
//! let codes = model.encode_step(&piece.into())?;
//! assert_eq!(codes.as_option().map(|codes| codes.dim(2)).transpose()?, Some(1));
//! // 0.08 seconds of sound.
//! let sound = model.decode_step(&codes)?;
//! assert_eq!(sound.seq_len(2)?, 1920);
//! # Ok(())
//! # }
//! ```

// Upstream's paths.
pub use candle_core as candle;
pub use candle_nn;

pub mod conv;
pub mod encodec;
mod pad;
pub mod quantization;
pub mod seanet;
pub mod transformer;

pub use encodec::{load, Config, Encodec as Model};

/// Norms of the transformers.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
pub enum NormType {
    /// [`transformer::RmsNorm`].
    RmsNorm,
    /// With a bias.
    LayerNorm,
}
