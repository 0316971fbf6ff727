//! BLIP, which writes what an image shows: [arXiv 2201.12086](https://arxiv.org/abs/2201.12086). Weight names are those of Hugging Face's
//! checkpoints: a vision transformer below `vision_model`, [`blip_text`] below `text_decoder`.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::blip::{BlipForConditionalGeneration, Config};
//! # fn main() -> candle_core::Result<()> {
//! let mut config = Config::image_captioning_large();
//! # let (text, vision) = (&mut config.text_config, &mut config.vision_config);
//! # (text.vocab_size, text.hidden_size, text.encoder_hidden_size, text.num_hidden_layers) = (40, 24, 32, 1);
//! # (vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers, vision.image_size) = (32, 16, 1, 32);
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = BlipForConditionalGeneration::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let side = config.vision_config.image_size;
//! let picture = Tensor::zeros((1, 3, side, side), DType::F32, &device)?;
//! let picture = model.vision_model().forward(&picture)?;
//! // The decoder keeps what it has seen: each token is given once.
//! let mut token = 39u32;
//! for _ in 0..3 {
//!     let logits = model.text_decoder().forward(&Tensor::new(&[[token]], &device)?, &picture)?;
//!     token = logits.squeeze(0)?.squeeze(0)?.argmax(0)?.to_scalar()?;
//! }
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{init, Activation, Conv2d, Conv2dConfig, Init};
use serde::Deserialize;

use super::blip_text::{self, Writer};
use crate::blocks::encoder::{run_layers, EncoderLayer, EncoderNames};
use crate::blocks::vision::{with_first, PatchEmbedding, Picture, VitSpec};
use crate::blocks::{at_once, Dense, Norm, NormSpec, WeightKind, Weights};

const FAMILY: &str = "blip";

const NAMES: EncoderNames = EncoderNames {
    qkv: &["self_attn.qkv"],
    joined: "self_attn.projection",
    norms: ["layer_norm1", "layer_norm2"],
    ..EncoderNames::TIMM
};

/// The fields of a checkpoint's `config.json` below `vision_config`.
#[derive(Debug, Clone, Deserialize)]
pub struct VisionConfig {
    /// The size of a patch's vector.
    pub hidden_size: usize,
    /// The inner size of feed-forward blocks.
    pub intermediate_size: usize,
    /// Not used.
    pub projection_dim: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Height and width of an image, in pixels.
    pub image_size: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// The activation of feed-forward blocks.
    pub hidden_act: Activation,
    /// Norm epsilon, added to the variance.
    pub layer_norm_eps: f64,
}

/// The fields of a checkpoint's `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Configuration of the language model.
    pub text_config: blip_text::Config,
    /// Configuration of the vision encoder.
    pub vision_config: VisionConfig,
    /// Not used.
    pub projection_dim: usize,
    /// Not used.
    pub image_text_hidden_size: usize,
}

impl Config {
    /// [Salesforce/blip-image-captioning-large](https://huggingface.co/Salesforce/blip-image-captioning-large).
    pub fn image_captioning_large() -> Self {
        Self {
            text_config: blip_text::Config {
                vocab_size: 30524,
                hidden_size: 768,
                encoder_hidden_size: 1024,
                intermediate_size: 3072,
                projection_dim: 768,
                num_hidden_layers: 12,
                num_attention_heads: 12,
                max_position_embeddings: 512,
                hidden_act: Activation::Gelu,
                layer_norm_eps: 1e-12,
                is_decoder: true,
            },
            vision_config: VisionConfig {
                hidden_size: 1024,
                intermediate_size: 4096,
                projection_dim: 512,
                num_hidden_layers: 24,
                num_attention_heads: 16,
                image_size: 384,
                patch_size: 16,
                hidden_act: Activation::Gelu,
                layer_norm_eps: 1e-5,
            },
            projection_dim: 512,
            image_text_hidden_size: 256,
        }
    }
}

/// From an image to vectors of its patches.
#[derive(Debug, Clone)]
pub struct VisionModel {
    patches: PatchEmbedding,
    /// (1, 1, hidden_size)
    class: Tensor,
    /// (1, 1 + patches, hidden_size)
    positions: Tensor,
    layers: Vec<EncoderLayer>,
    norm: Norm,
}

