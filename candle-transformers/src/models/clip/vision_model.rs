//! CLIP's encoder of images.

use candle_core::{Module, Result, Tensor};
use candle_nn::VarBuilder;

use super::text_model::Activation;
use super::EncoderConfig;
use crate::blocks::vision::{ClipVision, ClipVisionSpec};

/// The numbers of the encoder of images.
#[derive(Debug, Clone)]
pub struct ClipVisionConfig {
    /// Size of a token.
    pub embed_dim: usize,
    /// Activation of the feed-forward blocks.
    pub activation: Activation,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `embed_dim`.
    pub num_attention_heads: usize,
    /// Size of the shared embedding space of images and texts.
    pub projection_dim: usize,
    /// Channels of an image.
    pub num_channels: usize,
    /// Height and width of an image, in pixels.
    pub image_size: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
}

impl ClipVisionConfig {
    /// [openai/clip-vit-base-patch32](https://huggingface.co/openai/clip-vit-base-patch32).
    pub fn vit_base_patch32() -> Self {
        Self {
            embed_dim: 768,
            activation: Activation::QuickGelu,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            projection_dim: 512,
            num_channels: 3,
            image_size: 224,
            patch_size: 32,
        }
    }

    /// [openai/clip-vit-large-patch14-336](https://huggingface.co/openai/clip-vit-large-patch14-336).
    pub fn clip_vit_large_patch14_336() -> Self {
        Self {
            embed_dim: 1024,
            activation: Activation::QuickGelu,
            intermediate_size: 4096,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            projection_dim: 768,
            num_channels: 3,
            image_size: 336,
            patch_size: 14,
        }
    }
}

/// The encoder of images.
#[derive(Clone, Debug)]
pub struct ClipVisionTransformer {
    vision: ClipVision,
}

impl ClipVisionTransformer {
    /// Loads `embeddings`, `pre_layrnorm`, `encoder.layers.N` and `post_layernorm`.
    ///
    /// # Errors
    /// The heads do not divide the size, the patch does not fit the image, or a weight is missing or has another shape.
    pub fn new(vs: VarBuilder, c: &ClipVisionConfig) -> Result<Self> {
        let spec = ClipVisionSpec {
            family: "clip",
            vit: EncoderConfig::Vision(c.clone()).spec(),
            layers: c.num_hidden_layers,
            activation: c.activation.into(),
            channels: c.num_channels,
            image: c.image_size,
            patch: c.patch_size,
        };
        Ok(Self {
            vision: ClipVision::load(&spec, vs)?,
        })
    }

    /// The output of each layer for images (batch, num_channels, image_size, image_size): (batch, 1 + patches, embed_dim), in order,
    /// followed by the output of the model, (batch, embed_dim).
    ///
    /// # Errors
    /// The images have another shape, or there are no layers.
    pub fn output_hidden_states(&self, pixel_values: &Tensor) -> Result<Vec<Tensor>> {
        self.vision.hidden_states(pixel_values)
    }
}

/// From images (batch, num_channels, image_size, image_size) to (batch, embed_dim).
///
/// # Errors
/// The images have another shape, or another dtype or device than the weights.
impl Module for ClipVisionTransformer {
    fn forward(&self, pixel_values: &Tensor) -> Result<Tensor> {
        self.vision.forward(pixel_values)
    }
}
