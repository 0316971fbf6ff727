//! The vision transformer: [arXiv 2010.11929](https://arxiv.org/abs/2010.11929). Weight names are those of Hugging Face's checkpoints of
//! `ViTForImageClassification`.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::vit::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! # let config = Config { hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 8, image_size: 32,
//! #     ..Config::vit_base_patch16_224() };
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let model = Model::new(&config, 1000, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, config.image_size, config.image_size), DType::F32, &device)?;
//! assert_eq!(model.forward(&picture)?.dims(), &[1, 1000]);
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor, D};
use candle_nn::{layer_norm, linear, Activation, LayerNorm, Linear, VarBuilder};
use serde::Deserialize;

use crate::blocks::encoder::{run_layers, EncoderBiases, EncoderLayer, EncoderNames, EncoderSpec};
use crate::blocks::vision::{with_first, Grid, PatchEmbedding, Picture, VitSpec};

/// The numbers of a `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Size of a token.
    pub hidden_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads, which divide `hidden_size`.
    pub num_attention_heads: usize,
    /// Inner size of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Activation of the feed-forward blocks.
    pub hidden_act: Activation,
    /// Layer norm epsilon.
    pub layer_norm_eps: f64,
    /// Height and width of an image, in pixels.
    pub image_size: usize,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Channels of an image.
    pub num_channels: usize,
    /// Whether the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
}

impl Config {
    /// [google/vit-base-patch16-224](https://huggingface.co/google/vit-base-patch16-224).
    pub fn vit_base_patch16_224() -> Self {
        Self {
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            layer_norm_eps: 1e-12,
            image_size: 224,
            patch_size: 16,
            num_channels: 3,
            qkv_bias: true,
        }
    }

    /// The encoder of [microsoft/trocr-base-handwritten](https://huggingface.co/microsoft/trocr-base-handwritten).
    pub fn microsoft_trocr_base_handwritten() -> Self {
        Self {
            image_size: 384,
            qkv_bias: false,
            ..Self::vit_base_patch16_224()
        }
    }

    fn layer(&self) -> Result<EncoderSpec> {
        let spec = VitSpec {
            size: self.hidden_size,
            heads: self.num_attention_heads,
            inner: self.intermediate_size,
            eps: self.layer_norm_eps,
        };
        let spec = spec.encoder("vit", self.hidden_act, NAMES)?;
        Ok(EncoderSpec {
            bias: EncoderBiases {
                qkv: self.qkv_bias,
                keys: self.qkv_bias,
                ..spec.bias
            },
            ..spec
        })
    }
}

const NAMES: EncoderNames = EncoderNames {
    qkv: &[
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ],
    joined: "attention.output.dense",
    norms: ["layernorm_before", "layernorm_after"],
    ..EncoderNames::BERT
};

/// Patches of a picture as tokens with positions, behind a token for the class.
#[derive(Debug, Clone)]
pub struct Embeddings {
    patches: PatchEmbedding,
    /// (1, 1, hidden_size)
    class_token: Tensor,
    mask_token: Option<Tensor>,
    /// (1, 1, hidden_size)
    class_position: Tensor,
    positions: Grid,
    image_size: usize,
}

