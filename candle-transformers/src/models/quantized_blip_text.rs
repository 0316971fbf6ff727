//! The text part of BLIP with quantised weights, from GGUF files that have the names of Hugging Face's checkpoints. The model is
//! [`super::blip_text`]'s; activations are f32.
//!
//! ```no_run
//! use candle_core::{DType, Device, Tensor};
//! use candle_transformers::models::blip;
//! use candle_transformers::models::quantized_blip_text::{TextLMHeadModel, VarBuilder};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let vb = VarBuilder::from_gguf("model.gguf", &device)?;
//! let config = blip::Config::image_captioning_large().text_config;
//! let mut model = TextLMHeadModel::new(&config, vb.pp("text_decoder"))?;
//! let picture = Tensor::zeros((1, 5, config.encoder_hidden_size), DType::F32, &device)?;
//! let logits = model.forward(&Tensor::new(&[[30522u32]], &device)?, &picture)?;
//! assert_eq!(logits.dims(), &[1, 1, config.vocab_size]);
//! # Ok(())
//! # }
//! ```

use candle_core::{DType, Module, Result, Tensor};

use super::blip_text::{self, Writer};
use crate::blocks::{at_once, LinearSpec, Projection, Weights};
pub use crate::quantized_var_builder::VarBuilder;

/// The same as without quantisation.
pub type Config = blip_text::Config;

/// The vector of a text: that of its first token through a layer and tanh.
#[derive(Debug, Clone)]
pub struct TextPooler {
    dense: Projection,
}

impl TextPooler {
    /// Loads `dense`.
    ///
    /// # Errors
    /// If a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let dense = LinearSpec {
            name: "dense".to_string(),
            in_dim: cfg.hidden_size,
            out_dim: cfg.hidden_size,
            bias: true,
        };
        let (device, mut vb) = (vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, DType::F32, &device);
        Ok(Self {
            dense: at_once(weights.linear(&dense))?,
        })
    }
}

/// From (batch, seq, hidden_size) to (batch, hidden_size).
impl Module for TextPooler {
    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        blip_text::pooled(&self.dense, xs)
    }
}

/// The model with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct TextLMHeadModel {
    model: Writer,
}

impl TextLMHeadModel {
    /// Loads what is below `bert` and `cls`.
    ///
    /// # Errors
    /// If the configuration contradicts itself, or a weight is missing or has another shape than the configuration says.
    pub fn new(cfg: &Config, vb: VarBuilder) -> Result<Self> {
        let (device, mut vb) = (vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, DType::F32, &device);
        Ok(Self {
            model: at_once(Writer::load(cfg, &mut weights))?,
        })
    }

    /// As [`blip_text::TextLMHeadModel::forward`].
    ///
    /// # Errors
    /// As that.
    pub fn forward(
        &mut self,
        input_ids: &Tensor,
        encoder_hidden_states: &Tensor,
    ) -> Result<Tensor> {
        self.model.forward(input_ids, encoder_hidden_states)
    }

    /// Forgets the text, so that another can begin.
    pub fn reset_kv_cache(&mut self) {
        self.model.reset();
    }
}
