//! SigLIP, which compares images and texts as CLIP does, each pair by itself: [arXiv 2303.15343](https://arxiv.org/abs/2303.15343). Weight
//! names are those of Hugging Face's checkpoints.
//!
//! Positions are learned for images of one size; other sizes use those of the nearest positions.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::{ops::sigmoid, VarBuilder};
//! use candle_transformers::models::siglip::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! # let mut config = Config::base_patch16_224();
//! # config.text_config.num_hidden_layers = 0;
//! # config.vision_config.num_hidden_layers = 0;
//! # config.text_config.vocab_size = 64;
//! let device = Device::Cpu;
//! // A real model: its config.json, and VarBuilder::from_mmaped_safetensors.
//! let model = Model::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let pictures = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! let texts = Tensor::new(&[[9u32, 8, 1], [9, 7, 1]], &device)?;
//! let (_, per_picture) = model.forward(&pictures, &texts)?;
//! // How likely each text is that of the image.
//! assert_eq!(sigmoid(&per_picture)?.dims(), &[1, 2]);
//! # Ok(())
//! # }
//! ```

use candle_core::{Module, Result, Tensor};
use candle_nn::{
    conv2d, layer_norm, linear, Activation, Conv2dConfig, LayerNorm, Linear, VarBuilder,
};
use serde::Deserialize;

use crate::blocks::vision::{
    blocks, scores, side, Blocks, Grid, PatchEmbedding, Picture, PoolingHead, TextEmbeddings,
    VitSpec,
};

/// The numbers of the encoder of texts; `config.json` leaves out those that are as [`Default`] has them.
#[derive(Deserialize, Clone, Debug)]
#[serde(default)]
pub struct TextConfig {
    /// Tokens in the vocabulary.
    pub vocab_size: usize,
    /// Size of a token.
    pub hidden_size: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Maximum text length, in tokens.
    pub max_position_embeddings: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Layer norm epsilon.
    pub layer_norm_eps: f64,
    /// The padding token; texts are padded to `max_position_embeddings`.
    pub pad_token_id: u32,
    /// The id before a text. The model does not use it.
    pub bos_token_id: u32,
    /// The id after a text. The model does not use it.
    pub eos_token_id: u32,
}

/// [google/siglip-base-patch16-224](https://huggingface.co/google/siglip-base-patch16-224)'s.
impl Default for TextConfig {
    fn default() -> Self {
        Self {
            vocab_size: 32000,
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            max_position_embeddings: 64,
            hidden_act: Activation::GeluPytorchTanh,
            layer_norm_eps: 1e-6,
            pad_token_id: 1,
            bos_token_id: 49406,
            eos_token_id: 49407,
        }
    }
}

impl TextConfig {
    fn spec(&self) -> VitSpec {
        VitSpec {
            size: self.hidden_size,
            heads: self.num_attention_heads,
            inner: self.intermediate_size,
            eps: self.layer_norm_eps,
        }
    }
}

/// The numbers of the encoder of images; `config.json` leaves out those that are as [`Default`] has them.
#[derive(Deserialize, Clone, Debug)]
#[serde(default)]
pub struct VisionConfig {
    /// Size of a token.
    pub hidden_size: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Channels of an image.
    pub num_channels: usize,
    /// Height and width, in pixels, of the images for which positions are learned.
    pub image_size: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Layer norm epsilon.
    pub layer_norm_eps: f64,
}

/// [google/siglip-base-patch16-224](https://huggingface.co/google/siglip-base-patch16-224)'s.
impl Default for VisionConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            num_channels: 3,
            image_size: 224,
            patch_size: 16,
            hidden_act: Activation::GeluPytorchTanh,
            layer_norm_eps: 1e-6,
        }
    }
}

impl VisionConfig {
    fn paligemma_3b(image_size: usize) -> Self {
        Self {
            hidden_size: 1152,
            intermediate_size: 4304,
            num_hidden_layers: 27,
            num_attention_heads: 16,
            image_size,
            patch_size: 14,
            ..Self::default()
        }
    }

    /// That of [google/paligemma-3b-pt-224](https://huggingface.co/google/paligemma-3b-pt-224).
    pub fn paligemma_3b_224() -> Self {
        Self::paligemma_3b(224)
    }