impl VisionModel {
    /// Loads `embeddings`, `encoder.layers.N` and `post_layernorm`, of any kind.
    pub(crate) async fn load(cfg: &VisionConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let spec = VitSpec {
            size: cfg.hidden_size,
            heads: cfg.num_attention_heads,
            inner: cfg.intermediate_size,
            eps: cfg.layer_norm_eps,
        };
        let layers = spec.encoder(FAMILY, cfg.hidden_act, NAMES)?;
        let (size, image, patch) = (spec.size, cfg.image_size, cfg.patch_size);
        if patch == 0 || image == 0 || image % patch != 0 {
            bail!("{FAMILY} config: patch_size {patch} does not divide image_size {image}")
        }
        let places = (image / patch).saturating_mul(image / patch);
        let picture = Picture {
            size: Some((image, image)),
            ..Picture::any(FAMILY)
        };
        let (class, positions) = ([1, 1, size], [1, places.saturating_add(1), size]);
        let zeros = Init::Const(0.);
        let conv = patches(size, patch, weights).await?;
        let (count, prefix) = (cfg.num_hidden_layers, "encoder.layers");
        Ok(Self {
            patches: PatchEmbedding::of(conv, picture, patch),
            class: weights
                .dense("embeddings.class_embedding", &class, zeros)
                .await?,
            positions: weights
                .dense("embeddings.position_embedding", &positions, zeros)
                .await?,
            layers: layers.load(count, weights, prefix).await?,
            norm: weights
                .norm("post_layernorm", size, NormSpec::layer(spec.eps))
                .await?,
        })
    }
}

/// The convolution that makes vectors of patches.
async fn patches(size: usize, patch: usize, weights: &mut Weights<'_>) -> Result<Conv2d> {
    let part = |part: &str| format!("embeddings.patch_embedding.{part}");
    let (channels, name) = (3, part("weight"));
    let kernel = [size, channels, patch, patch];
    let normal = init::DEFAULT_KAIMING_NORMAL;
    let weight = weights.dense(&name, &kernel, normal).await?;
    let bound = 1. / (channels as f64).sqrt();
    let uniform = Init::Uniform {
        lo: -bound,
        up: bound,
    };
    let bias = weights.dense(&part("bias"), &[size], uniform).await?;
    let touching = Conv2dConfig {
        stride: patch,
        ..Default::default()
    };
    Ok(Conv2d::new(weight, Some(bias), touching))
}

/// From images (batch, 3, image_size, image_size) to (batch, 1 + patches, hidden_size).
impl Module for VisionModel {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let (patches, _) = self.patches.forward(xs)?;
        let xs = with_first(&self.class, &patches)?.broadcast_add(&self.positions)?;
        self.norm.forward(&run_layers(&self.layers, xs)?)
    }
}

/// The part that sees and the part that writes, over dense or quantised weights.
#[derive(Debug, Clone)]
pub struct Captioner<W> {
    vision_model: VisionModel,
    text_decoder: Writer<W>,
}

/// The part that sees and the part that writes.
pub type BlipForConditionalGeneration = Captioner<Dense>;

impl<W: WeightKind> Captioner<W> {
    /// Loads what is below `vision_model` and `text_decoder`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: W::Builder<'_>) -> Result<Self> {
        Ok(Self {
            vision_model: W::load(W::below(&vb, "vision_model"), |weights| {
                at_once(VisionModel::load(&cfg.vision_config, weights))
            })?,
            text_decoder: Writer::<W>::new(&cfg.text_config, W::below(&vb, "text_decoder"))?,
        })
    }

    /// The part that sees.
    pub fn vision_model(&self) -> &VisionModel {
        &self.vision_model
    }

    /// The part that writes, given what the other returned.
    pub fn text_decoder(&mut self) -> &mut Writer<W> {
        &mut self.text_decoder
    }

    /// Forgets the text, so that another can begin.
    pub fn reset_kv_cache(&mut self) {
        self.text_decoder.reset_kv_cache();
    }
}
