//! Chinese CLIP, CLIP with BERT for texts: [arXiv 2211.01335](https://arxiv.org/abs/2211.01335). Weight names are those of Hugging Face's
//! checkpoints.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::chinese_clip::{ChineseClipConfig, ChineseClipModel};
//! # fn main() -> candle_core::Result<()> {
//! # let mut config = ChineseClipConfig::clip_vit_base_patch16();
//! # config.text_config.num_hidden_layers = 0;
//! # config.vision_config.num_hidden_layers = 0;
//! # config.text_config.vocab_size = 64;
//! let device = Device::Cpu;
//! // A real model: `let config = ChineseClipConfig::clip_vit_base_patch16()` and VarBuilder::from_mmaped_safetensors.
//! let model = ChineseClipModel::new(VarBuilder::zeros(DType::F32, &device), &config)?;
//! let pictures = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! let texts = Tensor::new(&[[2u32, 32, 3, 0], [2, 17, 18, 3]], &device)?;
//! // 0 where a text is filled up.
//! let mask = Tensor::new(&[[1u32, 1, 1, 0], [1, 1, 1, 1]], &device)?;
//! let (_, per_picture) = model.forward(&pictures, &texts, None, Some(&mask))?;
//! assert_eq!(per_picture.dims(), &[1, 2]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{linear_no_bias, Linear, VarBuilder};

use self::text_model::ChineseClipTextTransformer;
use self::vision_model::ChineseClipVisionTransformer;
use super::clip::logit_scale;
use crate::blocks::vision::{scores, unit_length, VitActivation, VitSpec};

pub mod text_model;
pub mod vision_model;

/// An activation function.
#[derive(Debug, Clone, Copy)]
pub enum Activation {
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    /// `x * Φ(x)`, with the exact distribution function Φ of the normal distribution.
    Gelu,
    /// [`Activation::Gelu`] in its tanh approximation.
    GeluNew,
    /// `max(x, 0)`.
    Relu,
}

/// By the name in a configuration: `quick_gelu`, `gelu`, `gelu_new` or `relu`.
///
/// # Panics
/// The name is another: the interface has no place for an error.
impl From<String> for Activation {
    fn from(value: String) -> Self {
        match value.as_str() {
            "quick_gelu" => Self::QuickGelu,
            "gelu" => Self::Gelu,
            "gelu_new" => Self::GeluNew,
            "relu" => Self::Relu,
            _ => panic!(
                "chinese_clip: the activation {value:?} is not supported; expected quick_gelu, gelu, gelu_new or relu"
            ),
        }
    }
}

impl From<Activation> for VitActivation {
    fn from(activation: Activation) -> Self {
        use candle_nn::Activation as Named;
        match activation {
            Activation::QuickGelu => Self::QuickGelu,
            Activation::Gelu => Self::Named(Named::Gelu),
            Activation::GeluNew => Self::Named(Named::NewGelu),
            Activation::Relu => Self::Named(Named::Relu),
        }
    }
}

/// From any shape to the same.
impl Module for Activation {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        VitActivation::from(*self).forward(xs)
    }
}

/// The numbers of a model.
#[derive(Clone, Debug)]
pub struct ChineseClipConfig {
    /// Of the encoder of texts.
    pub text_config: text_model::ChineseClipTextConfig,
    /// Of the encoder of pictures.
    pub vision_config: vision_model::ChineseClipVisionConfig,
    /// Size of the space where pictures and texts are compared.
    pub projection_dim: usize,
    /// The logarithm of what cosines are multiplied with, for checkpoints without `logit_scale`.
    pub logit_scale_init_value: f32,
    /// Not used: the size of a picture is that of `vision_config`.
    pub image_size: usize,
}

impl ChineseClipConfig {
    /// [OFA-Sys/chinese-clip-vit-base-patch16](https://huggingface.co/OFA-Sys/chinese-clip-vit-base-patch16).
    pub fn clip_vit_base_patch16() -> Self {
        Self {
            text_config: text_model::ChineseClipTextConfig::clip_vit_base_patch16(),
            vision_config: vision_model::ChineseClipVisionConfig::clip_vit_base_patch16(),
            projection_dim: 512,
            logit_scale_init_value: 2.6592,
            image_size: 512,
        }
    }
}