    /// That of [google/paligemma-3b-pt-448](https://huggingface.co/google/paligemma-3b-pt-448).
    pub fn paligemma_3b_448() -> Self {
        Self::paligemma_3b(448)
    }

    /// That of [google/paligemma-3b-pt-896](https://huggingface.co/google/paligemma-3b-pt-896).
    pub fn paligemma_3b_896() -> Self {
        Self::paligemma_3b(896)
    }

    /// Patches of an image of `image_size`; 0 if the patches have no size.
    pub fn num_patches(&self) -> usize {
        let side = self.image_size.checked_div(self.patch_size).unwrap_or(0);
        side * side
    }

    fn spec(&self) -> VitSpec {
        VitSpec {
            size: self.hidden_size,
            heads: self.num_attention_heads,
            inner: self.intermediate_size,
            eps: self.layer_norm_eps,
        }
    }
}

/// The numbers of a `config.json`.
#[derive(Deserialize, Clone, Debug)]
pub struct Config {
    /// Configuration of the text encoder.
    pub text_config: TextConfig,
    /// Configuration of the vision encoder.
    pub vision_config: VisionConfig,
}

impl Config {
    /// [google/siglip-base-patch16-224](https://huggingface.co/google/siglip-base-patch16-224).
    pub fn base_patch16_224() -> Self {
        Self {
            text_config: TextConfig::default(),
            vision_config: VisionConfig::default(),
        }
    }
}

/// Patches of an image as tokens with positions.
#[derive(Debug, Clone)]
struct VisionEmbeddings {
    patches: PatchEmbedding,
    positions: Grid,
}

impl VisionEmbeddings {
    fn new(cfg: &VisionConfig, vb: VarBuilder) -> Result<Self> {
        let (size, patch) = (cfg.hidden_size, cfg.patch_size);
        let side = side("siglip", cfg.image_size, patch)?;
        let config = Conv2dConfig {
            stride: patch,
            ..Default::default()
        };
        let vb_patches = vb.pp("patch_embedding");
        let conv = conv2d(cfg.num_channels, size, patch, config, vb_patches)?;
        let picture = Picture {
            channels: cfg.num_channels,
            ..Picture::any("siglip")
        };
        let vb_positions = vb.pp("position_embedding");
        let positions = vb_positions.get((side * side, size), "weight")?;
        Ok(Self {
            patches: PatchEmbedding::of(conv, picture, patch),
            positions: Grid::new(positions, side, side),
        })
    }
}

impl Module for VisionEmbeddings {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (tokens, places) = self.patches.forward(xs)?;
        tokens.broadcast_add(&self.positions.nearest(places)?)
    }
}

/// The encoder of images.
#[derive(Debug, Clone)]
pub struct VisionModel {
    embeddings: VisionEmbeddings,
    encoder: Blocks,
    norm: LayerNorm,
    head: Option<PoolingHead>,
}

impl VisionModel {
    /// Loads `embeddings`, `encoder.layers.N`, `post_layernorm` and, with `use_head`, `head`.
    ///
    /// # Errors
    /// The heads do not divide the hidden size, the patch does not fit the image, or a weight is missing or has another shape.
    pub fn new(cfg: &VisionConfig, use_head: bool, vb: VarBuilder) -> Result<Self> {
        let (spec, activation) = (cfg.spec(), cfg.hidden_act.into());
        let (layers, vb_layers) = (cfg.num_hidden_layers, vb.pp("encoder").pp("layers"));
        let head = || PoolingHead::load(&spec, activation, vb.pp("head"));
        Ok(Self {
            embeddings: VisionEmbeddings::new(cfg, vb.pp("embeddings"))?,
            encoder: blocks("siglip", layers, &spec, activation, vb_layers)?,
            norm: layer_norm(spec.size, spec.eps, vb.pp("post_layernorm"))?,
            head: use_head.then(head).transpose()?,
        })
    }
}

/// From images (batch, num_channels, height, width) to (batch, hidden_size), or without a head to (batch, patches, hidden_size). What
/// is left of an image behind its last whole patch is not seen.
///
/// # Errors
/// The images have another shape or are smaller than a patch, or have another dtype or device than the weights.
impl Module for VisionModel {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let xs = self.encoder.forward(&self.embeddings.forward(xs)?, None)?;
        let xs = self.norm.forward(&xs)?;
        match &self.head {
            Some(head) => head.forward(&xs),
            None => Ok(xs),
        }
    }
}

