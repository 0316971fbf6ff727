//! PaliGemma, which writes about an image: [arXiv 2407.07726](https://arxiv.org/abs/2407.07726). [`super::siglip`] encodes the image, a
//! linear layer makes tokens of its patches, and [`super::gemma`] continues after them and the prompt, which all see each other. Weight
//! names are those of Hugging Face's checkpoints, such as
//! [google/paligemma-3b-pt-224](https://huggingface.co/google/paligemma-3b-pt-224).
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! use candle_transformers::models::paligemma::{Config, Model};
//! # fn main() -> candle_core::Result<()> {
//! let mut config = Config::paligemma_3b_224();
//! # let (vision, text) = (&mut config.vision_config, &mut config.text_config);
//! # (vision.hidden_size, vision.intermediate_size, vision.num_hidden_layers) = (32, 16, 1);
//! # (text.hidden_size, text.intermediate_size, text.num_hidden_layers) = (16, 16, 1);
//! # (text.vocab_size, text.head_dim, config.projection_dim) = (40, 8, 16);
//! let device = Device::Cpu;
//! // A real model: VarBuilder::from_mmaped_safetensors.
//! let mut model = Model::new(&config, VarBuilder::zeros(DType::F32, &device))?;
//! let picture = Tensor::zeros((1, 3, 224, 224), DType::F32, &device)?;
//! let mut logits = model.setup(&picture, &Tensor::new(&[[2u32, 7, 9]], &device)?)?;
//! for _ in 0..3 {
//!     let token = logits.flatten_all()?.argmax(0)?.to_scalar::<u32>()?;
//!     logits = model.forward(&Tensor::new(&[[token]], &device)?)?;
//! }
//! # Ok(())
//! # }
//! ```

use candle_core::{bail, Module, Result, Tensor};
use candle_nn::{linear, Activation, Linear, VarBuilder};
use serde::Deserialize;

use super::spelling::vision_model;
use super::{gemma, siglip};
use crate::blocks::family::all_visible;
use crate::blocks::{CausalLm, Hidden};

/// A checkpoint's `config.json`.
#[derive(Deserialize, Clone, Debug)]
pub struct Config {
    /// Configuration of the vision encoder.
    pub vision_config: siglip::VisionConfig,
    /// Configuration of the language model.
    pub text_config: gemma::Config,
    /// The size of a patch's vector where it enters the text, which is `hidden_size` of `text_config`.
    pub projection_dim: usize,
}

impl Config {
    fn paligemma_3b(vision_config: siglip::VisionConfig) -> Self {
        Self {
            vision_config,
            text_config: gemma::Config {
                attention_bias: false,
                head_dim: 256,
                hidden_act: Some(Activation::GeluPytorchTanh),
                hidden_activation: None,
                hidden_size: 2048,
                intermediate_size: 16384,
                num_attention_heads: 8,
                num_hidden_layers: 18,
                num_key_value_heads: 1,
                rms_norm_eps: 1e-6,
                rope_theta: 10_000.,
                vocab_size: 257_216,
                max_position_embeddings: 8192,
            },
            projection_dim: 2048,
        }
    }

    /// [google/paligemma-3b-pt-224](https://huggingface.co/google/paligemma-3b-pt-224).
    pub fn paligemma_3b_224() -> Self {
        Self::paligemma_3b(siglip::VisionConfig::paligemma_3b_224())
    }

    /// [google/paligemma-3b-pt-448](https://huggingface.co/google/paligemma-3b-pt-448).
    pub fn paligemma_3b_448() -> Self {
        Self::paligemma_3b(siglip::VisionConfig::paligemma_3b_448())
    }
}

/// From the patches of an image to tokens of the text.
#[derive(Clone, Debug)]
pub struct MultiModalProjector {
    linear: Linear,
}

impl MultiModalProjector {
    fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (size, hidden) = (cfg.projection_dim, cfg.text_config.hidden_size);
        if size != hidden {
            bail!(
                "paligemma config: projection_dim {size} must equal the text's hidden_size {hidden}"
            )
        }
        let patch = cfg.vision_config.hidden_size;
        Ok(Self {
            linear: linear(patch, size, vb.pp("linear"))?,
        })
    }
}

/// From (batch, patches, vision hidden_size) to (batch, patches, projection_dim).
impl Module for MultiModalProjector {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        self.linear.forward(xs)
    }
}

