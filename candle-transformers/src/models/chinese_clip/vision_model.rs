//! Chinese CLIP's encoder of pictures, CLIP's.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::{Activation, EncoderConfig};
use crate::blocks::vision::{blocks, Blocks, ClipVision, ClipVisionSpec, PictureEmbeddings};

/// The numbers of the encoder of pictures.
#[derive(Clone, Debug)]
pub struct ChineseClipVisionConfig {
    /// Size of a token.
    pub hidden_size: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Not used: the size of the space where pictures and texts are compared is the model's.
    pub projection_dim: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Channels of a picture.
    pub num_channels: usize,
    /// Height and width of a picture in pixels.
    pub image_size: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// What the layer norms add to the variance.
    pub layer_norm_eps: f64,
    /// Of training, not used.
    pub attention_dropout: f32,
    /// Of training, not used.
    pub initializer_range: f32,
    /// Of training, not used.
    pub initializer_factor: f32,
}

/// Transformers' defaults.
impl Default for ChineseClipVisionConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            projection_dim: 512,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            num_channels: 3,
            image_size: 224,
            patch_size: 32,
            hidden_act: Activation::QuickGelu,
            layer_norm_eps: 1e-5,
            attention_dropout: 0.0,
            initializer_range: 0.02,
            initializer_factor: 1.0,
        }
    }
}

impl ChineseClipVisionConfig {
    /// [OFA-Sys/chinese-clip-vit-base-patch16](https://huggingface.co/OFA-Sys/chinese-clip-vit-base-patch16).
    pub fn clip_vit_base_patch16() -> Self {
        Self {
            patch_size: 16,
            ..Self::default()
        }
    }

    fn spec(&self) -> ClipVisionSpec {
        ClipVisionSpec {
            family: "chinese_clip",
            vit: EncoderConfig::Vision(self.clone()).spec(),
            layers: self.num_hidden_layers,
            activation: self.hidden_act.into(),
            channels: self.num_channels,
            image: self.image_size,
            patch: self.patch_size,
        }
    }
}

/// The patches of a picture behind a token for the whole, with positions.
#[derive(Clone, Debug)]
pub struct ChineseClipVisionEmbeddings {
    embeddings: PictureEmbeddings,
}

impl ChineseClipVisionEmbeddings {
    /// Loads `class_embedding`, `position_embedding` and `patch_embedding`.
    ///
    /// # Errors
    /// The patch does not fit the picture, or a weight is missing or has another shape.
    pub fn new(var: VarBuilder, config: &ChineseClipVisionConfig) -> Result<Self> {
        Ok(Self {
            embeddings: PictureEmbeddings::load(&config.spec(), var)?,
        })
    }
}

/// From pictures (batch, num_channels, image_size, image_size) to (batch, 1 + patches, hidden_size).
impl Module for ChineseClipVisionEmbeddings {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.embeddings.forward(xs)
    }
}

/// The layers.
#[derive(Clone, Debug)]
pub struct ChineseClipVisionEncoder {
    blocks: Blocks,
}

impl ChineseClipVisionEncoder {
    /// Loads `layers.N`.
    ///
    /// # Errors
    /// The heads do not divide the size, or a weight is missing or has another shape.
    pub fn new(var: VarBuilder, config: &EncoderConfig) -> Result<Self> {
        let (layers, activation) = (config.num_hidden_layers(), config.activation().into());
        let (spec, vb) = (config.spec(), var.pp("layers"));
        Ok(Self {
            blocks: blocks("chinese_clip", layers, &spec, activation, vb)?,
        })
    }

    /// From (batch, tokens, hidden_size) to the same shape. The mask is added to the scores of attention; it is a float and broadcasts to
    /// (batch, heads, tokens, tokens).
    ///
    /// # Errors
    /// Shapes, dtypes or devices do not match.
    pub fn forward(&self, xs: &Tensor, causal_attention_mask: Option<&Tensor>) -> Result<Tensor> {
        self.blocks.forward(xs, causal_attention_mask)
    }

    /// As [`forward`](Self::forward), what each layer gives, the first one first.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    pub fn output_hidden_states(
        &self,
        xs: &Tensor,
        causal_attention_mask: Option<&Tensor>,
    ) -> Result<Vec<Tensor>> {
        self.blocks.forward_each(xs, causal_attention_mask)
    }
}

/// The encoder of pictures.
#[derive(Clone, Debug)]
pub struct ChineseClipVisionTransformer {
    vision: ClipVision,
}

impl ChineseClipVisionTransformer {
    /// Loads `embeddings`, `pre_layrnorm`, `encoder.layers.N` and `post_layernorm`.
    ///
    /// # Errors
    /// The heads do not divide the size, the patch does not fit the picture, or a weight is missing or has another shape.
    pub fn new(var: VarBuilder, config: &ChineseClipVisionConfig) -> Result<Self> {
        Ok(Self {
            vision: ClipVision::load(&config.spec(), var)?,
        })
    }

    /// What each layer gives for pictures (batch, num_channels, image_size, image_size), (batch, 1 + patches, hidden_size), the first one
    /// first, and at last what the model gives, (batch, hidden_size).
    ///
    /// # Errors
    /// The pictures have another shape, or there are no layers.
    pub fn output_hidden_states(&self, pixel_values: &Tensor) -> Result<Vec<Tensor>> {
        self.vision.hidden_states(pixel_values)
    }
}

/// From pictures (batch, num_channels, image_size, image_size) to (batch, hidden_size).
///
/// # Errors
/// The pictures have another shape, or another dtype or device than the weights.
impl Module for ChineseClipVisionTransformer {
    fn forward(&self, pixel_values: &Tensor) -> Result<Tensor> {
        self.vision.forward(pixel_values)
    }
}
