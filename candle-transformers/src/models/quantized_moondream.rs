//! [`super::moondream`] with quantised weights, from GGUF files with the names of the dense ones, such as
//! [santiagomed/candle-moondream](https://huggingface.co/santiagomed/candle-moondream). Activations are f32.

use candle_core::{DType, Module, Result, Tensor};

use super::moondream::{self, Config, VisionConfig};
use super::quantized_mixformer::MixFormerSequentialForCausalLM as PhiModel;
use crate::blocks::Weights;
use crate::quantized_var_builder::VarBuilder;

pub use super::moondream::Encoder;

/// The part that sees: the transformer and the network behind it.
#[derive(Debug, Clone)]
pub struct VisionEncoder {
    model: moondream::VisionEncoder,
}

impl VisionEncoder {
    /// Loads what is below `encoder.model.visual` and `projection.mlp`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &VisionConfig, vb: VarBuilder) -> Result<Self> {
        let (device, mut vb) = (vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, DType::F32, &device);
        Ok(Self {
            model: moondream::VisionEncoder::load(cfg, &mut weights)?,
        })
    }
}

/// As [`super::moondream::VisionEncoder`], of images in f32.
impl Module for VisionEncoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.model.forward(xs)
    }
}

/// The part that sees and the part that writes.
#[derive(Debug, Clone)]
pub struct Model {
    /// The language model.
    pub text_model: PhiModel,
    /// The vision encoder.
    pub vision_encoder: VisionEncoder,
}

impl Model {
    /// Loads what is below `text_model` and `vision_encoder`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(config: &Config, vb: VarBuilder) -> Result<Self> {
        config.check()?;
        let (text, vision) = (&config.phi_config, &config.vision_config);
        Ok(Self {
            vision_encoder: VisionEncoder::new(vision, vb.pp("vision_encoder"))?,
            text_model: PhiModel::new_v2(text, vb.pp("text_model"))?,
        })
    }

    /// The vision encoder.
    pub fn vision_encoder(&self) -> &VisionEncoder {
        &self.vision_encoder
    }

    /// The language model, which takes the encoder's output.
    pub fn text_model(&mut self) -> &mut PhiModel {
        &mut self.text_model
    }
}