/// The encoder of texts.
#[derive(Debug, Clone)]
pub struct TextTransformer {
    embeddings: TextEmbeddings,
    encoder: Blocks,
    norm: LayerNorm,
    /// The last layer.
    pub head: Linear,
}

impl TextTransformer {
    fn new(cfg: &TextConfig, vb: VarBuilder) -> Result<Self> {
        let (spec, activation) = (cfg.spec(), cfg.hidden_act.into());
        let (layers, vb_layers) = (cfg.num_hidden_layers, vb.pp("encoder").pp("layers"));
        let sizes = [cfg.vocab_size, cfg.max_position_embeddings, spec.size];
        Ok(Self {
            embeddings: TextEmbeddings::load("siglip", sizes, vb.pp("embeddings"))?,
            encoder: blocks("siglip", layers, &spec, activation, vb_layers)?,
            norm: layer_norm(spec.size, spec.eps, vb.pp("final_layer_norm"))?,
            head: linear(spec.size, spec.size, vb.pp("head"))?,
        })
    }
}

/// From ids (batch, seq) to the vector of the last one, (batch, hidden_size). All tokens see each other; the models are trained with texts
/// that are filled up with `pad_token_id` to `max_position_embeddings`.
///
/// # Errors
/// There are no tokens or more than the model has positions.
impl Module for TextTransformer {
    fn forward(&self, input_ids: &Tensor) -> Result<Tensor> {
        let xs = self.embeddings.forward(input_ids)?;
        let xs = self.encoder.forward(&xs, None)?;
        let last = xs.narrow(1, xs.dim(1)? - 1, 1)?.squeeze(1)?;
        self.head.forward(&self.norm.forward(&last)?)
    }
}

/// The encoder of texts.
#[derive(Debug, Clone)]
pub struct TextModel {
    /// All of it.
    pub text_model: TextTransformer,
}

impl TextModel {
    /// Loads `embeddings.{token_embedding,position_embedding}`, `encoder.layers.N`, `final_layer_norm` and `head`.
    ///
    /// # Errors
    /// The heads do not divide the hidden size, or a weight is missing or has another shape.
    pub fn new(cfg: &TextConfig, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            text_model: TextTransformer::new(cfg, vb)?,
        })
    }
}

/// From ids (batch, seq) to (batch, hidden_size).
impl Module for TextModel {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.text_model.forward(xs)
    }
}

/// Both encoders.
#[derive(Clone, Debug)]
pub struct Model {
    text_model: TextModel,
    vision_model: VisionModel,
    logit_bias: Tensor,
    logit_scale: Tensor,
}

impl Model {
    /// Loads `text_model`, `vision_model`, `logit_scale` and `logit_bias`.
    ///
    /// # Errors
    /// The heads do not divide a size, the patch does not fit the image, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            text_model: TextModel::new(&cfg.text_config, vb.pp("text_model"))?,
            vision_model: VisionModel::new(&cfg.vision_config, true, vb.pp("vision_model"))?,
            logit_bias: vb.get(1, "logit_bias")?,
            logit_scale: vb.get(1, "logit_scale")?,
        })
    }

    /// From ids (texts, seq) to vectors (texts, hidden_size).
    ///
    /// # Errors
    /// Those of [`TextTransformer`].
    pub fn get_text_features(&self, input_ids: &Tensor) -> Result<Tensor> {
        self.text_model.forward(input_ids)
    }

    /// From images (images, num_channels, height, width) to vectors (images, hidden_size).
    ///
    /// # Errors
    /// Those of [`VisionModel`].
    pub fn get_image_features(&self, pixel_values: &Tensor) -> Result<Tensor> {
        self.vision_model.forward(pixel_values)
    }

    /// The similarities of images and texts: logits, whose sigmoid is a probability, for each text, (texts, images), and for each image,
    /// (images, texts).
    ///
    /// # Errors
    /// Those of [`VisionModel`] and [`TextTransformer`].
    pub fn forward(&self, pixel_values: &Tensor, input_ids: &Tensor) -> Result<(Tensor, Tensor)> {
        let pictures = self.get_image_features(pixel_values)?;
        let texts = self.get_text_features(input_ids)?;
        let (scale, bias) = (&self.logit_scale, &self.logit_bias);
        scores(&pictures, &texts, scale, Some(bias))
    }
}
