//! BLIP with quantised weights, from GGUF files that have the names of Hugging Face's checkpoints, such as
//! [lmz/candle-blip](https://huggingface.co/lmz/candle-blip). The model is [`super::blip`]'s; activations are f32.
//!
//! ```no_run
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_transformers::models::quantized_blip::{BlipForConditionalGeneration, Config, VarBuilder};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let vb = VarBuilder::from_gguf("blip-image-captioning-large-q4k.gguf", &device)?;
//! let mut model = BlipForConditionalGeneration::new(&Config::image_captioning_large(), vb)?;
//! let picture = Tensor::zeros((1, 3, 384, 384), DType::F32, &device)?;
//! let picture = model.vision_model().forward(&picture)?;
//! let logits = model.text_decoder().forward(&Tensor::new(&[[30522u32]], &device)?, &picture)?;
//! assert_eq!(logits.dims(), &[1, 1, 30524]);
//! # Ok(())
//! # }
//! ```

use super::blip::{self, Captioner};
use crate::blocks::Quantized;
pub use crate::quantized_var_builder::VarBuilder;

/// The same as without quantisation.
pub type VisionConfig = blip::VisionConfig;
/// The same as without quantisation.
pub type Config = blip::Config;

/// From a picture to vectors of its patches. Pictures are f32.
pub type VisionModel = blip::VisionModel;

/// The part that sees and the part that writes.
pub type BlipForConditionalGeneration = Captioner<Quantized>;
