//! Moondream of 2024, which answers questions about an image: [vikhyat/moondream](https://github.com/vikhyat/moondream). A vision
//! transformer over patches of 14 pixels and a small network behind it make tokens for [`super::mixformer`]. Weight names are those of
//! [vikhyatk/moondream1](https://huggingface.co/vikhyatk/moondream1) and the revisions of
//! [vikhyatk/moondream2](https://huggingface.co/vikhyatk/moondream2) from before August 2024.
//!
//! ```
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::moondream::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! // The published models' is Config::v2().
//! let config: Config = serde_json::from_str(
//!     r#"{"phi_config": {"vocab_size": 40, "n_positions": 64, "n_embd": 32, "n_layer": 1, "n_inner": 48, "n_head": 2,
//!             "rotary_dim": 8, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": false,
//!             "pad_vocab_size_multiple": 64},
//!         "vision_config": {"image_embedding_dim": 24, "model_dim": 32, "hidden_dim": 16, "hidden_features": 16,
//!             "embed_len": 4, "embed_dim": 24, "num_blocks": 1, "num_heads": 2, "act": "gelu_pytorch_tanh"}}"#,
//! )
//! .map_err(candle_core::Error::wrap)?;
//! let device = Device::Cpu;
//! let mut model = Model::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, 28, 28), DType::F32, &device)?;
//! let picture = model.vision_encoder().forward(&picture)?;
//! let (first, question) = (Tensor::new(&[[0u32]], &device)?, Tensor::new(&[[7u32, 9]], &device)?);
//! let logits = model.text_model().forward_with_img(&first, &question, &picture)?;
//! let token = logits.flatten_all()?.argmax(0)?.to_scalar::<u32>()?;
//! model.text_model().forward(&Tensor::new(&[[token]], &device)?)?;
//! # Ok(())
//! # }
//! ```

use std::marker::PhantomData;

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{Activation, Init};
use serde::Deserialize;

use super::mixformer::{Config as PhiConfig, MixFormer};
use crate::blocks::encoder::{run_layers, EncoderLayer, EncoderNames};
use crate::blocks::vision::{Picture, VitSpec};
use crate::blocks::{at_once, Dense, LinearSpec, Norm, NormSpec, Projection, WeightKind, Weights};

const FAMILY: &str = "moondream";
/// Height and width of a patch in pixels, and the channels of an image.
const PATCH: usize = 14;
const CHANNELS: usize = 3;
/// Numbers of a patch.
const NUMBERS: usize = CHANNELS * PATCH * PATCH;
/// Norm epsilon.
const EPS: f64 = 1e-5;

/// The numbers of a model.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Configuration of the language model.
    pub phi_config: PhiConfig,
    /// Configuration of the vision encoder.
    pub vision_config: VisionConfig,
}

impl Config {
    /// [vikhyatk/moondream2](https://huggingface.co/vikhyatk/moondream2).
    pub fn v2() -> Self {
        Self {
            phi_config: PhiConfig::v1_5(),
            vision_config: VisionConfig::v2(),
        }
    }

    /// That a picture's vectors are of the size of a token's.
    fn check(&self) -> Result<()> {
        let (seen, read) = (self.vision_config.model_dim, self.phi_config.n_embd);
        if seen != read {
            bail!("{FAMILY} config: model_dim {seen} of vision_config must equal n_embd {read} of phi_config")
        }
        Ok(())
    }
}

/// The numbers of the part that sees.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct VisionConfig {
    /// Size of what the transformer gives, which is `embed_dim`.
    image_embedding_dim: usize,
    /// Size of a token.
    model_dim: usize,
    /// Inner size of the network behind the transformer.
    hidden_dim: usize,
    /// Inner size of the transformer's feed-forward blocks.
    hidden_features: usize,
    /// Patches of an image, which is square.
    embed_len: usize,
    /// Size of a patch's vector.
    embed_dim: usize,
    /// Layers.
    num_blocks: usize,
    /// Heads, which divide `embed_dim`.
    num_heads: usize,
    act: Activation,
}

