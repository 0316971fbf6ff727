//! Pixtral's three parts together, as LLaVA, [arXiv 2304.08485](https://arxiv.org/abs/2304.08485), has them: what sees, the layers between,
//! and what writes.

use candle_core::{DType, Module, Result, Tensor};
use candle_nn::{linear, Activation, Linear, VarBuilder};
use serde::Deserialize;

use super::vision_model;
use crate::models::mistral;

/// A checkpoint's `config.json`.
#[derive(Deserialize, Debug, Clone)]
pub struct Config {
    /// Activation between the layers from patches to tokens.
    pub projector_hidden_act: Activation,
    /// Configuration of the language model.
    pub text_config: mistral::Config,
    /// Configuration of the vision encoder.
    pub vision_config: vision_model::Config,
    /// The placeholder id of a patch in a prompt. The model does not use it.
    pub image_token_index: usize,
    /// Not used: the number of patches follows from the image's size.
    pub image_seq_length: usize,
}

/// From the patches of an image to tokens of the text: two linear layers and an activation between them.
#[derive(Debug, Clone)]
pub struct MultiModalProjector {
    linear_1: Linear,
    act: Activation,
    linear_2: Linear,
}

impl MultiModalProjector {
    /// Loads `linear_1` and `linear_2`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (patch, hidden) = (cfg.vision_config.hidden_size, cfg.text_config.hidden_size);
        Ok(Self {
            linear_1: linear(patch, hidden, vb.pp("linear_1"))?,
            act: cfg.projector_hidden_act,
            linear_2: linear(hidden, hidden, vb.pp("linear_2"))?,
        })
    }
}

/// From (batch, patches, vision hidden_size) to (batch, patches, text hidden_size).
impl Module for MultiModalProjector {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let inner = self.act.forward(&self.linear_1.forward(xs)?)?;
        self.linear_2.forward(&inner)
    }
}

/// The model and the state of one text. A clone shares the weights but has independent state.
#[derive(Debug, Clone)]
pub struct Model {
    /// Projection of patches to tokens, in f32.
    pub multi_modal_projector: MultiModalProjector,
    /// The language model.
    pub language_model: mistral::Model,
    /// The vision encoder, in f32.
    pub vision_tower: vision_model::Model,
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Dtype of the language model.
    pub dtype: DType,
    /// The next position.
    pub pos: usize,
}

impl Model {
    /// Loads `language_model` in the dtype of `vb`, `vision_tower` and `multi_modal_projector` in f32.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let seeing = |name| vb.pp(name).to_dtype(DType::F32);
        let projector = MultiModalProjector::new(cfg, seeing("multi_modal_projector"))?;
        Ok(Self {
            multi_modal_projector: projector,
            language_model: mistral::Model::new(&cfg.text_config, vb.pp("language_model"))?,
            vision_tower: vision_model::Model::new(&cfg.vision_config, seeing("vision_tower"))?,
            patch_size: cfg.vision_config.patch_size,
            dtype: vb.dtype(),
            pos: 0,
        })
    }

    /// Forgets the text, so that another can begin.
    pub fn clear_kv_cache(&mut self) {
        self.language_model.clear_kv_cache();
        self.pos = 0;
    }

    /// The patches of images of one size, `(b, channels, height, width)` in f32, row by row, as the text has its tokens: `(b, patches,
    /// hidden_size)` in f32.
    ///
    /// # Errors
    /// Those of [`vision_model::Model`].
    pub fn encode_image(&self, image: &Tensor) -> Result<Tensor> {
        let patches = self.vision_tower.forward(image)?;
        self.multi_modal_projector.forward(&patches)
    }

    /// The logits of what follows the last of the token ids, `(b, t)`, which continue the text: `(b, 1, vocab)` in the model's dtype.
    ///
    /// # Errors
    /// If there are no ids, or more than fit.
    pub fn lm_forward(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        let (_, t) = input_ids.dims2()?;
        let logits = self.language_model.forward(input_ids, self.pos)?;
        self.pos += t;
        Ok(logits)
    }

    /// As [`lm_forward`](Self::lm_forward), from the vectors of tokens and patches, `(b, t, hidden_size)` in the model's dtype. Each sees
    /// those before it.
    ///
    /// # Errors
    /// As [`lm_forward`](Self::lm_forward).
    pub fn lm_forward_embeds(&mut self, xs: &Tensor) -> Result<Tensor> {
        let (_, t, _) = xs.dims3()?;
        let logits = self.language_model.forward_embeds_causal(xs, self.pos)?;
        self.pos += t;
        Ok(logits)
    }
}
