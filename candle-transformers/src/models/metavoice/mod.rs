//! MetaVoice-1B, which speaks a text in the voice of a recording:
//! [metavoiceio/metavoice-src](https://github.com/metavoiceio/metavoice-src). Weight names are those of the safetensors files of
//! `lmz/candle-metavoice` on the Hugging Face Hub.
//!
//! - [`tokenizers`] turn the text into tokens.
//! - [`speaker_encoder`] turns a recording into the vector of a voice.
//! - [`transformer`], the first stage, generates tokens of the first two codebooks of [EnCodec](https://arxiv.org/abs/2210.13438) in
//!   sequence.
//! - [`gpt`], the second stage, adds those of the other six, all positions at once.
//! - [`adapters`] divide the stages' output into codebooks.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::metavoice::transformer::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { n_layer: 1, n_head: 2, dim: 16, vocab_size: 24, speaker_emb_dim: 8, block_size: 32, intermediate_size: Some(32),
//! #     ..Config::cfg1b_v0_1() };
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = Model::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let voice = Tensor::zeros((1, 1, config.speaker_emb_dim), DType::F32, &device)?;
//! // The text twice: with the voice and without, whose logits a caller weighs against each other.
//! let text = Tensor::new(&[[3u32, 1, 4], [3, 1, 4]], &device)?;
//! assert_eq!(model.forward(&text, &voice, 0)?.dims(), &[2, 1, 24]);
//! let token = Tensor::new(&[[5u32], [5]], &device)?;
//! assert_eq!(model.forward(&token, &voice, 3)?.dims(), &[2, 1, 24]);
//! # Ok(())
//! # }
//! ```

pub mod adapters;
pub mod gpt;
pub mod speaker_encoder;
pub mod tokenizers;
pub mod transformer;

const FAMILY: &str = "metavoice";
