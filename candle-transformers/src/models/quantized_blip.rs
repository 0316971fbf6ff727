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

use candle_core::{DType, Module, Result, Tensor};

use super::{blip, quantized_blip_text};
use crate::blocks::{at_once, Weights};
pub use crate::quantized_var_builder::VarBuilder;

/// The same as without quantisation.
pub type VisionConfig = blip::VisionConfig;
/// The same as without quantisation.
pub type Config = blip::Config;

/// From an image to vectors of its patches.
#[derive(Debug, Clone)]
pub struct VisionModel {
    model: blip::VisionModel,
}

/// From images (batch, 3, image_size, image_size) in f32 to (batch, 1 + patches, hidden_size).
impl Module for VisionModel {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.model.forward(xs)
    }
}

/// The part that sees and the part that writes.
#[derive(Debug, Clone)]
pub struct BlipForConditionalGeneration {
    vision_model: VisionModel,
    text_decoder: quantized_blip_text::TextLMHeadModel,
}

impl BlipForConditionalGeneration {
    /// Loads what is below `vision_model` and `text_decoder`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (device, mut vision) = (vb.device().clone(), vb.pp("vision_model"));
        let mut weights = Weights::new(&mut vision, DType::F32, &device);
        let model = at_once(blip::VisionModel::load(&cfg.vision_config, &mut weights))?;
        let text = vb.pp("text_decoder");
        Ok(Self {
            vision_model: VisionModel { model },
            text_decoder: quantized_blip_text::TextLMHeadModel::new(&cfg.text_config, text)?,
        })
    }

    /// The part that sees.
    pub fn vision_model(&self) -> &VisionModel {
        &self.vision_model
    }

    /// The part that writes, given what the other returned.
    pub fn text_decoder(&mut self) -> &mut quantized_blip_text::TextLMHeadModel {
        &mut self.text_decoder
    }

    /// Forgets the text, so that another can begin.
    pub fn reset_kv_cache(&mut self) {
        self.text_decoder.reset_kv_cache();
    }
}