/// The numbers of one of the two encoders.
#[derive(Clone, Debug)]
pub enum EncoderConfig {
    /// That of texts.
    Text(text_model::ChineseClipTextConfig),
    /// That of pictures.
    Vision(vision_model::ChineseClipVisionConfig),
}

impl EncoderConfig {
    /// Size of a token.
    pub fn embed_dim(&self) -> usize {
        match self {
            Self::Text(c) => c.hidden_size,
            Self::Vision(c) => c.hidden_size,
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
            Self::Text(c) => c.hidden_act,
            Self::Vision(c) => c.hidden_act,
        }
    }

    /// What the layer norms add to the variance.
    pub fn layer_norm_eps(&self) -> f64 {
        match self {
            Self::Text(c) => c.layer_norm_eps,
            Self::Vision(c) => c.layer_norm_eps,
        }
    }

    fn spec(&self) -> VitSpec {
        VitSpec {
            size: self.embed_dim(),
            heads: self.num_attention_heads(),
            inner: self.intermediate_size(),
            eps: self.layer_norm_eps(),
        }
    }
}

/// Both encoders, and the projections into the space where pictures and texts are compared.
#[derive(Clone, Debug)]
pub struct ChineseClipModel {
    text_model: ChineseClipTextTransformer,
    vision_model: ChineseClipVisionTransformer,
    visual_projection: Linear,
    text_projection: Linear,
    logit_scale: Tensor,
}

impl ChineseClipModel {
    /// Loads `text_model`, `vision_model`, `visual_projection`, `text_projection` and, if it is there, `logit_scale`.
    ///
    /// # Errors
    /// The heads do not divide a size, the patch does not fit the picture, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &ChineseClipConfig) -> Result<Self> {
        let (text, vision) = (&c.text_config, &c.vision_config);
        let projection = |size, name| linear_no_bias(size, c.projection_dim, vs.pp(name));
        Ok(Self {
            text_model: ChineseClipTextTransformer::new(vs.pp("text_model"), text)?,
            vision_model: ChineseClipVisionTransformer::new(vs.pp("vision_model"), vision)?,
            visual_projection: projection(vision.hidden_size, "visual_projection")?,
            text_projection: projection(text.hidden_size, "text_projection")?,
            logit_scale: logit_scale(c.logit_scale_init_value, vs)?,
        })
    }

    /// From ids (texts, seq) to vectors (texts, projection_dim); the other arguments are those of [`ChineseClipTextTransformer::forward`].
    ///
    /// # Errors
    /// Those of [`ChineseClipTextTransformer::forward`].
    pub fn get_text_features(
        &self,
        input_ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        let text = &self.text_model;
        let features = text.forward(input_ids, token_type_ids, attention_mask)?;
        self.text_projection.forward(&features)
    }

    /// From pictures (pictures, num_channels, image_size, image_size) to vectors (pictures, projection_dim).
    ///
    /// # Errors
    /// The pictures have another shape, or another dtype or device than the weights.
    pub fn get_image_features(&self, pixel_values: &Tensor) -> Result<Tensor> {
        let features = self.vision_model.forward(pixel_values)?;
        self.visual_projection.forward(&features)
    }

    /// How well pictures and texts go together: logits for each text, (texts, pictures), and for each picture, (pictures, texts).
    ///
    /// # Errors
    /// Those of [`get_image_features`](Self::get_image_features) and [`get_text_features`](Self::get_text_features).
    pub fn forward(
        &self,
        pixel_values: &Tensor,
        input_ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        attention_mask: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let pictures = self.get_image_features(pixel_values)?;
        let texts = self.get_text_features(input_ids, token_type_ids, attention_mask)?;
        scores(&pictures, &texts, &self.logit_scale, None)
    }
}

/// `v`, (.., size), divided by its length; NaN where that is 0. Of 16-bit floats it is computed in f32.
///
/// # Errors
/// `v` is of integers.
pub fn div_l2_norm(v: &Tensor) -> Result<Tensor> {
    unit_length(v)
}