impl VisionConfig {
    /// That of [vikhyatk/moondream2](https://huggingface.co/vikhyatk/moondream2): images of 378x378 pixels, 27 layers of size 1152.
    pub fn v2() -> Self {
        Self {
            image_embedding_dim: 1152,
            model_dim: 2048,
            hidden_dim: 8192,
            hidden_features: 4304,
            embed_len: 729,
            embed_dim: 1152,
            num_blocks: 27,
            num_heads: 16,
            act: Activation::GeluPytorchTanh,
        }
    }

    fn spec(&self) -> Result<VitSpec> {
        let spec = VitSpec {
            size: self.embed_dim,
            heads: self.num_heads,
            inner: self.hidden_features,
            eps: EPS,
        };
        spec.head_dim(FAMILY)?;
        if self.image_embedding_dim != self.embed_dim {
            bail!(
                "{FAMILY} config: image_embedding_dim {} must equal embed_dim {}",
                self.image_embedding_dim,
                self.embed_dim
            )
        }
        if self.embed_len.isqrt().pow(2) != self.embed_len {
            bail!(
                "{FAMILY} config: embed_len {} must be the number of patches of a square picture, such as 729 for 27 rows",
                self.embed_len
            )
        }
        for (name, value) in [
            ("model_dim", self.model_dim),
            ("hidden_dim", self.hidden_dim),
            ("hidden_features", self.hidden_features),
            ("embed_len", self.embed_len),
        ] {
            if value == 0 {
                bail!("{FAMILY} config: {name} is 0; it must be at least 1")
            }
        }
        Ok(spec)
    }
}

fn linear(name: &str, in_dim: usize, out_dim: usize) -> LinearSpec {
    LinearSpec {
        name: name.to_string(),
        in_dim,
        out_dim,
        bias: true,
    }
}

/// The transformer, over weights of any kind.
#[derive(Debug, Clone)]
struct Vit {
    picture: Picture,
    patches: Projection,
    /// (1, patches, size)
    positions: Tensor,
    layers: Vec<EncoderLayer>,
    norm: Norm,
}

impl Vit {
    /// Loads what is below `encoder.model.visual`.
    async fn load(cfg: &VisionConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let (spec, prefix) = (cfg.spec()?, "encoder.model.visual");
        let side = cfg.embed_len.isqrt() * PATCH;
        let name = |part: &str| format!("{prefix}.{part}");
        let patches = linear(&name("patch_embed.linear"), NUMBERS, spec.size);
        let places = [1, cfg.embed_len, spec.size];
        let table = name("pos_embed");
        let positions = weights.dense(&table, &places, Init::Const(0.)).await?;
        let layers = spec.encoder(FAMILY, cfg.act, EncoderNames::TIMM)?;
        let blocks = name("blocks");
        let layers = layers.load(cfg.num_blocks, weights, &blocks).await?;
        Ok(Self {
            picture: Picture {
                size: Some((side, side)),
                ..Picture::any(FAMILY)
            },
            patches: weights.linear(&patches).await?,
            positions,
            layers,
            norm: weights
                .norm(&name("norm"), spec.size, NormSpec::layer(EPS))
                .await?,
        })
    }

    /// The numbers of each patch, channel by channel and row by row: from images (batch, 3, side, side) to (batch, patches, 588).
    fn patches(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, h, w) = self.picture.check(xs)?;
        let (rows, columns) = (h / PATCH, w / PATCH);
        xs.reshape((b, CHANNELS, rows, PATCH, columns, PATCH))?
            .permute((0, 2, 4, 1, 3, 5))?
            .reshape((b, rows * columns, NUMBERS))
    }
}

