//! T5 with quantised weights, from GGUF files that have the names of Hugging Face's checkpoints. The model is [`super::t5`]'s; activations
//! are f32.
//!
//! ```no_run
//! use candle_core::{Device, Tensor};
//! use candle_transformers::models::quantized_t5::{Config, T5ForConditionalGeneration, VarBuilder};
//! # fn main() -> candle_core::Result<()> {
//! let device = Device::Cpu;
//! let vb = VarBuilder::from_gguf("model.gguf", &device)?;
//! let mut model = T5ForConditionalGeneration::load(vb, &Config::default())?;
//! let encoded = model.encode(&Tensor::new(&[[13u32, 7, 9, 1]], &device)?)?;
//! let logits = model.decode(&Tensor::new(&[[0u32]], &device)?, &encoded)?;
//! assert_eq!(logits.dims(), &[1, 32128]);
//! # Ok(())
//! # }
//! ```

use candle_core::{DType, Device, Result, Tensor};
use serde::Deserialize;

use super::t5;
use super::t5::stack;
use crate::blocks::{at_once, Weights};
pub use crate::quantized_var_builder::VarBuilder;

/// [`t5::Config`] with these public fields. The others come from `config.json`, or from a [`t5::Config`].
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "t5::Config")]
pub struct Config {
    others: t5::Config,
    /// The form of the feed-forward blocks.
    pub feed_forward_proj: t5::ActivationWithOptionalGating,
    /// Whether the decoder keeps the keys and values of tokens, so that each is given once.
    pub use_cache: bool,
    /// The padding token.
    pub pad_token_id: usize,
    /// The token that ends a text.
    pub eos_token_id: usize,
    /// The token that the decoder starts with.
    pub decoder_start_token_id: Option<usize>,
}

impl From<t5::Config> for Config {
    fn from(config: t5::Config) -> Self {
        Self {
            feed_forward_proj: config.feed_forward_proj.clone(),
            use_cache: config.use_cache,
            pad_token_id: config.pad_token_id,
            eos_token_id: config.eos_token_id,
            decoder_start_token_id: config.decoder_start_token_id,
            others: config,
        }
    }
}

impl From<&Config> for t5::Config {
    fn from(config: &Config) -> Self {
        Self {
            feed_forward_proj: config.feed_forward_proj.clone(),
            use_cache: config.use_cache,
            pad_token_id: config.pad_token_id,
            eos_token_id: config.eos_token_id,
            decoder_start_token_id: config.decoder_start_token_id,
            ..config.others.clone()
        }
    }
}

/// T5 small.
impl Default for Config {
    fn default() -> Self {
        t5::Config::default().into()
    }
}

/// The encoder alone: from token ids to a vector for each of them.
#[derive(Debug, Clone)]
pub struct T5EncoderModel {
    encoder: stack::Encoder,
}

impl T5EncoderModel {
    /// Loads the weights that [`t5::T5EncoderModel::load`] does.
    ///
    /// # Errors
    /// As that.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        let (device, mut vb) = (vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, DType::F32, &device);
        Ok(Self {
            encoder: at_once(stack::Encoder::load(&cfg.into(), &mut weights))?,
        })
    }

    /// As [`t5::T5EncoderModel::forward`].
    ///
    /// # Errors
    /// As that.
    pub fn forward(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        self.encoder.forward(input_ids, None, None)
    }

    /// As [`t5::T5EncoderModel::forward_masked`].
    ///
    /// # Errors
    /// As that.
    pub fn forward_masked(
        &mut self,
        input_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.encoder.forward(input_ids, attention_mask, None)
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        &self.encoder.device
    }

    /// Changes nothing: an encoder keeps no tokens.
    pub fn clear_kv_cache(&mut self) {}
}

/// From a text to another: an encoder, and a decoder with a layer over the tokens.
#[derive(Debug, Clone)]
pub struct T5ForConditionalGeneration {
    model: stack::Generator,
}

impl T5ForConditionalGeneration {
    /// Loads the weights that [`t5::T5ForConditionalGeneration::load`] does.
    ///
    /// # Errors
    /// As that.
    pub fn load(vb: VarBuilder, cfg: &Config) -> Result<Self> {
        let (device, mut vb) = (vb.device().clone(), vb);
        let mut weights = Weights::new(&mut vb, DType::F32, &device);
        Ok(Self {
            model: at_once(stack::Generator::load(&cfg.into(), &mut weights))?,
        })
    }

    /// As [`t5::T5ForConditionalGeneration::encode`].
    ///
    /// # Errors
    /// As that.
    pub fn encode(&mut self, input_ids: &Tensor) -> Result<Tensor> {
        self.model.encoder.forward(input_ids, None, None)
    }

    /// As [`t5::T5ForConditionalGeneration::encode_masked`].
    ///
    /// # Errors
    /// As that.
    pub fn encode_masked(
        &mut self,
        input_ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.model.encoder.forward(input_ids, attention_mask, None)
    }

    /// As [`t5::T5ForConditionalGeneration::decode`].
    ///
    /// # Errors
    /// As that.
    pub fn decode(
        &mut self,
        decoder_input_ids: &Tensor,
        encoder_output: &Tensor,
    ) -> Result<Tensor> {
        self.model.decode(decoder_input_ids, encoder_output, None)
    }

    /// As [`t5::T5ForConditionalGeneration::decode_masked`].
    ///
    /// # Errors
    /// As that.
    pub fn decode_masked(
        &mut self,
        decoder_input_ids: &Tensor,
        encoder_output: &Tensor,
        encoder_attention_mask: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.model
            .decode(decoder_input_ids, encoder_output, encoder_attention_mask)
    }

    /// [`encode`](Self::encode) and [`decode`](Self::decode).
    ///
    /// # Errors
    /// As these.
    pub fn forward(&mut self, input_ids: &Tensor, decoder_input_ids: &Tensor) -> Result<Tensor> {
        let encoder_output = self.encode(input_ids)?;
        self.decode(decoder_input_ids, &encoder_output)
    }

    /// The device of the weights.
    pub fn device(&self) -> &Device {
        &self.model.encoder.device
    }

    /// Forgets the text that was decoded, so that another can begin.
    pub fn clear_kv_cache(&mut self) {
        self.model.reset();
    }
}