impl Embeddings {
    /// Loads `cls_token`, `position_embeddings`, `patch_embeddings.projection` and, if asked for, `mask_token`.
    ///
    /// # Errors
    /// The patch size is 0, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, use_mask_token: bool, vb: VarBuilder) -> Result<Self> {
        let (size, image, patch) = (cfg.hidden_size, cfg.image_size, cfg.patch_size);
        if patch == 0 || image < patch {
            bail!("vit config: patch_size {patch} does not fit image_size {image}")
        }
        let side = image / patch;
        let picture = Picture {
            channels: cfg.num_channels,
            ..Picture::any("vit")
        };
        let vb_patches = vb.pp("patch_embeddings").pp("projection");
        let positions = vb.get((1, side * side + 1, size), "position_embeddings")?;
        let of_places = positions.narrow(1, 1, side * side)?.squeeze(0)?;
        Ok(Self {
            patches: PatchEmbedding::load(picture, patch, size, vb_patches)?,
            class_token: vb.get((1, 1, size), "cls_token")?,
            mask_token: if use_mask_token {
                Some(vb.get((1, 1, size), "mask_token")?)
            } else {
                None
            },
            class_position: positions.narrow(1, 0, 1)?,
            positions: Grid::new(of_places, side, side),
            image_size: image,
        })
    }

    /// From images (batch, num_channels, height, width) to tokens (batch, 1 + patches, hidden_size).
    ///
    /// - `bool_masked_pos`, (batch, patches), is 1 where the mask token replaces a patch, else 0.
    /// - `interpolate_pos_encoding` allows images of any size that the patch size divides: positions are then interpolated, bicubically,
    ///   as in Transformers.
    ///
    /// # Errors
    /// The images have another shape, or there is a mask and no mask token.
    pub fn forward(
        &self,
        pixel_values: &Tensor,
        bool_masked_pos: Option<&Tensor>,
        interpolate_pos_encoding: bool,
    ) -> Result<Tensor> {
        let (mut tokens, places) = self.patches.forward(pixel_values)?;
        let sides = &pixel_values.dims()[2..];
        if !interpolate_pos_encoding && sides.iter().any(|side| *side != self.image_size) {
            bail!(
                "vit: the pictures are {:?}; they must be {image} x {image}; resize them, or ask for interpolate_pos_encoding",
                pixel_values.dims(),
                image = self.image_size
            )
        }
        tokens = match (bool_masked_pos, &self.mask_token) {
            (None, _) => tokens,
            (Some(_), None) => bail!("vit: got a mask, but the model has no mask token"),
            (Some(mask), Some(token)) => {
                let mask = mask.to_dtype(tokens.dtype())?.unsqueeze(D::Minus1)?;
                let kept = tokens.broadcast_mul(&mask.affine(-1., 1.)?)?;
                (kept + token.broadcast_mul(&mask)?)?
            }
        };
        tokens = tokens.broadcast_add(&self.positions.at(places)?)?;
        with_first(&(&self.class_token + &self.class_position)?, &tokens)
    }
}

/// All layers.
#[derive(Debug, Clone)]
pub struct Encoder {
    layers: Vec<EncoderLayer>,
}

impl Encoder {
    /// Loads `layer.N`.
    ///
    /// # Errors
    /// The heads do not divide the hidden size, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let layers = cfg
            .layer()?
            .load_dense(cfg.num_hidden_layers, vb, "layer")?;
        Ok(Self { layers })
    }
}

/// From tokens (batch, tokens, hidden_size) to the same shape.
impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        run_layers(&self.layers, xs.clone())
    }
}

/// A classifier of images.
#[derive(Debug, Clone)]
pub struct Model {
    embeddings: Embeddings,
    encoder: Encoder,
    norm: LayerNorm,
    classifier: Linear,
}

impl Model {
    /// Loads `vit.{embeddings,encoder,layernorm}` and `classifier`.
    ///
    /// # Errors
    /// The heads do not divide the hidden size, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, num_labels: usize, vb: VarBuilder) -> Result<Self> {
        let vb_vit = vb.pp("vit");
        Ok(Self {
            embeddings: Embeddings::new(cfg, false, vb_vit.pp("embeddings"))?,
            encoder: Encoder::new(cfg, vb_vit.pp("encoder"))?,
            norm: layer_norm(cfg.hidden_size, cfg.layer_norm_eps, vb_vit.pp("layernorm"))?,
            classifier: linear(cfg.hidden_size, num_labels, vb.pp("classifier"))?,
        })
    }

    /// From images (batch, num_channels, image_size, image_size) to logits (batch, num_labels).
    ///
    /// # Errors
    /// The images have another shape, or another dtype or device than the weights.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let tokens = self.embeddings.forward(xs, None, false)?;
        let class = self.encoder.forward(&tokens)?.narrow(1, 0, 1)?.squeeze(1)?;
        self.classifier.forward(&self.norm.forward(&class)?)
    }
}