/// From the numbers of patches (batch, patches, 588) to (batch, patches, embed_dim).
impl Module for Vit {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let places = self.positions.dim(1)?;
        if xs.rank() != 3 || xs.dim(1)? != places {
            bail!(
                "{FAMILY}: the patches are {:?}; they must be (batch, {places}, {NUMBERS})",
                xs.dims()
            )
        }
        let xs = self.patches.forward(xs)?.broadcast_add(&self.positions)?;
        self.norm.forward(&run_layers(&self.layers, xs)?)
    }
}

/// The network behind the transformer, over weights of any kind.
#[derive(Debug, Clone)]
struct Projector {
    up: Projection,
    activation: Activation,
    down: Projection,
}

impl Projector {
    /// Loads what is below `projection.mlp`.
    async fn load(cfg: &VisionConfig, weights: &mut Weights<'_>) -> Result<Self> {
        let inner = cfg.hidden_dim;
        let up = linear("projection.mlp.fc1", cfg.image_embedding_dim, inner);
        let down = linear("projection.mlp.fc2", inner, cfg.model_dim);
        Ok(Self {
            up: weights.linear(&up).await?,
            activation: cfg.act,
            down: weights.linear(&down).await?,
        })
    }
}

/// From (batch, patches, embed_dim) to (batch, patches, model_dim).
impl Module for Projector {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let inner = self.activation.forward(&self.up.forward(xs)?)?;
        self.down.forward(&inner)
    }
}

/// The transformer that sees.
#[derive(Debug, Clone)]
pub struct Encoder {
    vit: Vit,
}

/// From the numbers of patches (batch, embed_len, 588) to (batch, embed_len, embed_dim).
impl Module for Encoder {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.vit.forward(xs)
    }
}

/// The part that sees, over dense or quantised weights: the transformer and the network behind it.
#[derive(Debug, Clone)]
pub struct Vision<W> {
    encoder: Encoder,
    projection: Projector,
    of: PhantomData<fn() -> W>,
}

/// The part that sees: the transformer and the network behind it.
pub type VisionEncoder = Vision<Dense>;

impl<W: WeightKind> Vision<W> {
    /// Loads what is below `encoder.model.visual` and `projection.mlp`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &VisionConfig, vb: W::Builder<'_>) -> Result<Self> {
        W::load(vb, |weights| {
            Ok(Self {
                encoder: Encoder {
                    vit: at_once(Vit::load(cfg, weights))?,
                },
                projection: at_once(Projector::load(cfg, weights))?,
                of: PhantomData,
            })
        })
    }
}

/// From square images (batch, 3, height, width) of `embed_len` patches of 14x14 pixels, 378x378 for the published models, to vectors as
/// the text has them: (batch, embed_len, model_dim).
///
/// # Errors
/// The pictures have another shape, or another dtype or device than the weights.
impl<W> Module for Vision<W> {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let patches = self.encoder.vit.patches(xs)?;
        self.projection.forward(&self.encoder.forward(&patches)?)
    }
}

/// The part that sees and the part that writes, over dense or quantised weights.
#[derive(Debug, Clone)]
pub struct Moondream<W> {
    /// What writes.
    pub text_model: MixFormer<W>,
    /// What sees.
    pub vision_encoder: Vision<W>,
}

/// The part that sees and the part that writes.
pub type Model = Moondream<Dense>;

impl<W: WeightKind> Moondream<W> {
    /// Loads what is below `text_model` and `vision_encoder`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(config: &Config, vb: W::Builder<'_>) -> Result<Self> {
        config.check()?;
        let (text, vision) = (&config.phi_config, &config.vision_config);
        Ok(Self {
            vision_encoder: Vision::<W>::new(vision, W::below(&vb, "vision_encoder"))?,
            text_model: MixFormer::<W>::new_v2(text, W::below(&vb, "text_model"))?,
        })
    }

    /// What sees.
    pub fn vision_encoder(&self) -> &Vision<W> {
        &self.vision_encoder
    }

    /// What writes, given what the other returned.
    pub fn text_model(&mut self) -> &mut MixFormer<W> {
        &mut self.text_model
    }
}
