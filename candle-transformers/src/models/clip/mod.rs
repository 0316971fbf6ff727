//! CLIP, which compares images and texts: [arXiv 2103.00020](https://arxiv.org/abs/2103.00020). Weight names are those of Hugging Face's
//! checkpoints.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{ops::softmax, VarBuilder};
//! use candle_transformers::models::clip::{ClipConfig, ClipModel};
//! # fn main() -> candle_core::Result<()> {
//! # let mut config = ClipConfig::vit_base_patch32();
//! # config.text_config.num_hidden_layers = 0;
//! # config.vision_config.num_hidden_layers = 0;
//! # config.text_config.vocab_size = 64;
//! let device = Device::Cpu;
//! // A real model: `let config = ClipConfig::vit_base_patch32()` and VarBuilder::from_mmaped_safetensors.
//! let model = ClipModel::new(VarBuilder::zeros(DType::F32, &device), &config)?;
//! let pictures = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! let texts = Tensor::new(&[[49u32, 32, 50], [49, 17, 50]], &device)?;
//! let (per_text, per_picture) = model.forward(&pictures, &texts)?;
//! assert_eq!(per_text.dims(), &[2, 1]);
//! // Which text is that of the image.
//! assert_eq!(softmax(&per_picture, 1)?.dims(), &[1, 2]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear_no_bias, Linear, VarBuilder};

use self::text_model::{Activation, ClipTextTransformer};
use self::vision_model::ClipVisionTransformer;
use crate::blocks::vision::{scores, unit_length, VitSpec};

pub mod text_model;
pub mod vision_model;

/// Layer norm epsilon.
const EPS: f64 = 1e-5;

/// The numbers of one of the two encoders.
#[derive(Clone, Debug)]
pub enum EncoderConfig {
    /// That of texts.
    Text(text_model::ClipTextConfig),
    /// That of images.
    Vision(vision_model::ClipVisionConfig),
}

impl EncoderConfig {
    /// Size of a token.
    pub fn embed_dim(&self) -> usize {
        match self {
            Self::Text(c) => c.embed_dim,
            Self::Vision(c) => c.embed_dim,
        }
    }

    /// Heads, which divide the size of a token.
    pub fn num_attention_heads(&self) -> usize {
        match self {
            Self::Text(c) => c.num_attention_heads,
            Self::Vision(c) => c.num_attention_heads,
        }
    }

    /// Inner size of the feed-forward blocks.
    pub fn intermediate_size(&self) -> usize {
        match self {
            Self::Text(c) => c.intermediate_size,
            Self::Vision(c) => c.intermediate_size,
        }
    }

    /// Layers.
    pub fn num_hidden_layers(&self) -> usize {
        match self {
            Self::Text(c) => c.num_hidden_layers,
            Self::Vision(c) => c.num_hidden_layers,
        }
    }

    /// Activation of the feed-forward blocks.
    pub fn activation(&self) -> Activation {
        match self {
            Self::Text(c) => c.activation,
            Self::Vision(c) => c.activation,
        }
    }

    fn spec(&self) -> VitSpec {
        VitSpec {
            size: self.embed_dim(),
            heads: self.num_attention_heads(),
            inner: self.intermediate_size(),
            eps: EPS,
        }
    }
}

/// The numbers of a model.
#[derive(Clone, Debug)]
pub struct ClipConfig {
    /// Configuration of the text encoder.
    pub text_config: text_model::ClipTextConfig,
    /// Configuration of the vision encoder.
    pub vision_config: vision_model::ClipVisionConfig,
    /// The logarithm of what cosines are multiplied with, for checkpoints without `logit_scale`.
    pub logit_scale_init_value: f32,
    /// Height and width of an image, in pixels.
    pub image_size: usize,
}

impl ClipConfig {
    /// [openai/clip-vit-base-patch32](https://huggingface.co/openai/clip-vit-base-patch32).
    pub fn vit_base_patch32() -> Self {
        Self {
            text_config: text_model::ClipTextConfig::vit_base_patch32(),
            vision_config: vision_model::ClipVisionConfig::vit_base_patch32(),
            logit_scale_init_value: 2.6592,
            image_size: 224,
        }
    }
}

/// Both encoders, and the projections into the space where images and texts are compared.
#[derive(Clone, Debug)]
pub struct ClipModel {
    text_model: ClipTextTransformer,
    vision_model: ClipVisionTransformer,
    visual_projection: Linear,
    text_projection: Linear,
    logit_scale: Tensor,
}

impl ClipModel {
    /// Loads `text_model`, `vision_model`, `visual_projection`, `text_projection` and, if it is there, `logit_scale`.
    ///
    /// # Errors
    /// The heads do not divide a size, the patch does not fit the image, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &ClipConfig) -> Result<Self> {
        let (text, vision) = (&c.text_config, &c.vision_config);
        let projection = |size, to, name| linear_no_bias(size, to, vs.pp(name));
        Ok(Self {
            text_model: ClipTextTransformer::new(vs.pp("text_model"), text)?,
            vision_model: ClipVisionTransformer::new(vs.pp("vision_model"), vision)?,
            visual_projection: projection(
                vision.embed_dim,
                vision.projection_dim,
                "visual_projection",
            )?,
            text_projection: projection(text.embed_dim, text.projection_dim, "text_projection")?,
            logit_scale: logit_scale(c.logit_scale_init_value, vs)?,
        })
    }

    /// From ids (texts, seq), whose largest id is that of the end, to vectors (texts, projection_dim).
    ///
    /// # Errors
    /// There are no tokens or more than the model has positions.
    pub fn get_text_features(&self, input_ids: &Tensor) -> Result<Tensor> {
        let features = self.text_model.forward(input_ids)?;
        self.text_projection.forward(&features)
    }

    /// From images (images, num_channels, image_size, image_size) to vectors (images, projection_dim).
    ///
    /// # Errors
    /// The images have another shape, or another dtype or device than the weights.
    pub fn get_image_features(&self, pixel_values: &Tensor) -> Result<Tensor> {
        let features = self.vision_model.forward(pixel_values)?;
        self.visual_projection.forward(&features)
    }

    /// The similarities of images and texts: logits for each text, (texts, images), and for each image, (images, texts).
    ///
    /// # Errors
    /// Those of [`get_image_features`](Self::get_image_features) and [`get_text_features`](Self::get_text_features).
    pub fn forward(&self, pixel_values: &Tensor, input_ids: &Tensor) -> Result<(Tensor, Tensor)> {
        let pictures = self.get_image_features(pixel_values)?;
        let texts = self.get_text_features(input_ids)?;
        scores(&pictures, &texts, &self.logit_scale, None)
    }
}

/// `logit_scale` of a checkpoint, or what there is without it.
pub(super) fn logit_scale(without: f32, vb: VarBuilder) -> Result<Tensor> {
    if vb.contains_tensor("logit_scale") {
        vb.get((), "logit_scale")
    } else {
        Tensor::new(&[without], vb.device())?.to_dtype(vb.dtype())
    }
}

/// `v`, (.., size), divided by its length; NaN where that is 0. Of 16-bit floats it is computed in f32.
///
/// # Errors
/// `v` is of integers.
pub fn div_l2_norm(v: &Tensor) -> Result<Tensor> {
    unit_length(v)
}