/// The model and the state of its image and text. A clone shares the weights but has independent state.
#[derive(Clone, Debug)]
pub struct Model {
    /// The next position.
    pos: usize,
    vision_tower: siglip::VisionModel,
    multi_modal_projector: MultiModalProjector,
    language_model: CausalLm,
}

impl Model {
    /// Loads `vision_tower.vision_model` or, as Transformers 5 writes it, `vision_tower`, `multi_modal_projector` and `language_model`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (vision, seen) = (&cfg.vision_config, vision_model(vb.pp("vision_tower")));
        let text = cfg.text_config.spec()?;
        Ok(Self {
            pos: 0,
            multi_modal_projector: MultiModalProjector::new(cfg, vb.pp("multi_modal_projector"))?,
            vision_tower: siglip::VisionModel::new(vision, false, seen)?,
            language_model: CausalLm::from_vb(text, vb.pp("language_model"))?,
        })
    }

    /// The logits of what follows images, `(b, 3, height, width)`, and prompts, token ids `(b, t)`: `(b, 1, vocab)` in the model's dtype.
    /// A new sequence, of the image's patches and the tokens, begins.
    ///
    /// # Errors
    /// If there is not one image for each prompt, a shape does not fit, or there are more positions than the model has.
    pub fn setup(&mut self, pixel_values: &Tensor, input_ids: &Tensor) -> Result<Tensor> {
        let embeds = self.picture_and_text(pixel_values, input_ids)?;
        let logits = self.begin(&embeds)?.last_logits()?;
        self.pos = embeds.dim(1)?;
        Ok(logits)
    }

    /// The logits of what follows the last of the token ids, `(b, t)`, which continue the sequence and see what is before them:
    /// `(b, 1, vocab)` in the model's dtype.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        let hidden = self.language_model.forward(input_ids, self.pos)?;
        let logits = hidden.last_logits()?;
        self.pos += input_ids.dim(1)?;
        Ok(logits)
    }

    /// The stream after the last layer, before the last norm, of token ids `(b, t)` that see each other: `(b, t, hidden_size)`. What the
    /// model has seen is forgotten.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn forward_without_projection(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        self.hidden_of_text(input_ids)?.stream()
    }

    /// As [`forward_without_projection`](Self::forward_without_projection), of the patches of images, `(b, 3, height, width)`, and the
    /// token ids behind them.
    ///
    /// # Errors
    /// As [`setup`](Self::setup).
    pub fn setup_without_projection(
        &mut self,
        pixel_values: &Tensor,
        input_ids: &Tensor,
    ) -> Result<Tensor> {
        self.hidden_of_picture(pixel_values, input_ids)?.stream()
    }

    pub(crate) fn hidden_of_text(&mut self, input_ids: &Tensor) -> Result<Hidden<'_>> {
        let embeds = self.language_model.decoder().embed(input_ids)?;
        self.begin(&embeds)
    }

    pub(crate) fn hidden_of_picture(
        &mut self,
        pixel_values: &Tensor,
        input_ids: &Tensor,
    ) -> Result<Hidden<'_>> {
        let embeds = self.picture_and_text(pixel_values, input_ids)?;
        self.begin(&embeds)
    }

    /// Forgets the image and the text.
    pub fn clear_kv_cache(&mut self) {
        self.pos = 0;
        self.language_model.clear_kv_cache();
    }

    /// Gemma scales the vectors of tokens, not those of patches.
    fn picture_and_text(&self, pixel_values: &Tensor, input_ids: &Tensor) -> Result<Tensor> {
        let patches = self.vision_tower.forward(pixel_values)?;
        let patches = self.multi_modal_projector.forward(&patches)?;
        let tokens = self.language_model.decoder().embed(input_ids)?;
        if patches.dim(0)? != tokens.dim(0)? || tokens.rank() != 3 {
            bail!(
                "paligemma: pixel_values are {:?} and input_ids {:?}; they must be (batch, 3, height, width) and (batch, seq) of \
                 one batch",
                pixel_values.dims(),
                input_ids.dims()
            )
        }
        Tensor::cat(&[patches, tokens], 1)
    }

    /// A new sequence, whose positions see each other.
    fn begin(&mut self, embeds: &Tensor) -> Result<Hidden<'_>> {
        self.clear_kv_cache();
        let all = all_visible(embeds)?;
        self.language_model.forward_embeds(embeds, 0, all.as_ref())
    }
}
