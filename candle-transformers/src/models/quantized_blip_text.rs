//! The text part of BLIP with quantised weights, from GGUF files that have the names of Hugging Face's checkpoints. The model is
//! [`super::blip_text`]'s; activations are f32.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_transformers::models::blip;
//! use candle_transformers::models::quantized_blip_text::{TextLMHeadModel, VarBuilder};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let vb = VarBuilder::from_gguf("model.gguf", &device)?;
//! let config = blip::Config::image_captioning_large().text_config;
//! let mut model = TextLMHeadModel::new(&config, vb.pp("text_decoder"))?;
//! let picture = Tensor::zeros((1, 5, config.encoder_hidden_size), DType::F32, &device)?;
//! let logits = model.forward(&Tensor::new(&[[30522u32]], &device)?, &picture)?;
//! assert_eq!(logits.dims(), &[1, 1, config.vocab_size]);
//! # Ok(())
//! # }
//! ```

use super::blip_text::{self, Pooler, Writer};
use crate::blocks::Quantized;
pub use crate::quantized_var_builder::VarBuilder;

/// The same as without quantisation.
pub type Config = blip_text::Config;

/// The vector of a text: that of its first token through a layer and tanh.
pub type TextPooler = Pooler<Quantized>;

/// The model with a layer over the tokens.
pub type TextLMHeadModel = Writer<Quantized>;
